"""A key for each run: the fence, the bill that its usage proves, and what a crash leaves."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.teachers.ledger.ledger import Ledger
from composer_pipeline.teachers.report import ReplayReport
from composer_pipeline.teachers.run import replay
from composer_pipeline.teachers.teachers import TeacherSet
from composer_pipeline.testing.openrouter.faults import Fault, SeenRequest
from composer_pipeline.testing.openrouter.server import LoopbackOpenRouter
from tests.fixtures.waiting import wait_until

Serve = Callable[..., LoopbackOpenRouter]
MASTER = "sk-or-master-0d107d09f5bbe40cade3de5c71e9e9b7"
USER = "sk-or-user-5d41402abc4b2a76b9719d911017c592"


@pytest.fixture
def keys(teacher_set: TeacherSet, monkeypatch: pytest.MonkeyPatch) -> TeacherSet:
    """The demo's teachers; each run makes a key of its own."""
    monkeypatch.setenv("COMPOSER_MASTER", MASTER)
    monkeypatch.setenv("COMPOSER_LOOPBACK_KEY", USER)
    return changed(teacher_set, provisioning_key_env="COMPOSER_MASTER")


def changed(teacher_set: TeacherSet, grace_s: float = 0.3, **endpoint: Any) -> TeacherSet:
    data = teacher_set.model_dump()
    data["endpoint"] |= endpoint
    data["limits"] |= {"sweep_grace_s": grace_s, "recover_after_s": 0.0, "attempts": 1}
    return TeacherSet.model_validate(data)


def run(lake: Lake, teacher_set: TeacherSet, **options: Any) -> ReplayReport:
    return replay(lake, teacher_set, **{"max_usd": Decimal(1), **options})


def sums(lake: Lake, scope: str = "global") -> tuple[int, int, int]:
    with Ledger(Path(lake.root) / "ledger.db") as ledger:
        status = ledger.status()[scope]
    return status.spent, status.reserved, status.unknown


def minted(server: LoopbackOpenRouter) -> list[Any]:
    return [key for key in server.account.keys.values() if key.name.startswith("composer-pipeline")]


def test_a_run_makes_a_key_uses_it_and_ends_it(lake: Lake, keys: TeacherSet, serve: Serve) -> None:
    server = serve(api_key=USER, management_key=MASTER)
    during: list[Any] = []
    server.faults = lambda asked: during.extend(minted(server)) if not during else None
    report = run(lake, keys, run_id="one")
    assert report.replies == 48
    assert during[0].limit == 10**12  # picodollars: the ceiling
    assert "run:one" in during[0].name
    assert {bill.key for bill in server.bills} == {during[0].hash}
    assert report.sweep.startswith("exact")
    assert minted(server) == []  # deleted: all is settled
    assert sums(lake) == (server.billed, 0, 0)


def test_lost_bills_become_exact_by_the_keys_usage(
    lake: Lake, keys: TeacherSet, serve: Serve
) -> None:
    """No second try and no generation record: only the key's usage knows."""

    def faults(asked: SeenRequest) -> Fault | None:
        dice = int(asked.digest[:2], 16) % 3
        return {0: Fault("reset"), 1: Fault("reset", billed=False)}.get(dice)

    server = serve(api_key=USER, management_key=MASTER, faults=faults, generation_endpoint=False)
    report = run(lake, keys, run_id="lossy")
    assert report.unknown > 10
    assert "unknown attempts cost" in report.sweep
    assert sums(lake) == (server.billed, 0, 0)
    assert sums(lake, "run:lossy") == (server.billed, 0, 0)
    assert report.reserved_usd == 0


def test_usage_that_lags_is_waited_for(lake: Lake, keys: TeacherSet, serve: Serve) -> None:
    data = keys.model_dump()
    data["limits"]["sweep_grace_s"] = 5
    server = serve(api_key=USER, management_key=MASTER, usage_lag=0.5)
    report = run(lake, TeacherSet.model_validate(data), teachers=["careful"])
    assert report.sweep.startswith("exact")
    assert sums(lake) == (server.billed, 0, 0)


def test_a_bill_that_nobody_can_explain_is_told(lake: Lake, keys: TeacherSet, serve: Serve) -> None:
    serve(api_key=USER, management_key=MASTER, faults=lambda asked: Fault("misreport"))
    report = run(lake, keys, teachers=["careful"])
    assert report.sweep.startswith("not swept")
    assert "used elsewhere" in report.sweep


def test_no_key_no_call(lake: Lake, keys: TeacherSet, serve: Serve) -> None:
    server = serve(api_key=USER, management_key=MASTER, key_endpoints=False)
    with pytest.raises(ComposerError, match="COMPOSER_MASTER"):
        run(lake, keys)
    assert server.bills == []
    server = serve(api_key=USER, management_key="another")
    with pytest.raises(ComposerError, match="makes no key"):
        run(lake, keys)
    assert server.bills == []


