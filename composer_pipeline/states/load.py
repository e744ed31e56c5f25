"""Loading trace states with their prefixes: by day, on demand, and by session."""

import hashlib
import json
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import datetime
from functools import cached_property
from itertools import groupby
from typing import Any, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from composer_pipeline.actions import Action
from composer_pipeline.errors import InputError
from composer_pipeline.lake.parquet import column, rows_from_table
from composer_pipeline.lake.store import Lake
from composer_pipeline.states.fates import fates_of
from composer_pipeline.states.state import (
    Message,
    TraceState,
    action_of,
    blocks_of,
    decoded,
    moment,
    state_of,
)


def chain_digest(hashes: Iterable[str | None]) -> str:
    """Return the value of ``chains.digest`` for messages with these hashes."""
    data = b"".join(bytes.fromhex(digest or "") for digest in hashes)
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def sessions_of_messages(lake: Lake, day: str) -> dict[int, set[str]]:
    """Return the sessions that hold each message of a day, by its number."""
    of_chain, found = defaultdict[str, set[str]](set), defaultdict[int, set[str]](set)
    for row in lake.read("states", days=[day], columns=["chain_id", "session_id"]).to_pylist():
        of_chain[row["chain_id"]].add(row["session_id"])
    for row in lake.rows("chains", days=[day], columns=["chain_id", "messages"]):
        for number in row["messages"]:
            found[number] |= of_chain[row["chain_id"]]
    return found


_LISTED = ["state_id", "session_id", "message_id", "n_messages", "error_kind", "agent_id"]


def load_states(
    lake: Lake, *, days: Iterable[str] | None = None, state_ids: Iterable[str] | None = None
) -> Iterator[TraceState]:
    """Yield states with their prefixes, day by day, in the stored order.

    Each chain is decoded once and only one chain's messages are held, so the work is
    linear in what is stored, not in the sum of the prefixes.

    Args:
        lake: the lake.
        days: only these days; all when ``None``.
        state_ids: only these states; all when ``None``. Unknown ids are passed over.

    Raises:
        InputError: a day was only partly written (its parsing was killed).
    """
    wanted = None if state_ids is None else column(sorted(set(state_ids)), pa.string())
    chosen = lake.chosen_days("states", days)
    for day in chosen:
        tables = DayTables(lake, day)
        states = tables.states
        if wanted is not None:
            states = states.filter(pc.is_in(states["state_id"], value_set=wanted))
        if len(states):
            yield from tables.of(states)


def load_state(lake: Lake, state_id: str) -> TraceState:
    """Return one state.

    Args:
        lake: the lake.
        state_id: its id, or an unambiguous beginning of it.

    Raises:
        InputError: no state or more than one has this id.
    """
    ids = lake.read("states", columns=["state_id"])
    found = ids.filter(pc.starts_with(ids["state_id"], state_id)) if state_id else ids.slice(0, 0)
    if len(found) == 0:
        raise InputError(f"lake {lake.url} has no state {state_id!r}")
    if len(found) > 1:
        raise InputError(f"state {state_id!r} is ambiguous: {len(found)} states begin with it")
    row = found.to_pylist()[0]
    return next(load_states(lake, days=[row["day"]], state_ids=[row["state_id"]]))


class ChainPath(msgspec.Struct):
    """A whole chain of a day, and the states on it."""

    #: Of its messages within the day: equal numbers are equal messages.
    numbers: list[int]
    #: These go on after the last state: its action, and the results.
    messages: list[Message]
    states: list[TraceState]


