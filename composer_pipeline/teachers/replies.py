"""The lake's ``replies`` partitions, written from the ledger at no cost.

The ledger is the journal; a partition can always be written again from it, also after this
module learns to read a shape that it did not know when the reply was bought.
"""

import contextlib
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import zstandard

from composer_pipeline.actions import Action
from composer_pipeline.chat.convert import ArgumentCheck, parse_reply_message
from composer_pipeline.chat.tools import toolsets_of_day
from composer_pipeline.errors import InputError, StorageError
from composer_pipeline.files import mapping_at
from composer_pipeline.lake.provenance import (
    Derivation,
    FileStamps,
    Record,
    read_records,
    record_of,
    write_record,
)
from composer_pipeline.lake.store import Lake
from composer_pipeline.money import Pico
from composer_pipeline.redaction.redact import redact_json, redact_text
from composer_pipeline.teachers.ledger import operations
from composer_pipeline.teachers.ledger.ledger import Ledger, existing_ledger, ledger_target
from composer_pipeline.teachers.ledger.values import Call, Reply
from composer_pipeline.teachers.outcome import choices_of, read_reply
from composer_pipeline.teachers.questions import Questions
from composer_pipeline.teachers.request import settings_sent
from composer_pipeline.teachers.teachers import Teacher, TeacherSet
from composer_pipeline.versions import CONVERTER_VERSION

#: Whatever an odd reply can raise below; all of it becomes a status.
_ODD = (ValueError, TypeError, KeyError, AttributeError, RecursionError, ArithmeticError)
_DATE = re.compile(r"[-@:]?(?:19|20)?\d\d-?(?:0[1-9]|1[0-2])-?(?:[0-2]\d|3[01])?$")

Judged = tuple[str, str, Action | None]

#: How much of a name in a reply its row shows; the raw bytes have all of it.
LONGEST_NAME = 200
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def judge(reply: Any, check: ArgumentCheck | None, asked: Iterable[str] = ()) -> Judged:
    """Return ``(status, why not ok, action)`` of a decoded reply, ``None`` for an unreadable one.

    ``check`` knows the tools that were offered, ``None`` where the lake does not have them.
    ``asked`` are names of the model; any model will do where there are none.
    """
    if not isinstance(reply, dict):
        return "unreadable", "not a JSON object", None
    served = reply.get("model")
    names = [name for name in asked if name]
    named = names and isinstance(served, str) and served.strip()
    if named and not any(same_model(str(served), name) for name in names):
        return "wrong_model", f"asked {names[0]}, another model answered", None
    try:
        return _judged(reply, check)
    except _ODD:
        return "unusable", "a shape that is no reply", None


def _judged(reply: dict[str, Any], check: ArgumentCheck | None) -> Judged:  # noqa: C901  a list of checks, in reading order
    if reply.get("error"):
        return "unusable", "an error came with the answer", None
    choice = next(iter(choices_of(reply)), {})
    message = choice.get("message")
    if not isinstance(message, dict):
        return "unusable", "no choices", None
    reason = choice.get("finish_reason")
    if reason not in ("stop", "tool_calls"):
        return "unusable", f"finish_reason {str(reason)[:40]}", None
    if check is None:
        return "unusable", "the lake does not have the tools that were offered", None
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        return "unusable", "tool_calls is not a list", None
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str) or name not in check.names:
            return "unusable", "a tool that was not offered", None
    try:
        action = parse_reply_message(_plain(message), check.names)
    except ValueError as error:
        return "unusable", str(error), None
    for call in action.tool_calls:
        if problem := check.problem(call):
            return "unusable", problem, None
    action.to_json()  # what cannot be written is not usable either
    return "ok", "", action


def same_model(served: str, asked: str) -> bool:
    """Return True if the model that a reply names is the one that was asked.

    Names are compared without case, author (where one of them has none), variant (``:free``)
    and release date: a provider answers for ``a/b`` as ``a/b-20261101`` or ``b``.
    """
    one, other = _bare(served), _bare(asked)
    if "/" not in one or "/" not in other:
        one, other = one.rpartition("/")[2], other.rpartition("/")[2]
    if one == other:
        return True
    longer, shorter = (one, other) if len(one) > len(other) else (other, one)
    rest = longer[len(shorter) :]
    return longer.startswith(shorter) and bool(_DATE.fullmatch(rest))


