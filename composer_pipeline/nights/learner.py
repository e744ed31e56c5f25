"""The learner of a night that trains and measures in processes of their own."""

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composer_pipeline.evaluation.evaluate import RESULTS, STATES, TRAINED
from composer_pipeline.evaluation.results import read_results
from composer_pipeline.evaluation.states import EvaluationState, write_states
from composer_pipeline.files import make_folder
from composer_pipeline.lake.store import Lake
from composer_pipeline.reports import Progress
from composer_pipeline.training.events import run_process
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.registry import repo_root
from composer_pipeline.training.run import RECIPE, environment, train, write_recipe


@dataclass(frozen=True)
class ProcessLearner:
    """Trains with the recipe's trainer below ``run_root``; measures in the evaluation's worker."""

    run_root: Path
    progress: Progress | None = None

    def train(self, data: Lake, recipe: TrainingRecipe) -> tuple[Path, dict[str, float]]:
        """Train, go on with an interrupted run, or take the finished run of the same inputs."""
        done = train(data, recipe, self.run_root, progress=self.progress)
        return done.checkpoint, done.metrics

    def measure(
        self, recipe: TrainingRecipe, weights: str, states: Sequence[EvaluationState]
    ) -> dict[str, float]:
        """Return state id to 1 where the greedy answer is right in effect, else 0."""
        make_folder(self.run_root)
        with tempfile.TemporaryDirectory(dir=self.run_root, prefix=".measuring-") as folder:
            scratch = Path(folder)
            write_recipe(recipe, scratch)
            write_states(scratch / STATES, states)
            command = [
                sys.executable, "-m", "composer_pipeline.evaluation.worker", "--weights", weights,
                "--recipe", str(scratch / RECIPE), "--states", str(scratch / STATES),
                "--results", str(scratch / RESULTS),
            ]  # fmt: skip
            run_process(
                command, cwd=repo_root(), env=environment(recipe), what="measuring",
                on_event=self._on_event,
            )  # fmt: skip
            results = read_results(scratch / RESULTS)[TRAINED]
        return {result.state_id: float(result.judgement.canonical) for result in results}

    def _on_event(self, event: dict[str, Any]) -> None:
        if self.progress is not None and "done" in event:
            self.progress("measure", event["done"], event["of"])