class DayTables:
    """The tables of one day, read once, from which states are assembled."""

    def __init__(self, lake: Lake, day: str) -> None:
        self.lake, self.day = lake, day
        self.states = lake.read("states", days=[day])

    @cached_property
    def _fates(self) -> dict[str, dict[str, Any]]:
        fates = fates_of(self.lake, self.day)
        return {state_id: msgspec.structs.asdict(fate) for state_id, fate in fates.items()}

    @cached_property
    def _messages(self) -> tuple[list[str], pa.ChunkedArray]:
        table = self.lake.read("messages", days=[self.day], columns=["hash", "json", "n"])
        return table["hash"].to_pylist(), table["json"]

    @cached_property
    def _position(self) -> dict[str, int]:
        return {digest: number for number, digest in enumerate(self._messages[0])}

    @cached_property
    def _chains(self) -> pa.Table:
        return self.lake.read("chains", days=[self.day])

    def of_sessions(self, sessions: Collection[str]) -> pa.Table:
        """Return the rows of :attr:`states` of some sessions."""
        # A plain string as value set makes pyarrow import pandas.
        wanted = column(sorted(sessions), pa.string())
        return self.states.filter(pc.is_in(self.states["session_id"], value_set=wanted))

    def of(self, states: pa.Table) -> Iterator[TraceState]:
        """Yield the states of some rows of :attr:`states`, in their order."""
        for chain in self.paths(states):
            yield from chain.states

    def paths(self, states: pa.Table) -> Iterator[ChainPath]:
        """Yield the chains of some rows of :attr:`states`, each chain whole."""
        texts = self._messages[1]
        runs = groupby(self._with_chains(states), key=lambda pair: pair[0]["chain_id"])
        for _, run in runs:
            members = list(run)
            numbers = members[0][1]
            messages = [decoded(texts[n].as_py()) for n in numbers]
            made = [
                state_of(row | self._fates.get(row["state_id"], {}), messages, *self._recorded(row))
                for row, _ in members
            ]
            yield ChainPath(numbers, messages, made)

    def _recorded(self, row: dict[str, Any]) -> Iterator[Message | None]:
        """Yield the recorded system prompt and tools of a row."""
        texts = self._messages[1]
        for name in ("system_hash", "tools_hash"):
            yield decoded(texts[self._position[row[name]]].as_py()) if row[name] else None

    def actions(self, states: pa.Table) -> Iterator[Action]:
        """Yield the actions of some rows of :attr:`states`, without their prefixes."""
        texts = self._messages[1]
        for row, numbers in self._with_chains(states.select(["chain_id", "n_messages", "action"])):
            if row["action"] is not None:
                yield Action.from_json(row["action"])
            else:
                yield action_of(decoded(texts[numbers[row["n_messages"]]].as_py()))

    def _with_chains(self, states: pa.Table) -> Iterator[tuple[dict[str, Any], list[int]]]:
        """Yield rows with the message numbers of their chains, each chain checked once."""
        wanted = pc.is_in(self._chains["chain_id"], value_set=_unique(states["chain_id"]))
        chains = {row["chain_id"]: row for row in self._chains.filter(wanted).to_pylist()}
        hashes = self._messages[0]
        current, numbers = "", list[int]()
        for row in rows_from_table(states):
            if row["chain_id"] != current:
                current = row["chain_id"]
                chain = chains.get(current, {"messages": [], "digest": None})
                numbers = chain["messages"]
                known = (hashes[n] if n < len(hashes) else None for n in numbers)
                if chain["digest"] != chain_digest(known):  # written for other messages
                    raise InputError(
                        f"lake {self.lake.url}: day {self.day} is only partly written;"
                        " parse it again"
                    )
            yield row, numbers


def _unique(values: pa.ChunkedArray) -> pa.Array:
    return column(values.unique().to_pylist(), pa.string())


def following(lake: Lake, state: TraceState) -> list[dict[str, Any]]:
    """Return the blocks of the user message after the action: tool results, or a prompt."""
    chains = lake.read("chains", days=[state.day])
    chains = chains.filter(pc.equal(chains["chain_id"], state.chain_id))
    numbers = chains["messages"].to_pylist()[0][state.n_messages : state.n_messages + 2]
    table = lake.read("messages", days=[state.day], columns=["json", "n"])
    texts = dict(zip(table["n"].to_pylist(), table["json"], strict=True))
    messages = [json.loads(texts[number].as_py()) for number in numbers]
    # The action itself is first; without calls and text of its own it is not repeated.
    behind = messages[1:] if messages and messages[0]["role"] == "assistant" else messages[:1]
    return next((blocks_of(message) for message in behind if message["role"] == "user"), [])


def failure_chains(lake: Lake, state_ids: Collection[str]) -> dict[str, list[dict[str, str]]]:
    """Return the chain edit, failure, fix, check of each state that is part of one.

    Each step has ``step``, ``state_id`` and ``what``: what the action was about, or of the failure
    what it said. A chain without a fix to trust ends with the failure.
    """
    marks = ", ".join("?" * len(state_ids))
    found = lake.query(
        f"""
        SELECT s.state_id, e.day, e.state_id,
          if(e.state_id = s.culprit_state_id AND e.state_id <> s.state_id, s.state_id,
             e.caused_error), e.fixed_by, e.fix_verified_by
        FROM states s JOIN states e ON e.session_id = s.session_id AND (
          e.state_id IN (s.state_id, s.culprit_state_id)
          OR s.state_id IN (e.caused_error, e.fixed_by, e.fix_verified_by))
        WHERE s.state_id IN ({marks}) AND e.caused_error <> e.state_id
        ORDER BY e.state_id <> s.state_id, e.ts
        """,
        list(state_ids),
    ) if state_ids else []  # fmt: skip
    wanted = {state_id for row in found for state_id in row[2:] if state_id}
    states = load_states(lake, days={row[1] for row in found}, state_ids=wanted)
    said = {state.state_id: (state.action.summary(), state.verdict_evidence) for state in states}
    chains: dict[str, list[dict[str, str]]] = {}
    for state_id, _, *link in found:
        steps = zip(("edit", "failure", "fix", "check"), link, strict=True)
        chain = [{"step": step, "state_id": at, "what": str(said[at][step == "failure"])}
                 for step, at in steps if at]  # fmt: skip
        chains.setdefault(state_id, chain)
    return chains


