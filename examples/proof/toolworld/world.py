"""The small world: what is right, what the agent gets wrong, and what is drawn.

A session fixes one bug in one file in three steps. The agent has exactly one misconception a
session, which the bug type decides:

==== ============================== ==================== =====================================
step right action                   bug types            mistake, and what is said about it
==== ============================== ==================== =====================================
0    Read the file                  0, 1                 calls ``Open``: no such tool, use Read
1    Edit the line to fix w(b)      2, 3                 edits to w(b+1): the test expects w(b)
2    Bash ``pytest`` on its test    4, 5                 the next file's test: did you mean …
==== ============================== ==================== =====================================

In a recorded session it makes the mistake with probability 0.85; after it, it recovers. Half of
the mistakes of steps 1 and 2 are noticed by the user (a rejection, an interruption) and not by
a tool.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any, Literal

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.chat.convert import to_chat, wire_messages
from composer_pipeline.states.state import TraceState
from composer_pipeline.teachers.teachers import TeacherSet
from composer_pipeline.testing.openrouter.models import SimulatedModel
from composer_pipeline.testing.personas import PersonaName, Script, prefix_key
from scripts.sample_sessions.authoring import REJECTED, Session
from scripts.sample_sessions.calls import Call, Project

FILES, SYMBOLS, BUGS = 24, 16, 6
STEPS = 3
#: Probability that the agent makes its mistake at the one step where it has one.
MISTAKEN = 0.85
PROJECT = Project("toolworld", "/home/ada", "/srv/toolworld", {})

StateKind = Literal["hard", "easy", "recovery"]


@dataclass(frozen=True, slots=True)
class World:
    """What a session is about: numbers of its file, symbol and bug type."""

    file: int
    symbol: int
    bug: int

    @property
    def hard_step(self) -> int:
        """The one step at which the agent has a misconception."""
        return self.bug // 2

    @property
    def told_by_user(self) -> bool:
        """Whether the user and not a tool says what was wrong (steps 1 and 2)."""
        return self.hard_step > 0 and (self.file + self.symbol) % 2 == 0

    @property
    def prompt(self) -> str:
        """What the user asks for."""
        return f"Fix b{self.bug} in f{self.file}.py"

    @property
    def line(self) -> str:
        """The only line of the file."""
        return f"s{self.symbol}"

    def right(self, step: int) -> Action:
        """Return the right action of a step."""
        return (read(self.file), edit(self, self.file, self.bug), run_test(self.file))[step]

    def mistake(self) -> Action:
        """Return what the agent does at :attr:`hard_step`."""
        mistakes = (
            open_(self.file),
            edit(self, self.file, (self.bug + 1) % BUGS),
            run_test((self.file + 1) % FILES),
        )
        return mistakes[self.hard_step]

    def feedback(self) -> str:
        """Return the truthful words about the mistake, without what the client puts around."""
        if self.hard_step == 0:
            return "Error: No such tool available: Open. Use Read."
        if self.hard_step == 1:
            return f"The test expects w{self.bug}."
        right, wrong = self.file, (self.file + 1) % FILES
        if self.told_by_user:
            return f"Run tests/test_f{right}.py"
        return f"ERROR: not found: tests/test_f{wrong}.py\nDid you mean tests/test_f{right}.py?"


def read(file: int) -> Action:
    """Return a Read of a file."""
    return _call("Read", file_path=_path(file))


def open_(file: int) -> Action:
    """Return a call of a tool that does not exist."""
    return _call("Open", file_path=_path(file))


def edit(world: World, file: int, fix: int) -> Action:
    """Return an Edit of a world's line in a file."""
    return _call("Edit", file_path=_path(file), old_string=world.line, new_string=f"w{fix}")


def run_test(file: int) -> Action:
    """Return a Bash call that runs a file's test."""
    return _call("Bash", command=f"pytest tests/test_f{file}.py")


@dataclass(frozen=True, slots=True)
class Step:
    """One state of a session: what the agent did there, and what was right."""

    number: int
    kind: StateKind
    action: Action
    right: Action

    @property
    def failed(self) -> bool:
        """Whether the action was the mistake."""
        return self.action != self.right


@dataclass(frozen=True, slots=True)
class Recorded:
    """A session: its world, whether the agent made its mistake, and whether anything says so."""

    world: World
    mistaken: bool
    seen: bool = True

    def steps(self) -> Iterator[Step]:
        """Yield the states in order; a recovery state follows a mistake that is seen."""
        for step in range(STEPS):
            right = self.world.right(step)
            hard = step == self.world.hard_step
            if hard and self.mistaken:
                yield Step(step, "hard", self.world.mistake(), right)
                if self.seen:
                    yield Step(step, "recovery", right, right)
            else:
                yield Step(step, "hard" if hard else "easy", right, right)


def draw(random: Random) -> Recorded:
    """Draw one session, as the agent would record it."""
    world = World(random.randrange(FILES), random.randrange(SYMBOLS), random.randrange(BUGS))
    return Recorded(world, random.random() < MISTAKEN)


def everything(_: World) -> bool:
    """Accept any world."""
    return True


def held_out(world: World) -> bool:
    """Say whether a world is kept for evaluation: a third of the (file, bug type) pairs."""
    return (world.file + 4 * world.bug) % 3 == 0


def for_training(world: World) -> bool:
    """Say whether a world may be trained on, by the base model too."""
    return not held_out(world)


def sessions(
    random: Random, count: int, accept: Callable[[World], bool] = for_training
) -> list[Recorded]:
    """Draw sessions until ``count`` are accepted."""
    kept: list[Recorded] = []
    while len(kept) < count:
        drawn = draw(random)
        if accept(drawn.world):
            kept.append(drawn)
    return kept


