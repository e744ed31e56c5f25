"""Days begin with the first session: of the lake, or at the source."""

import gzip
import os
from pathlib import Path

import pytest

from composer_pipeline.lake.store import Lake
from composer_pipeline.testing.samples import sample_sessions_dir
from composer_pipeline.traces.archive import harvest, session_days
from composer_pipeline.traces.discover import EARLIEST, first_day


def test_the_first_session_of_lake_and_source(tmp_path: Path) -> None:
    lake, samples = str(tmp_path / "lake"), sample_sessions_dir()
    days = sorted(session_days([samples]))
    assert first_day(lake, [samples]) == days[0]
    harvest(Lake(lake), [samples], days=days[1:])
    assert first_day(lake, []) == days[1]
    assert first_day(lake, [samples]) == days[0]


def test_where_nothing_is_days_begin_with_claude_code(tmp_path: Path) -> None:
    assert first_day(str(tmp_path / "lake"), [tmp_path / "missing"]) == EARLIEST
    assert not (tmp_path / "lake").exists()


def test_wrong_clocks_and_odd_files_move_nothing(tmp_path: Path) -> None:
    def write(name: str, data: bytes) -> None:
        (tmp_path / name).write_bytes(data)
        os.utime(tmp_path / name, (0, 0))

    write("old.jsonl", b'{"timestamp":"1970-01-01T00:00:00Z"}\n')
    write("late.jsonl", b'{"timestamp":"2999-01-01T00:00:00Z"}\n')
    write("cut.jsonl.gz", gzip.compress(b"x" * 100)[:-9])
    write("empty.jsonl", b"")
    assert first_day(str(tmp_path / "lake"), [tmp_path]) == EARLIEST
    write("good.jsonl.gz", gzip.compress(b'{"timestamp":"2026-02-03T23:59:59Z"}\n'))
    assert first_day(str(tmp_path / "lake"), [tmp_path]) == "2026-02-03"


def test_a_lake_that_is_away_hides_no_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> list[str]:
        raise OSError("away")

    monkeypatch.setattr(Lake, "days", away)
    assert first_day(str(tmp_path / "lake"), [sample_sessions_dir()]) == EARLIEST
