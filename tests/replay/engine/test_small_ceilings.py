"""A small ceiling is used, and never passed."""

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

from composer_pipeline.lake.store import Lake
from composer_pipeline.replay.engine import ReplayReport, replay
from composer_pipeline.replay.teachers import TeacherSet
from composer_pipeline.testing.openrouter.server import LoopbackOpenRouter
from composer_pipeline.testing.states import write_sessions


def asked(lake: Lake, teacher_set: TeacherSet, usd: Decimal) -> ReplayReport:
    chosen = ["careful", "contrarian"]
    return replay(lake, teacher_set, max_usd=usd, teachers=chosen, run_id="run")


def test_smaller_calls_that_fit_are_taken(
    lake: Lake, teacher_set: TeacherSet, serve: Callable[..., LoopbackOpenRouter], tmp_path: Path
) -> None:
    other = Lake(tmp_path / "other")
    for one in (lake, other):
        write_sessions(one, sessions=28, turns=4)
    serve()
    data = teacher_set.model_dump()
    for teacher in data["teachers"]:
        teacher["max_tokens"] = 64  # a worst case is then a few times the bill
    small = TeacherSet.model_validate(data)
    ceiling = asked(other, small, Decimal(1)).spent_usd * Decimal("0.8")
    serve()  # another one, whose response cache is empty
    report = asked(lake, small, ceiling)
    assert report.exhausted_scope == "run:run"
    assert Decimal("0.9") * ceiling <= report.spent_usd <= ceiling
    assert report.left_usd is not None
    assert report.next_call_usd is not None
    assert report.left_usd < report.next_call_usd