def _bare(name: str) -> str:
    author, slash, model = name.strip().lower().rpartition("/")
    return author + slash + model.partition(":")[0]


def _plain(value: Any) -> Any:
    """Return decoded JSON with numbers that any JSON writer takes."""
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return float(value)
    return value


class ReplyChecks:
    """The argument checks of the toolsets that a day's states were asked with."""

    def __init__(self, lake: Lake, day: str) -> None:
        self._toolsets = toolsets_of_day(lake, day)
        self._made: dict[str, ArgumentCheck] = {}

    def of(self, meta: Mapping[str, Any]) -> ArgumentCheck | None:
        """Return the check of a call's ``meta``; ``None`` where the lake has no such tools."""
        digest = meta.get("toolset")
        if digest is None:  # restored into a new ledger, by a lake that has lost its toolset
            return None
        if digest not in self._made:
            toolset = self._toolsets.get(digest)
            if toolset is None:  # bought through another lake that shares the ledger
                return None
            self._made[digest] = ArgumentCheck(toolset.tools)
        return self._made[digest]


def names_of(meta: Mapping[str, Any]) -> list[str]:
    """Return the names that the model of a call may answer by: asked, dated, declared."""
    return [meta["model"], meta.get("canonical_slug") or "", *(meta.get("served_as") or [])]


def write_replies(
    lake: Lake,
    ledger: Ledger,
    teachers: Iterable[str],
    days: Sequence[str],
    extra: Sequence[Mapping[str, Any]] = (),
    controls: Mapping[str, bool] | None = None,
) -> dict[str, dict[str, dict[str, int]]]:
    """Write the partitions of teachers and days; return day -> teacher -> figures.

    The figures are counts by status, ``rows`` and ``cost_picodollars``. ``extra`` are rows of
    calls that were refused before they were sent, with ``teacher`` and ``day``. ``controls`` says
    which teachers the current file makes a control, whatever it was when a reply was bought.
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
            current = {"control": controls[teacher]} if controls and teacher in controls else {}
            while True:
                items = ledger.rows(teacher, day)
                rows = [*(reply_row(item, checks.of(item["meta"])) for item in items), *refused]
                if not rows and {"teacher": teacher, "day": day} not in lake.partitions("replies"):
                    break
                rows = [{**row, **current} for row in rows]
                rows.sort(key=lambda row: (row["state_id"], row["request_hash"]))
                lake.write("replies", rows, teacher=teacher, day=day)
                # Another run may have settled more, and written it before this older view was.
                answered = sum(item["outcome"] != "unknown" for item in items)
                if ledger.answered(teacher, day) == answered:
                    figures.setdefault(day, {})[teacher] = _figures(rows)
                    break
    return figures


def _figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    counts = {"rows": len(rows), "ok": 0, "unusable": 0, "refused": 0, "unknown": 0}
    for row in rows:
        counts[row["status"]] = counts.get(row["status"], 0) + 1
    counts["cost_picodollars"] = sum(row.get("cost_picodollars") or 0 for row in rows)
    return counts


def forget_unreadable(
    lake: Lake, ledger: Ledger, teachers: Sequence[str], days: Sequence[str]
) -> None:
    """Let the paid replies that cannot be read be asked again.

    What they cost stays charged, and their bytes stay with the attempts that bought them.
    """
    for day in days:
        checks = ReplyChecks(lake, day)
        for teacher in teachers:
            for item in ledger.rows(teacher, day):
                paid = item["outcome"] == "billed"
                if paid and reply_row(item, checks.of(item["meta"]))["status"] == "unreadable":
                    ledger.do(operations.forget(item["key"]))


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
        "windowed": meta.get("windowed", False),
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
    # A teacher's words are private until redacted, as all text is: no table gets them as they
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
    usage = mapping_at(reply, "usage")
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
        "cached_tokens": _count(mapping_at(usage, "prompt_tokens_details"), "cached_tokens"),
        "reasoning_tokens": _count(
            mapping_at(usage, "completion_tokens_details"), "reasoning_tokens"
        ),
    }


@contextlib.contextmanager
def paid_replies_are_safe() -> Iterator[None]:
    """Add to a StorageError that what was paid for is not lost."""
    try:
        yield
    except StorageError as error:
        raise StorageError(
            f"{error}; what was paid for is in the ledger: make room and run replay again,"
            " it is delivered without paying twice"
        ) from error


def redacted_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored row redacted by the current rules, where no ledger has its bytes."""
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


