"""The ledger: exact money, ceilings across processes, crashes, recovery."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.money import Pico, to_pico, to_usd
from composer_pipeline.teachers.ledger import operations
from composer_pipeline.teachers.ledger.ledger import Ledger, ledger_target
from composer_pipeline.teachers.ledger.transaction import lives, new_owner
from composer_pipeline.teachers.ledger.values import Bill, CacheHit, Call, Reply

CALL = Call("state", "teacher", "session", "2026-11-16", {"family": "f"})


@pytest.fixture
def ledger(target: str | Path) -> Iterator[Ledger]:
    with Ledger(target) as ledger:
        ledger.do(operations.set_ceiling("run:r", Decimal(100) / 10**12))
        yield ledger


def sums(ledger: Ledger, scope: str = "run:r") -> tuple[int, int, int]:
    status = ledger.status()[scope]
    return status.spent, status.reserved, status.unknown


def reserve(ledger: Ledger, key: str, amount: int, **options: Any) -> str:
    admission = ledger.do(
        operations.reserve(key, Pico(amount), ["run:r", "global"], CALL, **options)
    )
    assert admission.kind == "reserved", admission
    return admission.attempt


def test_money_is_exact_and_rounds_up() -> None:
    assert to_pico("0.000000000001") == 1
    assert to_pico(Decimal("0.0000000000001")) == 1
    assert to_pico(Decimal("0.1")) * 3 == to_pico("0.3")
    assert to_usd(123_000_000_001) == "0.123000000001"
    assert to_usd(5 * 10**12) == "5"
    assert to_usd(0) == "0"
    for bad in ("x", "nan", "inf", "1e30"):
        with pytest.raises(InputError):
            to_pico(bad)


def test_settlement_moves_reserved_to_spent_in_every_scope(ledger: Ledger) -> None:
    attempt = reserve(ledger, "k", 60)
    assert sums(ledger) == (0, 60, 0)
    assert ledger.do(operations.settle(attempt, Bill(Pico(7)), Reply(200, b"reply")))
    assert sums(ledger) == sums(ledger, "global") == (7, 0, 0)
    assert ledger.do(operations.reserve("k", Pico(60), ["run:r"], CALL)).kind == "cached"
    row = ledger.rows("teacher", "2026-11-16")[0]
    assert (row["body"], row["cost"], row["outcome"]) == (b"reply", 7, "billed")


def test_all_scopes_or_none(ledger: Ledger) -> None:
    ledger.do(operations.set_ceiling("teacher:t", Decimal(10) / 10**12))
    admission = ledger.do(operations.reserve("k", Pico(11), ["run:r", "teacher:t"], CALL))
    assert (admission.kind, admission.scope) == ("refused", "teacher:t")
    assert sums(ledger) == (0, 0, 0)
    assert (
        ledger.do(operations.reserve("k", Pico(10), ["run:r", "teacher:t"], CALL)).kind
        == "reserved"
    )


def test_wait_only_while_money_may_come_back(ledger: Ledger) -> None:
    attempt = reserve(ledger, "a", 80)
    assert ledger.do(operations.reserve("b", Pico(40), ["run:r"], CALL)).kind == "wait"
    assert ledger.do(operations.reserve("b", Pico(101), ["run:r"], CALL)).kind == "refused"
    ledger.do(operations.settle(attempt, Bill(Pico(80)), Reply(200, b"{}")))
    assert ledger.do(operations.reserve("b", Pico(40), ["run:r"], CALL)).kind == "refused"
    assert ledger.do(operations.reserve("b", Pico(20), ["run:r"], CALL)).kind == "reserved"


def test_headroom_is_left_for_recoveries(ledger: Ledger) -> None:
    assert (
        ledger.do(operations.reserve("a", Pico(80), ["run:r"], CALL, headroom=Pico(30))).kind
        == "refused"
    )
    assert ledger.do(operations.reserve("a", Pico(80), ["run:r"], CALL)).kind == "reserved"


def test_single_flight(ledger: Ledger) -> None:
    attempt = reserve(ledger, "k", 10)
    assert ledger.do(operations.reserve("k", Pico(10), ["run:r"], CALL)).kind == "busy"
    ledger.do(operations.release(attempt, "429"))
    assert ledger.do(operations.reserve("k", Pico(10), ["run:r"], CALL)).kind == "reserved"


def test_release_gives_everything_back_and_keeps_refusals(ledger: Ledger) -> None:
    ledger.do(operations.release(reserve(ledger, "k", 10), "refusal", Reply(403, b"no")))
    assert sums(ledger) == (0, 0, 0)
    assert ledger.do(operations.outcome("k", CALL)) == "refused"
    with pytest.raises(RuntimeError):
        ledger.do(operations.release("no such attempt", ""))


def test_unknown_stays_charged_until_the_cache_answers(ledger: Ledger) -> None:
    ledger.do(operations.mark_unknown(reserve(ledger, "k", 40), "ReadTimeout"))
    assert sums(ledger) == (0, 0, 40)
    assert ledger.unknown_calls() == {("state", "teacher")}
    assert ledger.do(operations.reserve("other", Pico(61), ["run:r"], CALL)).kind == "refused"
    again = reserve(ledger, "k", 40)
    ledger.do(operations.settle(again, CacheHit("gen-1", Pico(9)), Reply(200, b"{}")))
    assert sums(ledger) == (9, 0, 0)
    assert ledger.unknown_calls() == set()
    assert ledger.rows("teacher", "2026-11-16")[0]["cost"] == 9


def test_cost_of_the_source_may_come_later(ledger: Ledger) -> None:
    ledger.do(operations.mark_unknown(reserve(ledger, "k", 40), "reset"))
    ledger.do(
        operations.settle(reserve(ledger, "k", 40), CacheHit("gen-1", None), Reply(200, b"{}"))
    )
    assert sums(ledger) == (0, 0, 40)
    ((attempt, generation),) = ledger.unsettled_generations()
    assert generation == "gen-1"
    ledger.do(operations.reconcile(attempt, Pico(9)))
    ledger.do(operations.reconcile(attempt, Pico(9)))
    assert sums(ledger) == (9, 0, 0)
    assert ledger.rows("teacher", "2026-11-16")[0]["cost"] == 9


def test_two_unknowns_one_source(ledger: Ledger) -> None:
    for _ in range(2):
        ledger.do(operations.mark_unknown(reserve(ledger, "k", 20), "reset"))
    ledger.do(
        operations.settle(reserve(ledger, "k", 20), CacheHit("gen-1", Pico(5)), Reply(200, b"{}"))
    )
    assert sums(ledger) == (5, 0, 20)


def test_bill_above_the_reservation_is_reported(ledger: Ledger) -> None:
    assert not ledger.do(
        operations.settle(reserve(ledger, "k", 10), Bill(Pico(11)), Reply(200, b"{}"))
    )
    assert sums(ledger) == (11, 0, 0)


@pytest.mark.parametrize("usd", ["0", "-1"])
def test_ceiling_must_be_positive(ledger: Ledger, usd: str) -> None:
    with pytest.raises(InputError, match="global"):
        ledger.do(operations.set_ceiling("global", Decimal(usd)))


def test_ceiling_is_read_at_every_admission(ledger: Ledger) -> None:
    ledger.do(operations.set_ceiling("run:r", Decimal(5) / 10**12))
    assert ledger.do(operations.reserve("k", Pico(10), ["run:r"], CALL)).kind == "refused"
    ledger.do(operations.set_ceiling("run:r", None))
    assert ledger.do(operations.reserve("k", Pico(10), ["run:r"], CALL)).kind == "reserved"


def test_identity_of_processes() -> None:
    boot, pid, started, instance = new_owner().split(":")
    assert lives(f"{boot}:{pid}:{started}:{instance}")
    assert not lives(f"{boot}:{pid}:1:{instance}")
    assert not lives(f"other-boot:{pid}:{started}:{instance}")
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert not lives(f"{boot}:{child.pid}:12345:{instance}")


CRASH = """
import os, sys, signal
from composer_pipeline.teachers.ledger import operations as rules
from composer_pipeline.teachers.ledger.values import Call
from composer_pipeline.teachers.ledger.ledger import Ledger
ledger = Ledger(sys.argv[1])
call = Call("state", "teacher", "session", "2026-11-16", {})
for key in ("a", "b"):
    assert ledger.do(rules.reserve(key, 30, ["run:r", "global"], call)).kind == "reserved"
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_crash_leaves_what_was_in_flight_charged(ledger: Ledger, target: str | Path) -> None:
    done = subprocess.run([sys.executable, "-c", CRASH, str(target)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert sums(ledger) == (0, 60, 0)
    assert ledger.do(operations.adopt_dead()) == 2
    assert sums(ledger) == sums(ledger, "global") == (0, 0, 60)
    assert ledger.do(operations.reserve("a", Pico(30), ["run:r"], CALL)).kind == "reserved"


def test_claim_of_a_dead_owner_is_taken_over(ledger: Ledger, target: str | Path) -> None:
    subprocess.run([sys.executable, "-c", CRASH, str(target)], check=False)
    assert ledger.do(operations.reserve("b", Pico(30), ["run:r"], CALL)).kind == "reserved"
    assert sums(ledger) == (0, 30, 60)


WORKER = """
import random, sys
from composer_pipeline.teachers.ledger import operations as rules
from composer_pipeline.teachers.ledger.values import Bill, Call, Reply
from composer_pipeline.teachers.ledger.ledger import Ledger
path, seed = sys.argv[1], int(sys.argv[2])
rng = random.Random(seed)
ledger = Ledger(path)
spent = 0
for n in range(60):
    key = f"{seed}-{n}" if n % 3 else f"shared-{n}"
    amount = rng.randint(1, 40)
    call = Call(key, "t", "s", "d", {})
    admission = ledger.do(rules.reserve(key, amount, ["run:r", "global"], call))
    status = ledger.status()["run:r"]
    assert status.spent + status.reserved + status.unknown <= status.ceiling, status
    if admission.kind != "reserved":
        continue
    fate = rng.random()
    cost = rng.randint(0, amount)
    if fate < 0.6:
        ledger.do(rules.settle(admission.attempt, Bill(cost), Reply(200, b"x")))
        spent += cost
    elif fate < 0.8:
        ledger.do(rules.release(admission.attempt, "429"))
    else:
        ledger.do(rules.mark_unknown(admission.attempt, "reset"))
        spent += amount
print(spent)
"""


def test_processes_never_pass_the_ceiling_together(ledger: Ledger, target: str | Path) -> None:
    ceiling = 600
    ledger.do(operations.set_ceiling("run:r", Decimal(ceiling) / 10**12))
    workers = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                WORKER,
                str(target),
                str(random.Random(n).randint(1, 9999)),
            ],
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for n in range(3)
    ]
    outputs = [worker.communicate(timeout=600)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0, 0]
    spent, reserved, unknown = sums(ledger)
    assert reserved == 0
    assert spent + unknown == sum(int(text) for text in outputs)
    assert ceiling - 100 < spent + unknown <= ceiling


def test_not_a_ledger(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(InputError, match=r"ledger\.db"):
        Ledger(path)


def test_where_the_ledger_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COMPOSER_LEDGER", raising=False)
    lake = Lake(tmp_path / "lake")
    assert ledger_target(lake) == tmp_path / "lake" / "ledger.db"
    bucket = Lake("memory://bucket/lake")
    with pytest.raises(InputError, match="--ledger"):
        ledger_target(bucket)
    monkeypatch.setenv("COMPOSER_LEDGER", str(tmp_path / "l.db"))
    assert ledger_target(bucket) == tmp_path / "l.db"
    assert ledger_target(bucket, tmp_path / "m.db") == tmp_path / "m.db"
    url = "postgresql://user@host/composer"
    assert ledger_target(bucket, url) == url
    with pytest.raises(InputError, match="mysql"):
        ledger_target(lake, "mysql://user:secret@host/composer")
