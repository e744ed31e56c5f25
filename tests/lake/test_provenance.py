"""What a partition was made from: noted before its inputs are read, compared by their bytes."""

from pathlib import Path

import pytest

from composer_pipeline.lake.provenance import (
    Derivation,
    FileStamps,
    differences,
    read_records,
    recorded,
)
from composer_pipeline.lake.store import Lake

DAYS = ("2026-11-16", "2026-11-17")


def origin(day: str, *teachers: str) -> Derivation:
    inputs = [("replies", {"teacher": teacher, "day": day}) for teacher in teachers]
    return Derivation("votes", {"day": day}, inputs, {"rules": "1"})


def answer(lake: Lake, day: str, teacher: str, text: str) -> None:
    lake.write("replies", [{"state_id": text}], teacher=teacher, day=day)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = Lake(tmp_path / "lake")
    for day in DAYS:
        for teacher in ("one", "two"):
            answer(made, day, teacher, "before")
    return made


def why(lake: Lake, now: Derivation) -> list[str]:
    return differences(now, read_records(lake, "votes").get(now.record_name), FileStamps(lake))


def test_an_input_that_changes_while_a_stage_runs_was_not_read(lake: Lake) -> None:
    """Also where the days of the stage share what they know of the files."""
    stamps = FileStamps(lake)
    first, second = (origin(day, "one", "two") for day in DAYS)
    with recorded(lake, first, stamps):
        answer(lake, DAYS[0], "two", "after")
        answer(lake, DAYS[1], "one", "after")
    with recorded(lake, second, stamps):
        pass
    assert why(lake, first) == [f"replies/teacher=two/day={DAYS[0]} was made again"]
    assert why(lake, second) == [], "what was written before the day was read is what it is made of"


def test_an_input_that_is_gone_is_a_change(lake: Lake) -> None:
    with recorded(lake, origin(DAYS[0], "one", "two"), FileStamps(lake)):
        pass
    assert why(lake, origin(DAYS[0], "one")) == [f"replies/teacher=two/day={DAYS[0]} is gone"]
    lake.delete("replies", teacher="two", day=DAYS[0])
    assert why(lake, origin(DAYS[0], "one", "two")) == [
        f"replies/teacher=two/day={DAYS[0]} was made again"
    ]


def test_each_file_is_read_once(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every teacher of a replay is bought with the same states."""
    opened: list[str] = []
    reads = Lake.open

    def counted(self: Lake, path: str, *rest: object) -> object:
        opened.append(path)
        return reads(self, path, *rest)

    monkeypatch.setattr(Lake, "open", counted)
    stamps = FileStamps(lake)
    for _ in range(3):
        with recorded(lake, origin(DAYS[0], "one", "two"), stamps):
            pass
    assert len(opened) == len(set(opened)) == 2
