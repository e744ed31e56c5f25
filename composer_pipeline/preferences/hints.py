"""Hints: from error turns (the table ``hints``), from the teachers' consensus, and recoveries."""

import json
import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import Any, NamedTuple

from composer_pipeline.actions import PATH_ARGUMENTS, Action, ToolCall, chat_calls
from composer_pipeline.files import strings
from composer_pipeline.lake.provenance import Derivation, FileStamps, recorded
from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences.actions.canonical import class_of, mutates
from composer_pipeline.preferences.actions.shell_meaning import targets
from composer_pipeline.preferences.actions.shell_parse import Place
from composer_pipeline.preferences.vote import home_of
from composer_pipeline.reports import Progress, Report, add_counts
from composer_pipeline.states.load import load_states
from composer_pipeline.states.state import Message, TraceState, blocks_of
from composer_pipeline.tool_names import translate
from composer_pipeline.versions import HINTS_VERSION

_WORDS = re.compile(r"\w+", re.UNICODE)
_NGRAM = 3


def span_text(action: Action, call: int) -> str:
    """Return the JSON arguments that a hint is about: of one call, or of every call for -1.

    An action without calls is its text.
    """
    calls = action.tool_calls
    if 0 <= call < len(calls):
        calls = calls[call : call + 1]
    if not calls:
        return action.text
    return "\n".join(
        json.dumps(c.arguments, ensure_ascii=False, separators=(",", ":")) for c in calls
    )


def leakage(hint: str, span: str) -> float:
    """Return the share of the span's word 3-grams that the hint contains, in [0, 1].

    A shorter span counts as one n-gram; an empty span leaks nothing.
    """
    wanted = _ngrams(span)
    if not wanted:
        return 0.0
    size = len(next(iter(wanted)))
    return len(wanted & _ngrams(hint, size)) / len(wanted)


def _ngrams(text: str, size: int = _NGRAM) -> set[tuple[str, ...]]:
    words = _WORDS.findall(text.lower())
    size = min(size, len(words))
    if not size:
        return set()
    return {tuple(words[i : i + size]) for i in range(len(words) - size + 1)}


#: Verdicts whose error turns teach something.
TEACHING = ("mistake", "revealed", "user_choice")


@dataclass(frozen=True)
class HintFigures(Report):
    """The counts of a day, or of several together; ``mean_leakage`` is 0.0 without hints."""

    hints: int = 0
    by_source: dict[str, int] = field(default_factory=dict)
    by_kind: dict[str, int] = field(default_factory=dict)
    mean_leakage: float = 0.0


@dataclass(frozen=True)
class HintsReport(HintFigures):
    """The sum over the days, and each day's own figures."""

    by_day: dict[str, HintFigures] = field(default_factory=dict)


def build_hints(
    lake: Lake, *, days: Iterable[str] | None = None, progress: Progress | None = None
) -> HintsReport:
    """Write the partitions of ``hints`` from the error turns of some days' states.

    Args:
        lake: the lake.
        days: ``YYYY-MM-DD``; all days with states when ``None``.
        progress: called after each state with a hint.

    Raises:
        StorageError: the lake is not writable.
    """
    by_day, stamps = {}, FileStamps(lake)
    for day in lake.chosen_days("states", days):
        with recorded(lake, hints_derivation(day), stamps):
            by_day[day] = _build_day(lake, day, progress)
    parts = by_day.values()
    hints = sum(part.hints for part in parts)
    leaked = sum(part.hints * part.mean_leakage for part in parts)
    return HintsReport(
        hints=hints,
        by_source=add_counts(part.by_source for part in parts),
        by_kind=add_counts(part.by_kind for part in parts),
        mean_leakage=leaked / hints if hints else 0.0,
        by_day=by_day,
    )


def hints_derivation(day: str) -> Derivation:
    """Return what a day's hints are made from."""
    inputs = [(table, {"day": day}) for table in ("states", "messages", "chains")]
    return Derivation("hints", {"day": day}, inputs, {"hints": HINTS_VERSION})


