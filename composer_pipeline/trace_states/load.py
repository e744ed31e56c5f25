"""States of whole days, in their stored order, with their prefixes.

Belongs here: reading a day's chains once. Does not belong here: single states of a large
lake (``trace_states.reader``).
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from composer_pipeline.errors import InputError
from composer_pipeline.lake import Lake, column
from composer_pipeline.trace_states.chains import check_chain
from composer_pipeline.trace_states.state import Message, TraceState, decoded, state_of


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
        states = lake.read("states", days=[day])
        if wanted is not None:
            states = states.filter(pc.is_in(states["state_id"], value_set=wanted))
        if len(states):
            yield from _states_of_day(lake, day, states)


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


def _states_of_day(lake: Lake, day: str, states: pa.Table) -> Iterator[TraceState]:
    chains = lake.read("chains", days=[day])
    chains = chains.filter(pc.is_in(chains["chain_id"], value_set=_unique(states["chain_id"])))
    numbers = dict(zip(chains["chain_id"].to_pylist(), chains["messages"].to_pylist(), strict=True))
    digests = dict(zip(chains["chain_id"].to_pylist(), chains["digest"].to_pylist(), strict=True))
    table = lake.read("messages", days=[day], columns=["hash", "json", "n"])
    hashes, texts = table["hash"].to_pylist(), table["json"]
    position = {hashes[i]: i for i in range(len(hashes))}
    current, messages = "", list[Message]()
    for row in states.to_pylist():
        if row["chain_id"] != current:
            current = row["chain_id"]
            chain = numbers.get(current, [])
            check_chain(lake, day, digests.get(current), [_at(hashes, n) for n in chain])
            messages = [decoded(texts[n].as_py()) for n in chain]
        yield state_of(
            row,
            messages,
            *(
                decoded(texts[position[row[name]]].as_py()) if row[name] else None
                for name in ("system_hash", "tools_hash")
            ),
        )


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
