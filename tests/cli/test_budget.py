"""`budget`: ceilings that a person sees and sets, and quarantines that a person lifts."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.cli.__main__ import main
from composer_pipeline.lake.store import Lake
from composer_pipeline.money import Pico
from composer_pipeline.teachers.ledger import operations
from composer_pipeline.teachers.ledger.ledger import Ledger
from composer_pipeline.teachers.ledger.values import Bill, Call, Reply


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*arguments: str, code: int = 0) -> Any:
        with pytest.raises(SystemExit) as left:
            main([*arguments, "--lake", str(tmp_path / "lake"), "--json"])
        assert (left.value.code or 0) == code
        out, err = capsys.readouterr()
        return json.loads(out) if code == 0 else err

    return call


def test_ceilings_are_listed_and_set(run: Any, tmp_path: Path) -> None:
    Lake(tmp_path / "lake").put_bytes("lake.json", b"{}")
    assert run("budget")["scopes"] == []
    assert not (tmp_path / "lake" / "ledger.db").exists()
    run("budget", "set", "global", "5")
    run("budget", "set", "month:2026-11", "0.000000000001")
    run("budget", "set", "teacher:kimi", "2")
    run("budget", "set", "teacher:kimi", "none")
    with Ledger(tmp_path / "lake" / "ledger.db") as ledger:
        assert ledger.status()["month:2026-11"].ceiling == 1
        call = Call("s", "kimi", "x", "2026-11-16", {})
        sent = ledger.do(operations.reserve("k", Pico(9), ["global"], call))
        ledger.do(operations.mark_unknown(sent.attempt, "reset"))
    rows = {row["scope"]: row for row in run("budget")["scopes"]}
    assert rows["global"]["ceiling_usd"] == "5"
    assert rows["teacher:kimi"]["ceiling_usd"] is None
    assert Decimal(rows["global"]["unknown_usd"]) == Decimal(9) / 10**12


def test_quarantines_are_listed_and_lifted(run: Any, tmp_path: Path) -> None:
    with Ledger(tmp_path / "lake" / "ledger.db") as ledger:
        call = Call("s", "kimi", "x", "2026-11-16", {})
        sent = ledger.do(operations.reserve("k", Pico(9), ["global"], call))
        ledger.do(operations.settle(sent.attempt, Bill(Pico(10)), Reply(200, b"")))
    assert "worst case" in run("budget")["quarantined"]["kimi"]
    assert run("budget", "lift", "kimi")["lifted"] is True
    assert "kimi is not quarantined" in run("budget", "lift", "kimi", code=2)


@pytest.mark.parametrize("scope", ["globl", "day:2026-13-01", "day:today", "run:", "month:2026"])
def test_a_scope_that_nothing_is_charged_to_is_refused(run: Any, scope: str) -> None:
    assert repr(scope) in run("budget", "set", scope, "5", code=2)


@pytest.mark.parametrize("usd", ["0", "-1", "five", "nan"])
def test_a_ceiling_is_an_amount_above_zero(run: Any, usd: str) -> None:
    assert "ceiling of global" in run("budget", "set", "global", usd, code=2)
