"""The lake's ``replies`` partitions, rebuilt from the ledger for nothing.

Belongs here: reading a raw reply leniently, judging whether it is usable, and the row that
the lake keeps. Does not belong here: asking for replies (``replay.engine``).

The ledger is the journal; a partition can always be written again from it, also after this
module learns to read a shape that it did not know when the reply was bought.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import zstandard

from composer_pipeline.actions import Action
from composer_pipeline.lake.store import Lake
from composer_pipeline.replay.convert import parse_reply_message
from composer_pipeline.replay.ledger import Ledger
from composer_pipeline.replay.wire import read_json

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def write_replies(
    lake: Lake,
    ledger: Ledger,
    teachers: Iterable[str],
    days: Sequence[str],
    extra: Sequence[Mapping[str, Any]] = (),
) -> dict[str, dict[str, dict[str, int]]]:
    """Write the partitions of teachers and days; return their figures.

    Args:
        lake: the lake to write.
        ledger: where the replies are.
        teachers: names; each with every day is one partition.
        days: partitions of the states.
        extra: rows of calls that were refused before they were sent; each has ``teacher``
            and ``day`` besides the columns of the table.

    Returns:
        day -> teacher -> counts by status, ``rows`` and ``cost_picodollars``.
    """
    figures: dict[str, dict[str, dict[str, int]]] = {}
    for teacher in teachers:
        for day in days:
            rows = [reply_row(item) for item in ledger.rows(teacher, day)]
            rows += [
                {k: v for k, v in row.items() if k not in ("teacher", "day")}
                for row in extra
                if row["teacher"] == teacher and row["day"] == day
            ]
            if not rows and {"teacher": teacher, "day": day} not in lake.partitions("replies"):
                continue
            rows.sort(key=lambda row: (row["state_id"], row["request_hash"]))
            lake.write("replies", rows, teacher=teacher, day=day)
            counts = {"rows": len(rows), "ok": 0, "unusable": 0, "refused": 0, "unknown": 0}
            for row in rows:
                counts[row["status"]] += 1
            counts["cost_picodollars"] = sum(row.get("cost_picodollars") or 0 for row in rows)
            figures.setdefault(day, {})[teacher] = counts
    return figures


def reply_row(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return the lake's row for one of :meth:`Ledger.rows`."""
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
        "status": item["outcome"],
        "detail": item["detail"] or "",
        "cost_picodollars": item["cost"],
        "latency_ms": item["latency_ms"],
        "generation_id": item["generation_id"],
        "obtained": item["obtained"],
    }
    if item["outcome"] == "unknown":
        return row | {"detail": "nobody knows whether it was answered; charged at its worst case"}
    row["raw"] = zstandard.ZstdCompressor(level=3).compress(item["body"])
    row["created_at"] = _EPOCH + timedelta(microseconds=item["created_us"])
    if item["outcome"] == "refused":
        return row
    reply = read_json(item["body"])
    status, detail, action = judge(reply, meta["tools"])
    usage = _mapping(reply, "usage")
    choice = _first_choice(reply)
    return row | {
        "status": status,
        "detail": detail,
        "action": action.to_json() if action else None,
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


def judge(reply: Any, tools: Mapping[str, Sequence[str]]) -> tuple[str, str, Action | None]:
    """Return ``(status, why not, action)`` of a billed reply; status is ok or unusable.

    Args:
        reply: the decoded reply.
        tools: name on the wire -> (recorded name, required arguments…).
    """
    choice = _first_choice(reply)
    message = choice.get("message")
    if not isinstance(message, dict):
        return "unusable", "no choices", None
    reason = choice.get("finish_reason")
    if reason not in ("stop", "tool_calls"):
        return "unusable", f"finish_reason {reason}", None
    for call in message.get("tool_calls") or []:
        if _text(_mapping(call, "function"), "name") not in tools:
            return "unusable", "a tool that was not offered", None
    try:
        action = parse_reply_message(message, {wire: names[0] for wire, names in tools.items()})
    except ValueError as error:
        return "unusable", str(error), None
    required = {names[0]: names[1:] for names in tools.values()}
    for call in action.tool_calls:
        if missing := [key for key in required[call.name] if key not in call.arguments]:
            return "unusable", f"{call.name} without {missing[0]}", None
    return "ok", "", action


def _first_choice(reply: Any) -> dict[str, Any]:
    choices = reply.get("choices") if isinstance(reply, dict) else None
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, dict) else {}


def _mapping(value: Any, key: str) -> dict[str, Any]:
    inner = value.get(key) if isinstance(value, dict) else None
    return inner if isinstance(inner, dict) else {}


def _text(value: Any, key: str) -> str | None:
    inner = value.get(key) if isinstance(value, dict) else None
    return inner if isinstance(inner, str) else None


def _count(value: Mapping[str, Any], key: str) -> int | None:
    inner = value.get(key)
    return inner if isinstance(inner, int) and not isinstance(inner, bool) else None