def _text(value: Any, key: str) -> str | None:
    inner = value.get(key) if isinstance(value, dict) else None
    return redact_text(inner)[0][:LONGEST_NAME] if isinstance(inner, str) else None


def _count(value: Mapping[str, Any], key: str) -> int | None:
    """Return a count that fits in the table's 64 bits; ``None`` for what is no count."""
    inner = value.get(key)
    if isinstance(inner, bool) or not isinstance(inner, int):
        return None
    return inner if 0 <= inner < 2**63 else None


def replies_derivation(teacher_set: TeacherSet, teacher: Teacher, day: str) -> Derivation:
    """Return what a teacher's replies to a day are derived from; a price cap is no part of it."""
    endpoint = teacher_set.endpoint_of(teacher)
    sent = settings_sent(teacher, endpoint.name, api=endpoint.api)
    settings = {
        "converter": CONVERTER_VERSION,
        "model": teacher.model,
        "ask_share": f"{teacher.ask_share:g}",
        "selection": teacher_set.selection.model_dump_json(exclude_defaults=True),
        "projects": teacher_set.projects.model_dump_json(exclude_defaults=True),
        **{name: str(value) for name, value in sent.items()},
    }
    return Derivation(
        "replies",
        {"teacher": teacher.name, "day": day},
        [(table, {"day": day}) for table in ("states", "messages", "chains")],
        settings,
    )


class ReplyRecords:
    """The provenance records of one run, taken before it asks anything.

    ``days`` are those that are asked about as a whole.
    """

    def __init__(self, lake: Lake, questions: Questions, days: Sequence[str]) -> None:
        self._lake = lake
        self._day_of = {state.state_id: state.day for state in questions.states}
        stamps = FileStamps(lake)
        self._records: list[tuple[Derivation, Record]] = []
        for day in days:
            for teacher in questions.teachers:
                derivation = replies_derivation(questions.teacher_set, teacher, day)
                self._records.append((derivation, record_of(derivation, stamps)))

    def write(
        self,
        figures: Mapping[str, Mapping[str, Mapping[str, int]]],
        asked: Collection[tuple[str, str]],
        settled: Mapping[tuple[str, str], int],
        whys: Mapping[str, str],
        *,
        tried: Collection[str],
    ) -> None:
        """Record for each teacher and day what is missing, and that it was tried.

        ``figures`` are those of :func:`write_replies`, ``asked`` the run's (state_id, teacher),
        ``settled`` how many need not be asked again by (teacher, day), ``whys`` why a teacher's
        question has no reply, ``tried`` the teachers that could have answered.
        """
        before = read_records(self._lake, "replies") if self._records else {}
        had = Counter((teacher, self._day_of[state_id]) for state_id, teacher in asked)
        for derivation, record in self._records:
            teacher, day = derivation.keys["teacher"], derivation.keys["day"]
            lost = figures.get(day, {}).get(teacher, {}).get("unknown", 0)
            missing = max(had[teacher, day] - settled.get((teacher, day), 0), lost)
            old = before.get(derivation.record_name)
            tries = old.tries if old is not None and _basis(old) == _basis(record) else 0
            if missing:
                record = msgspec.structs.replace(
                    record,
                    missing=missing,
                    tries=tries + (teacher in tried),
                    why=whys.get(teacher, "the run ended before it was asked"),
                )
            write_record(self._lake, derivation, record)


def _basis(record: Record) -> tuple[dict[str, str], dict[str, str]]:
    """Return the hashes of the inputs, and the settings."""
    return {name: digest for name, (_, digest) in record.inputs.items()}, record.settings


_META = (
    "family", "control", "model", "simulated", "schema_source", "converter_version",
    "canonical_slug", "training_terms", "licence", "windowed",
)  # fmt: skip


