"""A training backend of one's own: ``python -m examples.own_trainer``.

A trainer says what it can carry, which command trains, and which files are its code; it runs
in a process of its own and writes ``composer.json`` into the run folder. This one learns only
which tool is preferred, from made-up pairs, in a second. One sees it train, and the second
call use the finished run again; after any change of this file it would train anew.
A package names its trainer as an entry point of the group ``composer_pipeline.trainers``.
"""

import argparse
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from composer_pipeline import Lake, train
from composer_pipeline.testing.training import write_dataset
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.registry import TRAINERS, Carried, Needs, Refused
from composer_pipeline.training.run import about, contents, dataset_digest, result_of, write_json

RECIPE = {
    "name": "argument-counts",
    "trainer": "counting",
    "channels": {"grpo": {"weight": 0}, "sdpo": {"weight": 0}, "sft": {"weight": 0}},
    "accept": {"dpo": "surrogate"},
    "diloco": {"replicas": 1},
}


class Counting:
    """Counts how often an argument stands on the chosen side of a pair."""

    name = "counting"

    def carries(self, recipe: TrainingRecipe) -> Mapping[str, Carried | Refused]:
        """Only pairs, and not by their loss: they are counted."""
        return {"dpo": Carried("surrogate", "it counts sides instead of training a model")}

    def needs(self, recipe: TrainingRecipe) -> Needs:
        """Only one replica, no package to install, and no field of the recipe but the weights."""
        return Needs(reads=())

    def command(self, python: str, recipe: Path, lake: str, run_dir: Path) -> Sequence[str]:
        """Return the command that runs :func:`learn`."""
        return [python, "-m", "examples.own_trainer", "--lake", lake, "--run-dir", str(run_dir)]

    def code(self) -> Sequence[Path]:
        """Return this file."""
        return [Path(__file__)]


def learn(lake: Lake, run_dir: Path) -> None:
    """Score each argument by its side, and write the scores and how many pairs they decide."""
    recipe = TrainingRecipe.load(run_dir / "recipe.yaml")
    digest = dataset_digest(lake, recipe)
    pairs = lake.rows("dataset_pairs", split="train")
    score: Counter[str] = Counter()
    for pair in pairs:
        score[json.dumps(pair["chosen"])] += 1
        score[json.dumps(pair["rejected"])] -= 1
    right = sum(score[json.dumps(p["chosen"])] > score[json.dumps(p["rejected"])] for p in pairs)
    (run_dir / "checkpoint").mkdir(exist_ok=True)
    write_json(run_dir / "checkpoint" / "scores.json", score)
    metrics = {"accuracy": right / len(pairs), "dpo_active": len(pairs)}
    TRAINERS.register(Counting.name, Counting)
    rows, found = {"dpo": len(pairs)}, contents(recipe)
    result = result_of(lake, recipe, found, dataset_sha=digest, rows=rows, metrics=metrics)
    write_json(run_dir / "composer.json", result)


def main() -> None:
    """Train twice in a folder that is thrown away; the second run is the first."""
    TRAINERS.register(Counting.name, Counting)
    with TemporaryDirectory() as folder:
        lake = Lake(Path(folder, "lake"))
        write_dataset(lake, rows=8)
        for _ in range(2):
            report = train(lake, TrainingRecipe.model_validate(RECIPE), Path(folder, "runs"))
            print(f"{report.run_dir.name}: {report.metrics}, reused: {report.reused}")
        print(about(report.run_dir)["trainer"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--lake", default="")
    parser.add_argument("--run-dir", type=Path)
    options = parser.parse_args()
    learn(Lake(options.lake), options.run_dir) if options.run_dir else main()
