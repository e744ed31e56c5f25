"""Traces of a lake that can be replayed, and the episode that follows one and grades each call."""

import random
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.chat.convert import (
    Builder,
    action_message,
    parse_reply_message,
    short_name,
    to_chat,
)
from composer_pipeline.chat.tools import Toolsets
from composer_pipeline.errors import InputError
from composer_pipeline.lake.schema import DATASETS
from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences.actions.canonical import Level
from composer_pipeline.preferences.actions.levels import ActionContext, level
from composer_pipeline.preferences.hints import succeeded
from composer_pipeline.preferences.vote import context_of
from composer_pipeline.states.load import ChainPath, whole_sessions
from composer_pipeline.states.state import Message, TraceState, blocks_of
from composer_pipeline.training.rewards import action_match

#: The loosest level at which a call counts as the recorded one: an equal canonical form. A call of
#: equal effect may have another result: overlapping lines, a search that counts and does not list.
MATCH = Level.L0
#: The loosest level at which a call is as good as the recorded one, as in evaluation.
EQUAL = Level.L1


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One response of the trace."""

    state_id: str
    #: The calls that earn the turn's reward, under the names that models use.
    wanted: tuple[ToolCall, ...]
    #: Their recorded results; empty where the teachers agreed on an action that was not recorded.
    results: tuple[str, ...]
    situation: ActionContext


def turns_of(
    path: ChainPath, first: int, consensus: Mapping[str, Action], student: str = ""
) -> list[Turn]:
    """Return the turns from the ``first`` state of a path up to where it cannot be followed.

    That is: a response without calls, a missing result, a message of the user, a state where
    teachers agree on another action (the last turn), and an action without a consensus that failed
    or that the ``student`` model recorded itself.
    """
    found: list[Turn] = []
    states = path.states[first:]
    for state, later in pairwise([*states, None]):
        assert state is not None
        turn, last = _turn(path.messages, state, consensus.get(state.state_id), student)
        if turn is not None:
            found.append(turn)
        if turn is None or last or later is None or later.n_messages != state.n_messages + 2:
            break
    return found


def _turn(
    messages: Sequence[Message], state: TraceState, agreed: Action | None, student: str
) -> tuple[Turn | None, bool]:
    # The state as a turn, and whether the trace ends with it.
    situation = context_of(state)
    recorded = _on_wire(state.action)
    if agreed is not None and level(agreed, recorded, situation).level > EQUAL:
        if not agreed.tool_calls:
            return None, True
        wanted = _on_wire(agreed).tool_calls
        turn = Turn(state_id=state.state_id, wanted=wanted, results=(), situation=situation)
        return turn, True
    if agreed is None and (not succeeded(state) or (student and state.model == student)):
        return None, True
    results, user_follows = _results(messages[state.n_messages : state.n_messages + 2])
    if not recorded.tool_calls or len(results) != len(recorded.tool_calls):
        return None, True
    turn = Turn(
        state_id=state.state_id, wanted=recorded.tool_calls, results=results, situation=situation
    )
    return turn, user_follows


def _on_wire(action: Action) -> Action:
    # The calls under the names that models use.
    calls = (ToolCall(short_name(call.name), call.arguments) for call in action.tool_calls)
    return Action("", tuple(calls)) if action.tool_calls else action


def _results(behind: Sequence[Message]) -> tuple[tuple[str, ...], bool]:
    # The results of a response's calls, none if one is missing, and whether a user message follows.
    if [message["role"] for message in behind] != ["assistant", "user"]:
        return (), False
    builder = Builder()
    builder.assistant(blocks_of(behind[0]))
    builder.user(blocks_of(behind[1]))
    if builder.flags["synthetic_result"]:
        return (), False
    results = tuple(m["content"] for m in builder.messages if m["role"] == "tool")
    return results, builder.messages[-1]["role"] == "user"


#: Sessions whose traces are cached.
KEPT_SESSIONS = 64
#: Held-out sessions are served only on request.
_HELD_OUT, _AGENT = "validation", "agent"
_COLUMNS = ("state_id", "session_id", "agent_id", "on_active_path", "n_messages")


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """A state's prompt as chat messages, the tools offered, and the turns that follow."""

    state_id: str
    session_id: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    turns: list[Turn]