def check_ledger(lake: Lake, ledger: Ledger) -> None:
    """Raise InputError if the lake has replies that the ledger does not know."""
    if not lake.partitions("replies"):
        return
    known = ledger.recorded()
    counted: Counter[tuple[str, str]] = Counter()
    for part in lake.partitions("replies"):
        times = lake.read(
            "replies", days=[part["day"]], teacher=part["teacher"], columns=["created_at"]
        )["created_at"]
        counted[part["teacher"], part["day"]] = len(times) - times.null_count
    missing = sum(max(0, n - known.get(where, 0)) for where, n in counted.items())
    if missing:
        raise InputError(
            f"lake {lake.url} has {missing} replies that ledger {ledger.name} does not know: it"
            " is gone, empty or older than they are, and its ceilings would not count what they"
            " cost; name the right one with --ledger, or run composer-pipeline budget rebuild"
        )


def rebuild(lake: Lake, ledger: Ledger) -> dict[str, Any]:
    """Write the replies of the lake that a ledger does not have, with what they cost.

    Calls without an outcome, quarantines and ceilings are not in the lake and stay lost. Returns
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
        operations.restore(
            row["request_hash"],
            call,
            reply,
            "refused" if refused else "billed",
            None if cost is None else Pico(cost),
            scopes,
            (at - _EPOCH) // timedelta(microseconds=1),
        )
    )


_COLUMNS = ("status", "cost_picodollars", "latency_ms", "prompt_tokens", "cached_tokens")


def day_figures(lake: Lake, teacher: str, day: str) -> dict[str, int | float]:
    """Return the figures of a partition; what was not measured is not among them.

    Latencies are nearest ranks, ``cache_read_share`` is of prompt tokens, ``usable_share`` of
    replies; the other names are statuses with the number of their replies.
    """
    table = lake.read("replies", days=[day], columns=list(_COLUMNS), teacher=teacher)
    status, cost, latency, prompt, cached = (table[name].to_pylist() for name in _COLUMNS)
    found: dict[str, int | float] = {name: status.count(name) for name in sorted(set(status))}
    if status:
        found["usable_share"] = found.get("ok", 0) / len(status)
    if amounts := [amount for amount in cost if amount is not None]:
        found["cost_picodollars"] = sum(amounts)
    if times := sorted(ms for ms in latency if ms is not None):
        for name, share in (("latency_p50_ms", 0.5), ("latency_p95_ms", 0.95)):
            found[name] = round(times[min(len(times) - 1, int(share * len(times)))], 3)
    tokens = [(a, b) for a, b in zip(prompt, cached, strict=True) if a and b is not None]
    if tokens:
        found["cache_read_share"] = sum(b for _, b in tokens) / sum(a for a, _ in tokens)
    return found


def billed_teachers(lake: Lake, ledger: str | os.PathLike[str] | None = None) -> dict[str, Pico]:
    """Return what each teacher was billed in the ledger's whole life; nothing without a ledger."""
    opened = existing_ledger(ledger_target(lake, ledger))
    if opened is None:
        return {}
    with opened:
        scopes = opened.status()
    kind = "teacher:"
    return {n.removeprefix(kind): s.spent for n, s in scopes.items() if n.startswith(kind)}


#: Days that a schedule goes back. A state that is too long for every teacher would otherwise be
#: tried every night for ever.
WINDOW_DAYS = 31


def pending_days(lake: Lake, today: date) -> list[str]:
    """Return the days up to ``today`` (UTC), ascending, with a state that no teacher has answered.

    A control's answer does not count: it makes no vote. A session that grew after its day was
    replayed makes its day pending again, and so does a state that a ceiling refused. What was
    answered is not bought again.
    """
    first = str(today - timedelta(days=WINDOW_DAYS))
    pending = []
    for day in lake.days("states"):
        if not first <= day <= str(today):
            continue
        states = set(lake.read("states", days=[day], columns=["state_id"])["state_id"].to_pylist())
        replies = lake.read("replies", days=[day], columns=["state_id", "control"]).to_pylist()
        if states - {row["state_id"] for row in replies if not row["control"]}:
            pending.append(day)
    return pending
