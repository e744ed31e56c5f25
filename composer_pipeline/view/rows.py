"""Every state of a lake as a row of a table in memory: filtered, counted, searched and paged."""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa

from composer_pipeline.actions import Action
from composer_pipeline.errors import ComposerError
from composer_pipeline.lake.parquet import column, querying
from composer_pipeline.lake.schema import DATASETS
from composer_pipeline.lake.store import Lake
from composer_pipeline.money import to_usd
from composer_pipeline.states.fates import fates_of
from composer_pipeline.states.previews import one_line
from composer_pipeline.states.state import action_of

if TYPE_CHECKING:
    import duckdb

#: Filter -> its name for people. A row has one value of each, or a list; null is "none".
FACETS = {
    "made": "what came of it", "reason": "why or why no pair", "tier": "tier",
    "verdict": "whose mistake", "outcome": "what the trace says", "fate": "what git says",
    "dropped": "dropped by", "split": "split", "tool": "tool", "teacher": "answered by",
    "agent": "agent", "repository": "repository", "day": "day",
}  # fmt: skip
LISTS = frozenset({"made", "dropped", "teacher"})
NONE = "none"
PAGE = 100
_CUT = 200

_ROWS = """
CREATE TABLE rows AS
WITH came AS (
  SELECT state_id, if(source = 'teachers', 'pair', source) AS what FROM pairs
  UNION ALL SELECT state_id, 'hint' FROM hints
), made AS (
  SELECT state_id, list_sort(list(DISTINCT what)) AS made FROM came GROUP BY state_id
), lost AS (
  SELECT state_id, list_sort(list(DISTINCT op)) AS dropped FROM drops GROUP BY state_id
), built AS (
  SELECT state_id, min(split) AS split FROM ({datasets}) GROUP BY state_id
), asked AS (
  SELECT state_id, list_sort(list(DISTINCT teacher)) AS teacher FROM replies
  WHERE status = 'ok' GROUP BY state_id
)
SELECT row_number() OVER (
    ORDER BY s.day DESC, s.session_id, s.agent_id, s.turn, s.n_messages, s.state_id) AS place,
  s.state_id, s.session_id, s.agent_id, s.day, s.turn, s.chain_id, s.n_messages, s.ts, s.model,
  s.project AS repository, s.error_kind, s.verdict, coalesce(s.action, m.json) AS action,
  coalesce(coalesce(json_extract_string(s.action, '$.tool_calls[*].name'),
                    json_extract_string(m.json, '$.content[*].name'))[1], 'text') AS tool,
  CASE WHEN s.reverted THEN 'taken back' WHEN s.interrupted THEN 'interrupted'
    WHEN s.followed_by_correction THEN 'corrected by the user'
    WHEN s.error_kind IS NOT NULL OR s.followed_by_error THEN 'a call failed'
    WHEN s.tests_passed THEN 'tests passed' WHEN NOT s.tests_passed THEN 'tests failed' END
    AS outcome,
  fates.fate, v.reason, nullif(v.tier, 'none') AS tier, v.n_agree, v.n_families,
  v.cost_picodollars AS cost,
  list_concat(if(dropped IS NULL, [], ['dropped']), made) AS made,
  coalesce(dropped, []) AS dropped, split, coalesce(teacher, []) AS teacher,
  t.first_prompt AS task, t.agent
FROM states s
LEFT JOIN chains c ON c.day = s.day AND c.chain_id = s.chain_id
LEFT JOIN messages m ON s.action IS NULL AND m.day = s.day AND m.n = c.messages[s.n_messages + 1]
LEFT JOIN votes v USING (state_id) LEFT JOIN fates USING (state_id) LEFT JOIN made USING (state_id)
LEFT JOIN lost USING (state_id) LEFT JOIN built USING (state_id) LEFT JOIN asked USING (state_id)
LEFT JOIN (SELECT day, session_id, any_value(first_prompt) AS first_prompt,
                  any_value(agent) AS agent
           FROM sessions WHERE agent_id = '' GROUP BY ALL) t
  ON t.day = s.day AND t.session_id = s.session_id
"""
#: A message belongs to the first state of its trajectory that saw it.
_TEXTS = """
CREATE TABLE texts AS
WITH seen AS (
  SELECT r.state_id, r.session_id, r.agent_id, r.place, r.day, unnest(c.messages[
    coalesce(lag(r.n_messages) OVER (PARTITION BY r.day, r.chain_id ORDER BY r.n_messages) + 2, 1)
    : r.n_messages + 1]) AS n
  FROM rows r JOIN chains c ON c.day = r.day AND c.chain_id = r.chain_id
), own AS (
  SELECT * FROM seen
  QUALIFY row_number() OVER (PARTITION BY day, session_id, agent_id, n ORDER BY place) = 1
)
SELECT own.state_id, lower(m.json) AS text FROM own JOIN messages m ON m.day = own.day
  AND m.n = own.n
UNION ALL SELECT state_id, lower(action) FROM rows
UNION ALL SELECT state_id, lower(action) FROM replies WHERE status = 'ok'
UNION ALL SELECT state_id, lower(text) FROM hints
"""
_FOUND = """
CREATE OR REPLACE TABLE {table} AS
SELECT state_id FROM texts WHERE contains(text, lower(?)) OR contains(text, lower(?))
UNION SELECT state_id FROM pairs WHERE starts_with(pair_id, ?)
UNION SELECT state_id FROM rows WHERE starts_with(state_id, ?) OR starts_with(session_id, ?)
"""
#: Searches whose hits are kept.
_KEPT = 8
_SESSIONS = """
SELECT session_id, day, any_value(repository) AS repository, any_value(task) AS task,
  any_value(agent) AS agent, any_value(model) AS model, min(ts)::TEXT AS began, count(*) AS states,
  count(DISTINCT agent_id) - 1 AS subagents, count(error_kind) AS errors,
  count(*) FILTER (list_contains(made, 'hint')) AS hints,
  count(*) FILTER (list_has_any(made, ['pair', 'fixup', 'recovery', 'hindsight'])) AS pairs,
  coalesce(sum(cost), 0)::BIGINT AS cost
FROM rows GROUP BY session_id, day ORDER BY day DESC, session_id
"""

