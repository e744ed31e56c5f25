"""Arms of the small world, each trained once and measured once for all tests."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from composer_pipeline.evaluation.results import BASE, StateResult, read_results
from composer_pipeline.evaluation.states import EvaluationState
from examples.proof import run
from examples.proof.report import RESULTS
from examples.proof.toolworld.pipeline import Plan, evaluation_states
from examples.proof.toolworld.world import held_out_sessions

PLAN = Plan(1, run.SESSIONS, *run.MAIN)
#: Two thirds of the proof's: enough for the bar, and for each mutation to miss it.
STEPS = 40


@dataclass
class Arena:
    """Trains arms on demand, as ``make proof`` does, and reads what they do."""

    folder: Path
    states: list[EvaluationState]

    def arm(self, name: str, **data: Any) -> list[StateResult]:
        """Return the results of an arm; ``data`` changes its plan, as a defect would."""
        plan = replace(PLAN, **data)
        run.run_arm(self.folder, plan, name, self.states, steps=STEPS)
        path = self.folder / run.RUNS / run.name_of(plan) / name / RESULTS
        return read_results(path)[name]

    def pairs(self, **data: Any) -> list[dict[str, Any]]:
        """Return the pairs of a plan's dataset."""
        plan = replace(PLAN, **data)
        lake = run.dataset(self.folder / run.DATA / run.name_of(plan), plan)
        return list(lake.iter_rows("dataset_pairs", split="train"))

    def base(self) -> list[StateResult]:
        """Return the results of the base."""
        path = next((self.folder / run.RUNS).glob(f"*/*/{RESULTS}"))
        return read_results(path)[BASE]


@pytest.fixture(scope="session")
def arena(tmp_path_factory):
    torch.set_num_threads(1)
    return Arena(tmp_path_factory.mktemp("proof"), evaluation_states(held_out_sessions(96)))
