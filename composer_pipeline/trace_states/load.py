"""States of whole days, in their stored order, with their prefixes.

Belongs here: reading a day's chains once. Does not belong here: single states of a large
lake (``trace_states.reader``).
"""

import json
from collections.abc import Collection, Iterable, Iterator
from functools import cached_property
from itertools import groupby
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from composer_pipeline.actions import Action
from composer_pipeline.errors import InputError
from composer_pipeline.lake import Lake, column
from composer_pipeline.trace_states.chains import check_chain
from composer_pipeline.trace_states.state import (
    Message,
    TraceState,
    action_of,
    decoded,
    rows_of,
    state_of,
)

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
    chosen = sorted(set(lake.days("states") if days is None else days))
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


class Path(msgspec.Struct):
    """A chain of a day, whole, and states on it.

    ``numbers`` are those of its messages within the day: equal numbers are equal messages.
    ``messages`` go on behind the last state: its action, and what came of it.
    """

    numbers: list[int]
    messages: list[Message]
    states: list[TraceState]


class DayTables:
    """The tables of one day, read once; states are put together from them.

    Args:
        lake: the lake.
        day: a day that it has states of.
    """

    def __init__(self, lake: Lake, day: str) -> None:
        self.lake, self.day = lake, day
        self.states = lake.read("states", days=[day])

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

    def of(self, states: pa.Table) -> Iterator[TraceState]:
        """Yield the states of some rows of :attr:`states`, in their order.

        Raises:
            InputError: the day was only partly written (its parsing was killed).
        """
        for chain in self.paths(states):
            yield from chain.states

    def paths(self, states: pa.Table) -> Iterator[Path]:
        """Yield the chains of some rows of :attr:`states`, each run of rows with its chain whole.

        Raises:
            InputError: the day was only partly written (its parsing was killed).
        """
        texts = self._messages[1]
        runs = groupby(self._with_chains(states), key=lambda pair: pair[0]["chain_id"])
        for _, run in runs:
            members = list(run)
            numbers = members[0][1]
            messages = [decoded(texts[n].as_py()) for n in numbers]
            made = [state_of(row, messages, *self._recorded(row)) for row, _ in members]
            yield Path(numbers, messages, made)

    def _recorded(self, row: dict[str, Any]) -> Iterator[Message | None]:
        """Yield the recorded system prompt and tools of a row."""
        texts = self._messages[1]
        for name in ("system_hash", "tools_hash"):
            yield decoded(texts[self._position[row[name]]].as_py()) if row[name] else None

    def actions(self, states: pa.Table) -> Iterator[Action]:
        """Yield what the agent did in some rows of :attr:`states`; their prefixes are not read.

        Raises:
            InputError: as :meth:`of`.
        """
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
        for row in rows_of(states):
            if row["chain_id"] != current:
                current = row["chain_id"]
                chain = chains.get(current, {"messages": [], "digest": None})
                numbers = chain["messages"]
                check_chain(self.lake, self.day, chain["digest"], [_at(hashes, n) for n in numbers])
            yield row, numbers


def _at(hashes: list[str], number: int) -> str | None:
    return hashes[number] if number < len(hashes) else None


def _unique(values: pa.ChunkedArray) -> pa.Array:
    return column(values.unique().to_pylist(), pa.string())


def following(lake: Lake, state: TraceState) -> list[dict[str, Any]]:
    """Return the blocks of the user message behind the action: tool results, or a prompt.

    Empty where the trajectory ends with the action.

    Args:
        lake: the lake that the state comes from.
        state: the state.
    """
    chains = lake.read("chains", days=[state.day])
    chains = chains.filter(pc.equal(chains["chain_id"], state.chain_id))
    numbers = chains["messages"].to_pylist()[0][state.n_messages : state.n_messages + 2]
    table = lake.read("messages", days=[state.day], columns=["json", "n"])
    texts = dict(zip(table["n"].to_pylist(), table["json"], strict=True))
    messages = [json.loads(texts[number].as_py()) for number in numbers]
    # The action itself is first; without calls and text of its own it is not repeated.
    behind = messages[1:] if messages and messages[0]["role"] == "assistant" else messages[:1]
    for message in behind:
        if message["role"] == "user":
            content = message["content"]
            return [{"type": "text", "text": content}] if isinstance(content, str) else content
    return []


def list_states(
    lake: Lake,
    *,
    days: Iterable[str] | None = None,
    sessions: Collection[str] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield what is worth a line of each state, day by day, in the order of time.

    Args:
        lake: the lake.
        days: only of these days; all when ``None``.
        sessions: only of these sessions; all when ``None``.

    Raises:
        InputError: a day was only partly written.
    """
    wanted = None if sessions is None else column(sorted(sessions), pa.string())
    for day in lake.days("states") if days is None else sorted(days):
        tables = DayTables(lake, day)
        rows = tables.states
        if wanted is not None:
            rows = rows.filter(pc.is_in(rows["session_id"], value_set=wanted))
        if not len(rows):
            continue
        rows = rows.sort_by([("ts", "ascending"), ("state_id", "ascending")])
        shown = rows.select(_LISTED).to_pylist()
        for row, action in zip(shown, tables.actions(rows), strict=True):
            yield row | {"tools": [call.name for call in action.tool_calls]}
