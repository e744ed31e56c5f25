"""A night that is killed before any of its writes: the next one makes it good."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.lake.store import Lake
from composer_pipeline.nights import model_registry as registry
from composer_pipeline.nights.night import accept, nights
from tests.nights.killed_night import before_write
from tests.nights.made import House, Learner, days, house, sessions, write_dataset
from tests.places import ROOT

ONE, TWO, THREE = "2026-11-02", "2026-11-03", "2026-11-04"


class Killed(BaseException):
    """In place of a kill."""


def kill() -> None:
    raise Killed


def content(here: House) -> dict[str, Any]:
    """Return what nights leave in a lake, without times and the place of the runs."""
    lake = here.lake
    found: dict[str, Any] = {table: lake.rows(table) for table in ("anchors", "night_rows")}
    folders = ("models/versions", "nights")
    for name in ["models/current", *(n for f in folders for n in registry.listed(lake, f))]:
        text = re.sub(r'"/[^"]*/runs/', '"', lake.get_bytes(name).decode())
        found[name] = json.loads(text, object_hook=timeless)
    return found


def timeless(fields: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in fields.items() if k not in ("made", "at", "seconds")}


def pointer(here: House) -> int | None:
    found = registry.current(here.lake)
    return found.version if found else None


def copy_of(folder: Path, name: str) -> House:
    """Return a copy of a house; its models stay where they are."""
    new = folder.parent / name
    shutil.copytree(folder / "lake", new / "lake")
    return House(Lake(new / "lake"), Learner(folder / "runs"))


@pytest.mark.parametrize("second", [False, True])
def test_the_same_day_makes_it_good(tmp_path: Path, second: bool) -> None:
    first = house(tmp_path / "first", days(ONE, TWO))
    if second:
        first.night(ONE)
    old, day = pointer(first), TWO if second else ONE
    whole = copy_of(tmp_path / "first", "whole")
    with before_write(-1, kill) as names:
        whole.night(day)
    new, expected = pointer(whole), content(whole)
    assert (old, new) == ((1, 2) if second else (None, 1))
    assert names[-1] == f"nights/{day}.json"
    seen = set()
    for number in range(len(names)):
        here = copy_of(tmp_path / "first", f"killed{number}")
        with pytest.raises(Killed), before_write(number, kill):
            here.night(day)
        seen.add(pointer(here))
        here.night(day)
        assert content(here) == expected, names[number]
    assert seen == ({1, 2} if second else {None, 0, 1})


def test_the_next_day_makes_it_good_though_the_night_was_held_before(tmp_path: Path) -> None:
    first = house(tmp_path / "first", days(ONE))
    first.night(ONE)
    write_dataset(first.lake, [*days(ONE), *sessions(TWO, raters=("agent", "two"))])
    assert first.night(TWO).outcome == "held"
    accept(first.lake, TWO)
    whole = copy_of(tmp_path / "first", "whole")
    with before_write(-1, kill) as names:
        whole.night(TWO)
    whole.night(THREE)
    expected = content(whole)
    stored = names.index("models/versions/000002.json")
    for number in range(len(names)):
        here = copy_of(tmp_path / "first", f"killed{number}")
        with pytest.raises(Killed), before_write(number, kill):
            here.night(TWO)
        assert pointer(here) in (1, 2)
        third = here.night(THREE)
        assert pointer(here) == 2
        assert [v.night for v in registry.versions(here.lake)[1:]] == [
            ONE, TWO if number > stored else THREE
        ]  # fmt: skip
        if number > stored:
            assert content(here) == expected, names[number]
        else:  # its rows are the next night's
            assert (third.outcome, third.rows["new"]) == ("promoted", 18)


def test_what_was_rolled_back_is_not_made_good(tmp_path: Path) -> None:
    here = house(tmp_path / "first", days(ONE))
    with before_write(-1, kill) as names:
        copy_of(tmp_path / "first", "whole").night(ONE)
    with pytest.raises(Killed), before_write(len(names) - 1, kill):
        here.night(ONE)
    assert pointer(here) == 1
    registry.rollback(here.lake)
    here.night(TWO)
    assert pointer(here) == 0
    assert [n.outcome for n in nights(here.lake)] == ["promoted", "nothing new"]


@pytest.mark.parametrize("before", ["models/versions/000002.json", "models/current"])
def test_a_process_that_is_killed(tmp_path: Path, before: str) -> None:
    first = house(tmp_path / "first", days(ONE, TWO))
    first.night(ONE)
    whole = copy_of(tmp_path / "first", "whole")
    with before_write(-1, kill) as names:
        whole.night(TWO)
    here = copy_of(tmp_path / "first", "killed")
    here.learner.folder = tmp_path / "killed" / "runs"
    done = subprocess.run(
        [sys.executable, "-m", "tests.nights.killed_night", str(tmp_path / "killed"), TWO,
         str(names.index(before))],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL
    assert pointer(here) == 1
    here.night(TWO)
    assert not (here.learner.folder / "work").exists()
    assert pointer(here) == 2
    assert content(here) == content(whole)
