"""A ledger that is gone is not an empty one."""

import shutil
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest

from composer_pipeline.errors import InputError, StorageError
from composer_pipeline.lake.store import Lake
from composer_pipeline.money import Pico
from composer_pipeline.replay.engine.rebuild import rebuild
from composer_pipeline.replay.engine.run import replay
from composer_pipeline.replay.ledger import Ledger, rules
from composer_pipeline.replay.ledger.values import Call
from composer_pipeline.replay.teachers import TeacherSet
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


def test_a_ledger_deleted_while_it_is_open_stops_the_run(tmp_path: Path) -> None:
    call = Call("s1", "a", "s", "2026-11-16", {})
    with Ledger(tmp_path / "ledger.db") as ledger:
        ledger.do(rules.reserve("k", Pico(1), ["global"], call))
        (tmp_path / "ledger.db").unlink()
        with pytest.raises(StorageError, match="deleted"):
            ledger.do(rules.reserve("l", Pico(1), ["global"], call))
