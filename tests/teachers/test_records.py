"""What a run notes of a teacher's day."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from composer_pipeline.lake.provenance import read_records
from composer_pipeline.lake.store import Lake
from composer_pipeline.settings import recipes_dir
from composer_pipeline.teachers.replies import ReplyRecords
from composer_pipeline.teachers.teachers import TeacherSet

DAY = "2026-11-16"


def test_a_reply_that_may_be_lost_is_missing_though_nobody_asks_again_yet(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    teacher_set = TeacherSet.load(recipes_dir() / "teachers" / "demo.yaml")
    teacher = teacher_set.teachers[0]
    states = [SimpleNamespace(state_id=name, day=DAY) for name in ("a", "b")]
    questions = SimpleNamespace(states=states, teachers=[teacher], teacher_set=teacher_set)
    notes = ReplyRecords(lake, cast(Any, questions), [DAY])
    asked = [(state.state_id, teacher.name) for state in states]
    for unknown, missing in ((1, 1), (0, 0)):
        figures = {DAY: {teacher.name: {"unknown": unknown}}}
        notes.write(figures, asked, {(teacher.name, DAY): 2}, {}, tried=[teacher.name])
        (made,) = read_records(lake, "replies").values()
        assert made.missing == missing
