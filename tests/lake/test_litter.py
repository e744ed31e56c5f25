"""A lake that cannot be littered: days are dates, and only stages write into it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline import (
    InputError,
    Lake,
    build_hints,
    build_pairs,
    export,
    export_sessions,
    ingest,
    load_states,
    normalize,
    write_statistics,
)
from composer_pipeline.maintenance.forget import withdraw
from composer_pipeline.maintenance.verify import verify
from composer_pipeline.testing.samples import sample_sessions_dir
from composer_pipeline.traces.parse import parse_days, rewrite_days

RECIPE = Path(__file__).parents[2] / "recipes" / "normalization" / "default.yaml"
BAD: list[Any] = ["2026-11-16", ["2026-1-6"], ["-"], ["20261116"], ["2026-02-30"], [0], ["all"]]
STAGES: dict[str, Callable[[Lake, Any], object]] = {
    "ingest": lambda lake, days: ingest(lake, [sample_sessions_dir()], days=days),
    "hints": lambda lake, days: build_hints(lake, days=days),
    "pairs": lambda lake, days: build_pairs(lake, days=days),
    "normalize": lambda lake, days: normalize(lake, RECIPE, days=days),
    "statistics": lambda lake, days: write_statistics(lake, days=days),
    "states": lambda lake, days: list(load_states(lake, days=days)),
    "parse": lambda lake, days: parse_days(lake, days),
    "reparse": lambda lake, days: rewrite_days(lake, days=days),
    "verify": lambda lake, days: verify(lake, days),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = Lake(tmp_path_factory.mktemp("litter") / "lake")
    ingest(lake, [sample_sessions_dir()])
    build_pairs(lake)
    return lake


def _files(lake: Lake) -> set[str]:
    root = Path(lake.root)
    return {str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()}


@pytest.mark.parametrize("days", BAD)
@pytest.mark.parametrize("stage", STAGES)
def test_what_is_no_day_writes_nothing(made: Lake, stage: str, days: Any) -> None:
    before = _files(made)
    with pytest.raises(InputError, match=r"is no list of days|is not a date of the form"):
        STAGES[stage](made, days)
    assert _files(made) == before


def test_a_partition_is_of_a_date(made: Lake) -> None:
    with pytest.raises(InputError, match="table hints: day 'today' is not a date"):
        made.write("hints", [], day="today")


LITTER = (
    "states/day=-/part.parquet",
    "states/day=2026-11-16/copy.parquet",
    "notes.txt",
    "hints/teacher=x/part.parquet",
    "old_pairs/day=2026-11-16/part.parquet",
    "states/part.parquet",
)


@pytest.mark.parametrize("name", LITTER)
def test_verify_finds_what_nobody_knows(made: Lake, name: str) -> None:
    assert verify(made).problems == []
    litter = Path(made.root, name)
    litter.parent.mkdir(parents=True, exist_ok=True)
    litter.write_bytes(Path(made.path("states", day=made.days("states")[0])).read_bytes())
    try:
        (problem,) = verify(made).problems
        assert f"{name} is no file of a lake; move it elsewhere" in problem
        assert "-" not in made.days("states")
    finally:
        litter.unlink()


def test_what_stages_write_is_known(made: Lake) -> None:
    """Everything that a whole pipeline leaves in a lake, reports and ledger included."""
    root = Path(made.root)
    for name in ("reports/dataset-x.html", "runs/a/state.pt", ".locks/traces", "ledger.db",
                 "states/day=2026-11-16/.part.parquet.0a.tmp"):  # fmt: skip
        path = root / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"")
    withdraw(made, session=made.read("sessions")["session_id"][0].as_py())
    assert [p for p in verify(made).problems if "no file of a lake" in p] == []


def test_the_lake_is_no_source_and_no_target(made: Lake, tmp_path: Path) -> None:
    root = Path(made.root)
    with pytest.raises(InputError, match="is inside lake"):
        ingest(made, [root / "archive"])
    for out in (root / "out", root / "states" / "x", root / ".." / root.name / "y"):
        with pytest.raises(InputError, match=r"--out .* is inside lake"):
            export_sessions(made, "atif", out)
    with pytest.raises(InputError, match=r"--out .* is inside lake"):
        export(made, "dpo", root / "x.parquet")


def test_a_folder_around_the_lake_is_harvested_without_it(tmp_path: Path) -> None:
    session = next(sample_sessions_dir().rglob("*.jsonl"))
    (tmp_path / session.name).write_bytes(session.read_bytes())
    lake = Lake(tmp_path / "lake")
    assert ingest(lake, [tmp_path]).totals["files"] == 1
    again = ingest(lake, [tmp_path])
    assert (again.totals["files"], again.totals["unreadable_files"]) == (1, 0)