def _build_day(lake: Lake, day: str, progress: Progress | None) -> HintFigures:
    columns = [
        "state_id", "session_id", "error_kind", "hint", "hint_source", "verdict", "lesson",
        "culprit_state_id", "culprit_call", "culprit_by", "culprit_confidence",
        "more_failures",
    ]  # fmt: skip
    usable: dict[str, dict[str, Any]] = {}
    for row in lake.rows("states", days=[day], columns=columns):
        for more in ("{}", *(row["more_failures"] or ())):
            error = row | json.loads(more)
            if error["verdict"] in TEACHING and error["culprit_state_id"] and error["lesson"]:
                usable.setdefault(error["culprit_state_id"], error)  # each action is taught once
    rows = []
    for done, state in enumerate(load_states(lake, days=[day], state_ids=usable), start=1):
        rows.append(hint_row(usable[state.state_id], state.action))
        if progress:
            progress(f"hints {day}", done, len(usable))
    rows.sort(key=lambda row: str(row["state_id"]))
    lake.write("hints", rows, day=day)
    leakage = [row["leakage"] for row in rows]
    return HintFigures(
        hints=len(rows),
        by_source=dict(sorted(Counter(row["source"] for row in rows).items())),
        by_kind=dict(sorted(Counter(row["error_kind"] for row in rows).items())),
        mean_leakage=sum(leakage) / len(leakage) if leakage else 0.0,
    )


def hint_row(error: Mapping[str, Any], action: Action) -> dict[str, Any]:
    """Return the row of the table ``hints`` for an error turn and the action that caused it."""
    text = error["lesson"].strip()
    span = span_text(action, error["culprit_call"])
    return {
        "state_id": error["culprit_state_id"],
        "session_id": error["session_id"],
        "source": error["hint_source"],
        "error_kind": error["error_kind"],
        "error_state_id": error["state_id"],
        "verdict": error["verdict"],
        "culprit_by": error["culprit_by"],
        "confidence": error["culprit_confidence"],
        "text": text,
        "whole": error["hint"],
        "span_call": error["culprit_call"],
        "span_text": span,
        "leakage": leakage(text, span),
    }


#: A mistake is a habit from so many turns in so many sessions on.
_HABIT_TURNS, _HABIT_SESSIONS = 3, 2


@dataclass(frozen=True)
class Note(Report):
    """A mistake that repeats in a working directory.

    ``message`` is what was said, with numbers as N, ``example`` one of the calls, and ``instead``
    the agent's own later call that worked in its place, from its recovery pair, or empty.
    """

    project: str
    message: str
    turns: int
    sessions: int
    example: str
    instead: str


def standing_notes(lake: Lake) -> list[Note]:
    """Return the habits of each working directory, the most frequent first.

    The same mistake is the same message about the same target; of commands and edits the message
    alone counts. Reads ``states`` and ``pairs``.
    """
    pairs = lake.rows("pairs", columns=["state_id", "source", "chosen"])
    better = {r["state_id"]: chat_calls(*r["chosen"]) for r in pairs if r["source"] == "recovery"}
    habits: dict[tuple[str, str, str], list[tuple[str, str, str]]] = defaultdict(list)
    rows = lake.rows("states", columns=["state_id", "verdict"])
    wrong = [row["state_id"] for row in rows if row["verdict"] == "mistake"]
    for state in load_states(lake, state_ids=wrong):
        index = state.culprit_call or 0
        call, message = state.action.tool_calls[index], state.verdict_evidence or ""
        later = better.get(state.state_id, [])
        worked = ToolCall(later[index][0], dict(later[index][1])) if later else call
        first, then = (translate(each)[0].arguments for each in (call, worked))
        old, new = str(first.get("old_string")), str(then.get("old_string"))
        if old != new and old.split() == new.split():
            message += " (only the white space was wrong)"
        about = call.name if class_of(call.name) in ("edit", "run") else call.summary()
        instead = worked.summary() if worked.summary() != call.summary() else ""
        habit = habits[state.project, about, re.sub(r"\d+", "N", message)]
        habit.append((state.session_id, call.summary(), instead))
    notes = [
        Note(project, message, len(turns), len({turn[0] for turn in turns}),
             *max(turns, key=lambda turn: bool(turn[2]))[1:])
        for (project, _, message), turns in habits.items() if len(turns) >= _HABIT_TURNS
    ]  # fmt: skip
    notes = [note for note in notes if note.sessions >= _HABIT_SESSIONS]
    return sorted(notes, key=lambda note: (note.project, -note.turns, note.message))


SOURCE = "teacher_consensus"
MAX_TOKENS = 120

