"""Small wrong changes, one after the other: does a fast test notice?

    make mutants ROOM=lake            # one room; no ROOM runs them all
    .venv/bin/python -m tests.mutants.run_mutants lake --only 3 4 --quick

Belongs here: applying each change of ``tests/mutants/<room>.yaml`` in a scratch copy of the
checkout and running the tests that concern the changed file. Does not belong here: the changes
and which tests concern them (``table``), what came of each change (``verdicts``).

A change is killed when a selected test fails, survives when all pass, and is stale when its text
is no longer in the file exactly once. The tests of a file are those of its mirrored folder, those
that import the file or its wing, and the others of its room; slow and browser tests are left out,
because a colleague runs the fast ones. They run until one fails: the test that noticed the change
the last time, the file's own tests, then the others, then those of over three seconds, and at the
end the slow ones of the files that the row itself names (``tests``). What killed runs once more
without any change. Verdicts are kept in ``verdicts.json`` (not of a survivor of ``--quick``, nor
of what hangs: a busy machine does both), and ``benchmarks/results/mutants.md`` counts them. A
survivor with ``accepted: reason`` is argued in the table. Exit 1 for a survivor that nobody
argued, a stale change, a kill by a test that fails anyway, or an argued one that is killed after
all.
"""

import argparse
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
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.mutants.table import ROOT, Mutant, imports, mutants, rooms, stages, tests_of
from tests.mutants.verdicts import Verdict, load, save, verdict_now

#: Seconds after which a test run counts as a kill: a change that hangs is noticed.
PATIENCE_S = 300
#: A test that takes longer than this runs only where the quicker ones notice nothing.
QUICK_S = 3.0
#: The verdict on a change whose tests ran out of patience.
HANGS = "killed: it hangs"
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


