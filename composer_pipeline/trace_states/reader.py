"""Single states, without reading their whole day.

Belongs here: random access through DuckDB. Does not belong here: whole days
(``trace_states.load``).
"""

from typing import Any

from composer_pipeline.errors import InputError
from composer_pipeline.lake import Lake
from composer_pipeline.trace_states.chains import check_chain
from composer_pipeline.trace_states.state import TraceState, decoded, state_of


class StateReader:
    """Single states, through one DuckDB connection that keeps Parquet footers in memory.

    Reads only the row groups of ``messages`` that the state's prefix lies in. Sees the
    lake as it was when the reader was made; a later parse needs a new reader.

    Args:
        lake: the lake.
    """

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self._con = lake.duckdb()
        self._con.execute("SET enable_object_cache = true")
        self._con.execute("CREATE TEMP TABLE where_is AS SELECT state_id, day FROM states")

    def get(self, state_id: str) -> TraceState:
        """Return one state.

        Args:
            state_id: its whole id.

        Raises:
            InputError: no state has this id, or its day was only partly written.
        """
        found = self._rows("SELECT day FROM where_is WHERE state_id = ? LIMIT 1", state_id)
        if not found:
            raise InputError(f"lake {self.lake.url} has no state {state_id!r}")
        day = found[0]["day"]
        states, chained = (self.lake.sql_source(table, day=day) for table in ("states", "chains"))
        row = self._rows(f"SELECT * FROM {states} WHERE state_id = ? LIMIT 1", state_id)[0]
        row["day"] = day
        chains = self._rows(
            f"SELECT messages, digest FROM {chained} WHERE chain_id = ?", row["chain_id"]
        )
        chain: list[int] = chains[0]["messages"] if chains else []
        known = self._column("hash", day, chain)
        digest = chains[0]["digest"] if chains else None
        check_chain(self.lake, day, digest, [known.get(number) for number in chain])
        wanted = chain[: row["n_messages"] + (row["action"] is None)]
        texts = self._column("json", day, wanted)
        parts = {
            name: self._rows(
                f"SELECT json FROM {self.lake.sql_source('messages', day=day)} WHERE hash = ?",
                row[name],
            )
            for name in ("system_hash", "tools_hash")
            if row[name]
        }
        system, tools = (
            decoded(parts[name][0]["json"]) if parts.get(name) else None
            for name in ("system_hash", "tools_hash")
        )
        return state_of(row, [decoded(texts[number]) for number in wanted], system, tools)

    def _column(self, name: str, day: str, numbers: list[int]) -> dict[int, str]:
        if not numbers:
            return {}
        low, high = min(numbers), max(numbers)
        source = self.lake.sql_source("messages", day=day)
        sql = f"SELECT n, {name} FROM {source} WHERE n BETWEEN ? AND ?"
        found: dict[int, str] = dict(self._con.execute(sql, [low, high]).fetchall())
        return {number: found[number] for number in numbers if number in found}

    def _rows(self, sql: str, *values: Any) -> list[dict[str, Any]]:
        done = self._con.execute(sql, list(values))
        names = [column[0] for column in done.description or ()]
        return [dict(zip(names, row, strict=True)) for row in done.fetchall()]
