"""A night in Dagster: its money, its dry mode, what a refused one shows, and a quiet one."""

import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import dagster as dg
import pytest

from assets.alerts import problems
from assets.definitions import build_defs
from assets.night import gates, tonights_model
from assets.resources import default_resources
from assets.schedules import night, range_tags
from composer_pipeline.evaluation.report import Estimate
from composer_pipeline.evaluation.states import EvaluationState
from composer_pipeline.lake.store import Lake
from composer_pipeline.nights import night as nights
from composer_pipeline.nights.canaries import Canary
from composer_pipeline.nights.gates import Gate
from composer_pipeline.nights.learner import ProcessLearner
from composer_pipeline.settings import Settings
from composer_pipeline.teachers.ledger import operations
from composer_pipeline.teachers.ledger.ledger import Ledger
from composer_pipeline.training.recipe import TrainingRecipe
from examples.demo.profile import demo_settings, loopback
from examples.demo.run import QUIET

FIRST, LAST = "2026-11-16", "2026-11-17"
TONIGHT = tonights_model.key
#: Less than the replies of the two days cost.
TYPED = 0.05


@pytest.fixture(scope="module")
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test() as made:
        yield made


def gate(name: str, *, passed: bool, mean: float = 0.0) -> Gate:
    found = Estimate(mean, mean - 0.01, mean + 0.01, 40, 20)
    return Gate(name=name, passed=passed, why=f"{name} says", limit=0.05, difference=found)


OUT = Canary("usable", True, "teacher steady answers 0%", 0.0, 1.0, 0.5)
HARD, EASY = gate("hard", passed=True, mean=0.2), gate("easy", passed=True)
WORSE = gate("easy", passed=False, mean=-0.3)
#: Outcome -> what was seen, and the checks that warn.
STORIES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "promoted": ({"gates": (HARD, EASY)}, set()),
    "not better": ({"gates": (gate("hard", passed=False), EASY)}, {"better_on_mistakes"}),
    "worse": ({"gates": (HARD, WORSE)}, {"anchors_hold"}),
    "held": ({"canaries": (OUT,)}, {"canaries"}),
    "nothing new": ({}, set()),
}


