"""Teachers of the small world: three families of known skill, behind the loopback provider.

Belongs here: what each teacher answers to each state, and the teacher file. Does not belong
here: HTTP, prices and faults (``testing.openrouter``).

An honest teacher is right with probability 0.85 and otherwise takes a random tool on a random
file. A wrong one is as an honest one where the agent has no misconception; at a hard state it
has one of its own, the same for every wrong teacher, so that two of them agree.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from random import Random
from typing import Any

from composer_pipeline.actions import Action
from composer_pipeline.chat import to_chat, wire_messages
from composer_pipeline.replay.teachers import TeacherSet
from composer_pipeline.testing.openrouter.models import SimulatedModel
from composer_pipeline.testing.personas import PersonaName, Script, prefix_key
from composer_pipeline.testing.toolworld.world import (
    BUGS,
    FILES,
    Recorded,
    Step,
    World,
    edit,
    open_,
    read,
    run_test,
)
from composer_pipeline.trace_states import TraceState

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
    """Draw the answers to every state of sessions, in order.

    Args:
        random: goes on where the sessions were drawn.
        recorded: the sessions.
        wrong: how many of the teachers are wrong; the last seats.
    """
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
    """Answers by seat, for prefixes as they arrive on the wire.

    Args:
        states: of the lake.
        answers: message id to the answers at its state. Where states share a prefix, the first
            one counts, as it would with a provider that is asked the same twice.
    """

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
