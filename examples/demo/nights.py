"""Nights on the proof's small world, some of which are refused: the demo's, and those of the docs.

    python -m examples.demo.nights FOLDER    # records those that docs/nights.md shows

The bundled sessions are too few for gates. On the second day all teachers have a misconception
where the agent has its own.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import msgspec

from composer_pipeline.dataset.build import build_dataset
from composer_pipeline.files import replace
from composer_pipeline.lake.store import Lake
from composer_pipeline.nights.learner import ProcessLearner
from composer_pipeline.nights.night import Night, nights, run_night
from composer_pipeline.nights.page import write_page
from composer_pipeline.normalization.stage import normalize
from composer_pipeline.preferences.hints import build_hints
from composer_pipeline.preferences.pairs import build_pairs
from composer_pipeline.preferences.rules import GATES, PreferenceRules
from composer_pipeline.settings import recipes_dir
from composer_pipeline.states.load import load_states
from composer_pipeline.teachers.run import replay
from composer_pipeline.traces.ingest import ingest
from composer_pipeline.training.recipe import TrainingRecipe
from examples.proof.arms import DEFAULT, SCHEDULE, recipe_of
from examples.proof.toolworld.pipeline import CEILING, loopback
from examples.proof.toolworld.world import (
    Answers,
    Family,
    ToolworldScript,
    World,
    Written,
    answer_all,
    for_training,
    sessions,
    teacher_set,
    write_files,
    write_session,
)

#: A lake that holds the stories of the recorded nights and nothing else.
RECORDED = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "demo-nights"
#: Steps of training.
STEPS = 16


@dataclass(frozen=True)
class Day:
    """A day's sessions, about one half of the files; its mistakes are of two families.

    ``misled``: all teachers are wrong there too. ``rate`` multiplies the learning rate.
    """

    day: str
    sessions: int
    half: int
    mistakes: tuple[Family, Family] = ("tool", "path")
    misled: bool = False
    rate: float = 1.0

    def has(self, world: World) -> bool:
        """Return whether a session of this day may be about a world."""
        mine = world.family in self.mistakes and world.file // 2 % 2 == self.half
        return mine and for_training(world)

    def recipe(self) -> TrainingRecipe:
        """Return the shipped terms of the loss, in a few steps of the proof's small student."""
        schedule = {**SCHEDULE, "learning_rate": self.rate * SCHEDULE["learning_rate"]}
        diloco = {"replicas": 1, "inner_steps": STEPS // 4}
        terms = DEFAULT["shipped"].terms
        return recipe_of(terms, name="night", steps=STEPS, diloco=diloco, **schedule)


#: The demo runs the first two. The third has new mistakes, and a recipe that unlearns.
NIGHTS = (
    Day("2026-11-02", 56, half=0),
    Day("2026-11-03", 40, half=1, misled=True),
    Day("2026-11-04", 40, half=0, mistakes=("edit", "later"), rate=25),
)


def run_nights(folder: Path, days: Sequence[Day] = NIGHTS[:2]) -> list[tuple[Night, str]]:
    """Run nights below a folder, once; return what each decided, and where its page is."""
    lake = Lake(str(folder / "lake"))
    if len(nights(lake)) < len(days):
        _make_dataset(lake, folder / "projects", days)
        learner = ProcessLearner(folder / "runs")
        for day in days:
            run_night(lake, day.recipe(), learner, folder / "work", night=day.day)
    return [(night, write_page(lake, night)) for night in nights(lake)]


def _make_dataset(lake: Lake, projects: Path, days: Sequence[Day]) -> None:
    """Write the sessions of some days and run every stage up to the dataset."""
    random = Random(1)  # noqa: S311  nothing here is a secret
    written: list[Written] = []
    answers: dict[str, Answers] = {}
    for day in days:
        drawn = sessions(random, day.sessions, day.has)
        answered = answer_all(random, drawn, shared=float(day.misled))
        for n, (one, of_session) in enumerate(zip(drawn, answered, strict=True)):
            session = write_session(one, f"{day.day}-{n}", f"{day.day}T09:00")
            answers |= dict(zip(session.truth, of_session, strict=True))
            written.append(session)
    write_files(written, projects)
    ingest(lake, [projects])
    with loopback(ToolworldScript(load_states(lake), answers)) as url:
        replay(lake, teacher_set(url), max_usd=CEILING)
    build_hints(lake)
    build_pairs(lake)
    normalize(lake, recipes_dir() / "normalize" / "default.yaml")
    rules = PreferenceRules(accept=GATES)
    build_dataset(lake, validation_share=0.5, split_by="session", rules=rules)


def main(folder: str) -> None:
    """Run all nights below a folder, and record what their pictures are drawn from."""
    for night, _ in run_nights(Path(folder).absolute(), NIGHTS):
        told = msgspec.json.encode(msgspec.structs.replace(night, run_dir=""))
        replace(RECORDED / f"nights/{night.night}.json", msgspec.json.format(told))


if __name__ == "__main__":
    main(sys.argv[1])
