"""The rows of the ``dataset_*`` tables, from pairs, states, replies, hints and drops."""

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any

import msgspec

from composer_pipeline.actions import Action, action_text
from composer_pipeline.chat.convert import GrowingChain, action_message, offered_tools
from composer_pipeline.chat.tools import Toolset, Toolsets
from composer_pipeline.dataset.consent import AGENT, UNKNOWN, Answer, Terms, answer_columns
from composer_pipeline.lake.schema import SCHEMA_VERSION, TABLES
from composer_pipeline.lake.store import Lake
from composer_pipeline.money import PICO
from composer_pipeline.preferences.eligibility import Reply, is_usable, reply_age
from composer_pipeline.preferences.hints import Recovery, recoveries, succeeded
from composer_pipeline.preferences.vote import Vote, vote
from composer_pipeline.states.state import TraceState, blocks_of, draw
from composer_pipeline.training.windows import RowCutter

#: Tokens of a window, including the longer answer.
WINDOW_TOKENS = 8192
#: Characters of a task; the prompt holds it whole.
TASK_CHARS = 2000
#: Digests of texts that are kept; a session's prompts share nearly all of theirs.
_KEPT_TEXTS = 4_000
#: Rows of ``dataset_successes`` per session.
_PER_SESSION = 8

Row = dict[str, Any]


def drop_rows(
    lake: Lake, stage: str, drops: Mapping[str, Sequence[Row]]
) -> Iterator[tuple[str, Row]]:
    """Yield (day, row) of what earlier stages and this one left out.

    ``drops`` are those of this ``stage`` by day; its partitions in the lake are about to be
    replaced. Rows whose state is no longer in the lake belong to no session, and are skipped.
    """
    earlier = {
        (part["day"], part["stage"]) for part in lake.partitions("drops") if part["stage"] != stage
    }
    for day in sorted({*(day for day, _ in earlier), *drops}):
        rows = [
            {**row, "stage": name}
            for its_day, name in sorted(earlier)
            if its_day == day
            for row in lake.rows("drops", days=[day], stage=name)
        ]
        rows += [{**row, "stage": stage} for row in drops.get(day, ())]
        session_of = _sessions(lake, day, {row["state_id"] for row in rows})
        for row in sorted(rows, key=lambda row: (row["stage"], row["pair_id"], row["step"])):
            if session := session_of.get(row["state_id"]):
                fixed = {"day": day, "schema_version": SCHEMA_VERSION, "session_id": session}
                yield day, {**row, **fixed}


def _sessions(lake: Lake, day: str, states: set[str]) -> dict[str, str]:
    if not states:
        return {}
    table = lake.read("states", days=[day], columns=["state_id", "session_id"])
    columns = (table[name].to_pylist() for name in ("state_id", "session_id"))
    return {name: session for name, session in zip(*columns, strict=True) if name in states}


class MessageTexts:
    """Messages as JSON texts; messages that prompts share are the same objects, written once."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[Any, str]] = {}

    def of(self, messages: Iterable[Any]) -> list[str]:
        """Return the texts of some messages."""
        return [self._text(message) for message in messages]

    def _text(self, message: Any) -> str:
        # The message is kept too, so that its id is not reused.
        kept = self._kept.get(id(message))
        if kept is None:
            text = json.dumps(message, ensure_ascii=False, separators=(",", ":"))
            kept = self._kept[id(message)] = message, text
        return kept[1]


class Digests:
    """Digests of messages and prompts, equal where the messages are, in any order of keys."""

    def __init__(self) -> None:
        self._kept: dict[str, bytes] = {}

    def of_message(self, text: str) -> bytes:
        """Return the digest of one message's JSON text."""
        found = self._kept.get(text)
        if found is None:
            if len(self._kept) >= _KEPT_TEXTS:
                self._kept.clear()
            plain = json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))
            found = self._kept[text] = digest([plain.encode()])
        return found

    def of_prompt(self, texts: Sequence[str]) -> bytes:
        """Return the digest of a prompt."""
        return digest(map(self.of_message, texts))


def digest(parts: Iterable[bytes]) -> bytes:
    """Return BLAKE2b-128 over parts of equal length, or over one part."""
    return hashlib.blake2b(b"".join(parts), digest_size=16).digest()


_REMINDER = re.compile(r"<system-reminder>.*?</system-reminder>\s*", re.DOTALL)


class _Head(msgspec.Struct):
    role: str
    content: Any = ""


def task_of(prompt: Iterable[str]) -> str:
    """Return the user's first words in a prompt of JSON texts, without reminders."""
    for text in prompt:
        head = msgspec.json.decode(text, type=_Head)
        if head.role == "user" and (words := _words(str(head.content))):
            return words
    return ""


def task_of_messages(messages: Iterable[Row]) -> str:
    """Return :func:`task_of` of a state's own messages, whose content is text or blocks."""
    for message in messages:
        blocks = (block for block in blocks_of(message) if isinstance(block, dict))
        texts = [str(block.get("text", "")) for block in blocks]
        if message["role"] == "user" and (words := _words("\n\n".join(filter(None, texts)))):
            return words
    return ""


