"""What a second account of a lake is told: days that are done, days that have nothing."""

from pathlib import Path

import pytest

from composer_pipeline.care import empty_days
from composer_pipeline.lake import Lake
from composer_pipeline.traces.ingest import ingest
from tests.fixtures.sessions import Script

DAYS = ["2026-11-15", "2026-11-16", "2026-11-17"]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def write(source: Path, day: str) -> None:
    s = Script(f"of-{day}", day)
    s.user("go")
    s.say("m1", "done")
    s.write(source)


def test_a_day_whose_sessions_wait_at_the_source_is_not_empty(lake: Lake, tmp_path: Path) -> None:
    source = tmp_path / "projects"
    write(source, DAYS[0])
    ingest(lake, [source])
    write(source, DAYS[1])
    assert empty_days(lake, [source], DAYS) == [DAYS[2]]
    # The source may be gone; what was archived is still known.
    assert empty_days(lake, [tmp_path / "gone"], DAYS) == DAYS[1:]
