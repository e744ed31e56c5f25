"""The whole data side on the small world: session files in, a training dataset out."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, Literal

from composer_pipeline.chat.convert import to_chat
from composer_pipeline.chat.tools import Toolsets
from composer_pipeline.dataset.build import build_dataset
from composer_pipeline.evaluation.states import EvaluationState, Kind
from composer_pipeline.lake.store import Lake
from composer_pipeline.normalization.stage import normalize
from composer_pipeline.preferences.hints import build_hints, span_text
from composer_pipeline.preferences.pairs import build_pairs
from composer_pipeline.preferences.rules import GATES, PreferenceRules
from composer_pipeline.settings import recipes_dir
from composer_pipeline.states.load import load_states
from composer_pipeline.teachers.run import replay
from composer_pipeline.teachers.teachers import URL_VARIABLE
from composer_pipeline.testing.openrouter.server import LoopbackOpenRouter
from composer_pipeline.traces.ingest import ingest
from examples.proof.toolworld.world import (
    DAYS,
    KEY_VARIABLE,
    PROJECT,
    Answers,
    Family,
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


#: State that a hint stands at: the one that caused the mistake, as the product has it; the one
#: that showed it; the state after the right one; one that was dealt to another hint.
Place = Literal["culprit", "flagged", "next", "shuffled"]


@dataclass(frozen=True)
class Plan:
    """What is recorded, who teaches, and where hints stand.

    ``coverage`` is whose mistakes teachers are asked about: ``full``, ``half`` of the bugs, or
    ``none``. ``shared`` is the probability in percent that all teachers have one misconception at a
    hard state. ``pairs`` leaves out those of teachers (``own``), and takes what was chosen
    for what was rejected (``swapped``).
    """

    seed: int = 1
    count: int = 80
    coverage: str = "half"
    shared: int = 0
    hints: Place = "culprit"
    pairs: Literal["all", "own", "swapped"] = "all"


@dataclass(frozen=True)
class Made:
    """A lake with a dataset, and the truth behind it."""

    lake: Lake
    written: list[Written]
    spent_usd: Decimal


def recorded_sessions(plan: Plan) -> tuple[list[Recorded], list[list[Answers]]]:
    """Return the sessions of a plan and the teachers' answers to each state."""
    random = training_random(plan.seed)
    drawn = sessions(random, plan.count)
    return drawn, answer_all(random, drawn, shared=plan.shared / 100)


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
    asked = {"full": days, "half": days[:1], "none": []}[plan.coverage]
    spent = Decimal(0)
    if asked:
        with loopback(ToolworldScript(load_states(lake), answers)) as url:
            spent = replay(lake, teacher_set(url), max_usd=CEILING, days=asked).spent_usd
    teach(lake, plan)
    return Made(lake, written, spent)


def teach(lake: Lake, plan: Plan) -> None:
    """Run the stages behind the replay, from a plan's hints and pairs to its dataset."""
    build_hints(lake)
    build_pairs(lake)
    _change(lake, plan)
    normalize(lake, recipes_dir() / "normalize" / "default.yaml")
    build_dataset(lake, validation_share=0.0, rules=PreferenceRules(accept=GATES))


def _change(lake: Lake, plan: Plan) -> None:
    """Put hints where a plan wants them, and take the pairs that it has."""
    for day in lake.days("hints") if plan.hints != "culprit" else ():
        states = {state.state_id: state for state in load_states(lake, days=[day])}
        chains = pairwise(sorted(states.values(), key=lambda s: (s.chain_id, s.n_messages)))
        after = {one.state_id: two.state_id for one, two in chains if one.chain_id == two.chain_id}
        rows = lake.rows("hints", days=[day])
        dealt = [row["state_id"] for row in rows]
        Random(plan.seed).shuffle(dealt)  # noqa: S311  nothing here is a secret
        moved: dict[str, dict[str, Any]] = {}
        for row, other in zip(rows, dealt, strict=True):
            at = {
                "flagged": row["error_state_id"], "shuffled": other,
                "next": after.get(row["state_id"]),
            }[plan.hints]  # fmt: skip
            if at:
                span = span_text(states[at].action, row["span_call"])
                moved.setdefault(at, {**row, "state_id": at, "span_text": span})
        for row in moved.values():
            del row["day"]
        lake.write("hints", [moved[at] for at in sorted(moved)], day=day)
    for day in lake.days("pairs") if plan.pairs != "all" else ():
        rows = [row for row in lake.rows("pairs", days=[day]) if not row["n_teachers"]]
        if plan.pairs == "swapped":
            rows = [row | {"chosen": row["rejected"], "rejected": row["chosen"]} for row in rows]
        for row in rows:
            del row["day"]
        lake.write("pairs", rows, day=day)


@contextmanager
def loopback(script: ToolworldScript) -> Iterator[str]:
    """Serve the teachers on this machine and yield the URL."""
    before = {name: os.environ.get(name) for name in (KEY_VARIABLE, URL_VARIABLE)}
    with LoopbackOpenRouter(script, models=models(), api_key=_KEY) as server:
        os.environ |= {KEY_VARIABLE: _KEY, URL_VARIABLE: server.url}
        try:
            yield server.url
        finally:
            for name, value in before.items():
                del os.environ[name]
                if value is not None:
                    os.environ[name] = value


def families(recorded: Sequence[Recorded]) -> dict[str, Family]:
    """Return session id to the kind of its mistake, as :func:`evaluation_states` writes them."""
    return {w.session.session_id: w.recorded.world.family for w in _held_out(recorded)}


def _held_out(recorded: Sequence[Recorded]) -> list[Written]:
    return [write_session(each, f"held-out-{i}") for i, each in enumerate(recorded)]


def evaluation_states(recorded: Sequence[Recorded]) -> list[EvaluationState]:
    """Return the states of sessions, through the parser and the converter that training uses."""
    written = _held_out(recorded)
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
