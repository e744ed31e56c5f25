"""Sessions of the small world as Claude Code writes them.

Belongs here: records of a session and its file. Does not belong here: what happens in it
(``toolworld.world``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from composer_pipeline.actions import Action
from composer_pipeline.testing.sample_sessions.authoring import REJECTED, Session
from composer_pipeline.testing.sample_sessions.calls import Call
from composer_pipeline.testing.toolworld.world import PROJECT, Recorded, Step, World

#: Days of the sessions of even bug types, and of odd ones: half coverage asks the first only.
DAYS = ("2026-11-02", "2026-11-03")


@dataclass(frozen=True)
class Written:
    """A session with its file.

    ``truth`` maps the message id of each response to its state.
    """

    recorded: Recorded
    session: Session
    truth: dict[str, Step]


def write_session(recorded: Recorded, slug: str) -> Written:
    """Return a session with its records; the slug makes its ids."""
    world = recorded.world
    session = Session(slug, PROJECT, f"{DAYS[world.bug % 2]}T09:00", model="claude-haiku-4-5")
    session.user(world.prompt)
    truth = {}
    for step in recorded.steps():
        call = _recorded_call(world, step)
        if step.failed and world.told_by_user and step.number == 2:
            message = session.stopped(call)
            session.user(world.feedback())
        else:
            message = session.step(call)
        truth[message] = step
    return Written(recorded, session, truth)


def write_files(sessions: Sequence[Written], folder: Path) -> None:
    """Write the files of sessions below ``folder``, as below ``~/.claude/projects``."""
    for written in sessions:
        for name, data in written.session.render().items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


def _recorded_call(world: World, step: Step) -> Call:
    """Return the call of a state with its recorded result."""
    call = _call(step.action)
    if step.failed:
        return _failed(world, call)
    if step.number == 0:
        return call.gives(f"     1→{world.line}")
    if step.number == 1:
        return call.gives("The file has been updated.")
    return call.gives("1 passed")


def _failed(world: World, call: Call) -> Call:
    said = world.feedback()
    if world.hard_step == 0:
        return call.fails(f"<tool_use_error>{said}</tool_use_error>", code=None)
    if world.hard_step == 1:
        prefix = REJECTED if world.told_by_user else "PreToolUse:Edit hook error: "
        return call.fails(prefix + said, code=None)
    return call.fails(said, code=4)


def _call(action: Action) -> Call:
    (made,) = action.tool_calls
    return Call(made.name, made.arguments)
