"""The trace state, and how one is assembled from its row and its chain."""

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import orjson

from composer_pipeline.actions import Action, ToolCall

Message = dict[str, Any]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class TraceState(msgspec.Struct, frozen=True, kw_only=True):
    """One model response: what the agent saw (``messages``) and what it did (``action``).

    The columns of the table ``states``, its ``day``, what became of its edit
    (:class:`~composer_pipeline.states.fates.EditFate`), and three rebuilt parts:
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
    agent: str = "claude-code"
    system_hash: str | None = None
    tools_hash: str | None = None
    error_kind: str | None = None
    hint: str | None = None
    hint_source: str | None = None
    hint_call: int | None = None
    verdict: str | None = None
    verdict_reason: str | None = None
    verdict_evidence: str | None = None
    culprit_state_id: str | None = None
    culprit_call: int | None = None
    culprit_by: str | None = None
    culprit_confidence: float | None = None
    lesson: str | None = None
    caused_error: str | None = None
    fixed_action: str | None = None
    fixed_by: str | None = None
    fix_verified_by: str | None = None
    fix_distance: int | None = None
    more_failures: list[str] | None = None
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
    fate: str | None = None
    kept: float | None = None
    survival: float | None = None
    committed_action: str | None = None

    @property
    def whole(self) -> "TraceState":
        """The state itself; of a row of :class:`StatesOnDemand`, the state that it stands for."""
        return self


def state_of(
    row: dict[str, Any], chain: list[Message], system: Message | None, tools: Message | None
) -> TraceState:
    """Assemble a state from its row and the decoded messages of its chain."""
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


def decoded(text: str) -> Message:
    """Return a stored message; its integers may have more than 64 bits."""
    try:
        message: Message = orjson.loads(text)
    except orjson.JSONDecodeError:
        message = json.loads(text)
    return message


def moment(ticks: int | None) -> datetime | None:
    """Return the UTC time of microseconds since 1970."""
    return None if ticks is None else _EPOCH + timedelta(microseconds=ticks)


class Unseen:
    """Finds messages that were not seen before, by object: prefixes of a session share them.

    All states must be alive together, or another message gets an old one's address.
    """

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._chains: dict[str, list[Message]] = {}

    def of(self, state: "TraceState") -> list["Message"]:
        """Return a state's messages that no earlier state had, in no order."""
        # Only what a grown chain has new is looked at, or time grows with the square of a session.
        messages, before = state.messages, self._chains.get(state.chain_id)
        if not before or len(before) > len(messages) or before[-1] is not messages[len(before) - 1]:
            before = []
        self._chains[state.chain_id] = messages
        found = {id(message): message for message in messages[len(before) :]}
        fresh = found.keys() - self._seen
        self._seen |= fresh
        return [found[message] for message in fresh]


def draw(state_id: str) -> tuple[str, str]:
    """Return a sort key that puts states in a fixed random order."""
    return hashlib.blake2b(state_id.encode(), digest_size=8).hexdigest(), state_id


def blocks_of(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the blocks of a stored message."""
    content = message.get("content") or []
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def block_text(block: Mapping[str, Any]) -> str:
    """Return one block as text."""
    kind = block.get("type")
    if kind == "text":
        return str(block.get("text"))
    if kind == "tool_use":
        return f"-> {block['name']} {json.dumps(block['input'], ensure_ascii=False)}"
    if kind == "tool_result":
        return f"<- {'error: ' if block.get('is_error') else ''}{block.get('content')}"
    return f"[{kind}]"