def _words(text: str) -> str:
    return _REMINDER.sub("", text).strip()[:TASK_CHARS]


# -- pairs -------------------------------------------------------------------------

_MESSAGES = ("prompt", "chosen", "rejected", "tools")


def pair_row(pair: Row, day: str, cutter: RowCutter | None) -> Row:
    """Return a row of ``dataset_pairs`` from one of ``normalized_pairs`` with its terms."""
    made = {
        "task": task_of(pair["prompt"]),
        "chosen_text": action_text(pair["chosen"]),
        "rejected_text": action_text(pair["rejected"]),
        "cost_usd": float((pair["cost_picodollars"] or 0) / PICO),
        "day": day,
        "schema_version": SCHEMA_VERSION,
    }
    known = TABLES["dataset_pairs"].schema.names
    row = {name: value for name, value in pair.items() if name in known} | made
    return row | _pair_tokens(row, cutter)


def window_row(pair: Row, cutter: RowCutter) -> tuple[Row, str]:
    """Return a row of ``dataset_pairs`` with its prompt cut, or the reason why it cannot be."""
    messages = {name: [json.loads(text) for text in pair[name] or ()] for name in _MESSAGES}
    cut, why = cutter.cut(messages)
    if why:
        return {}, why
    texts = MessageTexts()
    row = pair | {name: texts.of(cut[name]) for name in _MESSAGES}
    if row["chosen"] == row["rejected"]:
        return {}, "both sides are equal in this form"
    return row | _pair_tokens(row, cutter), ""


def _pair_tokens(row: Row, cutter: RowCutter | None) -> Row:
    return {
        "prompt_tokens": _tokens(cutter, row["prompt"], row["tools"]),
        "chosen_tokens": _tokens(cutter, row["chosen"]),
        "rejected_tokens": _tokens(cutter, row["rejected"]),
    }


def _tokens(cutter: RowCutter | None, *columns: Iterable[str] | None) -> int | None:
    """Count the tokens of columns of JSON texts; ``None`` without a tokenizer."""
    return cutter.tokens(text for texts in columns for text in texts or ()) if cutter else None


# -- replies -----------------------------------------------------------------------

#: Columns that a row of ``dataset_replies`` takes over unchanged.
_SAME = (
    "model", "family", "provider", "finish_reason", "prompt_tokens", "completion_tokens",
    "cached_tokens", "reasoning_tokens", "latency_ms", "simulated",
)  # fmt: skip
_READ = ("state_id", "status", "action", "request_hash", "created_at", "cost_picodollars",
         "training_terms", "licence", *_SAME)  # fmt: skip


def answers_of_day(lake: Lake, day: str) -> dict[str, dict[str, Row]]:
    """Return state id to the newest usable reply of each teacher, sorted by teacher."""
    found: dict[str, dict[str, Row]] = {}
    rows = lake.rows("replies", days=[day], columns=_READ)
    for row in sorted(rows, key=lambda row: (row["teacher"], reply_age(row))):
        if is_usable(row):
            found.setdefault(row["state_id"], {})[row["teacher"]] = row
    return found


def reply_rows(
    states: Sequence[TraceState],
    answers: Mapping[str, Mapping[str, Row]],
    terms: Terms,
    drops: list[Row],
) -> Iterator[Row]:
    """Yield the rows of ``dataset_replies`` for a session's states on a day.

    The answers whose terms forbid training are appended to ``drops``.
    """
    for state in sorted(states, key=_order):
        for teacher, row in answers.get(state.state_id, {}).items():
            answer = Answer.of_row(row)
            if answer.terms not in terms.accepted:
                named = {"state_id": state.state_id}
                table = f"dataset_replies:{teacher}"
                drops.append(terms.drop(named, table, "answer", [answer]))
                continue
            message = [action_message(Action.from_json(row["action"]))]
            yield {
                "task": task_of_messages(state.messages),
                "answer_text": action_text(message),
                "answer": message,
                "teacher": teacher,
                **{name: row[name] for name in _SAME},
                "license": answer.license,
                "terms": answer.terms,
                "cost_usd": float((row["cost_picodollars"] or 0) / PICO),
                "day": state.day,
                "schema_version": SCHEMA_VERSION,
                "state_id": state.state_id,
                "session_id": state.session_id,
            }


def _order(state: TraceState) -> tuple[str, int, str]:
    return state.chain_id, state.n_messages, state.state_id


# -- states ------------------------------------------------------------------------


@dataclass(frozen=True)
class DayInputs:
    """What is known of a day's states beside the trace.

    ``replies`` are the usable replies by state, ``costs`` what all replies were billed in
    picodollars, ``hints`` rows of the table, ``min_survival`` is the preference recipe's.
    """

    replies: Mapping[str, Sequence[Reply]]
    costs: Mapping[str, int]
    hints: Mapping[str, Row]
    tools: Toolsets
    min_survival: float = 0.0