@pytest.mark.parametrize("outcome", STORIES)
def test_what_a_night_shows(
    outcome: str, instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, warned = STORIES[outcome]
    moved = {g.name: (0.5, 0.5 + g.difference.mean, g.difference) for g in seen.get("gates", ())}
    story = nights.Night(
        night=LAST, outcome=cast(Any, outcome), why=("this is why",), moved=moved,
        rows={"new": 3, "old": 1, "held_out": 2, "sessions": 2}, **seen,
    )  # fmt: skip

    def told(lake: Lake, *_: Any, **__: Any) -> nights.Night:
        nights._write(lake, story)
        return story

    monkeypatch.setattr(nights, "run_night", told)
    settings = demo_settings(lake=str(tmp_path))
    began = time.time()
    done = dg.materialize(
        [tonights_model, gates], instance=instance, resources=default_resources(settings)
    )
    said = list(problems(instance, began, time.time()).values())
    assert done.success
    found = {e.check_name: e for e in done.get_asset_check_evaluations()}
    assert {name for name, e in found.items() if not e.passed} == warned
    assert {e.severity for e in found.values()} == {dg.AssetCheckSeverity.WARN}
    for name in warned:
        assert "says" in str(found[name].description) or "steady" in str(found[name].description)
    if not moved:
        assert f"did not train ({outcome})" in str(found["anchors_hold"].description)
    refused = [f"Night {LAST}, {outcome}: this is why"]
    assert said == (refused if outcome in ("worse", "held") else [])
    (made,) = done.asset_materializations_for_node("tonights_model")
    assert f"**{LAST}: {outcome}**\n\n- this is why" in str(made.metadata["decision"].value)
    assert ("before_and_after" in made.metadata) == bool(moved)


def asked(settings: Settings, hour: str = f"{LAST}T04:00") -> list[Any]:
    context = dg.build_schedule_context(
        resources={
            name: value
            for name, value in default_resources(settings).items()
            if name in ("lake", "sessions", "teachers", "recipes")
        },
        scheduled_execution_time=datetime.fromisoformat(hour).replace(tzinfo=UTC),
    )
    return list(cast(Any, night(context)))


def test_no_night_buys_without_a_standing_ceiling(tmp_path: Path) -> None:
    assert night.default_status is dg.DefaultScheduleStatus.STOPPED
    settings = demo_settings(lake=str(tmp_path))
    (skipped,) = asked(settings)
    assert "No ceiling limits what all nights spend together" in skipped.skip_message
    with Ledger(tmp_path / "ledger.db") as ledger:
        ledger.do(operations.set_ceiling("month:2026-11", Decimal(1)))
    (request,) = asked(settings)
    assert request.tags == range_tags(FIRST, LAST)
    assert request.run_config == {"ops": {"tonights_model": {"config": {"day": LAST}}}}
    judge = tmp_path / "rules.yaml"
    judge.write_text("semantic_judge: {teacher: steady, max_usd: 1}\n")
    (skipped,) = asked(settings.model_copy(update={"preferences": str(judge)}))
    assert "paid judge" in skipped.skip_message


class Bench:
    """A lake, an instance, and a learner that counts what it is asked for."""

    def __init__(self, settings: Settings, instance: dg.DagsterInstance, folder: Path) -> None:
        self.settings, self.instance, self.weights = settings, instance, folder / "run" / "weights"
        self.lake, self.defs = Lake(settings.lake), build_defs(settings)
        self.trained = 0

    def run(self, assets: Sequence[str] = (), *, dry_run: bool = False) -> Any:
        ops: dict[str, Any] = {"tonights_model": {"config": {"day": LAST, "dry_run": dry_run}}}
        if not assets:
            ops["replay"] = {"config": {"max_usd": TYPED}}
        with loopback():
            return self.defs.resolve_job_def("night").execute_in_process(
                instance=self.instance,
                tags={} if assets else range_tags(FIRST, LAST),
                run_config={**QUIET, "ops": ops},
                asset_selection=[dg.AssetKey(name) for name in assets] or None,
            )

    def train(self, *_: Any) -> tuple[Path, dict[str, float]]:
        self.trained += 1
        self.weights.mkdir(parents=True, exist_ok=True)
        (self.weights / "adapter").write_text("x")
        return self.weights, {"sdpo_loss_first": 2.0, "sdpo_loss_last": 1.0}

    def measure(
        self, _: TrainingRecipe, __: str, states: Sequence[EvaluationState]
    ) -> dict[str, float]:
        return {state.state_id: 1.0 for state in states}

    def spent(self) -> dict[str, Decimal]:
        with Ledger(Path(self.lake.root) / "ledger.db") as ledger:
            scopes = ledger.status().items()
            return {name: scope.spent / Decimal(10**12) for name, scope in scopes}


@pytest.fixture(scope="module")
def bench(
    instance: dg.DagsterInstance, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("night")
    settings = demo_settings(lake=str(folder / "lake"))
    with pytest.MonkeyPatch.context() as patch:
        made = Bench(settings, instance, folder)
        patch.setattr(ProcessLearner, "train", lambda _, *given: made.train(*given))
        patch.setattr(ProcessLearner, "measure", lambda _, *given: made.measure(*given))
        yield made


@pytest.mark.slow
def test_the_whole_night(bench: Bench) -> None:
    done = bench.run()
    assert done.success
    # It went on with what the ceiling let it buy.
    spent = bench.spent()[f"root:{done.run_id}"]
    assert 0 < spent <= Decimal(str(TYPED))
    run = bench.instance.get_run_by_id(done.run_id)
    assert run is not None
    assert run.tags["composer/ceiling_reached"] == f"root:{done.run_id}"
    assert bench.trained == 1
    (story,) = nights.nights(bench.lake)
    assert run.tags["composer/outcome"] == story.outcome == "not better"
    print(story)
