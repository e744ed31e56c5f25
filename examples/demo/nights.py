"""Two nights on the proof's small world: one is promoted, and one is refused.

The bundled sessions are too few for gates. On the first day the teachers are honest; on the second
all of them have the same misconception wherever the agent has one.
"""

from pathlib import Path
from random import Random

from composer_pipeline.dataset.build import build_dataset
from composer_pipeline.errors import ComposerError
from composer_pipeline.lake.store import Lake
from composer_pipeline.normalization.stage import normalize
from composer_pipeline.nights.learner import ProcessLearner
from composer_pipeline.nights.night import Night, nights, run_night
from composer_pipeline.nights.page import write_page
from composer_pipeline.preferences.hints import build_hints
from composer_pipeline.preferences.pairs import build_pairs
from composer_pipeline.preferences.rules import GATES, PreferenceRules
from composer_pipeline.settings import recipes_dir
from composer_pipeline.states.load import load_states
from composer_pipeline.teachers.run import replay
from composer_pipeline.traces.ingest import ingest
from composer_pipeline.training.recipe import TrainingRecipe
from examples.proof.arms import DEFAULT, recipe_of
from examples.proof.toolworld.pipeline import CEILING, loopback
from examples.proof.toolworld.world import (
    DAYS,
    ToolworldScript,
    answer_all,
    for_training,
    sessions,
    teacher_set,
    write_files,
    write_session,
)

#: Sessions of each day, and the share of hard states at which all teachers are wrong.
SESSIONS, MISLED = (56, 40), (0.0, 1.0)
STEPS = 24


def two_nights(folder: Path) -> list[tuple[Night, str]]:
    """Run both nights below a folder, once; return what each decided, and where its page is."""
    lake = Lake(str(folder / "lake"))
    if len(nights(lake)) < len(DAYS):
        _make_dataset(lake, folder / "projects")
        learner = ProcessLearner(folder / "runs")
        for day in DAYS:
            run_night(lake, recipe(), learner, folder / "work", night=day)
    return [(night, write_page(lake, night)) for night in nights(lake)]


def recipe() -> TrainingRecipe:
    """Return the shipped terms of the loss, in a few steps of the proof's small student."""
    diloco = {"replicas": 1, "inner_steps": STEPS // 4}
    return recipe_of(DEFAULT["shipped"].terms, name="night", steps=STEPS, diloco=diloco)


def _make_dataset(lake: Lake, projects: Path) -> None:
    """Write the sessions of both days and run every stage up to the dataset."""
    random, written, answers = Random(1), [], {}  # noqa: S311  nothing here is a secret
    for day, count, misled in zip(DAYS, SESSIONS, MISLED, strict=True):
        drawn = sessions(random, count, lambda world: for_training(world) and world.bug < 8)
        answered = answer_all(random, drawn, shared=misled)
        made = [write_session(one, f"{day}-{n}", f"{day}T09:00") for n, one in enumerate(drawn)]
        for session, of_session in zip(made, answered, strict=True):
            answers |= dict(zip(session.truth, of_session, strict=True))
        written += made
    write_files(written, projects)
    ingest(lake, [projects])
    with loopback(ToolworldScript(load_states(lake), answers)) as url:
        replay(lake, teacher_set(url), max_usd=CEILING)
    build_hints(lake)
    build_pairs(lake)
    normalize(lake, recipes_dir() / "normalize" / "default.yaml")
    rules = PreferenceRules(accept=GATES)
    build_dataset(lake, validation_share=0.5, split_by="session", rules=rules)