def session_rows(
    states: Sequence[TraceState],
    day: DayInputs,
    terms: Terms,
    cutter: RowCutter | None,
    drops: list[Row],
) -> Iterator[tuple[str, Row]]:
    """Yield (table, row) of all states of a session on a day; prompts are JSON texts.

    The answers whose terms forbid training are appended to ``drops``.
    """
    spans = {s.state_id: day.hints[s.state_id]["span_call"]
             for s in states if s.state_id in day.hints}  # fmt: skip
    recovered = recoveries(states, spans)
    votes = {s.state_id: vote(s, day.replies[s.state_id])
             for s in states if s.state_id in day.replies}  # fmt: skip
    decided = {name for name, outcome in votes.items() if outcome.winner_action}
    worked = {s.state_id for s in _own_successes(states, decided, day.min_survival)}
    chain_id, chain, texts = None, GrowingChain(), MessageTexts()
    tool_texts: dict[str, list[str]] = {}
    for state in sorted(states, key=_order):
        name = state.state_id
        label = _LABELS.get(state.fate or "")
        if name not in decided | worked and name not in spans and label is None:
            continue
        if state.chain_id != chain_id:
            chain_id, chain, texts = state.chain_id, GrowingChain(), MessageTexts()
        prompt = texts.of(chain.at(state)[0])
        tools = _tool_texts(day.tools.of(state), tool_texts)
        base = {
            "task": task_of(prompt),
            "prompt": prompt,
            "tools": tools,
            "prompt_tokens": _tokens(cutter, prompt, tools),
            "day": state.day,
            "schema_version": SCHEMA_VERSION,
            "state_id": name,
            "session_id": state.session_id,
        }
        if name in decided:
            kept, refused = terms.of_group(name, day.replies[name], votes[name])
            drops += refused
            if kept:
                cost = {"cost_usd": float(day.costs.get(name, 0) / PICO)}
                yield "dataset_groups", {**base, **cost, **_group(state, kept, votes[name])}
                yield "dataset_sft", {**base, **cost, **_consensus(votes[name])}
        action = [action_message(state.action)]
        own = {"model": state.model, "action": action, "action_text": action_text(action)}
        if name in worked:
            yield "dataset_successes", {**base, **own}
        if label is not None:
            shares = {"kept": state.kept, "survival": state.survival}
            yield "dataset_kto", {**base, **own, **shares, "label": label}
        if name in spans:
            better = _better(state, recovered.get(name))
            yield "dataset_hints", {**base, **own, **_hint(day.hints[name], better)}


#: Fates of an edit that say what people wanted; a refined one says neither.
_LABELS = {"kept": True, "gone": False}


def _own_successes(
    states: Iterable[TraceState], decided: Collection[str], min_survival: float
) -> list[TraceState]:
    """Return states without a consensus whose action worked, a few of each session.

    Only actions with a tool call: nothing shows that a text was right. What git knows decides, and
    what it knows to be kept comes first.
    """
    found = [
        state
        for state in states
        if state.action.tool_calls and state.state_id not in decided and succeeded(state)
        and (state.survival is None or state.survival >= min_survival)
    ]  # fmt: skip
    found.sort(key=lambda s: (s.session_id, s.fate != "kept", draw(s.state_id)))
    by_session = groupby(found, key=lambda state: state.session_id)
    return [state for _, own in by_session for state in islice(own, _PER_SESSION)]


def _tool_texts(toolset: Toolset, kept: dict[str, list[str]]) -> list[str]:
    if toolset.digest not in kept:
        kept[toolset.digest] = MessageTexts().of(offered_tools(toolset.tools))
    return kept[toolset.digest]


def _better(state: TraceState, recovered: Recovery | None) -> Action | None:
    """Return what the session shows to be right: the edit as it was fixed, or the later call."""
    if state.fixed_action is not None:
        return Action.from_json(state.fixed_action)
    return recovered.action if recovered is not None else None


def _hint(hint: Row, better: Action | None) -> Row:
    return {
        "hint": hint["text"],
        "source": hint["source"],
        "span_call": hint["span_call"],
        "recovery": [action_message(better)] if better is not None else None,
    }


def _group(state: TraceState, replies: Sequence[Reply], outcome: Vote) -> Row:
    assert outcome.winner_action is not None
    agent = Answer(state.model or UNKNOWN, "", AGENT)
    consensus = [action_message(outcome.winner_action)]
    return {
        "candidates": [
            action_message(state.action),
            *(action_message(reply.action) for reply in replies),
        ],
        "sources": [AGENT, *(reply.teacher for reply in replies)],
        **answer_columns([agent, *map(Answer.of, replies)]),
        "simulated": any(reply.simulated for reply in replies),
        "survival": state.survival,
        "consensus": consensus,
        "consensus_text": action_text(consensus),
    }


def _consensus(outcome: Vote) -> Row:
    assert outcome.winner_action is not None
    completion = [action_message(outcome.winner_action)]
    return {
        "completion": completion,
        "completion_text": action_text(completion),
        **answer_columns(sorted({Answer.of(reply) for reply in outcome.members})),
        "agrees_with_agent": outcome.agrees_with_student,
        "simulated": any(reply.simulated for reply in outcome.voters),
    }
