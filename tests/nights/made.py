"""Datasets of days of sessions, written at once, and a learner that neither trains nor answers."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from composer_pipeline.chat.convert import prompt_hash
from composer_pipeline.evaluation.select_states import training_content
from composer_pipeline.evaluation.states import EvaluationState
from composer_pipeline.lake.store import Lake
from composer_pipeline.nights.night import Night, run_night
from composer_pipeline.nights.rules import NightRules
from composer_pipeline.testing.training import READ, call
from composer_pipeline.training.recipe import TrainingRecipe

AGENT, TEACHERS = call("Read", file_path="/w/a.py"), call("Read", file_path="/w/b.py")
RECIPE = TrainingRecipe(name="small")
#: What a model gets right, by name of its run; "" is the model before the first night.
Answers = dict[str, Callable[[EvaluationState], bool]]


@dataclass(frozen=True)
class Session:
    """A session with one mistake, one action that all agree on, and one that only worked."""

    name: str
    day: str
    split: str
    project: str = "shop"
    #: The reason of its votes, the teachers who answered, and what they said of its mistake.
    reason: str = "pair"
    raters: tuple[str, ...] = ("agent", "one", "two")
    right: Any = field(default_factory=lambda: TEACHERS)


def sessions(day: str, *, train: int = 6, held: int = 12, **changes: Any) -> list[Session]:
    """Return the sessions of a day."""
    return [
        Session(f"{day}-{split}-{i}", day, split, **changes)
        for split, count in (("train", train), ("validation", held))
        for i in range(count)
    ]


def days(*names: str, **changes: Any) -> list[Session]:
    """Return the sessions of days."""
    return [one for name in names for one in sessions(name, **changes)]


def write_dataset(lake: Lake, every: Iterable[Session]) -> None:
    """Write a build of the dataset, in place of the one before, with the votes behind it."""
    every = list(every)
    for split in ("train", "validation"):
        mine = [one for one in every if one.split == split]
        groups = [row for one in mine for row in _groups(one)]
        lake.write("dataset_groups", groups, split=split)
        own = [{**_row(one, "own"), "action": [AGENT]} for one in mine]
        lake.write("dataset_successes", own, split=split)
    for day in sorted({one.day for one in every}):
        votes = [row for one in every if one.day == day for row in _votes(one)]
        lake.write("votes", votes, day=day)
    lake.put_bytes(Lake.BUILD, json.dumps({"id": f"{len(every):016}"}).encode())


def stored(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of a split as they are written."""
    return [{name: value for name, value in row.items() if name != "split"} for row in rows]


def _row(one: Session, kind: str) -> dict[str, Any]:
    return {
        "state_id": f"{one.name}/{kind}", "session_id": one.name, "group_id": one.name,
        "day": one.day, "repository": one.project, "tools": [READ],
        "prompt": [{"role": "user", "content": f"{kind} of {one.name}"}],
    }  # fmt: skip


def _groups(one: Session) -> Iterator[dict[str, Any]]:
    sources = {"candidates": [AGENT, TEACHERS], "sources": ["agent", "one"]}
    yield {**_row(one, "hard"), **sources, "consensus": [one.right]}
    yield {**_row(one, "easy"), **sources, "consensus": [AGENT]}


def _votes(one: Session) -> Iterator[dict[str, Any]]:
    for kind, reason in (("hard", one.reason), ("easy", "agent is right")):
        yield {
            "state_id": f"{one.name}/{kind}", "session_id": one.name, "reason": reason,
            "n_replies": 3, "raters": list(one.raters), "cost_picodollars": 10**9,
        }  # fmt: skip


def base(state: EvaluationState) -> bool:
    """Be wrong at mistakes, and right at everything else."""
    return not state.kind.startswith("hard")


def learned(day: str) -> Callable[[EvaluationState], bool]:
    """Be right everywhere except at mistakes of later days."""
    return lambda state: base(state) or state.session_id[:10] <= day


def spoiled(state: EvaluationState) -> bool:
    """Be right at mistakes alone."""
    return not base(state)


@dataclass
class Learner:
    """Writes a folder in place of training, and answers from a table by the run's name.

    A run that the table lacks learned from the mistakes up to its day.
    """

    folder: Path
    answers: Answers = field(default_factory=lambda: {"": base})
    trained: list[str] = field(default_factory=list)
    #: Sessions and hashes of prompts that any run was given.
    content: tuple[set[str], set[str]] = field(default_factory=lambda: (set(), set()))
    measured: list[str] = field(default_factory=list)

    def train(self, data: Lake, recipe: TrainingRecipe) -> tuple[Path, dict[str, float]]:
        self.trained.append(recipe.name)
        for known, more in zip(self.content, training_content(data), strict=True):
            known |= more
        weights = self.folder / recipe.name / "checkpoint"
        weights.mkdir(parents=True, exist_ok=True)
        (weights / "adapter").write_text(f"{recipe.name} from {recipe.start_from or recipe.model}")
        return weights, {}

    def measure(
        self, recipe: TrainingRecipe, weights: str, states: Sequence[EvaluationState]
    ) -> dict[str, float]:
        name = Path(weights).parent.name
        self.measured += [state.state_id for state in states]
        # Nothing that is measured was trained on.
        assert not {state.session_id for state in states} & self.content[0]
        assert not {prompt_hash(state.messages) for state in states} & self.content[1]
        answer = self.answers.get(name) or learned(name.removeprefix("night-"))
        return {state.state_id: float(answer(state)) for state in states}


@dataclass
class House:
    """A lake and a learner."""

    lake: Lake
    learner: Learner
    rules: NightRules = field(default_factory=NightRules)

    def night(self, day: str, recipe: TrainingRecipe = RECIPE, **kwargs: Any) -> Night:
        work = self.learner.folder / "work"
        return run_night(
            self.lake, recipe, self.learner, work, night=day, rules=self.rules, **kwargs
        )


def house(folder: Path, every: Iterable[Session]) -> House:
    """Return a new lake with a dataset."""
    lake = Lake(folder / "lake")
    write_dataset(lake, every)
    return House(lake, Learner(folder / "runs"))