#: Arguments that a hint may reveal: they say how a result is shown.
_MINOR = frozenset({"description", "timeout", "limit", "offset", "output_mode", "replace_all"})
#: Share of an argument's words that reveals it.
_GIST = 0.8
_PIECE = re.compile(r"\w{1,3}|[^\w\s]", re.UNICODE)


@dataclass(frozen=True)
class ConsensusHint:
    """A hint, and the share of the word 3-grams of the teachers' arguments that it contains."""

    text: str
    leakage: float


def consensus_hint(
    row: Mapping[str, Any], *, cwd: str = "", full_arguments: bool = False
) -> ConsensusHint | None:
    """Return the hint of a pair, or ``None`` if the teachers answered in text alone.

    Paths are resolved against ``cwd``, or else the row's project. Only with ``full_arguments`` may
    a hint contain every argument of the teachers' action.
    """
    calls = chat_calls(*row["chosen"])
    if not calls:
        return None
    name, arguments = calls[0]
    folder = cwd or str(row.get("project") or "")
    shown = [text for message in row["prompt"] for text in strings(message)]
    reviewers = f"{row['n_agree']} of {row['n_families']} independent reviewers would"
    own = [tool for tool, _ in chat_calls(*row["rejected"])][:1]
    instead = f" instead of {own[0]}" if own else " instead of answering in text"
    if own == [name]:
        instead = ", but not as you did"
    span = "\n".join(str(value) for key, value in arguments.items() if key not in _MINOR)
    step = translate(ToolCall(name, dict(arguments)))[0]
    for target, needle in _targets(step.arguments, Place(folder, home_of(folder))):
        if not any(needle in text for text in shown):
            continue
        what = f"use {name} on {target}" if target else f"use {name}"
        more = f", the first of {len(calls)} calls" if len(calls) > 1 else ""
        text = f"{reviewers} {what}{more}{instead}."
        if token_bound(text) > MAX_TOKENS:
            continue
        if full_arguments or not target or not _reveals(text, arguments):
            return ConsensusHint(text, leakage(text, span))
    return None


def token_bound(text: str) -> int:
    """Return a number of tokens that ordinary tokenizers do not exceed."""
    return len(_PIECE.findall(text)) + 3 * sum(not char.isascii() for char in text)


def _targets(arguments: Mapping[str, Any], place: Place) -> Iterator[tuple[str, str]]:
    """Yield what the call acts on and what the prompt must contain for it, most precise first."""
    command = arguments.get("command")
    if isinstance(command, str):
        # A chain of commands has no one target: its first program is all that is named.
        first = next(iter(targets(command, place)), ())
        words = [str(word) for word in first if word]
        for size in (3, 2, 1):
            if len(words) >= size:
                yield " ".join(words[:size]), words[size - 1]
    for key in PATH_ARGUMENTS:
        path = arguments.get(key)
        if isinstance(path, str) and path:
            yield place.path(path), place.path(path)
            folder = posixpath.dirname(place.path(path))
            if folder and folder not in (".", "/"):
                yield f"a file in {folder}", folder
    yield "", ""


def _reveals(text: str, arguments: Mapping[str, Any]) -> bool:
    """Return True if a hint reveals every argument that matters; of a path the last part."""
    revealed = set(_WORDS.findall(text))
    for key, value in arguments.items():
        if key in _MINOR or value in (None, "", False):
            continue
        gist = posixpath.basename(str(value)) if key in PATH_ARGUMENTS else str(value)
        words = set(_WORDS.findall(gist))
        if len(words & revealed) < _GIST * len(words):
            return False
    return True


#: Responses after the failed one that are searched.
LATER_STATES = 4
#: Errors that another call could have avoided.
_AVOIDABLE = frozenset({"tool_error", "failed_edit", "exit_code", "soft_failure"})
#: Programs that say nothing about the purpose of a command line.
_COMMON = frozenset({"cd", "echo", "printf", "export", "set", "source", "true", "=", ""})
_REMINDER = "<system-reminder>"


class Recovery(NamedTuple):
    """The agent's own later call that worked in place of a failed one.

    ``state_id`` is the state that made it, ``distance`` how many states later.
    """

    call: ToolCall
    state_id: str
    distance: int

    @property
    def action(self) -> Action:
        """The call alone: its text may mention the error, which the failed state had not seen."""
        return Action("", (self.call,))


