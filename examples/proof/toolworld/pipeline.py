"""The whole data side on the small world: session files in, a training dataset out."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from composer_pipeline.chat.convert import to_chat
from composer_pipeline.chat.tools import Toolsets
from composer_pipeline.dataset.build import build_dataset
from composer_pipeline.evaluation.states import EvaluationState, Kind
from composer_pipeline.lake.store import Lake
from composer_pipeline.normalization.stage import normalize
from composer_pipeline.preferences.hints import build_hints
from composer_pipeline.preferences.pairs import build_pairs
from composer_pipeline.preferences.rules import GATES, PreferenceRules
from composer_pipeline.settings import recipes_dir
from composer_pipeline.states.load import load_states
from composer_pipeline.teachers.run import replay
from composer_pipeline.testing.openrouter.server import LoopbackOpenRouter
from composer_pipeline.traces.ingest import ingest
from examples.proof.toolworld.world import (
    DAYS,
    KEY_VARIABLE,
    PROJECT,
    Answers,
    Recorded,
    Step,
    ToolworldScript,
    World,
    Written,
    answer_all,
    models,
    sessions,
    teacher_set,
    training_random,
    write_files,
    write_session,
)

#: Ceiling of the replay, in simulated USD.
CEILING = Decimal("1.00")
_KEY = "toolworld-loopback"


@dataclass(frozen=True)
class Plan:
    """What is recorded and who teaches."""

    seed: int = 1
    count: int = 80
    coverage: str = "half"
    wrong: int = 0


@dataclass(frozen=True)
class Made:
    """A lake with a dataset, and the truth behind it."""

    lake: Lake
    written: list[Written]
    answers: dict[str, Answers]
    covered: tuple[str, ...]
    spent_usd: Decimal


def recorded_sessions(plan: Plan) -> tuple[list[Recorded], list[list[Answers]]]:
    """Return the sessions of a plan and the teachers' answers to each state."""
    random = training_random(plan.seed)
    drawn = sessions(random, plan.count)
    return drawn, answer_all(random, drawn, wrong=plan.wrong)


def make_dataset(plan: Plan, folder: Path) -> Made:
    """Write sessions below ``folder`` and run every stage up to the dataset."""
    drawn, answered = recorded_sessions(plan)
    written = [write_session(r, f"toolworld-{plan.seed}-{i}") for i, r in enumerate(drawn)]
    answers = {
        message: answer
        for session, of_session in zip(written, answered, strict=True)
        for message, answer in zip(session.truth, of_session, strict=True)
    }
    write_files(written, folder / "projects")
    lake = Lake(str(folder / "lake"))
    ingest(lake, [folder / "projects"])
    days = [day for day in DAYS if day in lake.days("states")]
    asked = days if plan.coverage == "full" else days[:1]
    with loopback(ToolworldScript(load_states(lake), answers)) as url:
        report = replay(lake, teacher_set(url), max_usd=CEILING, days=asked)
    build_hints(lake)
    build_pairs(lake, rules=PreferenceRules(own_pairs=False))  # the arms compare teachers' pairs
    normalize(lake, recipes_dir() / "normalize" / "default.yaml")
    build_dataset(lake, validation_share=0.0, rules=PreferenceRules(accept=GATES))
    return Made(lake, written, answers, tuple(asked), report.spent_usd)


@contextmanager
def loopback(script: ToolworldScript) -> Iterator[str]:
    """Serve the teachers on this machine and yield the URL."""
    before = os.environ.get(KEY_VARIABLE)
    with LoopbackOpenRouter(script, models=models(), api_key=_KEY) as server:
        os.environ[KEY_VARIABLE] = _KEY
        try:
            yield server.url
        finally:
            os.environ.pop(KEY_VARIABLE)
            if before is not None:
                os.environ[KEY_VARIABLE] = before


def prompts_of(lake: Lake, tables: Sequence[str]) -> Iterator[list[dict[str, object]]]:
    """Yield the prompt of every training row of dataset tables."""
    for table in tables:
        for row in lake.iter_rows(table, columns=["prompt"], split="train"):
            yield row["prompt"]


def evaluation_states(recorded: Sequence[Recorded]) -> list[EvaluationState]:
    """Return the states of sessions, through the parser and the converter that training uses."""
    written = [write_session(r, f"held-out-{i}") for i, r in enumerate(recorded)]
    truth = {m: (w.recorded.world, step) for w in written for m, step in w.truth.items()}
    out = []
    with tempfile.TemporaryDirectory() as scratch:
        write_files(written, Path(scratch) / "projects")
        lake = Lake(f"{scratch}/lake")
        ingest(lake, [Path(scratch) / "projects"])
        states = list(load_states(lake))
        tools = Toolsets(lake, states)
        for state in states:
            world, step = truth[state.message_id]
            talk = to_chat(state, tools=tools.of(state).tools)
            hard = step.kind == "hard"
            out.append(
                EvaluationState(
                    state.state_id, state.session_id, _kind(world, step), talk.messages,
                    talk.tools, step.right, world.mistake() if hard else None,
                    state.hint if hard else None, PROJECT.cwd,
                )
            )  # fmt: skip
    return out


def _kind(world: World, step: Step) -> Kind:
    if step.kind == "hard":
        return "hard_covered" if world.bug % 2 == 0 else "hard_uncovered"
    return step.kind
