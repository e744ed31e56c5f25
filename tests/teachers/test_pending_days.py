"""Runs beside and after each other: what a day still lacks, and what a partition holds."""

from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.actions import Action
from composer_pipeline.lake.store import Lake
from composer_pipeline.teachers.replies import WINDOW_DAYS, pending_days
from composer_pipeline.teachers.run import replay
from composer_pipeline.teachers.teachers import TeacherSet
from composer_pipeline.testing.openrouter.server import LoopbackOpenRouter
from tests.fixtures.lake_states import DAY, write_session

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


def test_a_slower_run_does_not_undo_what_a_faster_one_wrote(
    tmp_path: Path,
    teacher_set: TeacherSet,
    serve: Callable[..., LoopbackOpenRouter],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lake = Lake(tmp_path / "shared")
    write_session(lake, "s", [(Action(str(n)), "") for n in range(6)])
    serve()
    name = teacher_set.teachers[0].name
    write = Lake.write
    inner: list[int] = []

    def slow(self: Lake, table: str, *args: Any, **keys: str) -> int:
        if table == "replies" and not inner:
            inner.append(1)  # between the slower run's reading and its writing
            replay(self, teacher_set, max_usd=Decimal(1), teachers=[name])
        return write(self, table, *args, **keys)

    monkeypatch.setattr(Lake, "write", slow)
    replay(lake, teacher_set, max_usd=Decimal(1), teachers=[name], max_states=2)
    assert len(lake.rows("replies")) == 6
