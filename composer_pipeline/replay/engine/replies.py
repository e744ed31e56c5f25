"""The lake's ``replies`` partitions, rebuilt from the ledger for nothing.

Belongs here: the row that the lake keeps of a reply. Does not belong here: reading its bytes
(``replay.provider.reading``), judging it (``replay.engine.judgement``), and asking for it
(``replay.engine.run``).

The ledger is the journal; a partition can always be written again from it, also after this
module learns to read a shape that it did not know when the reply was bought.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import zstandard

from composer_pipeline.chat import ArgumentCheck
from composer_pipeline.errors import StorageError
from composer_pipeline.lake import Lake
from composer_pipeline.redaction import redact_json, redact_text
from composer_pipeline.replay.engine.judgement import ReplyChecks, judge, names_of
from composer_pipeline.replay.ledger import Ledger, rules
from composer_pipeline.replay.provider import choices_of, read_reply

#: Of a name that a reply tells, so much is shown in its row; the raw bytes have all of it.
LONGEST_NAME = 200
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def write_replies(
    lake: Lake,
    ledger: Ledger,
    teachers: Iterable[str],
    days: Sequence[str],
    extra: Sequence[Mapping[str, Any]] = (),
    controls: Mapping[str, bool] | None = None,
) -> dict[str, dict[str, dict[str, int]]]:
    """Write the partitions of teachers and days; return their figures.

    Args:
        lake: the lake to write.
        ledger: where the replies are.
        teachers: names; each with every day is one partition.
        days: partitions of the states.
        extra: rows of calls that were refused before they were sent; each has ``teacher``
            and ``day`` besides the columns of the table.
        controls: teacher -> whether it is a control by the teacher file of now, which then
            also holds for replies that were bought under another one.

    Returns:
        day -> teacher -> counts by status, ``rows`` and ``cost_picodollars``.
    """
    figures: dict[str, dict[str, dict[str, int]]] = {}
    names = list(teachers)
    for day in days:
        checks = ReplyChecks(lake, day)
        for teacher in names:
            refused = [
                {k: v for k, v in row.items() if k not in ("teacher", "day")}
                for row in extra
                if row["teacher"] == teacher and row["day"] == day
            ]
            of_now = {"control": controls[teacher]} if controls and teacher in controls else {}
            counts = _write_partition(lake, ledger, teacher, day, checks, refused, of_now)
            if counts:
                figures.setdefault(day, {})[teacher] = counts
    return figures


def forget_replies(
    lake: Lake, ledger: Ledger, teachers: Sequence[str], days: Sequence[str], status: str
) -> int:
    """Let the replies of a status be asked again; return how many.

    What they cost stays charged, and their bytes stay with the attempts that bought them.
    """
    forgotten = 0
    for day in days:
        checks = ReplyChecks(lake, day)
        for teacher in teachers:
            for item in ledger.rows(teacher, day):
                paid = item["outcome"] == "billed"
                if paid and reply_row(item, checks.of(item["meta"]))["status"] == status:
                    ledger.do(rules.forget(item["key"]))
                    forgotten += 1
    return forgotten


def _write_partition(
    lake: Lake,
    ledger: Ledger,
    teacher: str,
    day: str,
    checks: ReplyChecks,
    refused: Sequence[Mapping[str, Any]],
    of_now: Mapping[str, Any],
) -> dict[str, int]:
    """Write one partition; return its figures, nothing where there is nothing to write.

    ``of_now`` are columns that the teacher file decides, whatever the ledger recorded.
    """
    while True:
        items = ledger.rows(teacher, day)
        rows = [*(reply_row(item, checks.of(item["meta"])) for item in items), *refused]
        if not rows and {"teacher": teacher, "day": day} not in lake.partitions("replies"):
            return {}
        rows.sort(key=lambda row: (row["state_id"], row["request_hash"]))
        lake.write("replies", [{**row, **of_now} for row in rows], teacher=teacher, day=day)
        # Another run may have settled more, and written it before this older view was.
        if ledger.answered(teacher, day) == sum(item["outcome"] != "unknown" for item in items):
            break
    counts = {"rows": len(rows), "ok": 0, "unusable": 0, "refused": 0, "unknown": 0}
    for row in rows:
        counts[row["status"]] = counts.get(row["status"], 0) + 1
    counts["cost_picodollars"] = sum(row.get("cost_picodollars") or 0 for row in rows)
    return counts


def reply_row(item: Mapping[str, Any], check: ArgumentCheck | None) -> dict[str, Any]:
    """Return the lake's row for one of :meth:`Ledger.rows`, judged by the tools it was offered."""
    meta = item["meta"]
    row: dict[str, Any] = {
        "state_id": item["state_id"],
        "session_id": item["session_id"],
        "family": meta["family"],
        "request_hash": item["key"],
        "model": meta["model"],
        "simulated": meta["simulated"],
        "schema_source": meta["schema_source"],
        "converter_version": meta["converter_version"],
        "canonical_slug": meta.get("canonical_slug"),
        "training_terms": meta.get("training_terms"),
        "licence": meta.get("licence"),
        "control": bool(meta.get("control", False)),
        "status": item["outcome"],
        "detail": redact_text(item["detail"] or "")[0],
        "cost_picodollars": item["cost"],
        "latency_ms": item["latency_ms"],
        "generation_id": item["generation_id"],
        "obtained": item["obtained"],
    }
    if item["outcome"] == "unknown":
        return row | {"detail": "nobody knows whether it was answered; charged at its worst case"}
    # What a teacher says is private until it was redacted, as all text: no table gets it as it
    # came. The bytes themselves stay in the ledger's blobs, which are never published.
    body = redacted_body(item["body"])
    row["raw"] = zstandard.ZstdCompressor(level=3).compress(body)
    row["created_at"] = _EPOCH + timedelta(microseconds=item["created_us"])
    if item["outcome"] == "refused":
        return row
    reply = read_reply(item["body"])
    status, detail, action = judge(reply, check, names_of(meta))
    if status == "unreadable" and item["detail"]:
        detail = item["detail"]
    usage = _mapping(reply, "usage")
    choice = next(iter(choices_of(reply)), {})
    return row | {
        "status": status,
        "detail": redact_text(detail)[0],
        "action": redact_json(action.to_json().encode())[0].decode() if action else None,
        "model_served": _text(reply, "model"),
        "provider": _text(reply, "provider"),
        "finish_reason": _text(choice, "finish_reason"),
        "prompt_tokens": _count(usage, "prompt_tokens"),
        "completion_tokens": _count(usage, "completion_tokens"),
        "cached_tokens": _count(_mapping(usage, "prompt_tokens_details"), "cached_tokens"),
        "reasoning_tokens": _count(
            _mapping(usage, "completion_tokens_details"), "reasoning_tokens"
        ),
    }