def judge(
    mutant: Mutant,
    scratch: Path,
    spent: dict[str, float],
    known: Mapping[str, Verdict] | None = None,
    *,
    quick: bool = False,
) -> str:
    """Apply a change in ``scratch``, run its tests, undo it; return the verdict and the test.

    Args:
        mutant: the change.
        scratch: a copy of the checkout.
        spent: seconds that tests (``file::function``) took so far; a run adds to it. What takes
            long meets a change that nothing else notices.
        known: earlier verdicts by the changes' keys: the test that noticed this change runs
            first, and files that noticed many changes before others.
        quick: do not run what takes long at all.
    """
    path = scratch / mutant.file
    kept = path.read_text(encoding="utf-8")
    files = tests_of(mutant)
    if not files:
        return "survived: no test imports the file"
    known = known or {}
    killer = known[mutant.key]["by"] if mutant.key in known else ""
    kills = Counter(verdict["by"].split("::")[0] for verdict in known.values())
    path.write_text(kept.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        if _stands(killer) and (failed := first_failure(scratch, [killer], spent, slow=True)):
            return f"killed: {failed}"
        for stage in stages(mutant):
            often_first = sorted(stage, key=lambda file: -kills[file])
            long = [f"--deselect={name}" for name in spent if spent[name] > QUICK_S]
            if failed := first_failure(scratch, [*often_first, *long], spent):
                return f"killed: {failed}"
        long = [name for name in spent if spent[name] > QUICK_S and name.split("::")[0] in files]
        if long and not quick and (failed := first_failure(scratch, long, spent)):
            return f"killed: {failed}"
        named = list(mutant.tests) if not quick else []
        if named and (failed := first_failure(scratch, named, spent, slow=True)):
            return f"killed: {failed}"
    except TimeoutError:
        return HANGS
    finally:
        path.write_text(kept, encoding="utf-8")
    return "survived"


def _stands(test: str) -> bool:
    """Say whether a test (``file::function``) is still there."""
    file, _, name = test.partition("::")
    path = ROOT / file
    return bool(name) and path.is_file() and f"def {name.split('::')[-1]}(" in path.read_text()


def first_failure(
    scratch: Path,
    tests: Sequence[str],
    spent: dict[str, float] | None = None,
    patience_s: float = PATIENCE_S,
    *,
    slow: bool = False,
) -> str:
    """Run tests (pytest's arguments) in ``scratch`` and return the first that fails, or nothing.

    The process is forked from one that has imported the libraries, and nothing of ours.

    Args:
        scratch: a copy of the checkout.
        tests: files, tests, and options of pytest.
        spent: takes the seconds of each test (``file::function``) that ran.
        patience_s: seconds until the run counts as hanging.
        slow: run those that are marked slow, too, with more patience.

    Raises:
        TimeoutError: it hangs.
    """
    patience_s *= 2 if slow else 1
    with tempfile.NamedTemporaryFile("w+") as log, tempfile.NamedTemporaryFile() as timed:
        report = ["-o", "junit_family=xunit1", f"--junitxml={timed.name}"]
        context = multiprocessing.get_context("forkserver")
        child = context.Process(
            target=_pytest, args=(str(scratch), [*tests, *report], log.name, slow)
        )
        child.start()
        assert child.pid is not None
        child.join(patience_s)
        if child.is_alive():
            os.killpg(child.pid, signal.SIGKILL)
            child.join()
            raise TimeoutError
        if spent is not None and Path(timed.name).stat().st_size:
            spent.update(seconds_of(Path(timed.name)))
        if child.exitcode in (0, pytest.ExitCode.NO_TESTS_COLLECTED):
            return ""
        failed = [line for line in log if line.startswith(("FAILED ", "ERROR "))]
    return failed[0].split()[1].split("[")[0] if failed else "the run ended"


def _pytest(scratch: str, tests: list[str], log: str, slow: bool) -> None:
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
    os.environ["TEST_DEADLINE_S"] = (
        "300" if slow else "60"
    )  # a change that hangs is to fail, not to take the patience
    options = [
        "-x",
        "-q",
        "--tb=line",
        "-p",
        "no:cacheprovider",
        "-m",
        "not ui" if slow else "not slow and not ui",
        "--no-header",
    ]
    sys.exit(pytest.main([*options, *tests]))


def preload(tests: Collection[str]) -> None:
    """Let the process that runs are forked from import what many of the test files import."""
    used: Counter[str] = Counter()
    for path, names in imports():
        if str(path.relative_to(ROOT)) in tests:
            used.update({name.split(".")[0] for name in names})
    often = [name for name, files in used.items() if 3 * files > len(tests) and name not in OWN]
    multiprocessing.get_context("forkserver").set_forkserver_preload([*ALWAYS, *often])


def seconds_of(timed: Path) -> dict[str, float]:
    """Return the seconds of each test (``file::function``) of a JUnit report."""
    spent: dict[str, float] = {}
    for case in ET.parse(timed).getroot().iter("testcase"):
        if file := case.attrib.get("file"):  # a file that cannot be imported has none
            test = f"{file}::{case.attrib['name'].split('[')[0]}"
            spent[test] = spent.get(test, 0.0) + float(case.attrib["time"])
    return spent


def run(
    room: str,
    only: Collection[int] = (),
    known: Mapping[str, Verdict] | None = None,
    *,
    quick: bool = False,
) -> Iterator[tuple[int, Mutant, str, float]]:
    """Yield (number, change, verdict, seconds) for the changes of a room.

    A test that fails without any change, too, would count as noticing every change: what killed
    runs once more at the end, and then its changes are yielded again, as ``unsure``.

    Args:
        room: its table.
        only: numbers of changes; all when empty.
        known: earlier verdicts by the changes' keys.
        quick: leave out tests that take long.
    """
    wanted = {n: m for n, m in enumerate(mutants(room), start=1) if not only or n in only}
    spent: dict[str, float] = {}
    killed: list[tuple[int, Mutant, str]] = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        scratch = Path(folder) / "checkout"
        copy_checkout(scratch)
        preload({test for mutant in wanted.values() for test in tests_of(mutant)})
        for number, mutant in wanted.items():
            began = time.monotonic()
            verdict = "stale"
            if not mutant.stale:
                verdict = judge(mutant, scratch, spent, known, quick=quick)
            if _stands(by := verdict.removeprefix("killed: ")):
                killed.append((number, mutant, by))
            yield number, mutant, verdict, time.monotonic() - began
        for number, mutant, by in _untrue(killed, scratch):
            yield number, mutant, f"unsure: {by} fails without any change, too", 0.0


def _untrue(
    killed: Sequence[tuple[int, Mutant, str]], scratch: Path
) -> list[tuple[int, Mutant, str]]:
    """Return those whose test fails in ``scratch`` as it is."""
    left = sorted({by for _, _, by in killed})
    wrong = set()
    while left and (failed := first_failure(scratch, left, None, 4 * PATIENCE_S, slow=True)):
        if failed not in left:
            raise SystemExit(f"without any change: {failed}")
        wrong.add(failed)
        left.remove(failed)
    return [row for row in killed if row[2] in wrong]


def main() -> int:
    """Print the table; exit 1 when a change went unnoticed."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("room", nargs="*", choices=[*rooms(), []], help="default: all")
    parser.add_argument("--only", type=int, nargs="+", default=[], help="numbers of changes")
    parser.add_argument("--quick", action="store_true", help="leave out tests of over 3 s")
    parser.add_argument("--new", action="store_true", help="changes without a verdict only")
    options = parser.parse_args()
    found = load()
    bad = 0
    seen: dict[tuple[str, int], str] = {}
    for room in options.room or rooms():
        wanted = set(options.only)
        if options.new:
            left = {n for n, m in enumerate(mutants(room), start=1) if m.key not in found}
            wanted = left & wanted if wanted else left
            if not wanted:
                continue
        for number, mutant, verdict, seconds in run(room, wanted, found, quick=options.quick):
            word = verdict.split(":")[0]
            # On a busy machine many tests are long, and a run that hangs may only be slow.
            doubtful = options.quick if word == "survived" else verdict == HANGS
            if word in ("killed", "survived") and not doubtful:
                found[mutant.key] = verdict_now(verdict)
            else:
                found.pop(mutant.key, None)
            if word == "survived" and mutant.accepted:
                word = "accepted"
            seen[room, number] = word
            why = mutant.accepted or mutant.loses
            print(f"{room} {number:3} {word:9} {seconds:5.1f} s  {mutant.file}: {why}")
            print(f"{'':24}{verdict.partition(': ')[2]}", flush=True)
            bad += word == "killed" and bool(mutant.accepted)
            save(found)
    counts = Counter((room, word) for (room, _), word in seen.items())
    for (room, word), n in sorted(counts.items()):
        print(f"{room}: {n} {word}")
        bad += word in ("survived", "stale", "unsure")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
