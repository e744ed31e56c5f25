"""A path of a session as steps: what was said, what was called, and what came back.

Belongs here: one step for each message that a person or the agent sent, with the wording of
``chat``: the prompt of a state is its steps up to the action, put together. Does not belong
here: which paths a session has (``interchange.paths``), and any format's own words.
"""

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

import msgspec

from composer_pipeline.actions import ERROR_PREFIX
from composer_pipeline.chat.convert import INTERRUPTED, Builder, system_message
from composer_pipeline.states.load import Path
from composer_pipeline.states.state import Message, TraceState, action_of


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


#: What names a message: its number within the day, or the state whose action stands for one.
_Name = int | str


class Line(msgspec.Struct):
    """One path as steps.

    ``kind`` is ``start``, ``continuation`` (the context before it was compacted or cleared) or
    ``branch`` (abandoned by a rewind). ``names`` says of each step what message it is, and
    ``copied`` that it stands there for context alone: another path has it too.
    """

    kind: str
    steps: list[Step]
    names: list[_Name]
    copied: list[bool]

    @property
    def states(self) -> list[TraceState]:
        """The states whose action is a step of this path."""
        return [step.state for step in self.steps if step.state is not None]


class _Path(msgspec.Struct):
    names: list[_Name]
    messages: list[Message]
    actions: dict[int, TraceState]


def lines_of(paths: list[Path]) -> list[Line]:
    """Return the paths of one trajectory: the active ones by time, then abandoned branches.

    A path that another one continues word for word is a part of that one.
    """
    whole: list[_Path] = []
    for path in sorted(map(_with_actions, _apart(paths)), key=lambda p: len(p.names), reverse=True):
        if not any(_taken(path, longer) for longer in whole):
            whole.append(path)
    whole.sort(key=_began)
    active = [path for path in whole if _last(path).on_active_path]
    ordered = active + [path for path in whole if not _last(path).on_active_path]
    return [
        _line(path, "start" if n == 0 else "continuation" if n < len(active) else "branch", ordered)
        for n, path in enumerate(ordered)
    ]


def _apart(paths: list[Path]) -> list[Path]:
    """Return the paths so that each state's action is the message behind its prefix, or the end.

    An action that is stored apart from its chain belongs to a recorded request, which ends
    before it. Each such request is a path of its own.
    """
    apart = []
    for path in paths:
        inside = [s for s in path.states if _is_next(path, s)]
        if inside:
            apart.append(Path(path.numbers, path.messages, inside))
        for state in path.states:
            if not _is_next(path, state):
                n = state.n_messages
                apart.append(Path(path.numbers[:n], path.messages[:n], [state]))
    return apart


def _is_next(path: Path, state: TraceState) -> bool:
    n = state.n_messages
    if n >= len(path.messages) or path.messages[n]["role"] != "assistant":
        return False
    return action_of(path.messages[n]) == state.action


def _with_actions(path: Path) -> _Path:
    names: list[_Name] = list(path.numbers)
    messages = list(path.messages)
    for state in path.states:
        if state.n_messages == len(messages):
            names.append(state.state_id)
            messages.append({"role": "assistant", "content": _state_blocks(state)})
    return _Path(names, messages, {state.n_messages: state for state in path.states})


def _state_blocks(state: TraceState) -> list[dict[str, Any]]:
    text = [{"type": "text", "text": state.action.text}] if state.action.text else []
    calls = [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments}
        for call in state.action.tool_calls
    ]
    return text + calls


def _taken(path: _Path, longer: _Path) -> bool:
    """Move a path's states to a path that begins with it; return whether it does."""
    end = len(path.names)
    apart = isinstance(path.names[-1], str)
    if longer.names[: end - apart] != path.names[: end - apart]:
        return False
    if apart:
        there, (state,) = longer.messages[end - 1], path.actions.values()
        if there["role"] != "assistant" or action_of(there) != state.action:
            return False
    if any(longer.actions.get(n, state) is not state for n, state in path.actions.items()):
        return False
    longer.actions.update(path.actions)
    return True


def _began(path: _Path) -> tuple[str, str]:
    first = path.actions[min(path.actions)]
    return (first.ts.isoformat() if first.ts else "~", first.state_id)


def _last(path: _Path) -> TraceState:
    return path.actions[max(path.actions)]


def _line(path: _Path, kind: str, all_paths: list[_Path]) -> Line:
    steps = steps_of(path.messages, path.actions)
    names = [path.names[step.position] if step.position >= 0 else "system" for step in steps]
    copied = [step.source == "agent" and step.state is None for step in steps]
    last = max((n for n, flag in enumerate(copied) if flag), default=-1)
    elsewhere = {name for other in all_paths if other is not path for name in other.names}
    for n, step in enumerate(steps[: max(last, 0)]):
        # A summary is new; what was kept beside it is not.
        copied[n] |= step.source == "user" and names[n] in elsewhere
    return Line(kind, steps, names, copied)
