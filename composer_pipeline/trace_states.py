"""TraceStates back from the lake: prefixes rebuilt from chains and messages.

Belongs here: the one way in which later rooms read states. Does not belong here: how
the tables are written (``traces.parse``).
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

import msgspec
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.errors import InputError
from composer_pipeline.lake import Lake, column

Message = dict[str, Any]


class TraceState(msgspec.Struct, frozen=True, kw_only=True):
    """One model response: what the agent saw (``messages``) and what it did (``action``).

    The columns of the table ``states``, its ``day``, and three rebuilt parts:
    ``messages`` is the prefix (the result of the action is not in it), ``system`` and
    ``tools`` are the recorded system prompt and tool schemas or ``None``. States of one
    chain share their message objects: do not change them. ``action_json`` is the action
    as stored.
    """

    state_id: str
    session_id: str
    agent_id: str
    message_id: str
    day: str
    chain_id: str
    n_messages: int
    messages: list[Message]
    system: str | None
    tools: list[Any] | None
    action: Action
    action_json: str
    fidelity: str
    on_active_path: bool
    repaired: bool
    project: str
    cwd: str
    turn: int
    parser_version: str
    system_hash: str | None = None
    tools_hash: str | None = None
    error_kind: str | None = None
    hint: str | None = None
    hint_source: str | None = None
    hint_call: int | None = None
    model: str | None = None
    version: str | None = None
    ts: datetime | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    followed_by_error: bool | None = None
    followed_by_correction: bool | None = None
    interrupted: bool | None = None
    reverted: bool | None = None
    tests_passed: bool | None = None


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
            _decode(parts[name][0]["json"]) if parts.get(name) else None
            for name in ("system_hash", "tools_hash")
        )
        return _state(row, [_decode(texts[number]) for number in wanted], system, tools)

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
            messages = [_decode(texts[n].as_py()) for n in chain]
        yield _state(
            row,
            messages,
            *(
                _decode(texts[position[row[name]]].as_py()) if row[name] else None
                for name in ("system_hash", "tools_hash")
            ),
        )


def _state(
    row: dict[str, Any], chain: list[Message], system: Message | None, tools: Message | None
) -> TraceState:
    """Put a state together from its row and the decoded messages of its chain."""
    text = row.pop("action")
    if text is None:
        action = action_of(chain[row["n_messages"]])
        text = action.to_json()
    else:
        action = Action.from_json(text)
    return TraceState(
        **row,
        action=action,
        action_json=text,
        messages=chain[: row["n_messages"]],
        system=system["content"] if system else None,
        tools=tools["content"] if tools else None,
    )


def action_of(message: Message) -> Action:
    """Return what an assistant message did: its texts joined, and its tool calls."""
    texts: list[str] = []
    calls: list[ToolCall] = []
    for block in message["content"]:
        if block["type"] == "text":
            texts.append(block["text"])
        elif block["type"] == "tool_use":
            given = block["input"]
            arguments = given if isinstance(given, dict) else {"input": given}
            calls.append(ToolCall(block["name"], arguments, block["id"]))
    return Action("\n\n".join(texts), tuple(calls))


def chain_digest(hashes: Iterable[str | None]) -> str:
    """Return what ``chains.digest`` is for messages with these hashes."""
    data = b"".join(bytes.fromhex(digest or "") for digest in hashes)
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def check_chain(lake: Lake, day: str, digest: str | None, hashes: list[str | None]) -> None:
    """Refuse a chain that was written for other messages than are there now.

    Raises:
        InputError: the day was only partly written.
    """
    if digest != chain_digest(hashes):
        raise InputError(f"lake {lake.url}: day {day} is only partly written; parse it again")


def _at(hashes: list[str], number: int) -> str | None:
    return hashes[number] if number < len(hashes) else None


def _unique(values: pa.ChunkedArray) -> pa.Array:
    return column(values.unique().to_pylist(), pa.string())


def _decode(text: str) -> Message:
    try:
        message: Message = orjson.loads(text)
    except orjson.JSONDecodeError:  # integers of more than 64 bits
        message = json.loads(text)
    return message


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