@contextlib.contextmanager
def paid_replies_are_safe() -> Iterator[None]:
    """Say, where the lake cannot be written, that what was paid for is not lost."""
    try:
        yield
    except StorageError as error:
        raise StorageError(
            f"{error}; what was paid for is in the ledger: make room and run replay again,"
            " it is delivered without paying twice"
        ) from error


def redacted_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored row redacted by the rules of now, where no ledger has its bytes any more."""
    again = {**row, "detail": redact_text(row["detail"] or "")[0]}
    if row["action"] is not None:
        again["action"] = redact_json(row["action"].encode())[0].decode()
    if row["raw"] is not None:
        body = redacted_body(zstandard.ZstdDecompressor().decompress(row["raw"]))
        again["raw"] = zstandard.ZstdCompressor(level=3).compress(body)
    return again


def redacted_body(body: bytes) -> bytes:
    """Return a reply with what is private replaced, inside the JSON of arguments too."""
    try:
        return redact_json(body)[0]
    except (ValueError, RecursionError):  # no JSON: an error page, a reply cut off, a bomb
        return redact_text(body.decode("utf-8", "replace"))[0].encode()


def _mapping(value: Any, key: str) -> dict[str, Any]:
    inner = value.get(key) if isinstance(value, dict) else None
    return inner if isinstance(inner, dict) else {}


def _text(value: Any, key: str) -> str | None:
    inner = value.get(key) if isinstance(value, dict) else None
    return redact_text(inner)[0][:LONGEST_NAME] if isinstance(inner, str) else None


def _count(value: Mapping[str, Any], key: str) -> int | None:
    """Return a count that fits in the table's 64 bits; ``None`` for what is no count."""
    inner = value.get(key)
    if isinstance(inner, bool) or not isinstance(inner, int):
        return None
    return inner if 0 <= inner < 2**63 else None
