"""The paths of one agent's trajectory in order, and how they hang together.

Belongs here: which path comes first, which goes on after a compaction, which was abandoned, and
which steps a path took over from another. Does not belong here: the words of a format.
"""

from typing import Any

import msgspec

from composer_pipeline.interchange.steps import Step, steps_of
from composer_pipeline.trace_states import Message, Path, TraceState, action_of

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
            messages.append({"role": "assistant", "content": _blocks(state)})
    return _Path(names, messages, {state.n_messages: state for state in path.states})


def _blocks(state: TraceState) -> list[dict[str, Any]]:
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
