"""Arms of the small world, each trained once and measured once for all tests."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from composer_pipeline.evaluation.measure import Arm, measure
from composer_pipeline.evaluation.results import BASE, StateResult
from composer_pipeline.evaluation.states import EvaluationState
from composer_pipeline.lake.store import Lake
from composer_pipeline.training.models import load_tokenizer
from composer_pipeline.training.windows import Windows
from examples.proof.arms import ARMS, Terms, recipe_of
from examples.proof.toolworld.pipeline import Plan, evaluation_states, make_dataset
from examples.proof.toolworld.student import WINDOW, base_dir
from examples.proof.toolworld.world import held_out_sessions
from examples.proof.train import Change, train_arm
from trainers.common.policy import load_base

SEED = 1
SESSIONS = 80
#: Two thirds of the proof's: enough for every bar, and for each mutation to break one.
STEPS = 40


@dataclass
class Arena:
    """Trains arms on demand and remembers what they do at the held-out states."""

    folder: Path
    states: list[EvaluationState]
    lakes: dict[tuple[str, int], Lake] = field(default_factory=dict)
    results: dict[tuple[str, str], list[StateResult]] = field(default_factory=dict)

    def lake(self, coverage: str, wrong: int) -> Lake:
        """Return the dataset of a coverage and a number of wrong teachers."""
        key = (coverage, wrong)
        if key not in self.lakes:
            plan = Plan(seed=SEED, count=SESSIONS, coverage=coverage, wrong=wrong)
            self.lakes[key] = make_dataset(plan, self.folder / f"{coverage}-{wrong}").lake
        return self.lakes[key]

    def measured(self, name: str, coverage: str, model: Callable[[], object]) -> list[StateResult]:
        """Return the results of a model, measured once by its name."""
        key = (name, coverage)
        if key not in self.results:
            windows = Windows(load_tokenizer(str(base_dir())), WINDOW)
            measured = measure(self.states, [Arm(name, model())], windows)
            assert not measured.dropped
            self.results[key] = measured.results[name]
        return self.results[key]

    def base(self) -> list[StateResult]:
        """Return the results of the base."""
        recipe = recipe_of({"sft": {}}, name="base")
        return self.measured(BASE, "", lambda: load_base(recipe.model, recipe).eval())

    def arm(
        self,
        name: str,
        coverage: str,
        terms: Terms | None = None,
        change: Change | None = None,
        *,
        wrong: int = 0,
        steps: int = STEPS,
    ) -> list[StateResult]:
        """Return the results of an arm; ``terms`` or ``change`` make another one of it."""

        def train() -> object:
            recipe = recipe_of(
                ARMS[name].terms if terms is None else terms, name=name, seed=SEED, steps=steps,
                diloco={"replicas": 1, "inner_steps": steps}, norms_every=steps,
                **(ARMS[name].schedule if name in ARMS else {}),
            )  # fmt: skip
            run_dir = self.folder / f"{name}-{coverage}"
            return train_arm(self.lake(coverage, wrong), recipe, run_dir, change).model

        return self.measured(name, coverage, train)


@pytest.fixture(scope="session")
def arena(tmp_path_factory):
    torch.set_num_threads(1)
    return Arena(tmp_path_factory.mktemp("proof"), evaluation_states(held_out_sessions()))