def recoveries(
    states: Iterable[TraceState], failed_calls: Mapping[str, int]
) -> dict[str, Recovery]:
    """Return state id to the one call that worked later, for the error turns that have one.

    ``failed_calls`` is state id to the index of the failed call; -1 is the whole action.
    """
    chains: dict[str, list[TraceState]] = defaultdict(list)
    for state in states:
        chains[state.chain_id].append(state)
    found: dict[str, Recovery] = {}
    for chain in chains.values():
        chain.sort(key=lambda state: state.n_messages)
        for i, state in enumerate(chain):
            if state.state_id in failed_calls and state.error_kind in _AVOIDABLE:
                call = _failed_call(state.action, failed_calls[state.state_id])
                better = call and _recovery(state, call, chain[i + 1 : i + 2 + LATER_STATES])
                if better:
                    found[state.state_id] = better
    return found


def _failed_call(action: Action, index: int) -> ToolCall | None:
    calls = action.tool_calls
    if index == -1:
        return calls[0] if len(calls) == 1 else None
    return calls[index] if index < len(calls) else None


def _recovery(failed: TraceState, call: ToolCall, later: Sequence[TraceState]) -> Recovery | None:
    """Return the first later call that replaces ``call``; the last state only shows results."""
    place = Place(failed.cwd or "")
    seen = failed.n_messages
    for distance, (state, after) in enumerate(pairwise(later), start=1):
        if any(_from_user(message) for message in state.messages[seen:]):
            return None
        seen = state.n_messages
        if succeeded(state):
            answered = _answered(after.messages[seen:])
            for other in state.action.tool_calls:
                if other.id in answered and _replaces(other, call, place):
                    return Recovery(other, state.state_id, distance)
        if mutates(state.action):
            return None
    return None


def succeeded(state: TraceState) -> bool:
    """Return True if nothing in the trace speaks against a state's action, then or later."""
    bad = (
        state.followed_by_error, state.followed_by_correction, state.interrupted, state.reverted,
        state.caused_error,
    )  # fmt: skip
    return state.error_kind is None and not any(bad) and state.tests_passed is not False


def _from_user(message: Message) -> bool:
    """Return True if a message has words of the user, not only results and reminders."""
    if message["role"] != "user":
        return False
    return any(
        block["type"] != "tool_result"
        and not str(block.get("text", "")).lstrip().startswith(_REMINDER)
        for block in blocks_of(message)
    )


def _answered(messages: Sequence[Message]) -> set[str]:
    blocks = (b for m in messages if not isinstance(m["content"], str) for b in m["content"])
    return {b["tool_use_id"] for b in blocks if b["type"] == "tool_result"}


def _replaces(other: ToolCall, failed: ToolCall, place: Place) -> bool:
    """Return True if ``other`` is another attempt at the purpose of ``failed``."""
    if (other.name, other.arguments) == (failed.name, failed.arguments):
        return False
    kind, wanted = class_of(other.name), class_of(failed.name)
    if "run" in (kind, wanted):
        return kind == wanted and _same_purpose(_stages(other, place), _stages(failed, place)[-1:])
    if (kind == "edit") != (wanted == "edit"):
        return False
    files, before = _files(other), _files(failed)
    if files or before:
        return bool(files & before)
    return other.name == failed.name


def _files(call: ToolCall) -> set[str]:
    # Base names only: a wrong folder is a common mistake.
    values = (step.arguments.get(key) for step in translate(call) for key in PATH_ARGUMENTS)
    return {posixpath.basename(v.rstrip("/")) for v in values if isinstance(v, str)} - {""}


def _stages(call: ToolCall, place: Place) -> list[tuple[str, ...]]:
    """Return (program, subcommand, operands…) of the significant stages of a command line."""
    commands = (step.arguments.get("command") for step in translate(call))
    return [
        found
        for command in commands
        if isinstance(command, str)
        for found in targets(command, place)
        if found[0] not in _COMMON
    ]


def _same_purpose(stages: Sequence[tuple[str, ...]], wanted: Sequence[tuple[str, ...]]) -> bool:
    # The same program and subcommand on a common operand, or another program on a common file.
    for (program, sub, *operands), (name, verb, *before) in product(stages, wanted):
        common = set(operands) & set(before)
        if (program, sub) == (name, verb) and (common or not operands or not before):
            return True
        if any("/" in word or "." in word.strip("./") for word in common):
            return True
    return False
