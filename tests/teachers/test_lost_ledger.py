"""A ledger that is gone is not an empty one."""

import shutil
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.errors import InputError, StorageError
from composer_pipeline.lake.store import Lake
from composer_pipeline.money import Pico
from composer_pipeline.teachers.ledger import operations
from composer_pipeline.teachers.ledger.ledger import Ledger
from composer_pipeline.teachers.ledger.values import Call
from composer_pipeline.teachers.replies import rebuild
from composer_pipeline.teachers.run import replay
from composer_pipeline.teachers.teachers import TeacherSet
from composer_pipeline.testing.openrouter.faults import Fault
from composer_pipeline.testing.openrouter.server import LoopbackOpenRouter

Serve = Callable[..., LoopbackOpenRouter]


@pytest.mark.parametrize("gone", ["deleted", "older"])
def test_a_lost_ledger_is_refused_and_rebuilt_from_the_replies(
    lake: Lake, teacher_set: TeacherSet, serve: Serve, gone: str
) -> None:
    server = serve()
    path = Path(lake.root) / "ledger.db"
    replay(lake, teacher_set, max_usd=Decimal(1), teachers=["careful"], max_states=2)
    shutil.copy(path, path.with_suffix(".old"))
    replay(lake, teacher_set, max_usd=Decimal(1))
    rows = lake.rows("replies")
    for name in ("ledger.db", "ledger.db-wal", "ledger.db-shm"):
        (Path(lake.root) / name).unlink(missing_ok=True)
    if gone == "older":
        shutil.copy(path.with_suffix(".old"), path)
    requests = server.requests
    with pytest.raises(InputError, match="budget rebuild"):
        replay(lake, teacher_set, max_usd=Decimal(1))
    with Ledger(path) as ledger:
        report = rebuild(lake, ledger)
        assert report["restored"] == len(rows) - (2 if gone == "older" else 0)
        assert ledger.status()["global"].spent == server.billed
        assert rebuild(lake, ledger)["restored"] == 0
    again = replay(lake, teacher_set, max_usd=Decimal(1))
    assert (again.calls, server.requests) == (0, requests)
    told = ("state_id", "teacher", "status", "action", "cost_picodollars", "created_at")
    assert [[row[k] for k in told] for row in lake.rows("replies")] == [
        [row[k] for k in told] for row in rows
    ]


def test_replies_are_restored_into_either_database(
    lake: Lake, teacher_set: TeacherSet, serve: Serve, target: str | Path
) -> None:
    """With the bill of each, on the day and the teacher that it was charged to."""
    server = serve()
    with Ledger(Path(lake.root) / "ledger.db") as before:
        replay(lake, teacher_set, max_usd=Decimal(1), teachers=["careful"], ledger=before)
        charged = {n: s.spent for n, s in before.status().items() if not n.startswith("run:")}
    with pytest.raises(InputError, match="budget rebuild"):
        replay(lake, teacher_set, max_usd=Decimal(1), teachers=["careful"], ledger=target)
    with Ledger(target) as ledger:
        report = rebuild(lake, ledger)
        assert (report["restored"], report["cost_picodollars"]) == (12, server.billed)
        found = ledger.status()
        assert {n: s.spent for n, s in found.items() if not n.startswith("run:")} == charged
        assert rebuild(lake, ledger)["known"] == 12
    again = replay(lake, teacher_set, max_usd=Decimal(1), teachers=["careful"], ledger=target)
    assert (again.calls, again.cached, server.requests) == (0, 12, 12)


@pytest.mark.parametrize("code", ["nul", "tokens_huge", "cost_huge", "bad_byte", "surrogate"])
def test_what_a_database_cannot_hold_is_still_charged_and_kept(
    lake: Lake, teacher_set: TeacherSet, serve: Serve, target: str | Path, code: str
) -> None:
    """A NUL in an id, say: PostgreSQL has no text with one."""
    server = serve(faults=lambda asked: Fault("odd", code=code))
    one: dict[str, Any] = {
        "teachers": ["careful"],
        "max_usd": Decimal(1),
        "max_states": 3,
        "ledger": target,
    }
    report = replay(lake, teacher_set, **one)
    assert report.replies == len(server.bills) == 3
    with Ledger(target) as ledger:
        assert ledger.status()["global"].spent == server.billed
        rows = ledger.rows("careful", lake.rows("replies")[0]["day"])
        assert len([row for row in rows if row["body"]]) == 3
    again = replay(lake, teacher_set, **one)
    assert (again.calls, again.cached, server.requests) == (0, 3, 3)


def test_a_ledger_deleted_while_it_is_open_stops_the_run(tmp_path: Path) -> None:
    call = Call("s1", "a", "s", "2026-11-16", {})
    with Ledger(tmp_path / "ledger.db") as ledger:
        ledger.do(operations.reserve("k", Pico(1), ["global"], call))
        (tmp_path / "ledger.db").unlink()
        with pytest.raises(StorageError, match="deleted"):
            ledger.do(operations.reserve("l", Pico(1), ["global"], call))
