"""The ledgers of all stages as rows of the dataset.

Belongs here: rows of ``dataset_drops``. Does not belong here: why a row was dropped.
"""

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any

import msgspec

from composer_pipeline.actions import Action, action_text
from composer_pipeline.chat.convert import GrowingChain, action_message
from composer_pipeline.chat.convert import offered_tools as offered
from composer_pipeline.chat.tools import Toolsets
from composer_pipeline.dataset.consent import AGENT, Answer, Terms, agent_answer, told_of
from composer_pipeline.lake.schema import SCHEMA_VERSION, TABLES
from composer_pipeline.lake.store import Lake
from composer_pipeline.money import PICO
from composer_pipeline.preferences.eligibility import Reply
from composer_pipeline.preferences.hints import recoveries, succeeded
from composer_pipeline.preferences.pairs import reply_age
from composer_pipeline.preferences.vote import Vote, vote
from composer_pipeline.states.state import TraceState, draw
from composer_pipeline.training.windows import RowCutter

Row = dict[str, Any]


def drop_rows(
    lake: Lake, stage: str, ledger: Mapping[str, Sequence[Row]]
) -> Iterator[tuple[str, Row]]:
    """Yield (day, row) of what earlier stages and this one left out.

    Rows whose state is not in the lake any more belong to no session, and are passed over.

    Args:
        lake: reads ``drops`` and the names of ``states``.
        stage: this one, whose partitions are about to be replaced.
        ledger: its rows by day.
    """
    earlier = {
        (part["day"], part["stage"]) for part in lake.partitions("drops") if part["stage"] != stage
    }
    for day in sorted({*(day for day, _ in earlier), *ledger}):
        rows = [
            {**row, "stage": name}
            for of_day, name in sorted(earlier)
            if of_day == day
            for row in lake.rows("drops", days=[day], stage=name)
        ]
        rows += [{**row, "stage": stage} for row in ledger.get(day, ())]
        session_of = _sessions(lake, day, {row["state_id"] for row in rows})
        for row in sorted(rows, key=lambda row: (row["stage"], row["pair_id"], row["step"])):
            if row["state_id"] in session_of:
                about = {"day": day, "schema_version": SCHEMA_VERSION}
                yield day, {**row, **about, "session_id": session_of[row["state_id"]]}


def _sessions(lake: Lake, day: str, states: set[str]) -> dict[str, str]:
    if not states:
        return {}
    table = lake.read("states", days=[day], columns=["state_id", "session_id"])
    columns = (table[name].to_pylist() for name in ("state_id", "session_id"))
    return {name: session for name, session in zip(*columns, strict=True) if name in states}


#: Texts whose digests are kept; a session's prompts share nearly all of theirs.
KEPT_TEXTS = 4_000


class MessageTexts:
    """Message to JSON text; messages that prompts share are the same objects and written once."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[Any, str]] = {}

    def of(self, messages: Iterable[Any]) -> list[str]:
        """Return the texts of some messages."""
        return [self._text(message) for message in messages]

    def _text(self, message: Any) -> str:
        # The message is kept too, so that its id stays its own.
        kept = self._kept.get(id(message))
        if kept is None:
            text = json.dumps(message, ensure_ascii=False, separators=(",", ":"))
            kept = self._kept[id(message)] = message, text
        return kept[1]


class Digests:
    """Digests of messages and prompts that are equal where the messages are, in any key order."""

    def __init__(self) -> None:
        self._kept: dict[str, bytes] = {}

    def of_message(self, text: str) -> bytes:
        """Return the digest of one message's JSON text."""
        found = self._kept.get(text)
        if found is None:
            if len(self._kept) >= KEPT_TEXTS:
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


#: Characters of a task; it stands whole in the prompt.
TASK_CHARS = 2000
_REMINDER = re.compile(r"<system-reminder>.*?</system-reminder>\s*", re.DOTALL)


class _Head(msgspec.Struct):
    role: str
    content: Any = ""


def task_of(prompt: Iterable[str]) -> str:
    """Return the first words of the user in a prompt of JSON texts, without reminders."""
    for text in prompt:
        head = msgspec.json.decode(text, type=_Head)
        if head.role == "user" and (words := _words(str(head.content))):
            return words
    return ""


def task_of_messages(messages: Iterable[Row]) -> str:
    """Return :func:`task_of` of a state's own messages, whose content is text or blocks."""
    for message in messages:
        content = message["content"]
        blocks = [{"text": content}] if isinstance(content, str) else content
        texts = [str(block.get("text", "")) for block in blocks if isinstance(block, dict)]
        if message["role"] == "user" and (words := _words("\n\n".join(filter(None, texts)))):
            return words
    return ""