class Traces:
    """The traces of a lake as of construction; threads may share it.

    Args:
        lake: has ``states`` and optionally ``dataset_groups``, whose consensus is the target.
        split: only sessions of this split; "" is all except those held out for validation.
        max_turns: turns of a trace at most.
        student: the model that is trained, as sessions and teachers name it: what it recorded or
            voted for is no target.
    """

    def __init__(
        self, lake: Lake, *, split: str = "", max_turns: int | None = None, student: str = ""
    ) -> None:
        self._lake, self._max, self._student = lake, max_turns, student
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, str], dict[str, Trace]] = OrderedDict()
        self._consensus = _consensus(lake, student)
        known = _sessions(lake, split or _HELD_OUT)
        rows = lake.rows("states", columns=list(_COLUMNS))
        rows = [row for row in rows if (row["session_id"] in known) == bool(split)]
        if not rows:
            of = f" with split={split}: make the dataset first" if split else ": run ingest first"
            raise InputError(f"lake {lake.url} has no states to replay{of}")
        # A session begins with its main path; of each path, with its first state.
        rows.sort(key=lambda r: (r["agent_id"], not r["on_active_path"], r["n_messages"]))
        self._where = {row["state_id"]: (row["day"], row["session_id"]) for row in rows}
        self._of_session: dict[str, list[str]] = {}
        for row in rows:
            self._of_session.setdefault(row["session_id"], []).append(row["state_id"])

    def __len__(self) -> int:
        """Return the number of states, including those without a trace."""
        return len(self._where)

    def at(self, state_id: str) -> Trace:
        """Return the trace that begins at a state."""
        if state_id not in self._where:
            raise InputError(f"no state {state_id!r} is served here")
        for trace in self._from([state_id]):
            return trace
        raise InputError(
            f"nothing can be replayed from state {state_id!r}: it calls no tool, a result is"
            " missing, or its action failed without a consensus of teachers"
        )

    def of_session(self, session_id: str) -> Trace:
        """Return the first trace of a session."""
        if session_id not in self._of_session:
            raise InputError(f"no session {session_id!r} is served here")
        for trace in self._from(self._of_session[session_id]):
            return trace
        raise InputError(f"nothing of session {session_id!r} can be replayed")

    def drawn(self, seed: int | None = None) -> Trace:
        """Return a trace drawn by a seed."""
        order = sorted(self._where)
        random.Random(seed).shuffle(order)  # noqa: S311  no secret
        for trace in self._from(order):
            return trace
        raise InputError(f"nothing of lake {self._lake.url} can be replayed")

    def all(self) -> Iterator[Trace]:
        """Yield every trace, session by session."""
        for session_id in sorted(self._of_session):
            yield from self._from(self._of_session[session_id])

    def _from(self, state_ids: Iterable[str]) -> Iterator[Trace]:
        for state_id in state_ids:
            trace = self._traces(*self._where[state_id]).get(state_id)
            if trace is not None:
                yield trace

    def _traces(self, day: str, session_id: str) -> dict[str, Trace]:
        # The traces of a session and day, by their first state.
        key = (day, session_id)
        with self._lock:
            if key not in self._kept:
                self._kept[key] = self._read(day, session_id)
                if len(self._kept) > KEPT_SESSIONS:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(key)
            return self._kept[key]

    def _read(self, day: str, session_id: str) -> dict[str, Trace]:
        found: dict[str, Trace] = {}
        for session in whole_sessions(self._lake, days=[day], sessions=[session_id]):
            tools = Toolsets(self._lake, session.states)
            for path in (path for paths in session.paths.values() for path in paths):
                for first, state in enumerate(path.states):
                    turns = turns_of(path, first, self._consensus, self._student)[: self._max]
                    if not turns:
                        continue
                    talk = to_chat(state, tools=tools.of(state).tools)
                    found[state.state_id] = Trace(
                        state_id=state.state_id, session_id=session_id, messages=talk.messages,
                        tools=talk.tools, turns=turns,
                    )  # fmt: skip
        return found


