"""All states of a lake of any size: rows in memory, messages a few sessions at a time.

Belongs here: what is kept and what is read again. Does not belong here: reading
(``trace_states.load``), and single states by id (``trace_states.reader``).
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from datetime import datetime
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from composer_pipeline.lake import Lake, column
from composer_pipeline.trace_states.load import DayTables
from composer_pipeline.trace_states.state import TraceState, moment

#: Messages of so many prefixes are kept. Messages are shared along a session, so this bounds
#: what is decoded; one session is kept whatever its size.
KEPT_MESSAGES = 12_000

_COLUMNS = (
    "state_id", "session_id", "agent_id", "chain_id", "project", "n_messages", "on_active_path",
    "error_kind", "ts",
)  # fmt: skip
#: Texts that many rows of a day have: one object each.
_SHARED = ("session_id", "agent_id", "chain_id", "project")


class _Row:
    """A TraceState of which the columns above are here; the rest is read when asked for."""

    __slots__ = ("_held", "_ticks", "day", *_COLUMNS[:-1])

    def __init__(self, held: "StatesOnDemand", day: str, *values: Any) -> None:
        self._held, self.day = held, day
        (
            self.state_id, self.session_id, self.agent_id, self.chain_id, self.project,
            self.n_messages, self.on_active_path, self.error_kind, self._ticks,
        ) = values  # fmt: skip

    @property
    def ts(self) -> datetime | None:
        """When the response began."""
        return moment(self._ticks)

    @property
    def whole(self) -> TraceState:
        """The state with all of its columns, for many questions about one session at a time."""
        return self._held.whole(self.day, self.session_id, self.state_id)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._held.whole(self.day, self.session_id, self.state_id), name)


class StatesOnDemand:
    """The states of some days, each once. ``states`` are in their stored order.

    They behave like :class:`TraceState`. What is not in a state's row is read with its whole
    session and kept for a while, so walk them session by session.

    Args:
        lake: the lake.
        days: which.
        sessions_of: called with the rows of all days (the columns above, and ``day``); names
            the sessions of which any state is wanted. Only their states are held.
        kept: messages of prefixes that are kept; 0 where each session is walked once.
    """

    def __init__(
        self,
        lake: Lake,
        days: Iterable[str],
        sessions_of: Callable[[pa.Table], Collection[str]] | None = None,
        kept: int | None = None,
    ) -> None:
        self._lake = lake
        self._most = KEPT_MESSAGES if kept is None else kept
        self._tables: DayTables | None = None
        self._sessions: OrderedDict[tuple[str, str], dict[str, TraceState]] = OrderedDict()
        self._kept = 0
        found: dict[str, TraceState] = {}
        tables = (
            (day, lake.read("states", days=[day], columns=_COLUMNS)) for day in sorted(set(days))
        )
        if sessions_of:
            held = list(tables)
            wanted = column(
                list(sessions_of(pa.concat_tables([table for _, table in held]))), pa.string()
            )
            tables = (
                (day, table.filter(pc.is_in(table["session_id"], value_set=wanted)))
                for day, table in held
            )
        for day, table in tables:
            same: dict[str, str] = {}
            columns = [_values(table, name, same) for name in _COLUMNS]
            for values in zip(*columns, strict=True):
                row = _Row(self, day, *values)
                found[row.state_id] = cast(TraceState, row)
        self.states = list(found.values())

    def whole(self, day: str, session_id: str, state_id: str) -> TraceState:
        """Return one state with its prefix.

        Raises:
            InputError: its day was only partly written.
        """
        key = (day, session_id)
        if key not in self._sessions:
            self._sessions[key] = self._read(day, session_id)
            self._kept += _messages(self._sessions[key])
            while self._kept > self._most and len(self._sessions) > 1:
                self._kept -= _messages(self._sessions.popitem(last=False)[1])
        self._sessions.move_to_end(key)
        return self._sessions[key][state_id]

    def _read(self, day: str, session_id: str) -> dict[str, TraceState]:
        if self._tables is None or self._tables.day != day:
            self._tables = DayTables(self._lake, day)
        rows = self._tables.states
        # A plain string in its place makes pyarrow import pandas.
        named = column([session_id], pa.string())
        rows = rows.filter(pc.is_in(rows["session_id"], value_set=named))
        return {state.state_id: state for state in self._tables.of(rows)}


def _values(table: pa.Table, name: str, same: dict[str, str]) -> list[Any]:
    """Return a column's values; a time as microseconds, which are cheaper to keep and compare."""
    column = table[name].cast(pa.int64()) if name == "ts" else table[name]
    values: list[Any] = column.to_pylist()
    return [same.setdefault(value, value) for value in values] if name in _SHARED else values


def _messages(states: dict[str, TraceState]) -> int:
    """Return about how many messages a session's states share."""
    longest: dict[str, int] = {}
    for state in states.values():
        longest[state.chain_id] = max(longest.get(state.chain_id, 0), state.n_messages)
    return sum(longest.values())
