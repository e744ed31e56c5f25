"""An ingest of what was ingested before reads sizes and times alone."""

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from composer_pipeline.lake.store import Lake
from composer_pipeline.testing.samples import sample_sessions_dir
from composer_pipeline.traces.ingest import ingest_changes

MODULE: ModuleType = sys.modules["composer_pipeline.traces.ingest"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One bundled session, in a folder of its own."""
    source = min(sample_sessions_dir().rglob("*.jsonl"), key=lambda file: file.stat().st_size)
    target = tmp_path / "sessions" / "s.jsonl"
    target.parent.mkdir()
    target.write_bytes(source.read_bytes())
    return target.parent


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Note each time that files are compared one by one."""
    plain, calls = MODULE.harvest, list[Any]()

    def harvest(*given: Any, **options: Any) -> Any:
        calls.append(given)
        return plain(*given, **options)

    monkeypatch.setattr(MODULE, "harvest", harvest)
    return calls


def test_nothing_is_compared_twice(tmp_path: Path, folder: Path, compared: list[Any]) -> None:
    lake = Lake(tmp_path / "lake")
    first = ingest_changes(lake, [folder])
    again = ingest_changes(lake, [folder])
    assert len(compared) == 1
    assert first == again | {"new_files": 1, "unchanged_files": 0}
    assert (again["new_files"], again["unchanged_files"]) == (0, 1)
    assert again["states"] == lake.read("states").num_rows > 0
    assert again["lake"] == lake.url


def test_whatever_is_different_is_seen(tmp_path: Path, folder: Path, compared: list[Any]) -> None:
    lake, file = Lake(tmp_path / "lake"), folder / "s.jsonl"
    ingest_changes(lake, [folder])
    os.utime(file, ns=(1, 1))
    assert ingest_changes(lake, [folder])["unchanged_files"] == 1
    with file.open("ab") as grown:
        grown.write(b'{"type":"summary","summary":"x","leafUuid":"y"}\n')
    assert ingest_changes(lake, [folder])["changed_files"] == 1
    (folder / "t.jsonl").write_bytes(file.read_bytes().replace(b'"sessionId":"', b'"sessionId":"t'))
    assert ingest_changes(lake, [folder])["new_files"] == 1
    day = lake.days("states")[0]
    lake.write("states", lake.read("states", days=[day]).drop_columns(["day"]).slice(0, 1), day=day)
    lake.fs.rm(lake.path("sessions", day=day))
    assert ingest_changes(lake, [folder])["states"] == lake.read("states").num_rows > 1
    assert len(compared) == 5
    ingest_changes(lake, [folder])
    assert len(compared) == 5


def test_a_file_that_grows_meanwhile_is_read_the_next_time(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, file, plain = Lake(tmp_path / "lake"), folder / "s.jsonl", MODULE.parse_days

    def parse_days(*given: Any, **options: Any) -> Any:
        with file.open("ab") as grown:
            grown.write(b'{"type":"summary","summary":"x","leafUuid":"y"}\n')
        return plain(*given, **options)

    monkeypatch.setattr(MODULE, "parse_days", parse_days)
    ingest_changes(lake, [folder])
    monkeypatch.setattr(MODULE, "parse_days", plain)
    assert ingest_changes(lake, [folder])["changed_files"] == 1