def _sessions(lake: Lake, split: str) -> set[str]:
    # Sessions of a split of the dataset.
    found: set[str] = set()
    for table in DATASETS:
        rows = lake.iter_rows(table, columns=["session_id"], split=split)
        found |= {row["session_id"] for row in rows if row["session_id"]}
    return found


def _consensus(lake: Lake, student: str) -> dict[str, Action]:
    # Consensus by state, where the student did not vote.
    found: dict[str, Action] = {}
    columns = ["state_id", "consensus", "sources", "models"]
    for row in lake.iter_rows("dataset_groups", columns=columns):
        teachers = {
            model
            for source, model in zip(row["sources"] or (), row["models"] or (), strict=False)
            if source != _AGENT
        }
        if row["consensus"] and not (student and student in teachers):
            found[row["state_id"]] = parse_reply_message(row["consensus"][0])
    return found


#: A call that is only similar to the recorded one earns at most this share of a match.
PARTIAL = 0.5
DIVERGED = "The trace diverged: no result of this call was recorded. The episode is over."
AGREED = "Teachers agreed on this call; what it returns was not recorded. The episode is over."
ALIKE = "As good as the recorded call, whose result is of that call alone. The episode is over."
OVER = "The episode is over. Do not call any more tools."


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of one call."""

    reward: float
    done: bool
    #: The recorded result, or ``None`` and a ``text`` that explains why there is none.
    result: str | None = None
    text: str = ""


class Episode:
    """Follows the turns of one trace.

    Each turn has the same value, the rewards sum to at most 1, and repeating the trace earns 1. The
    parallel calls of a turn are made one by one, in any order. A call of equal canonical form (L0)
    is answered; one of equal effect (L1) earns as much but ends the episode.
    """

    def __init__(self, turns: Sequence[Turn]) -> None:
        self._turns = turns
        self._at = 0
        self._open = list(range(len(turns[0].wanted)))
        self.steps = 0
        self.total = 0.0
        self.done = False

    @property
    def turn(self) -> int:
        """Index of the current turn."""
        return self._at

    def step(self, name: str, arguments: Mapping[str, Any]) -> Outcome:
        """Make one call; after the end of the episode it earns and shows nothing."""
        if self.done:
            return Outcome(0.0, True, text=OVER)
        self.steps += 1
        outcome = self._graded(ToolCall(name, dict(arguments)))
        self.total += outcome.reward
        self.done = outcome.done
        return outcome

    def _graded(self, call: ToolCall) -> Outcome:
        turn = self._turns[self._at]
        worth = 1 / len(self._turns)
        if turn.results:
            worth /= len(turn.wanted)
        levels = {number: _level(call, turn, number) for number in self._open}
        best = min(levels, key=lambda number: levels[number])
        if levels[best] > EQUAL:
            like = max(_likeness(call, turn.wanted[number]) for number in self._open)
            return Outcome(worth * PARTIAL * like, True, text=DIVERGED)
        if not turn.results:
            return Outcome(worth, True, text=AGREED)
        if levels[best] > MATCH:
            return Outcome(worth, True, text=ALIKE)
        self._open.remove(best)
        if not self._open:
            self._at += 1
            if self._at < len(self._turns):
                self._open = list(range(len(self._turns[self._at].wanted)))
        return Outcome(worth, not self._open, turn.results[best])


def _level(call: ToolCall, turn: Turn, number: int) -> Level:
    wanted = Action("", (turn.wanted[number],))
    return level(Action("", (call,)), wanted, turn.situation).level


def _likeness(call: ToolCall, wanted: ToolCall) -> float:
    sides = (action_message(Action("", (side,))) for side in (call, wanted))
    return action_match(*sides)
