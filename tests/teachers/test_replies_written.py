"""A partition of replies while two runs write it."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.lake.store import Lake
from composer_pipeline.money import Pico
from composer_pipeline.teachers.ledger import operations
from composer_pipeline.teachers.ledger.ledger import Ledger
from composer_pipeline.teachers.ledger.values import Bill, Call, Reply
from composer_pipeline.teachers.replies import write_replies

DAY = "2026-11-16"
META = {
    "family": "f",
    "model": "m",
    "simulated": True,
    "schema_source": "recorded",
    "converter_version": "1",
}


def test_what_another_run_settles_during_the_write_is_in_the_partition(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own partition was written before ours, which began with fewer replies."""
    plain = Lake.write
    writes = 0

    def buy(ledger: Ledger, key: str) -> None:
        call = Call(key, "t", "session", DAY, META)
        admission = ledger.do(operations.reserve(key, Pico(2), ["global"], call))
        ledger.do(operations.settle(admission.attempt, Bill(Pico(1)), Reply(200, b"{}")))

    def meanwhile(
        self: Lake, table: str, rows: Iterable[Mapping[str, Any]], **partition: str
    ) -> Any:
        nonlocal writes
        writes += 1
        if writes == 1:
            buy(ledger, "theirs")
        return plain(self, table, rows, **partition)

    with Ledger(tmp_path / "ledger.db") as ledger:
        buy(ledger, "ours")
        monkeypatch.setattr(Lake, "write", meanwhile)
        figures = write_replies(lake, ledger, ["t"], [DAY])
    assert {row["state_id"] for row in lake.rows("replies")} == {"ours", "theirs"}
    assert figures[DAY]["t"]["rows"] == 2
    assert figures[DAY]["t"]["cost_picodollars"] == 2
