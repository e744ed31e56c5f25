"""What a second account of a lake is told: days that are done, days that have nothing."""

from pathlib import Path

import msgspec
import pytest

from composer_pipeline.lake.provenance import FileStamps, record_of, write_record
from composer_pipeline.lake.store import Lake
from composer_pipeline.maintenance.status import days_held, empty_days
from composer_pipeline.settings import recipes_dir
from composer_pipeline.teachers.replies import replies_derivation
from composer_pipeline.teachers.teachers import TeacherSet
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


def test_a_day_that_a_teacher_has_not_answered_whole_is_not_done(lake: Lake) -> None:
    teacher_set = TeacherSet.load(recipes_dir() / "teachers" / "demo.yaml")
    teacher = teacher_set.teachers[0]
    for day, missing in ((DAYS[0], 0), (DAYS[1], 1)):
        row = {"state_id": "s", "session_id": "one", "request_hash": "r", "status": "ok"}
        lake.write("replies", [row], teacher=teacher.name, day=day)
        origin = replies_derivation(teacher_set, teacher, day)
        made = msgspec.structs.replace(record_of(origin, FileStamps(lake)), missing=missing)
        write_record(lake, origin, made)
    assert days_held(lake, teacher_set)[f"teacher_replies/{teacher.name}"] == [DAYS[0]]
