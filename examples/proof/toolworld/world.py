"""The small world: what is right, what the agent gets wrong, and what is drawn.

A session fixes one bug in one file in four steps. What an edit must write depends on the bug and on
the line that the file was seen to have. The agent has exactly one misconception a session, which
the bug decides:

==== ============================== ====== =======================================================
step right action                   bugs   mistake, and what is said about it
==== ============================== ====== =======================================================
0    Read the file                  0, 1   calls ``Open``: no such tool, use Read
                                    2, 3   reads below ``src``: no such file, did you mean …
1    Edit its line                  4, 5   writes the next word: refused at once, it has to be …
                                    6, 7   the same, applied: the test of step 2 fails
                                    8, 9   the same, applied: the check of step 3 fails
2    Bash ``pytest`` on its test    10, 11 the next file's test: did you mean …
3    Bash ``mypy`` on the file
==== ============================== ====== =======================================================

In a recorded session it makes the mistake with probability 0.85; after it, it recovers. With
probability 0.25 what is said names something else that is wrong too. Half of the mistakes that are
refused at once at steps 1 and 2 are noticed by the user and not by a tool.
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

FILES, SYMBOLS, BUGS, WORDS = 24, 12, 12, 12
STEPS = 4
#: Probability that the agent makes its mistake at the one step where it has one.
MISTAKEN = 0.85
#: Probability that what is said about a mistake is wrong.
NOISE = 0.25
PROJECT = Project("toolworld", "/home/ada", "/srv/toolworld", {})

StateKind = Literal["hard", "easy", "recovery"]
#: Kind of the mistake of a bug; ``later``: applied, and seen to be wrong only at a later step.
Family = Literal["tool", "path", "edit", "later", "test"]
FAMILIES: tuple[Family, ...] = ("tool", "path", "edit", "later", "later", "test")


@dataclass(frozen=True, slots=True)
class World:
    """What a session is about: numbers of its file, symbol and bug."""

    file: int
    symbol: int
    bug: int

    @property
    def family(self) -> Family:
        """The kind of the agent's mistake."""
        return FAMILIES[self.bug // 2]

    @property
    def hard_step(self) -> int:
        """The one step at which the agent has a misconception."""
        return {"tool": 0, "path": 0, "edit": 1, "later": 1, "test": 2}[self.family]

    @property
    def shown_at(self) -> int:
        """The step at which a mistake is seen."""
        return self.hard_step if self.family != "later" else 2 + (self.bug >= 8)

    @property
    def told_by_user(self) -> bool:
        """Whether the user and not a tool says what was wrong."""
        return self.family in ("edit", "test") and (self.file + self.symbol) % 2 == 0

    @property
    def prompt(self) -> str:
        """What the user asks for."""
        return f"Fix b{self.bug} in f{self.file}.py"

    @property
    def line(self) -> str:
        """The only line of the file."""
        return f"s{self.symbol}"

    def word(self, off: int = 0) -> str:
        """Return the word that the edit must write, or the one ``off`` places behind it."""
        return f"w{(self.bug + self.symbol % 3 + off) % WORDS}"

    def right(self, step: int) -> Action:
        """Return the right action of a step."""
        return (
            read(self.file), edit(self, self.word()), run_test(self.file), check(self.file),
        )[step]  # fmt: skip

    def mistake(self) -> Action:
        """Return what the agent does at :attr:`hard_step`."""
        return {
            "tool": _call("Open", file_path=_path(self.file)),
            "path": _call("Read", file_path=f"{PROJECT.cwd}/src/f{self.file}.py"),
            "test": run_test((self.file + 1) % FILES),
        }.get(self.family, edit(self, self.word(1)))

    def mend(self) -> Action:
        """Return the edit that mends a mistaken one which was applied."""
        path, old, new = _path(self.file), self.word(1), self.word()
        return _call("Edit", file_path=path, old_string=old, new_string=new)

    def told(self, *, wrong: bool = False) -> Action:
        """Return the action that :meth:`feedback` asks for."""
        off = 2 if wrong else 0
        file, written = (self.file + off) % FILES, edit(self, self.word(off))
        return {
            "tool": edit(self, self.word()) if wrong else read(self.file),
            "path": read(file),
            "test": run_test(file),
        }.get(self.family, written)

    def feedback(self, *, wrong: bool = False) -> str:
        """Return the words about the mistake, without what the client puts around."""
        off = 2 if wrong else 0
        file, word = (self.file + off) % FILES, self.word(off)
        if self.family == "tool":
            return f"Error: No such tool available: Open. Use {'Edit' if wrong else 'Read'}."
        if self.family == "path":
            return f"File does not exist. Did you mean {PROJECT.cwd}/f{file}.py?"
        if self.family == "edit":
            return f"The line must be {word}."
        if self.family == "later":
            return f"f{self.file}.py:1: error: The line must be {word}."
        if self.told_by_user:
            return f"Run tests/test_f{file}.py"
        missing = (self.file + 1) % FILES
        return f"ERROR: not found: tests/test_f{missing}.py\nDid you mean tests/test_f{file}.py?"


def read(file: int) -> Action:
    """Return a Read of a file."""
    return _call("Read", file_path=_path(file))


def edit(world: World, word: str) -> Action:
    """Return an Edit of a world's line."""
    return _call("Edit", file_path=_path(world.file), old_string=world.line, new_string=word)


def run_test(file: int) -> Action:
    """Return a Bash call that runs a file's test."""
    return _call("Bash", command=f"pytest tests/test_f{file}.py")


def check(file: int) -> Action:
    """Return a Bash call that checks a file's types."""
    return _call("Bash", command=f"mypy f{file}.py")


@dataclass(frozen=True, slots=True)
class Step:
    """One state of a session: what the agent did there, what was right, and what came of it."""

    number: int
    kind: StateKind
    action: Action
    right: Action
    #: Whether its result says what was wrong with the session's mistake.
    refused: bool = False

    @property
    def failed(self) -> bool:
        """Whether the action was the mistake."""
        return self.action != self.right


@dataclass(frozen=True, slots=True)
class Recorded:
    """A session: its world, whether the agent made its mistake, and what is said of it."""

    world: World
    mistaken: bool
    seen: bool = True
    #: What is said is wrong.
    noisy: bool = False

    def steps(self) -> Iterator[Step]:
        """Yield the states in order; a recovery state follows a mistake that is seen."""
        world, seen = self.world, self.mistaken and self.seen
        for number in range(STEPS):
            right = world.right(number)
            hard = number == world.hard_step
            shown = seen and number == world.shown_at
            if hard and self.mistaken:
                yield Step(number, "hard", world.mistake(), right, refused=shown)
                if shown:
                    yield Step(number, "recovery", right, right)
            else:
                yield Step(number, "hard" if hard else "easy", right, right, refused=shown)
                if shown:
                    yield Step(1, "recovery", world.mend(), world.mend())
                    yield Step(number, "easy", right, right)


def draw(random: Random) -> Recorded:
    """Draw one session, as the agent would record it."""
    world = World(random.randrange(FILES), random.randrange(SYMBOLS), random.randrange(BUGS))
    return Recorded(world, random.random() < MISTAKEN, noisy=random.random() < NOISE)


def for_development(world: World) -> bool:
    """Say whether a world is kept for choosing: a quarter of the (file, bug) pairs."""
    return (world.file + 5 * world.bug) % 4 == 0


def for_test(world: World) -> bool:
    """Say whether a world is kept for the test: another quarter of the (file, bug) pairs."""
    return (world.file + 5 * world.bug) % 4 == 2


#: Worlds that each of them has.
KEPT = FILES * SYMBOLS * BUGS // 4


def for_training(world: World) -> bool:
    """Say whether a world may be trained on, by the base model too."""
    return not (for_development(world) or for_test(world))


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


def held_out_sessions(
    count: int = 240, *, seed: int = 0, accept: Callable[[World], bool] = for_development
) -> list[Recorded]:
    """Return evaluation sessions: all different, the agent mistaken and told the truth."""
    random = Random(f"held out {seed}")  # noqa: S311  nothing here is a secret
    known: dict[World, None] = {}
    while len(known) < count:
        known[sessions(random, 1, accept)[0].world] = None
    return [Recorded(world, mistaken=True) for world in known]


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
        call = _recorded_call(recorded, step)
        if step.refused and world.told_by_user and step.number == 2:
            message = session.stopped(call)
            session.user(world.feedback(wrong=recorded.noisy))
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


def _recorded_call(recorded: Recorded, step: Step) -> Call:
    """Return the call of a state with its recorded result."""
    call, world = _session_call(step.action), recorded.world
    if step.refused:
        return _refused(world, call, world.feedback(wrong=recorded.noisy))
    if step.number == 0:
        return call.gives(f"     1→{world.line}")
    if step.number == 1:
        return call.gives("The file has been updated.")
    return call.gives("1 passed in 0.01s" if step.number == 2 else "Success: no issues found")


def _refused(world: World, call: Call, said: str) -> Call:
    if world.hard_step == 0:
        return call.fails(f"<tool_use_error>{said}</tool_use_error>", code=None)
    if world.family == "edit":
        prefix = REJECTED if world.told_by_user else "PreToolUse:Edit hook error: "
        return call.fails(prefix + said, code=None)
    if world.family == "later":
        return call.fails(said, code=1)
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


def answer_all(
    random: Random, recorded: Iterable[Recorded], *, shared: float = 0.0
) -> list[list[Answers]]:
    """Draw the answers to every state of sessions, in order.

    ``shared`` is the probability that all teachers have one misconception at a hard state.
    """
    out = []
    for one in recorded:
        of_session = []
        for step in one.steps():
            misled = step.kind == "hard" and random.random() < shared
            known = _misled(one.world) if misled else step.right
            actions = tuple(_answer(random, one.world, known) for _ in SEATS)
            of_session.append(Answers(step, actions))
        out.append(of_session)
    return out


def _answer(random: Random, world: World, known: Action) -> Action:
    if random.random() < SKILL:
        return known
    tool, file = random.choice(("Read", "Edit", "Bash")), random.randrange(FILES)
    if tool == "Edit":
        return edit(world, world.word(3))
    return read(file) if tool == "Read" else run_test(file)


def _misled(world: World) -> Action:
    """Return what misled teachers do at the hard step: neither right nor the agent's mistake."""
    other = (world.file + 2) % FILES
    return (read(other), edit(world, world.word(2)), run_test(other))[world.hard_step]


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
