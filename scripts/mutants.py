"""Draw small changes of one package at random; print those that none of its quick tests notices.

    python -m scripts.mutants lake [--count 100] [--seed 0]

cosmic-ray makes the changes, in a worktree below ``build/``; the tests are those of ``tests/lake``.
Expect count times the seconds of these tests. Exits 1 if a change survives.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))  # scripts are no package

from peers import environment  # noqa: E402

VERSIONS = {"cosmic-ray": "8.7.0"}
#: Runs in cosmic-ray's environment: keeps a sample of the session's changes.
SAMPLE = """
import random, sys
from cosmic_ray.work_db import WorkDB, use_db
with use_db(sys.argv[1], WorkDB.Mode.open) as db:
    items = sorted(db.work_items, key=lambda i: [(str(m.module_path), m.start_pos, m.operator_name,
                                                  m.occurrence) for m in i.mutations])
    drawn = random.Random(int(sys.argv[3])).sample(items, min(int(sys.argv[2]), len(items)))
    db.clear()
    db.add_work_items(drawn)
    print(f"{len(drawn)} of {len(items)} changes", flush=True)
"""
#: Likewise: prints each result as a JSON line.
RESULTS = """
import json, sys
from cosmic_ray.work_db import WorkDB, use_db
with use_db(sys.argv[1], WorkDB.Mode.open) as db:
    for item, result in db.completed_work_items:
        print(json.dumps([result.test_outcome and result.test_outcome.value, result.diff or ""]))
"""


def main() -> int:
    """Run the changes; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("package", help="a package of composer_pipeline with tests of its name")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    tests = f"tests/{given.package}"
    if not (ROOT / tests).is_dir():
        sys.exit(f"mutants: there is no folder {tests}")
    python = environment(VERSIONS)
    tree = ROOT / "build" / "mutants"
    _remove(tree)
    subprocess.run(["git", "worktree", "add", "-q", "--detach", str(tree)], cwd=ROOT, check=True)
    try:
        return _run(python, tree, given.package, tests, given.count, given.seed)
    finally:
        _remove(tree)


def _run(python: Path, tree: Path, package: str, tests: str, count: int, seed: int) -> int:
    command = f"{sys.executable} -m pytest -x -q -m 'not slow' -p no:cacheprovider {tests}"
    config, session = tree / "mutants.toml", tree / "mutants.sqlite"
    config.write_text(
        f'[cosmic-ray]\nmodule-path = "composer_pipeline/{package}"\ntimeout = 300.0\n'
        f"excluded-modules = []\ntest-command = {json.dumps(command)}\n"
        '[cosmic-ray.distributor]\nname = "local"\n'
    )
    env = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    tool = [str(python.with_name("cosmic-ray"))]

    def run(*words: str) -> None:
        subprocess.run(words, cwd=tree, env=env, check=True)

    run(*tool, "init", str(config), str(session))
    run(str(python), "-c", SAMPLE, str(session), str(count), str(seed))
    run(*tool, "exec", str(config), str(session))
    listed = subprocess.run(
        [str(python), "-c", RESULTS, str(session)],
        cwd=tree,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    results = [json.loads(line) for line in listed.splitlines()]
    survivors = [diff for outcome, diff in results if outcome == "survived"]
    for diff in survivors:
        print(diff)
    print(f"{package}: {len(results) - len(survivors)} of {len(results)} changes were noticed")
    return int(bool(survivors))


def _remove(tree: Path) -> None:
    subprocess.run(
        ["git", "worktree", "remove", "--force", str(tree)],
        cwd=ROOT, check=False, capture_output=True,
    )  # fmt: skip
    shutil.rmtree(tree, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
