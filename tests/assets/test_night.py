"""A night in Dagster: its money, its dry mode, what a refused one shows, and a quiet one."""

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import dagster as dg
import pytest
import yaml

from assets import schedules
from assets.alerts import problems
from assets.definitions import build_defs
from assets.night import gates, tonights_model
from assets.resources import default_resources
from assets.schedules import night, range_tags
from composer_pipeline.dataset import manifest
from composer_pipeline.evaluation.report import Estimate
from composer_pipeline.evaluation.states import EvaluationState
from composer_pipeline.lake import provenance
from composer_pipeline.lake.store import Lake
from composer_pipeline.maintenance import status
from composer_pipeline.nights import model_registry
from composer_pipeline.nights import night as nights
from composer_pipeline.nights.canaries import Canary
from composer_pipeline.nights.gates import Gate
from composer_pipeline.nights.learner import ProcessLearner
from composer_pipeline.settings import Settings, recipes_dir
from composer_pipeline.teachers.ledger import operations
from composer_pipeline.teachers.ledger.ledger import Ledger
from composer_pipeline.training.recipe import TrainingRecipe
from examples.demo.profile import demo_settings, loopback
from examples.demo.run import QUIET

FIRST, LAST, NEXT = "2026-11-16", "2026-11-17", "2026-11-18"
TONIGHT = ["tonights_model"]
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
NEW, EASY = gate("new", passed=True, mean=0.2), gate("easy", passed=True)
HARD = gate("hard", passed=True, mean=0.4)
WORSE = gate("easy", passed=False, mean=-0.3)
#: Outcome -> what was seen, and the checks that warn.
STORIES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "promoted": ({"gates": (NEW, EASY, HARD)}, set()),
    "not better": (
        {"gates": (gate("new", passed=False, mean=-0.4), EASY, HARD)},
        {"better_on_new"},
    ),
    "worse": ({"gates": (NEW, WORSE, HARD)}, {"anchors_hold"}),
    "held": ({"canaries": (OUT,)}, {"canaries"}),
    "nothing to learn": ({}, set()),
    "too few": ({}, set()),
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

    sent: list[str] = []
    served = model_registry.Current(0, "base", "", ())
    monkeypatch.setattr(nights, "run_night", told)
    monkeypatch.setattr(model_registry, "current", lambda _: served)
    monkeypatch.setattr(
        model_registry, "publish_versions", lambda _, repo, allow_simulated: sent.append(repo)
    )
    settings = demo_settings(lake=str(tmp_path)).model_copy(update={"model_repo": "me/model"})
    began = time.time()
    done = dg.materialize(
        [tonights_model, gates], instance=instance, resources=default_resources(settings)
    )
    said = list(problems(instance, began, time.time()).values())
    assert done.success
    assert sent == ["me/model"]
    found = {e.check_name: e for e in done.get_asset_check_evaluations()}
    assert {name for name, e in found.items() if not e.passed} == warned
    assert {e.severity for e in found.values()} == {dg.AssetCheckSeverity.WARN}
    for name in warned:
        assert "says" in str(found[name].description) or "steady" in str(found[name].description)
    if not moved:
        assert found["anchors_hold"].description == f"Not measured, {outcome}: this is why."
    refused = [f"Night {LAST}, {outcome}: this is why"]
    assert said == (refused if outcome in ("worse", "held") else [])
    (made,) = done.asset_materializations_for_node("tonights_model")
    assert made.metadata["decision"].value == f"{LAST}, {outcome}: this is why"
    assert Path(str(made.metadata["file"].value)).is_file()
    assert "data:image/svg+xml" in str(made.metadata["story"].value)
    if "worse" in outcome:
        change = "anchors: easy: 50.0% → 20.0%, -30.0% (-31.0% to -29.0%)"
        assert change in str(made.metadata["before_and_after"].value)
    if moved:
        numbers = [made.metadata[f"{name}_difference"].value for name in ("new", "worst_anchor")]
        assert numbers == [seen["gates"][0].difference.mean, seen["gates"][1].difference.mean]


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


def test_the_days_of_a_night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = demo_settings(lake=str(tmp_path))
    with Ledger(tmp_path / "ledger.db") as ledger:
        ledger.do(operations.set_ceiling("global", Decimal(1)))
    monkeypatch.setattr(schedules, "DAYS", dg.DailyPartitionsDefinition("2026-01-01"))
    stale: list[str] = ["2026-02-01", FIRST, LAST]
    monkeypatch.setattr(status, "harvest_days", lambda *_: stale)
    for name in ("replay_days", "pairs_days"):
        monkeypatch.setattr(status, name, lambda *_: [])
    (request,) = asked(settings)
    assert request.tags == range_tags(FIRST, LAST)  # replies to a day of long ago cost money
    stale.clear()
    (skipped,) = asked(settings)
    assert skipped.skip_message == "There are no pairs yet."
    Lake(str(tmp_path)).write("normalized_pairs", [], day=FIRST)
    (request,) = asked(settings)
    assert [key.path for key in request.asset_selection] == [["training_dataset"], TONIGHT]
    monkeypatch.setattr(provenance, "build_id", lambda _: "build")
    monkeypatch.setattr(manifest, "changed_inputs", lambda *_: [])
    (request,) = asked(settings)
    assert ([key.path for key in request.asset_selection], request.tags) == ([TONIGHT], {})