def test_missing_provisioning_key_is_named(
    lake: Lake, keys: TeacherSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COMPOSER_MASTER")
    with pytest.raises(InputError, match="COMPOSER_MASTER"):
        run(lake, keys)
    assert not (Path(lake.root) / "ledger.db").exists()


def test_a_run_that_goes_on_has_two_keys_and_one_bill(
    lake: Lake, keys: TeacherSet, serve: Serve
) -> None:
    server = serve(api_key=USER, management_key=MASTER)
    first = run(lake, keys, run_id="r", teachers=["careful"])
    again = run(lake, keys, run_id="r", teachers=["steady"])
    assert first.sweep.startswith("exact")
    assert again.sweep.startswith("exact")
    assert sums(lake, "run:r") == (server.billed, 0, 0)
    (second,) = minted(server)
    assert second.disabled  # kept: the run has had another key before
    assert second.limit == 10**12 - sum(b.cost for b in server.bills if "careful" in b.model)


OTHER = """
import sys
from decimal import Decimal
from pathlib import Path
from composer_pipeline.lake.store import Lake
from composer_pipeline.teachers.run import replay
from composer_pipeline.teachers.teachers import TeacherSet
teachers = TeacherSet.model_validate_json(Path(sys.argv[2]).read_text())
replay(Lake(sys.argv[1]), teachers, max_usd=Decimal(1), run_id="dead")
"""


def kill_in_flight(server: LoopbackOpenRouter, lake: Lake, keys: TeacherSet, folder: Path) -> None:
    (folder / "t.json").write_text(keys.model_dump_json())
    dead = False
    # Some are billed, some are in flight, and none ends before the kill.
    server.held = lambda asked: asked.total > 8 and not dead
    process = subprocess.Popen(
        [sys.executable, "-c", OTHER, lake.root, str(folder / "t.json")], env={**os.environ}
    )
    wait_until(lambda: len(server.bills) >= 5 or process.poll() is not None, "five bills")
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    dead = True
    wait_until(lambda: not server.generating, "the provider is quiet")


def test_a_dead_runs_key_is_read_by_its_hash(
    lake: Lake, keys: TeacherSet, serve: Serve, tmp_path: Path
) -> None:
    """The secret died with the process, the bill did not."""
    server = serve(api_key=USER, management_key=MASTER, latency=0.05, generation_endpoint=False)
    kill_in_flight(server, lake, keys, tmp_path)
    billed = server.billed
    report = run(lake, changed(keys, grace_s=3600.0), run_id="next")
    assert report.replies == 48
    spent, reserved, unknown = sums(lake, "run:dead")
    assert reserved == 0
    assert spent < billed <= spent + unknown  # its meter may still run: the worst case stands
    time.sleep(0.4)  # the grace
    assert run(lake, keys, run_id="later").calls == 0
    assert sums(lake, "run:dead") == (billed, 0, 0)
    assert sums(lake) == (server.billed, 0, 0)
    # Replies of the dead key cannot be fetched with another one: those are the price.
    assert 0 < server.duplicate_bills() <= 32


def test_a_dedicated_key_keeps_the_replies_too(
    lake: Lake,
    teacher_set: TeacherSet,
    serve: Serve,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COMPOSER_LOOPBACK_KEY", USER)
    own = changed(teacher_set, dedicated_key=True)
    server = serve(api_key=USER, latency=0.05, generation_endpoint=False)
    kill_in_flight(server, lake, own, tmp_path)
    report = run(lake, own, run_id="next")
    assert report.replies == 48
    assert report.sweep.startswith("exact: global")
    assert server.duplicate_bills() == 0
    assert sums(lake) == (server.billed, 0, 0)


def test_no_key_is_written_anywhere(lake: Lake, keys: TeacherSet, serve: Serve) -> None:
    server = serve(api_key=USER, management_key=MASTER)
    secrets: list[str] = []

    def spy(asked: SeenRequest) -> Fault | None:
        secrets.extend(key.secret for key in minted(server) if key.secret not in secrets)
        return None

    server.faults = spy
    report = run(lake, keys, max_states=3)
    assert len(secrets) == 1
    with sqlite3.connect(Path(lake.root) / "ledger.db") as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        assert db.execute("SELECT count(*) FROM run_key").fetchone() == (1,)
    for secret in [*secrets, MASTER, USER]:
        assert secret not in str(report.to_dict())
        for path in Path(lake.root).rglob("*"):
            assert not path.is_file() or secret.encode() not in path.read_bytes(), path