def training_random(seed: int) -> Random:
    """Return the generator that training sessions and then their teachers are drawn from."""
    return Random(500 + seed)  # noqa: S311  nothing here is a secret


def held_out_sessions(count: int = 120) -> list[Recorded]:
    """Return evaluation sessions: all different, the agent mistaken wherever it can be."""
    known: set[World] = set()
    out: list[Recorded] = []
    i = 0
    while len(out) < count:
        random = Random(10_000 + i)  # noqa: S311  nothing here is a secret
        world = sessions(random, 1, held_out)[0].world
        if world not in known:
            known.add(world)
            out.append(Recorded(world, mistaken=True))
        i += 1
    return out


def _path(file: int) -> str:
    return f"{PROJECT.cwd}/f{file}.py"


def _call(name: str, **arguments: str) -> Action:
    return Action("", (ToolCall(name, arguments),))


#: Days of the sessions of even bug types, and of odd ones: half coverage asks the first only.
DAYS = ("2026-11-02", "2026-11-03")


@dataclass(frozen=True)
class Written:
    """A session with its file."""

    recorded: Recorded
    session: Session
    truth: dict[str, Step]


def write_session(recorded: Recorded, slug: str, start: str = "") -> Written:
    """Return a session with its records; the slug makes its ids."""
    world = recorded.world
    start = start or f"{DAYS[world.bug % 2]}T09:00"
    session = Session(slug, PROJECT, start, model="claude-haiku-4-5")
    session.user(world.prompt)
    truth = {}
    for step in recorded.steps():
        call = _recorded_call(world, step, failed=step.failed and recorded.seen)
        if step.failed and recorded.seen and world.told_by_user and step.number == 2:
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


def _recorded_call(world: World, step: Step, *, failed: bool) -> Call:
    """Return the call of a state with its recorded result."""
    call = _session_call(step.action)
    if failed:
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


def _session_call(action: Action) -> Call:
    (made,) = action.tool_calls
    return Call(made.name, made.arguments)


#: Probability that an honest teacher is right.
SKILL = 0.85
#: Seats of the loopback provider, which calls a simulated model's decision its persona.
SEATS: tuple[PersonaName, ...] = ("careful", "steady", "contrarian")
KEY_VARIABLE = "COMPOSER_TOOLWORLD_KEY"


@dataclass(frozen=True, slots=True)
class Answers:
    """What the three teachers do at one state, by seat."""

    step: Step
    actions: tuple[Action, ...]

    @property
    def consensus(self) -> Action | None:
        """The action of at least two of them."""
        for action in self.actions:
            if self.actions.count(action) >= 2:
                return action
        return None

    @property
    def is_pair(self) -> bool:
        """Whether there is a consensus against the agent."""
        return self.consensus not in (None, self.step.action)


def answer_all(
    random: Random, recorded: Iterable[Recorded], *, wrong: int = 0
) -> list[list[Answers]]:
    """Draw the answers to every state of sessions, in order."""
    return [
        [
            Answers(step, tuple(_answer(random, s.world, step, seat, wrong) for seat in range(3)))
            for step in s.steps()
        ]
        for s in recorded
    ]


def _answer(random: Random, world: World, step: Step, seat: int, wrong: int) -> Action:
    if random.random() < SKILL:
        mistaken = step.kind == "hard" and seat >= len(SEATS) - wrong
        return misled(world) if mistaken else step.right
    tool, file = random.choice(("Read", "Edit", "Bash", "Open")), random.randrange(FILES)
    if tool == "Edit":
        return edit(world, file, (world.bug + 3) % BUGS)
    return {"Read": read, "Bash": run_test, "Open": open_}[tool](file)


def misled(world: World) -> Action:
    """Return what wrong teachers do at the hard step: neither right nor the agent's mistake."""
    return (
        read((world.file + 2) % FILES),
        edit(world, world.file, (world.bug + 2) % BUGS),
        run_test((world.file + 2) % FILES),
    )[world.hard_step]


class ToolworldScript(Script):
    """Answers by seat, for prefixes as they arrive on the wire."""

    def __init__(self, states: Iterable[TraceState], answers: Mapping[str, Answers]) -> None:
        super().__init__()
        self.answers: dict[str, Answers] = {}
        for state in states:
            key = prefix_key(wire_messages(to_chat(state).messages))
            self.answers.setdefault(key, answers[state.message_id])

    def decide(self, persona: PersonaName, body: Mapping[str, Any]) -> Action:
        """Return what the teacher of a seat does."""
        found = self.answers[prefix_key(body["messages"])]
        return found.actions[SEATS.index(persona)]


def models() -> Sequence[SimulatedModel]:
    """Return the loopback's catalogue: a model a seat."""
    prices = (Decimal("0.0000002"), Decimal("0.0000008"))
    return [SimulatedModel(f"toolworld/{seat}-20261101", seat, *prices) for seat in SEATS]


def teacher_set(url: str) -> TeacherSet:
    """Return the teacher file for a loopback server."""
    return TeacherSet.model_validate(
        {
            "purpose": "training",
            "endpoint": {
                "name": "toolworld", "base_url": url, "api_key_env": KEY_VARIABLE,
                "simulated": True,
            },
            "limits": {"backoff_s": 0.05, "recover_after_s": 0.2},
            "defaults": {"max_tokens": 256, "temperature": 0.0, "context_length": 8192},
            "teachers": [
                {
                    "name": seat, "family": f"family-{number}", "licence": "simulated",
                    "model": f"toolworld/{seat}-20261101",
                    "max_price": {"prompt": "0.20", "completion": "0.80"},
                }
                for number, seat in enumerate(SEATS)
            ],
        }
    )  # fmt: skip