def _words(text: str) -> str:
    return _REMINDER.sub("", text).strip()[:TASK_CHARS]


class Lengths:
    """Tokens of texts, about; nothing without a tokenizer.

    Args:
        cutter: counts, with the tokenizer of the build.
    """

    def __init__(self, cutter: RowCutter | None) -> None:
        self._cutter = cutter

    def of(self, *columns: Iterable[str] | None) -> int | None:
        """Return the tokens of columns of JSON texts."""
        if self._cutter is None:
            return None
        return self._cutter.tokens(text for texts in columns for text in texts or ())


#: Tokens of a window, the longer answer counted.
WINDOW_TOKENS = 8192

_MESSAGES = ("prompt", "chosen", "rejected", "tools")


def pair_row(pair: Row, day: str, lengths: Lengths) -> Row:
    """Return a row of ``dataset_pairs``.

    Args:
        pair: a row of ``normalized_pairs`` with its terms; messages are JSON texts.
        day: of the session.
        lengths: counts tokens.
    """
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
    return row | _tokens(row, lengths)


def _tokens(row: Row, lengths: Lengths) -> Row:
    return {
        "prompt_tokens": lengths.of(row["prompt"], row["tools"]),
        "chosen_tokens": lengths.of(row["chosen"]),
        "rejected_tokens": lengths.of(row["rejected"]),
    }


def window_row(pair: Row, cutter: RowCutter, lengths: Lengths) -> tuple[Row, str]:
    """Return a pair with its prompt cut, and an empty text or the reason why it cannot be.

    Args:
        pair: a row of ``dataset_pairs``; messages are JSON texts.
        cutter: cuts to :data:`WINDOW_TOKENS`.
        lengths: counts tokens.
    """
    messages = {name: [json.loads(text) for text in pair[name] or ()] for name in _MESSAGES}
    cut, why = cutter.cut(messages)
    if why:
        return {}, why
    texts = MessageTexts()
    row = pair | {name: texts.of(cut[name]) for name in _MESSAGES}
    if row["chosen"] == row["rejected"]:
        return {}, "both sides are equal in this form"
    return row | _tokens(row, lengths), ""


#: Columns that a row of ``replies`` hands on as they are.
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
        if row["status"] == "ok" and row["action"] is not None:
            found.setdefault(row["state_id"], {})[row["teacher"]] = row
    return found


def reply_rows(
    states: Sequence[TraceState],
    answers: Mapping[str, Mapping[str, Row]],
    terms: Terms,
    refused: list[Row],
) -> Iterator[Row]:
    """Yield the rows of the states of a session and day.

    Args:
        states: the states, whole.
        answers: of the day.
        terms: say which answers may be trained on.
        refused: gets the ledger rows of the others.
    """
    for state in sorted(states, key=lambda s: (s.chain_id, s.n_messages, s.state_id)):
        for teacher, row in answers.get(state.state_id, {}).items():
            answer = Answer.of_row(row)
            if answer.terms not in terms.accepted:
                what = {"state_id": state.state_id}
                table = f"dataset_replies:{teacher}"
                refused.append(terms.drop(what, table, "answer", [answer]))
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


#: Rows of one session.
PER_SESSION = 8


def own_successes(states: Iterable[TraceState], decided: Collection[str]) -> list[TraceState]:
    """Return states whose action worked, at most :data:`PER_SESSION` of each session.

    Only actions with a tool call: of a text nothing says that it was right.

    Args:
        states: all states of a day.
        decided: ids of states with a consensus.
    """
    found = [
        state
        for state in states
        if state.action.tool_calls and state.state_id not in decided and succeeded(state)
    ]
    found.sort(key=lambda state: (state.session_id, draw(state.state_id)))
    by_session = groupby(found, key=lambda state: state.session_id)
    return [state for _, own in by_session for state in islice(own, PER_SESSION)]


def at_most(state_ids: Iterable[str], limit: int) -> set[str]:
    """Return at most ``limit`` of some states, chosen by a hash of their ids."""
    return {state_id for _, state_id in sorted(map(draw, state_ids))[:limit]}


@dataclass(frozen=True)
class Asked:
    """What is known of a day's states beside the trace.

    ``replies`` has the usable replies by state, ``costs`` what all replies were billed in
    picodollars, ``hints`` rows of the table, ``terms`` say which answers may be trained on.
    """

    replies: Mapping[str, Sequence[Reply]]
    costs: Mapping[str, int]
    hints: Mapping[str, Row]
    terms: Terms


