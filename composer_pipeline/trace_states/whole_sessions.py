"""Whole sessions, one at a time: every path of them, with what came after the last action.

Belongs here: putting a session together from a day's tables. Does not belong here: single
states (``trace_states.load``), and what a session is written as (``interchange``).
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from composer_pipeline.lake import Lake, column
from composer_pipeline.trace_states.load import DayTables, Path
from composer_pipeline.trace_states.state import TraceState


class WholeSession(msgspec.Struct, kw_only=True):
    """A session of a day: its rows in ``sessions``, and the paths of each of its agents.

    The main trajectory is the agent ``""``. A session that has no row with a state is none.
    """

    session_id: str
    day: str
    rows: list[dict[str, Any]]
    paths: dict[str, list[Path]]

    @property
    def states(self) -> list[TraceState]:
        """All states, the main trajectory's first."""
        return [
            state for agent in sorted(self.paths) for p in self.paths[agent] for state in p.states
        ]


def whole_sessions(
    lake: Lake, *, days: Iterable[str] | None = None, sessions: Collection[str] | None = None
) -> Iterator[WholeSession]:
    """Yield sessions day by day, by id; a day's tables and one session are held at a time.

    Args:
        lake: the lake.
        days: only of these days; all when ``None``.
        sessions: only these; all when ``None``.

    Raises:
        InputError: a day was only partly written.
    """
    for day in lake.days("states") if days is None else sorted(set(days)):
        tables = DayTables(lake, day)
        known = set(tables.states["session_id"].to_pylist())
        wanted = sorted(known if sessions is None else known & set(sessions))
        rows = lake.rows("sessions", days=[day]) if wanted else []
        for session_id in wanted:
            mine = [row for row in rows if row["session_id"] == session_id]
            yield WholeSession(
                session_id=session_id, day=day, rows=mine, paths=_paths(tables, session_id)
            )


def _paths(tables: DayTables, session_id: str) -> dict[str, list[Path]]:
    # A plain string in its place makes pyarrow import pandas.
    here = pc.is_in(tables.states["session_id"], value_set=column([session_id], pa.string()))
    order = [(name, "ascending") for name in ("agent_id", "chain_id", "n_messages", "state_id")]
    found: dict[str, list[Path]] = {}
    for path in tables.paths(tables.states.filter(here).sort_by(order)):
        found.setdefault(path.states[0].agent_id, []).append(path)
    return found