def list_states(
    lake: Lake, *, days: Iterable[str] | None = None, sessions: Collection[str] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the listed columns of each state, day by day, in the order of time."""
    for day in lake.chosen_days("states", days):
        tables = DayTables(lake, day)
        rows = tables.states if sessions is None else tables.of_sessions(sessions)
        if not len(rows):
            continue
        rows = rows.sort_by([("ts", "ascending"), ("state_id", "ascending")])
        shown = rows.select(_LISTED).to_pylist()
        for row, action in zip(shown, tables.actions(rows), strict=True):
            yield row | {"tools": [call.name for call in action.tool_calls]}


#: Decoded messages that are kept; one session is kept whatever its size.
KEPT_MESSAGES = 12_000

_COLUMNS = (
    "state_id", "session_id", "agent_id", "chain_id", "project", "n_messages", "on_active_path",
    "error_kind", "verdict", "caused_error", "ts",
)  # fmt: skip
#: Texts that many rows of a day share as one object.
_SHARED = ("session_id", "agent_id", "chain_id", "project")


class _Row:
    """A TraceState with the columns above; the rest is read on demand."""

    __slots__ = ("_held", "_ticks", "day", *_COLUMNS[:-1])

    def __init__(self, held: "StatesOnDemand", day: str, *values: Any) -> None:
        self._held, self.day = held, day
        (
            self.state_id, self.session_id, self.agent_id, self.chain_id, self.project,
            self.n_messages, self.on_active_path, self.error_kind, self.verdict, self.caused_error,
            self._ticks,
        ) = values  # fmt: skip

    @property
    def ts(self) -> datetime | None:
        """When the response began."""
        return moment(self._ticks)

    @property
    def whole(self) -> TraceState:
        """The state with all of its columns."""
        return self._held.whole(self.day, self.session_id, self.state_id)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._held.whole(self.day, self.session_id, self.state_id), name)


class StatesOnDemand:
    """The states of some days, each once, in their stored order.

    What is not in a state's row is read with its whole session and kept for a while, so go through
    them session by session.
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
        """Return one state with its prefix."""
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
        rows = self._tables.of_sessions([session_id])
        return {state.state_id: state for state in self._tables.of(rows)}


def _values(table: pa.Table, name: str, same: dict[str, str]) -> list[Any]:
    """Return a column's values; a time as microseconds, which are cheaper to keep and compare."""
    column = table[name].cast(pa.int64()) if name == "ts" else table[name]
    values: list[Any] = column.to_pylist()
    return [same.setdefault(value, value) for value in values] if name in _SHARED else values


def _messages(states: dict[str, TraceState]) -> int:
    """Return about how many distinct messages a session's states have."""
    longest: dict[str, int] = {}
    for state in states.values():
        longest[state.chain_id] = max(longest.get(state.chain_id, 0), state.n_messages)
    return sum(longest.values())


class WholeSession(msgspec.Struct, kw_only=True):
    """A session of a day: its rows in ``sessions``, and each agent's paths (main agent: ``""``)."""

    session_id: str
    day: str
    rows: list[dict[str, Any]]
    paths: dict[str, list[ChainPath]]

    @property
    def states(self) -> list[TraceState]:
        """All states, the main trajectory's first."""
        return [
            state for agent in sorted(self.paths) for p in self.paths[agent] for state in p.states
        ]


def whole_sessions(
    lake: Lake, *, days: Iterable[str] | None = None, sessions: Collection[str] | None = None
) -> Iterator[WholeSession]:
    """Yield sessions day by day, by id; a day's tables and one session are held at a time."""
    for day in lake.chosen_days("states", days):
        tables = DayTables(lake, day)
        known = set(tables.states["session_id"].to_pylist())
        wanted = sorted(known if sessions is None else known & set(sessions))
        rows = lake.rows("sessions", days=[day]) if wanted else []
        for session_id in wanted:
            mine = [row for row in rows if row["session_id"] == session_id]
            yield WholeSession(
                session_id=session_id, day=day, rows=mine, paths=_paths(tables, session_id)
            )


def _paths(tables: DayTables, session_id: str) -> dict[str, list[ChainPath]]:
    order = [(name, "ascending") for name in ("agent_id", "chain_id", "n_messages", "state_id")]
    found: dict[str, list[ChainPath]] = {}
    for path in tables.paths(tables.of_sessions([session_id]).sort_by(order)):
        found.setdefault(path.states[0].agent_id, []).append(path)
    return found
