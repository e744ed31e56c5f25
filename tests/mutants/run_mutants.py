"""Small wrong changes, one after the other: does a fast test notice?

    make mutants ROOM=lake            # one room; no ROOM runs them all
    .venv/bin/python tests/mutants/run_mutants.py lake --only 3 4 --quick

Belongs here: applying each change of ``tests/mutants/<room>.yaml`` in a scratch copy of the
checkout and running the tests that concern the changed file. Does not belong here: the changes.

A change is killed when a selected test fails, survives when all pass, and is stale when its
text is no longer in the file exactly once. The tests of a file are those of its mirrored folder
and those that import the file or its wing; slow and browser tests are left out, because a
colleague runs the fast ones. The run without any change, which comes first, is timed: a change
meets the quick tests before those that took longer than three seconds. A survivor with
``accepted: reason`` is argued in the table. Exit 1 for a survivor that nobody argued, a stale
change, or an argued one that is killed after all.
"""

import argparse
import ast
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
TABLES = Path(__file__).parent
#: Seconds after which a test run counts as a kill: a change that hangs is noticed.
PATIENCE_S = 300
#: A test that takes longer than this runs only where the quicker ones notice nothing.
QUICK_S = 3.0
#: Packages of the checkout, which a test run imports from its copy.
OWN = frozenset({"assets", "benchmarks", "composer_pipeline", "examples", "tests", "trainers"})
#: Libraries that nearly every test loads.
ALWAYS = (
    "_pytest.pytester",
    "aiohttp",
    "cyclopts",
    "duckdb",
    "hypothesis",
    "msgspec",
    "orjson",
    "pyarrow.parquet",
    "pydantic",
    "rich.console",
    "xdist",
)


@dataclass(frozen=True)
class Mutant:
    """One wrong change.

    Attributes:
        file: path in the checkout.
        old: a text that stands in the file exactly once; ``new`` takes its place.
        loses: what a user would lose.
        accepted: why it may survive; empty for a change that a test must notice.
        tests: paths of further tests, where the selection would miss them.
    """

    file: str
    old: str
    new: str
    loses: str
    accepted: str = ""
    tests: tuple[str, ...] = ()

    @property
    def stale(self) -> bool:
        """Say whether the text to change is not in the file exactly once."""
        path = ROOT / self.file
        return not path.is_file() or path.read_text(encoding="utf-8").count(self.old) != 1


def rooms() -> list[str]:
    """Return the rooms that have a table, sorted."""
    return sorted(path.stem for path in TABLES.glob("*.yaml"))


def mutants(room: str) -> list[Mutant]:
    """Return the changes of a room, in the order of its table."""
    rows = yaml.safe_load((TABLES / f"{room}.yaml").read_text(encoding="utf-8"))
    return [Mutant(**{**row, "tests": tuple(row.get("tests", ()))}) for row in rows]


def tests_of(mutant: Mutant) -> list[str]:
    """Return the test files of a change: those of the file's own name first."""
    module = mutant.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    wing = module.rpartition(".")[0]
    parts = mutant.file.removesuffix(".py").removeprefix("composer_pipeline/").split("/")
    named = ROOT / "tests" / Path(*parts[:-1]) / f"test_{parts[-1]}.py"
    folder = ROOT / "tests" / Path(*parts[:-1])
    while not folder.is_dir():  # a wing without tests of its own has those of its room
        folder = folder.parent
    mirrored = sorted(folder.glob("test_*.py")) if folder != ROOT / "tests" else []
    direct = [path for path, names in _imports() if module in names]
    through = [path for path, names in _imports() if wing in names and wing.count(".") > 1]
    own = [named] if named.is_file() else []
    found = [*own, *mirrored, *direct, *through, *(ROOT / name for name in mutant.tests)]
    return list(dict.fromkeys(str(path.relative_to(ROOT)) for path in found))


@cache
def _imports() -> tuple[tuple[Path, frozenset[str]], ...]:
    """Return each test file with the dotted names that it imports, or its conftest does."""
    out = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if "ui" in path.parts or "chaos" in path.parts or path.parent == TABLES:
            continue
        conftest = path.with_name("conftest.py")
        names = set(_imported(path))
        if conftest.is_file():
            names |= set(_imported(conftest))
        for helper in sorted(name for name in names if name.startswith("tests.")):
            file = ROOT / (helper.replace(".", "/") + ".py")
            if file.is_file():
                names |= set(_imported(file))
        out.append((path, frozenset(names)))
    return tuple(out)