class Bench:
    """A lake, an instance, and a learner that counts what it is asked for."""

    def __init__(self, settings: Settings, instance: dg.DagsterInstance, folder: Path) -> None:
        self.settings, self.instance, self.weights = settings, instance, folder / "run" / "weights"
        self.lake, self.defs = Lake(settings.lake), build_defs(settings)
        self.recipe, self.trained = TrainingRecipe.load(settings.train), 0

    def run(
        self, *assets: str, first: str = "", last: str = "", night: str = LAST, **config: bool
    ) -> Any:
        ops: dict[str, Any] = {"tonights_model": {"config": {"day": night, **config}}}
        if first:
            ops["replay"] = {"config": {"max_usd": TYPED}}
        with loopback():
            return self.defs.resolve_job_def("night").execute_in_process(
                instance=self.instance,
                tags=range_tags(first, last) if first else {},
                run_config={**QUIET, "ops": ops},
                asset_selection=[dg.AssetKey(name.split("/")) for name in assets] or None,
            )

    def train(self, *_: Any) -> tuple[Path, dict[str, float]]:
        self.trained += 1
        self.weights.mkdir(parents=True, exist_ok=True)
        (self.weights / "adapter").write_text("x")
        return self.weights, {"sdpo_loss_first": 2.0, "sdpo_loss_last": 1.0}

    def measure(
        self, _: TrainingRecipe, __: str, states: Sequence[EvaluationState]
    ) -> dict[str, float]:
        return {state.state_id: 0.0 for state in states}

    def tags(self, result: Any) -> Mapping[str, str]:
        run = self.instance.get_run_by_id(result.run_id)
        assert run is not None
        return run.tags

    def spent(self) -> dict[str, Decimal]:
        with Ledger(Path(self.lake.root) / "ledger.db") as ledger:
            scopes = ledger.status().items()
            return {name: scope.spent / Decimal(10**12) for name, scope in scopes}


@pytest.fixture(scope="module")
def bench(
    instance: dg.DagsterInstance, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("night")
    data = yaml.safe_load((recipes_dir() / "teachers" / "demo.yaml").read_text())
    data["teachers"] = [one for one in data["teachers"] if one["name"] in ("careful", "steady")]
    file = folder / "teachers.yaml"
    file.write_text(yaml.safe_dump(data))
    (rules := folder / "nights.yaml").write_text("gate: {alpha: 0.9, nights: 1}\n")
    settings = demo_settings(lake=str(folder / "lake"), teachers=str(file))
    settings = settings.model_copy(update={"nights": str(rules)})
    with pytest.MonkeyPatch.context() as patch:
        made = Bench(settings, instance, folder)
        patch.setattr(ProcessLearner, "train", lambda _, *given: made.train(*given))
        patch.setattr(ProcessLearner, "measure", lambda _, *given: made.measure(*given))
        yield made


@pytest.mark.slow
def test_a_whole_night_a_quiet_one_and_a_dry_one(bench: Bench) -> None:
    whole = bench.run(first=FIRST, last=LAST)
    assert whole.success
    # It went on with what its ceiling let it buy, and no more was bought.
    scope = f"root:{whole.run_id}"
    tags = bench.tags(whole)
    assert tags["composer/ceiling_reached"] == scope
    assert 0 < bench.spent()[scope] <= Decimal(str(TYPED))
    (story,) = nights.nights(bench.lake)
    assert (bench.trained, tags["composer/outcome"]) == (1, story.outcome) == (1, "not better")
    (made,) = whole.asset_materializations_for_node("tonights_model")
    assert made.partition is None
    assert made.metadata["versions"].value == f"tonight's 1 from 0; served 0, {bench.recipe.model}"
    assert made.metadata["losses"].value == "sdpo 2 → 1"
    assert " pairs, " in made.metadata["trained_on"].value
    assert f"${story.usd:.4f} (simulated)" in made.metadata["states"].value
    before = time.process_time()
    quiet = bench.run("tonights_model", night=NEXT)
    assert bench.tags(quiet)["composer/outcome"] == "nothing new"
    assert time.process_time() - before < 10
    # New sessions come: a dry night harvests them.
    left = (bench.spent(), bench.lake.days("replies"), nights.nights(bench.lake))
    assets = ("raw_sessions", "trace_states", "teacher_replies/steady", "tonights_model")
    dry = bench.run(*assets, first=NEXT, last=NEXT, night=NEXT, dry_run=True)
    assert NEXT in bench.lake.days("states")
    assert (bench.spent(), bench.lake.days("replies"), nights.nights(bench.lake)) == left
    assert bench.trained == 1
    assert not dry.asset_materializations_for_node("tonights_model")
    pointer = model_registry.current(bench.lake)
    assert pointer is not None
    assert pointer.version == 0
