"""A path of a session as steps: what was said, what was called, and what came back.

Belongs here: one step for each message that a person or the agent sent, with the wording of
``chat``: the prompt of a state is its steps up to the action, put together. Does not belong
here: which paths a session has (``interchange.paths``), and any format's own words.
"""

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

import msgspec

from composer_pipeline.chat import ERROR_PREFIX, INTERRUPTED, Builder, system_message
from composer_pipeline.trace_states import Message, TraceState


class Call(msgspec.Struct):
    """One call: ``id`` as in the dataset's prompts, ``recorded`` as in the session's file.

    ``result`` is ``None`` where the session has none; ``is_error`` is about the result.
    """

    id: str
    recorded: str
    name: str
    arguments: dict[str, Any]
    result: str | None = None
    is_error: bool = False


class Step(msgspec.Struct):
    """What one side said; ``source`` is ``system``, ``user`` or ``agent``.

    ``answered`` says that a user's message follows the calls, with results or without.
    ``position`` is that of its message in the path, -1 for the system prompt; ``state`` is the
    one whose action it is, and is ``None`` where that state belongs to another path.
    """

    source: str
    text: str
    position: int
    calls: list[Call] = []
    answered: bool = False
    state: TraceState | None = None
    detail: str = ""


def steps_of(messages: list[Message], actions: Mapping[int, TraceState]) -> list[Step]:
    """Return the steps of a path.

    Args:
        messages: its messages, in blocks.
        actions: position of a message to the state whose action it is.
    """
    builder = Builder()
    steps: list[Step] = []
    for is_agent, run in groupby(enumerate(messages), key=lambda it: it[1]["role"] == "assistant"):
        members = [(position, _blocks(message)) for position, message in run]
        if is_agent:
            steps += _agent(builder, members, actions)
        else:
            steps += _user(builder, members, steps)
    return _with_systems(steps)


def _agent(
    builder: Builder, run: list[tuple[int, list[Any]]], actions: Mapping[int, TraceState]
) -> Iterator[Step]:
    """Yield a step for each message of a run; the builder makes one message of them."""
    builder.assistant([block for _, blocks in run for block in blocks])
    said = builder.messages
    builder.messages = []
    wire = iter([call for message in said for call in message.get("tool_calls", ())])
    for position, blocks in run:
        texts = [str(b.get("text", "")) for b in blocks if _kind(b) == "text"]
        text = "\n\n".join(t for t in texts if t.strip())
        calls = []
        for block in blocks:
            if _kind(block) == "tool_use":
                call = next(wire)
                function = call["function"]
                recorded = str(block.get("id", ""))
                calls.append(Call(call["id"], recorded, function["name"], function["arguments"]))
        if text or calls:
            yield Step("agent", text, position, calls, state=actions.get(position))


def _user(builder: Builder, run: list[tuple[int, list[Any]]], before: list[Step]) -> Iterator[Step]:
    """Give the run's results to the calls before it, and yield what else the user said."""
    blocks = [block for _, content in run for block in content]
    builder.user(blocks)
    said = builder.messages
    builder.messages = []
    failed = {
        str(b.get("tool_use_id", ""))
        for b in blocks
        if _kind(b) == "tool_result" and b.get("is_error") is True
    }
    results = {message["tool_call_id"]: message["content"] for message in said if _is_tool(message)}
    for step in reversed(before):
        if step.answered:
            break
        step.answered = step.source == "agent"
        for call in step.calls:
            text = results.get(call.id, INTERRUPTED)
            if text != INTERRUPTED:
                call.is_error = call.recorded in failed and text.startswith(ERROR_PREFIX)
                call.result = text.removeprefix(ERROR_PREFIX) if call.is_error else text
    for message in said:
        if not _is_tool(message):
            yield Step("user", message["content"], run[0][0])


def _with_systems(steps: list[Step]) -> list[Step]:
    """Put the system prompt before the first step, and before each state that had another."""
    first = next((step.state for step in steps if step.state), None)
    if first is None:
        return steps
    text, source = system_message(first)
    done = [Step("system", text, -1, detail=source)]
    for step in steps:
        if step.state is not None and system_message(step.state)[0] != text:
            text, source = system_message(step.state)
            done.append(Step("system", text, -1, detail=source))
        done.append(step)
    return done


def _blocks(message: Message) -> list[Any]:
    content = message.get("content") or []
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _kind(block: Any) -> Any:
    return block.get("type") if isinstance(block, dict) else None


def _is_tool(message: Mapping[str, Any]) -> bool:
    return bool(message["role"] == "tool")
