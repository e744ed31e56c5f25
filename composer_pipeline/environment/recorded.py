"""The traces of a lake that can be replayed, by state and by session.

Belongs here: which sessions are served, and reading one when it is asked for. Does not belong
here: what of a path can be followed (``environment.turns``).
"""

import random
import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import msgspec

from composer_pipeline.actions import Action
from composer_pipeline.chat import Toolsets, parse_reply_message, to_chat
from composer_pipeline.environment.turns import Turn, turns_of
from composer_pipeline.errors import InputError
from composer_pipeline.lake import DATASETS, Lake
from composer_pipeline.trace_states import whole_sessions

#: Sessions whose traces stay in memory; others are read again.
KEPT_SESSIONS = 64
#: Sessions that a model is measured on are served only where they are asked for.
_HELD_OUT, _AGENT = "validation", "agent"
_COLUMNS = ("state_id", "session_id", "agent_id", "on_active_path", "n_messages")


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """A state's prefix as chat messages, the tools offered there, and the turns that follow."""

    state_id: str
    session_id: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    turns: list[Turn]


class Traces:
    """The traces of a lake. It sees the lake as it was when this was made; threads may share it.

    Args:
        lake: has ``states``; where it has ``dataset_groups``, what teachers agreed on is the
            target of those states.
        split: only sessions of this split of the dataset; "" is all but those held out for
            validation.
        max_turns: turns of a trace at most; ``None`` is to its end.
        student: the model that is trained, as sessions and teachers name it: what it recorded, and
            what it took part in deciding, is no target for it.

    Raises:
        InputError: the lake has no such state.
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
        """Return how many states there are, with those that no trace begins with."""
        return len(self._where)

    def at(self, state_id: str) -> Trace:
        """Return the trace that begins with a state.

        Raises:
            InputError: no state served has this id, or nothing can be replayed from it.
        """
        if state_id not in self._where:
            raise InputError(f"no state {state_id!r} is served here")
        found = self._traces(*self._where[state_id]).get(state_id)
        if found is None:
            raise InputError(
                f"nothing can be replayed from state {state_id!r}: it calls no tool, a result is"
                " missing, or its action failed and no teachers agreed"
            )
        return found

    def of_session(self, session_id: str) -> Trace:
        """Return the first trace of a session.

        Raises:
            InputError: no session served has this id, or nothing of it can be replayed.
        """
        if session_id not in self._of_session:
            raise InputError(f"no session {session_id!r} is served here")
        for state_id in self._of_session[session_id]:
            found = self._traces(*self._where[state_id]).get(state_id)
            if found is not None:
                return found
        raise InputError(f"nothing of session {session_id!r} can be replayed")

    def drawn(self, seed: int | None = None) -> Trace:
        """Return any trace; the same for the same seed.

        Raises:
            InputError: nothing of the lake can be replayed.
        """
        order = sorted(self._where)
        random.Random(seed).shuffle(order)  # noqa: S311  no secret
        for state_id in order:
            found = self._traces(*self._where[state_id]).get(state_id)
            if found is not None:
                return found
        raise InputError(f"nothing of lake {self._lake.url} can be replayed")

    def all(self) -> Iterator[Trace]:
        """Yield every trace, session by session."""
        for session_id in sorted(self._of_session):
            for state_id in self._of_session[session_id]:
                found = self._traces(*self._where[state_id]).get(state_id)
                if found is not None:
                    yield found

    def _traces(self, day: str, session_id: str) -> dict[str, Trace]:
        """Return the traces of a session and day, by the state that they begin with."""
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
    """Return the sessions that the dataset has rows of in a split."""
    found: set[str] = set()
    for table in DATASETS:
        rows = lake.iter_rows(table, columns=["session_id"], split=split)
        found |= {row["session_id"] for row in rows if row["session_id"]}
    return found


def _consensus(lake: Lake, student: str) -> dict[str, Action]:
    """Return what teachers agreed on, by state, where the student was none of them."""
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