Row = dict[str, Any]
#: Facet -> the values of which a row must have one.
Filters = Mapping[str, Sequence[str]]


class Rows:
    """The rows of a lake as it is now, for one thread at a time.

    Raises:
        ComposerError: the lake cannot be read.
    """

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._searches: dict[str, int] = {}
        found = [fate for day in lake.days("outcomes") for fate in fates_of(lake, day).items()]
        fates = pa.table({
            "state_id": column([state_id for state_id, _ in found], pa.string()),
            "fate": column([fate.fate for _, fate in found], pa.string()),
        })  # fmt: skip
        import duckdb

        try:
            self._con = self._connected(fates, alike=True)
        except (ComposerError, duckdb.Error):  # of several versions: every file has to be looked at
            self._con = self._connected(fates, alike=False)

    def _connected(self, fates: pa.Table, *, alike: bool) -> "duckdb.DuckDBPyConnection":
        datasets = " UNION ALL ".join(f"SELECT state_id, split FROM {name}" for name in DATASETS)
        sql = _ROWS.format(datasets=datasets)
        with querying(self._lake.url):
            con = self._lake.duckdb(named=sql, alike=alike)
            con.register("fates", fates)
            con.execute(sql)
            return con

    def close(self) -> None:
        """Free the memory; no request may come afterwards."""
        self._con.close()

    def page(self, filters: Filters, words: str, offset: int, limit: int = PAGE) -> Row:
        """Return how many rows there are, and some of them."""
        where, given = self._where(filters, words)
        [(total,)] = self._query(f"SELECT count(*) FROM rows WHERE {where}", given)
        rows = self._select(
            f"SELECT * FROM rows WHERE {where} ORDER BY place LIMIT {limit} OFFSET {offset}", given
        )
        return {"total": total, "offset": offset, "rows": [_shown(row) for row in rows]}

    def facets(self, filters: Filters, words: str) -> dict[str, list[tuple[str, int]]]:
        """Return each facet's values with their counts under the other filters."""
        found = {}
        for name in FACETS:
            others = {other: values for other, values in filters.items() if other != name}
            order = "1 DESC" if name == "day" else "2 DESC, 1"
            where, given = self._where(others, words)
            found[name] = self._query(
                f"SELECT value, count(*) FROM (SELECT {_value(name, each=True)} AS value"
                f" FROM rows WHERE {where}) GROUP BY 1 ORDER BY {order}",
                given,
            )
        return found

    def position(self, state_id: str, filters: Filters, words: str) -> int | None:
        """Return how many rows of the list stand before a state; ``None`` where it is not in it."""
        where, given = self._where(filters, words)
        found = self._query(
            "SELECT p FROM (SELECT state_id, row_number() OVER (ORDER BY place) - 1 AS p"
            f" FROM rows WHERE {where}) WHERE state_id = ?",
            [*given, state_id],
        )
        return int(found[0][0]) if found else None

    def sessions(self) -> list[Row]:
        """Return one row for each session, the latest day first."""
        return [
            {**row, "task": one_line(row["task"] or "", _CUT), "cost": str(to_usd(row["cost"]))}
            for row in self._select(_SESSIONS, [])
        ]

    def of_session(self, session_id: str) -> list[Row]:
        """Return the rows of a session, the main trajectory's first."""
        sql = "SELECT * FROM rows WHERE session_id = ? ORDER BY place"
        return [_shown(row) for row in self._select(sql, [session_id])]

    def session_of(self, state_id: str) -> str:
        """Return the session of a state, or an empty string."""
        found = self._query("SELECT session_id FROM rows WHERE state_id = ?", [state_id])
        return str(found[0][0]) if found else ""

    def _where(self, filters: Filters, words: str) -> tuple[str, list[Any]]:
        parts, given = ["true"], list[Any]()
        for name, values in filters.items():
            if name not in FACETS or not values:
                continue
            marks = ", ".join("?" * len(values))
            has = f"list_has_any({_value(name)}, [{marks}])" if name in LISTS else (
                f"{_value(name)} IN ({marks})"
            )  # fmt: skip
            parts.append(has)
            given += values
        if words:
            parts.append(f"state_id IN (SELECT state_id FROM {self._hits(words)})")
        return " AND ".join(parts), given

    def _hits(self, words: str) -> str:
        """Return the table of the states in which the words stand, or whose id they begin."""
        slot = self._searches.pop(words, None)
        if slot is None:
            if not self._searches:
                self._execute(_TEXTS, [])
            full = len(self._searches) == _KEPT
            slot = self._searches.pop(next(iter(self._searches))) if full else len(self._searches)
            inside = json.dumps(words, ensure_ascii=False)[1:-1]  # texts are JSON, and plain
            self._execute(_FOUND.format(table=f"hits_{slot}"), [inside, *[words] * 4])
        self._searches[words] = slot
        return f"hits_{slot}"

    def _query(self, sql: str, given: Iterable[Any]) -> list[tuple[Any, ...]]:
        return self._execute(sql, given)[1]

    def _select(self, sql: str, given: Iterable[Any]) -> list[Row]:
        names, rows = self._execute(sql, given)
        return [dict(zip(names, row, strict=True)) for row in rows]

    def _execute(self, sql: str, given: Iterable[Any]) -> tuple[list[str], list[tuple[Any, ...]]]:
        with querying(self._lake.url):
            found = self._con.execute(sql, list(given))
            return [column[0] for column in found.description or ()], found.fetchall()


def _value(facet: str, *, each: bool = False) -> str:
    """Return the SQL of a facet's value; ``each``: of every value of a list."""
    if facet not in LISTS:
        return f"coalesce({facet}, '{NONE}')"
    values = f"if(len({facet}) = 0, ['{NONE}'], {facet})"
    return f"unnest({values})" if each else values


def _shown(row: Row) -> Row:
    """Return what a list shows of a row."""
    names = (*FACETS, "turn", "n_agree", "n_families", "error_kind", "model")
    return {
        "state_id": row["state_id"],
        "session_id": row["session_id"],
        "subagent": row["agent_id"],
        **{name: row[name] for name in names},
        "did": one_line(_action(row["action"]).summary(), _CUT),
        "task": one_line(row["task"] or "", _CUT),
        "cost": str(to_usd(row["cost"] or 0)),
    }


def _action(text: str | None) -> Action:
    if not text:
        return Action()
    with suppress(orjson.JSONDecodeError):
        found = orjson.loads(text)
        return action_of(found) if "content" in found else Action.from_json(text)
    return Action()
