"""A lake that has replies and a ledger that does not know them: refused, or rebuilt.

Belongs here: telling that a ledger is gone, empty or older than the lake, and writing it again
from the replies. Does not belong here: the rows of the lake (``replay.engine.replies``).

A ledger that is not there is not an empty one: with it, every ceiling would begin at nothing
and every reply would be bought again.
"""

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import zstandard

from composer_pipeline.errors import InputError
from composer_pipeline.lake import Lake
from composer_pipeline.money import Pico
from composer_pipeline.replay.ledger import Call, Ledger, Reply, rules

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_META = (
    "family", "control", "model", "simulated", "schema_source", "converter_version",
    "canonical_slug", "training_terms", "licence",
)  # fmt: skip


def check_ledger(lake: Lake, ledger: Ledger) -> None:
    """See that the ledger knows the replies of the lake.

    Raises:
        InputError: it does not; the message names the remedy.
    """
    if not lake.partitions("replies"):
        return
    known = ledger.noted()
    counted: Counter[tuple[str, str]] = Counter()
    for part in lake.partitions("replies"):
        asked = lake.read(
            "replies", days=[part["day"]], teacher=part["teacher"], columns=["created_at"]
        )["created_at"]
        counted[part["teacher"], part["day"]] = len(asked) - asked.null_count
    missing = sum(max(0, n - known.get(where, 0)) for where, n in counted.items())
    if missing:
        raise InputError(
            f"lake {lake.url} has {missing} replies that ledger {ledger.name} does not know: it"
            " is gone, empty or older than they are, and its ceilings would not count what they"
            " cost; name the right one with --ledger, or run composer-pipeline budget rebuild"
        )


def rebuild(lake: Lake, ledger: Ledger) -> dict[str, Any]:
    """Write the replies of the lake that a ledger does not have, with what they cost.

    Calls without an outcome, quarantines and ceilings are not in the lake and stay lost.

    Returns:
        ``restored`` and ``known`` replies, ``cost_picodollars`` of the restored ones, and
        ``without_cost``, those whose cost nobody ever learned.
    """
    report = {"restored": 0, "known": 0, "without_cost": 0, "cost_picodollars": 0}
    for partition in lake.partitions("replies"):
        day = partition["day"]
        toolsets = {
            state: row["digest"]
            for row in lake.rows("toolsets", days=[day])
            for state in row["state_ids"]
        }
        rows = lake.rows("replies", days=[day])
        for row in rows:
            if row["teacher"] != partition["teacher"] or row["created_at"] is None:
                continue
            if _restore(ledger, row, toolsets.get(row["state_id"])):
                report["restored"] += 1
                report["without_cost"] += row["cost_picodollars"] is None
                report["cost_picodollars"] += row["cost_picodollars"] or 0
            else:
                report["known"] += 1
    return report


def _restore(ledger: Ledger, row: dict[str, Any], toolset: str | None) -> bool:
    at = row["created_at"]
    meta = {name: row.get(name) for name in _META} | {"toolset": toolset}
    call = Call(row["state_id"], row["teacher"], row["session_id"], row["day"], meta)
    body = zstandard.ZstdDecompressor().decompress(row["raw"])
    refused = row["status"] == "refused"
    detail = row["detail"] if refused or row["status"] == "unreadable" else ""
    reply = Reply(200, body, row["generation_id"] or "", row["latency_ms"] or 0.0, detail or "")
    cost = row["cost_picodollars"]
    scopes = [
        "run:rebuilt", f"day:{at:%Y-%m-%d}", f"month:{at:%Y-%m}", f"teacher:{row['teacher']}",
        f"partition:{row['day']}", "global",
    ]  # fmt: skip
    return ledger.do(
        rules.restore(
            row["request_hash"],
            call,
            reply,
            "refused" if refused else "billed",
            None if cost is None else Pico(cost),
            scopes,
            (at - _EPOCH) // timedelta(microseconds=1),
        )
    )
