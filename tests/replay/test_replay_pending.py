"""A day is asked again when it has a state without any reply, and no earlier than needed."""

from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path

from composer_pipeline.actions import Action
from composer_pipeline.lake.store import Lake
from composer_pipeline.replay.engine import replay
from composer_pipeline.replay.pending import WINDOW_DAYS, pending_days
from composer_pipeline.replay.teachers import TeacherSet
from composer_pipeline.testing.openrouter import LoopbackOpenRouter
from composer_pipeline.testing.states import DAY, write_session

TODAY = date.fromisoformat(DAY)


def test_a_grown_session_makes_its_day_pending_again(
    tmp_path: Path, teacher_set: TeacherSet, serve: Callable[..., LoopbackOpenRouter]
) -> None:
    lake = Lake(tmp_path / "grows")
    assert pending_days(lake, TODAY) == []
    write_session(lake, "s", [(Action("one"), "")])
    assert pending_days(lake, TODAY) == [DAY]
    serve()
    replay(lake, teacher_set, max_usd=Decimal(1), teachers=[teacher_set.teachers[0].name])
    assert pending_days(lake, TODAY) == []
    write_session(lake, "s", [(Action("one"), ""), (Action("two"), "")])
    assert pending_days(lake, TODAY) == [DAY]


def test_only_the_window_counts(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    write_session(lake, "s", [(Action("one"), "")])
    assert pending_days(lake, date.fromordinal(TODAY.toordinal() + WINDOW_DAYS)) == [DAY]
    assert pending_days(lake, date.fromordinal(TODAY.toordinal() + WINDOW_DAYS + 1)) == []
    assert pending_days(lake, date.fromordinal(TODAY.toordinal() - 1)) == []