def session_rows(
    states: Sequence[TraceState],
    tools: Toolsets,
    asked: Asked,
    lengths: Lengths,
    refused: list[Row],
) -> Iterator[tuple[str, Row]]:
    """Yield (table, row) of the states of a session and day; messages of prompts are JSON texts.

    Args:
        states: all states of the session on the day, whole.
        tools: of the day.
        asked: what is known of them.
        lengths: counts tokens.
        refused: gets the ledger rows of answers that may not be trained on.
    """
    spans = {
        s.state_id: asked.hints[s.state_id]["span_call"]
        for s in states
        if s.state_id in asked.hints
    }
    recovered = recoveries(states, spans)
    votes = {s.state_id: vote(s, asked.replies[s.state_id]) for s in states
             if s.state_id in asked.replies}  # fmt: skip
    decided = {name for name, outcome in votes.items() if outcome.winner_action}
    worked = {state.state_id for state in own_successes(states, decided)}
    chain_id, chain, texts = None, GrowingChain(), MessageTexts()
    offers = _Offers(tools)
    for state in sorted(states, key=lambda s: (s.chain_id, s.n_messages, s.state_id)):
        name = state.state_id
        if name not in decided | worked and name not in spans:
            continue
        if state.chain_id != chain_id:
            chain_id, chain, texts = state.chain_id, GrowingChain(), MessageTexts()
        prompt, offered_here = texts.of(chain.at(state)[0]), offers.of(state)
        base = {
            "task": task_of(prompt),
            "prompt": prompt,
            "tools": offered_here,
            "prompt_tokens": lengths.of(prompt, offered_here),
            "day": state.day,
            "schema_version": SCHEMA_VERSION,
            "state_id": name,
            "session_id": state.session_id,
        }
        if name in decided:
            kept, drops = asked.terms.of_group(name, asked.replies[name], votes[name])
            refused += drops
            if kept:
                cost = {"cost_usd": float(asked.costs.get(name, 0) / PICO)}
                yield "dataset_groups", {**base, **cost, **_answers(state, kept, votes[name])}
                yield "dataset_sft", {**base, **cost, **_consensus(votes[name])}
        action = [action_message(state.action)]
        own = {"model": state.model, "action": action, "action_text": action_text(action)}
        if name in worked:
            yield "dataset_successes", {**base, **own}
        if name in spans:
            yield "dataset_hints", {**base, **own, **_hint(asked.hints[name], recovered.get(name))}


class _Offers:
    """The tools of states as JSON texts, equal ones written once."""

    def __init__(self, tools: Toolsets) -> None:
        self._tools = tools
        self._kept: dict[int, tuple[Any, list[str]]] = {}

    def of(self, state: TraceState) -> list[str]:
        toolset = self._tools.of(state)
        if id(toolset) not in self._kept:
            self._kept[id(toolset)] = toolset, MessageTexts().of(offered(toolset.tools))
        return self._kept[id(toolset)][1]


def _hint(hint: Row, recovered: Action | None) -> Row:
    return {
        "hint": hint["text"],
        "source": hint["source"],
        "span_call": hint["span_call"],
        "recovery": [action_message(recovered)] if recovered is not None else None,
    }


def _answers(state: TraceState, replies: Sequence[Reply], outcome: Vote) -> Row:
    """Return what agent and teachers did at a state, and the consensus."""
    assert outcome.winner_action is not None
    consensus = [action_message(outcome.winner_action)]
    return {
        "candidates": [
            action_message(state.action),
            *(action_message(reply.action) for reply in replies),
        ],
        "sources": [AGENT, *(reply.teacher for reply in replies)],
        **told_of([agent_answer(state.model), *map(Answer.of, replies)]),
        "simulated": any(reply.simulated for reply in replies),
        "consensus": consensus,
        "consensus_text": action_text(consensus),
    }


def _consensus(outcome: Vote) -> Row:
    """Return the consensus as what a model shall say, and whose it is."""
    assert outcome.winner_action is not None
    completion = [action_message(outcome.winner_action)]
    return {
        "completion": completion,
        "completion_text": action_text(completion),
        **told_of(sorted({Answer.of(reply) for reply in outcome.members})),
        "agrees_with_agent": outcome.agrees_with_student,
        "simulated": any(reply.simulated for reply in outcome.voters),
    }