@cache
def _imported(path: Path) -> frozenset[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            # A subprocess's code, or the path of what is patched.
            names |= {word for word in node.value.split() if word.startswith("composer_pipeline.")}
    return frozenset(names)


def copy_checkout(folder: Path) -> None:
    """Copy the tracked and new files of the checkout, as they are now, into ``folder``."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    for name in listed.decode().split("\0"):
        source = ROOT / name
        if name and source.is_file():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    corpus = ROOT.parent / "shared"
    if corpus.is_dir():
        (folder.parent / "shared").symlink_to(corpus)


def judge(mutant: Mutant, scratch: Path, long: Collection[str] = (), *, quick: bool = False) -> str:
    """Apply a change in ``scratch``, run its tests, undo it; return the verdict and the test.

    Args:
        mutant: the change.
        scratch: a copy of the checkout.
        long: tests (``file::function``) that run after the others.
        quick: do not run those at all.
    """
    path = scratch / mutant.file
    kept = path.read_text(encoding="utf-8")
    tests = tests_of(mutant)
    if not tests:
        return "survived: no test imports the file"
    path.write_text(kept.replace(mutant.old, mutant.new), encoding="utf-8")
    last = [name for name in long if name.split("::")[0] in tests]
    try:
        failed = first_failure(scratch, [*tests, *(f"--deselect={name}" for name in last)])
        if last and not failed and not quick:
            failed = first_failure(scratch, last)
    except TimeoutError:
        return "killed: it hangs"
    finally:
        path.write_text(kept, encoding="utf-8")
    return f"killed: {failed}" if failed else "survived"


def first_failure(scratch: Path, tests: Sequence[str], patience_s: float = PATIENCE_S) -> str:
    """Run tests (pytest's arguments) in ``scratch`` and return the first that fails, or nothing.

    The process is forked from one that has imported the libraries, and nothing of ours.

    Raises:
        TimeoutError: they take longer than ``patience_s`` seconds.
    """
    with tempfile.NamedTemporaryFile("w+") as log:
        context = multiprocessing.get_context("forkserver")
        child = context.Process(target=_pytest, args=(str(scratch), list(tests), log.name))
        child.start()
        assert child.pid is not None
        child.join(patience_s)
        if child.is_alive():
            os.killpg(child.pid, signal.SIGKILL)
            child.join()
            raise TimeoutError
        if child.exitcode in (0, pytest.ExitCode.NO_TESTS_COLLECTED):
            return ""
        failed = [line for line in log if line.startswith(("FAILED", "ERROR"))]
    return failed[0].split(" - ")[0].strip() if failed else "the run ended"


def _pytest(scratch: str, tests: list[str], log: str) -> None:
    os.setpgrp()  # what hangs is ended with the programs that it started
    out = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.chdir(scratch)
    sys.path.insert(0, scratch)
    for name in [name for name in sys.modules if name.split(".")[0] in OWN]:
        del sys.modules[name]
    os.environ |= {"PYTHONPATH": scratch, "OMP_NUM_THREADS": "1"}
    # The same size and second would hide a change.
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    os.environ["TEST_DEADLINE_S"] = "60"  # a change that hangs is to fail, not to take the patience
    options = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not slow and not ui", "--no-header"]
    sys.exit(pytest.main([*options, *tests]))


def preload(tests: Collection[str]) -> None:
    """Let the process that runs are forked from import what many of the test files import."""
    used: Counter[str] = Counter()
    for path, names in _imports():
        if str(path.relative_to(ROOT)) in tests:
            used.update({name.split(".")[0] for name in names})
    often = [name for name, files in used.items() if 3 * files > len(tests) and name not in OWN]
    multiprocessing.get_context("forkserver").set_forkserver_preload([*ALWAYS, *often])


def long_tests(timed: Path) -> list[str]:
    """Return the tests of a JUnit report, as ``file::function``, that took over ``QUICK_S``."""
    spent: dict[str, float] = {}
    for case in ET.parse(timed).getroot().iter("testcase"):
        name = case.attrib["name"].split("[")[0]
        test = f"{case.attrib['file']}::{name}"
        spent[test] = spent.get(test, 0.0) + float(case.attrib["time"])
    return [name for name, seconds in spent.items() if seconds > QUICK_S]


def run(
    names: list[str], only: Collection[int] = (), *, quick: bool = False
) -> Iterator[tuple[str, int, Mutant, str, float]]:
    """Yield (room, number, change, verdict, seconds) for every change of the rooms."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        scratch, timed = Path(folder) / "checkout", Path(folder) / "timed.xml"
        copy_checkout(scratch)
        preload({test for room in names for mutant in mutants(room) for test in tests_of(mutant)})
        for room in names:
            numbered = enumerate(mutants(room), start=1)
            wanted = {n: mutant for n, mutant in numbered if not only or n in only}
            tests = sorted({test for mutant in wanted.values() for test in tests_of(mutant)})
            report = ["-o", "junit_family=xunit1", f"--junitxml={timed}"]
            # A test that fails anyway would count every change as noticed.
            if failed := first_failure(scratch, [*tests, *report], 4 * PATIENCE_S):
                raise SystemExit(f"{room}: without any change {failed}")
            long = long_tests(timed)
            for number, mutant in wanted.items():
                began = time.monotonic()
                verdict = "stale" if mutant.stale else judge(mutant, scratch, long, quick=quick)
                yield room, number, mutant, verdict, time.monotonic() - began


def main() -> int:
    """Print the table; exit 1 when a change went unnoticed."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("room", nargs="*", choices=[*rooms(), []], help="default: all")
    parser.add_argument("--only", type=int, nargs="+", default=[], help="numbers of changes")
    parser.add_argument("--quick", action="store_true", help="leave out tests of over 3 s")
    options = parser.parse_args()
    counts: dict[str, dict[str, int]] = {}
    bad = 0
    for room, number, mutant, verdict, seconds in run(
        options.room or rooms(), options.only, quick=options.quick
    ):
        word = verdict.split(":")[0]
        if word == "survived" and mutant.accepted:
            word = "accepted"
        bad += word in ("survived", "stale") or (word == "killed" and bool(mutant.accepted))
        row = counts.setdefault(room, {})
        row[word] = row.get(word, 0) + 1
        why = mutant.accepted or mutant.loses
        print(f"{room} {number:3} {word:9} {seconds:5.1f} s  {mutant.file}: {why}", flush=True)
        if word == "killed":
            print(f"{'':24}by {verdict.removeprefix('killed: ')}", flush=True)
    for room, row in counts.items():
        total = sum(row.values())
        print(f"{room}: {total} changes, " + ", ".join(f"{n} {w}" for w, n in sorted(row.items())))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
