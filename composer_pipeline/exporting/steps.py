"""The paths of a session as steps: what was said, what was called, and what came back.

The wording is that of ``chat``: the prompt of a state is its steps up to the action.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import msgspec

from composer_pipeline.actions import ERROR_PREFIX
from composer_pipeline.chat.convert import INTERRUPTED, Builder, system_message
from composer_pipeline.states.load import ChainPath, WholeSession
from composer_pipeline.states.state import Message, TraceState, action_of, blocks_of


class StepCall(msgspec.Struct):
    """One call and its result."""

    id: str  #: as in the dataset's prompts
    recorded: str  #: the id in the session's file
    name: str
    arguments: dict[str, Any]
    result: str | None = None
    is_error: bool = False


class SessionStep(msgspec.Struct):
    """One message of the system, the user or the agent."""

    source: str  #: ``system``, ``user`` or ``agent``
    text: str
    position: int  #: of its message in the path; -1 for the system prompt
    calls: list[StepCall] = []
    answered: bool = False  #: a user's message follows the calls, with results or without
    state: TraceState | None = None  #: whose action it is, unless that is of another path
    detail: str = ""


def _steps_of(messages: list[Message], actions: Mapping[int, TraceState]) -> list[SessionStep]:
    """Return the steps of messages; ``actions`` is position to the state whose action it is."""
    builder = Builder()
    steps: list[SessionStep] = []
    for is_agent, run in groupby(enumerate(messages), key=lambda it: it[1]["role"] == "assistant"):
        members = [(position, blocks_of(message)) for position, message in run]
        if is_agent:
            steps += _agent(builder, members, actions)
        else:
            steps += _user(builder, members, steps)
    return _with_systems(steps)


def _agent(
    builder: Builder, run: list[tuple[int, list[Any]]], actions: Mapping[int, TraceState]
) -> Iterator[SessionStep]:
    """Yield a step for each message of a run, which the builder joins to one message."""
    builder.assistant([block for _, blocks in run for block in blocks])
    built, builder.messages = builder.messages, []
    wire = iter([call for message in built for call in message.get("tool_calls", ())])
    for position, blocks in run:
        text = "\n\n".join(_texts(blocks))
        calls = [
            StepCall(
                call["id"], str(b.get("id", "")), *map(call["function"].get, ("name", "arguments"))
            )
            for b in blocks
            if b.get("type") == "tool_use"
            for call in [next(wire)]
        ]
        if text or calls:
            yield SessionStep("agent", text, position, calls, state=actions.get(position))


def _user(
    builder: Builder, run: list[tuple[int, list[Any]]], before: list[SessionStep]
) -> Iterator[SessionStep]:
    """Add the run's results to the calls before it, and yield the user's own messages."""
    blocks = [block for _, content in run for block in content]
    builder.user(blocks)
    built, builder.messages = builder.messages, []
    failed = {
        str(b.get("tool_use_id", ""))
        for b in blocks
        if b.get("type") == "tool_result" and b.get("is_error") is True
    }
    results = {m["tool_call_id"]: m["content"] for m in built if m["role"] == "tool"}
    for step in reversed(before):
        if step.answered:
            break
        step.answered = step.source == "agent"
        for call in step.calls:
            text = results.get(call.id, INTERRUPTED)
            if text != INTERRUPTED:
                call.is_error = call.recorded in failed and text.startswith(ERROR_PREFIX)
                call.result = text.removeprefix(ERROR_PREFIX) if call.is_error else text
    own = [(position, "\n\n".join(_texts(content))) for position, content in run]
    own = [(position, text) for position, text in own if text]
    for message in built:
        if message["role"] == "tool":
            continue
        if message["content"] != "\n\n".join(text for _, text in own):
            own = [(run[0][0], message["content"])]  # pictures and other things have places in it
        for position, text in own:
            yield SessionStep("user", text, position)


def _with_systems(steps: list[SessionStep]) -> list[SessionStep]:
    """Put the system prompt before the first step, and before each state that had another."""
    first = next((step.state for step in steps if step.state), None)
    if first is None:
        return steps
    text, source = system_message(first)
    done = [SessionStep("system", text, -1, detail=source)]
    for step in steps:
        if step.state is not None and system_message(step.state)[0] != text:
            text, source = system_message(step.state)
            done.append(SessionStep("system", text, -1, detail=source))
        done.append(step)
    return done


def _texts(blocks: list[Any]) -> list[str]:
    texts = [str(block.get("text", "")) for block in blocks if block.get("type") == "text"]
    return [text for text in texts if text.strip()]


def harness_of(session: WholeSession) -> str:
    """Return whose session it is: ``claude-code``, ``codex``, ..."""
    return str(session.rows[0]["agent"])


#: The name of a message: its number within the day, or the id of the state whose action it is.
_Name = int | str


class PathSteps(msgspec.Struct):
    """One path of a trajectory as steps."""

    kind: str  #: ``start``, ``continuation`` (after a compaction) or ``branch`` (abandoned)
    steps: list[SessionStep]
    names: list[_Name]  #: of each step's message
    copied: list[bool]  #: of each step: it repeats another path, for context

    @property
    def states(self) -> list[TraceState]:
        """Return the states whose action is a step of this path."""
        return [step.state for step in self.steps if step.state is not None]


class _Path(msgspec.Struct):
    names: Sequence[_Name]
    messages: list[Message]
    actions: dict[int, TraceState]


def path_steps(paths: list[ChainPath]) -> list[PathSteps]:
    """Return the paths of one trajectory: the active ones by time, then abandoned branches.

    A path that is the beginning of another is part of that one.
    """
    whole: list[_Path] = []
    for path in sorted(_apart(paths), key=lambda p: len(p.names), reverse=True):
        if not any(_taken(path, longer) for longer in whole):
            whole.append(path)
    whole.sort(key=_began)
    active = [path for path in whole if _last(path).on_active_path]
    ordered = active + [path for path in whole if not _last(path).on_active_path]
    return [
        _path_steps(
            path, "start" if n == 0 else "continuation" if n < len(active) else "branch", ordered
        )
        for n, path in enumerate(ordered)
    ]


def _apart(paths: list[ChainPath]) -> Iterator[_Path]:
    """Yield the paths so that each state's action is the message after its prefix, or the end."""
    # An action stored apart from its chain belongs to a recorded request, which ends before it:
    # each such request becomes a path of its own.
    for path in paths:
        inside: dict[int, TraceState] = {}
        apart: list[_Path] = []
        for state in path.states:
            n = state.n_messages
            if _is_next(path, state):
                inside[n] = state
                continue
            action: Message = {"role": "assistant", "content": _state_blocks(state)}
            names: list[_Name] = [*path.numbers[:n], state.state_id]
            apart.append(_Path(names, [*path.messages[:n], action], {n: state}))
        if inside:
            yield _Path(path.numbers, path.messages, inside)
        yield from apart


def _is_next(path: ChainPath, state: TraceState) -> bool:
    n = state.n_messages
    if n >= len(path.messages) or path.messages[n]["role"] != "assistant":
        return False
    return action_of(path.messages[n]) == state.action


def _state_blocks(state: TraceState) -> list[dict[str, Any]]:
    text = [{"type": "text", "text": state.action.text}] if state.action.text else []
    calls = [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments}
        for call in state.action.tool_calls
    ]
    return text + calls


def _taken(path: _Path, longer: _Path) -> bool:
    """Move a path's states to a path that begins with it; return True if it does."""
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


def _path_steps(path: _Path, kind: str, all_paths: list[_Path]) -> PathSteps:
    steps = _steps_of(path.messages, path.actions)
    names = [path.names[step.position] if step.position >= 0 else "system" for step in steps]
    copied = [step.source == "agent" and step.state is None for step in steps]
    last = max((n for n, flag in enumerate(copied) if flag), default=-1)
    elsewhere = {name for other in all_paths if other is not path for name in other.names}
    for n, step in enumerate(steps[: max(last, 0)]):
        # A summary is new; the messages kept beside it are not.
        copied[n] |= step.source == "user" and names[n] in elsewhere
    return PathSteps(kind, steps, names, copied)
