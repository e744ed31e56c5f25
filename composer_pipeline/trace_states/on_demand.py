"""All states of a lake of any size: rows in memory, messages a few sessions at a time.

Belongs here: what is kept and what is read again. Does not belong here: reading
(``trace_states.load``), and single states by id (``trace_states.reader``).
"""

from collections import OrderedDict
from collections.abc import Iterable
from datetime import datetime
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from composer_pipeline.lake import Lake, column, rows_of
from composer_pipeline.trace_states.load import DayTables
from composer_pipeline.trace_states.state import TraceState

#: Messages of so many prefixes are kept. Messages are shared along a session, so this bounds
#: what is decoded; one session is kept whatever its size.
KEPT_MESSAGES = 12_000

_COLUMNS = (
    "state_id", "session_id", "agent_id", "chain_id", "n_messages", "project", "on_active_path",
    "error_kind", "ts",
)  # fmt: skip


class _Row:
    """A TraceState of which the columns above are here; the rest is read when asked for."""

    __slots__ = (*_COLUMNS, "day", "_held")
    state_id: str
    session_id: str
    day: str
    ts: datetime | None
    _held: "StatesOnDemand"

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
    """

    def __init__(self, lake: Lake, days: Iterable[str]) -> None:
        self._lake = lake
        self._tables: DayTables | None = None
        self._sessions: OrderedDict[tuple[str, str], dict[str, TraceState]] = OrderedDict()
        self._kept = 0
        found: dict[str, TraceState] = {}
        for day in sorted(set(days)):
            table = lake.read("states", days=[day], columns=_COLUMNS)
            same: dict[str, str] = {}  # one object for a text that many rows have
            for values in rows_of(table.select(_COLUMNS)):
                row = _Row()
                row.day, row._held = day, self
                for name, value in values.items():
                    kept = same.setdefault(value, value) if isinstance(value, str) else value
                    setattr(row, name, kept)
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
            while self._kept > KEPT_MESSAGES and len(self._sessions) > 1:
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


def _messages(states: dict[str, TraceState]) -> int:
    """Return about how many messages a session's states share."""
    longest: dict[str, int] = {}
    for state in states.values():
        longest[state.chain_id] = max(longest.get(state.chain_id, 0), state.n_messages)
    return sum(longest.values())
