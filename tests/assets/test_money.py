"""Money in Dagster, on real runs: a ceiling, what is executed again, more money, a free run."""

import asyncio
import time
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run
from dagster._core.loader import LoadingContextForTest

from assets.checks import AFFORDED
from assets.definitions import build_defs
from assets.money import BUDGET_KEY, COST_TAG, REACHED_TAG, SCOPE_TAG
from assets.schedules import range_tags
from composer_pipeline.lake.store import Lake
from composer_pipeline.settings import recipes_dir
from composer_pipeline.states.load import load_states
from composer_pipeline.teachers.ledger.ledger import Ledger
from composer_pipeline.testing.openrouter.server import LoopbackOpenRouter
from composer_pipeline.testing.personas import Script
from examples.demo.profile import demo_settings
from examples.demo.run import QUIET
from tests.fixtures.lake_states import write_sessions

DAYS = ["2026-11-16", "2026-11-17", "2026-11-18", "2026-11-19"]
NAMES = ["careful", "steady"]
#: About two of four days.
TYPED = 0.02


class Bench:
    """A lake of four days, two teachers on loopback, and a Dagster instance."""

    def __init__(self, root: Path, instance: dg.DagsterInstance) -> None:
        data = yaml.safe_load((recipes_dir() / "teachers" / "demo.yaml").read_text())
        data["teachers"] = [
            t | {"prompt_cache": "none", "max_tokens": 80}
            for t in data["teachers"]
            if t["name"] in NAMES
        ]
        file = root / "teachers.yaml"
        file.write_text(yaml.safe_dump(data))
        self.instance = instance
        self.lake = Lake(root / "lake")
        for number, day in enumerate(DAYS):
            write_sessions(self.lake, sessions=3, turns=3, day=day, first=3 * number)
        settings = demo_settings(lake=str(self.lake.root), teachers=str(file), max_usd="5")
        self.defs = build_defs(settings)

    def run(self, usd: object, tags: Mapping[str, str] = {}, **config: Any) -> Any:
        ops = {"replay": {"config": {"max_usd": usd, **config}}}
        return self.defs.resolve_job_def("replay_and_pair").execute_in_process(
            instance=self.instance,
            tags={**range_tags(DAYS[0], DAYS[-1]), **tags},
            run_config={**QUIET, "ops": ops},
            asset_selection=[
                *(dg.AssetKey(["teacher_replies", name]) for name in NAMES),
                *(dg.AssetKey(name) for name in ("replay_plan", "preference_pairs")),
            ],
            raise_on_error=False,
        )

    def set_ceiling(self, scope: str, usd: object) -> Any:
        return self.defs.resolve_job_def("set_ceiling").execute_in_process(
            instance=self.instance,
            run_config={"ops": {"write_ceiling": {"config": {"scope": scope, "usd": usd}}}},
            raise_on_error=False,
        )

    def tags(self, result: Any) -> Mapping[str, str]:
        run = self.instance.get_run_by_id(result.run_id)
        assert run is not None
        return run.tags

    def green(self, *key: str) -> list[str]:
        return sorted(self.instance.get_materialized_partitions(dg.AssetKey(key)))

    def spent(self, scope: str) -> Decimal:
        with Ledger(Path(self.lake.root) / "ledger.db") as ledger:
            return ledger.status()[scope].spent / Decimal(10**12)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield Bench(tmp_path_factory.mktemp("money"), instance)


@pytest.fixture(scope="module")
def runs(bench: Bench) -> dict[str, Any]:
    """A run at its ceiling, again, with more money, and for nothing."""
    script = Script.from_states(load_states(bench.lake), {})
    found: dict[str, Any] = {}
    with (
        LoopbackOpenRouter(script, lifetime=300, flaky_faults=False) as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("COMPOSER_OPENROUTER_URL", server.url)
        found["stopped"] = bench.run(TYPED)
        found["green"] = {name: bench.green("teacher_replies", name) for name in NAMES}
        found["pairs"] = bench.green("preference_pairs")
        first = found["stopped"].run_id
        again = {"dagster/root_run_id": first, "dagster/parent_run_id": first}
        found["again"] = bench.run(TYPED, again)
        found["more"] = bench.run("5", again | {SCOPE_TAG: f"root:{first}"})
        found["lowered"] = bench.set_ceiling("global", 0.000001)
        found["free"] = bench.run("5")
    return found


def events(result: Any, name: str) -> list[Any]:
    return [event for event in result.all_events if event.event_type_value == name]


def materialised(result: Any, asset: str) -> list[Any]:
    made = [e.step_materialization_data.materialization
            for e in events(result, "ASSET_MATERIALIZATION")]  # fmt: skip
    return [m for m in made if m.asset_key.path[-1] == asset]


def observed(result: Any, asset: str) -> list[Any]:
    told = [e.event_specific_data.asset_observation for e in events(result, "ASSET_OBSERVATION")]
    return [o for o in told if o.asset_key.path[-1] == asset]


def days_of(result: Any, teacher: str) -> dict[str, dict[str, Any]]:
    mine = materialised(result, teacher)
    assert len(mine) == len({m.partition for m in mine})  # none is told twice
    return {m.partition: {k: v.value for k, v in m.metadata.items()} for m in mine}


def test_a_ceiling_is_an_outcome_that_leaves_whole_days(bench: Bench, runs: dict[str, Any]) -> None:
    assert runs["stopped"].success
    assert not events(runs["stopped"], "STEP_FAILURE")
    by_teacher = [set(days) for days in runs["green"].values()]
    whole = sorted(set.intersection(*by_teacher))
    assert whole == DAYS[: len(whole)]
    assert 0 < len(whole) < len(DAYS)
    # Of the day that stopped, a teacher may have answered everything; of later days nobody.
    assert set.union(*by_teacher) <= set(DAYS[: len(whole) + 1])
    assert runs["pairs"] == []  # nothing is made of a day that waits for its replies
    scope = f"root:{runs['stopped'].run_id}"
    tags = bench.tags(runs["stopped"])
    assert tags[SCOPE_TAG] == tags[REACHED_TAG] == scope
    assert 0 < float(tags[COST_TAG]) <= TYPED
    said = said_of(runs["stopped"])
    assert set(said) == {"budget", *NAMES}
    (sentence,) = {found.description for found in said.values()}
    for part in (f"ceiling of {scope} at {DAYS[len(whole)]}: $0.0", "of $0.02 spent",
                 "calls cost $0.000", "could cost up to $0.0", "raise the ceiling of"):  # fmt: skip
        assert part in str(sentence)
    assert {found.severity for found in said.values()} == {dg.AssetCheckSeverity.WARN}
    rows = said["budget"].metadata["days"].value.records
    assert {row.data["day"] for row in rows} == set(DAYS[len(whole) :])
    assert said_of(runs["more"]) == {}


def said_of(result: Any) -> dict[str, Any]:
    """Return the checks of a run that did not pass, by asset."""
    found = result.get_asset_check_evaluations()
    return {e.asset_key.path[-1]: e for e in found if not e.passed and e.check_name != "up_to_date"}


def test_executed_again_it_buys_nothing_and_with_more_money_the_rest(
    bench: Bench, runs: dict[str, Any]
) -> None:
    assert float(bench.tags(runs["again"])[COST_TAG]) == 0
    assert bench.spent(f"root:{runs['stopped'].run_id}") == pytest.approx(
        Decimal(bench.tags(runs["stopped"])[COST_TAG])
        + Decimal(bench.tags(runs["more"])[COST_TAG]),
        abs=Decimal("1e-6"),
    )
    assert runs["more"].success
    assert bench.tags(runs["more"])[REACHED_TAG] == "no"
    assert bench.green("teacher_replies", "steady") == bench.green("preference_pairs") == DAYS


def test_a_free_run_passes_below_a_ceiling_and_keeps_what_was_measured(
    bench: Bench, runs: dict[str, Any]
) -> None:
    assert runs["free"].success
    assert float(bench.tags(runs["free"])[COST_TAG]) == 0
    made = {e.asset_key.path[-1] for e in events(runs["free"], "ASSET_MATERIALIZATION")}
    assert "preference_pairs" in made
    before, after = days_of(runs["more"], "steady"), days_of(runs["free"], "steady")
    assert set(before) == set(after) == set(DAYS)
    for day in DAYS:
        for name in ("cost_usd", "latency_p50_ms", "latency_p95_ms"):
            assert after[day][name] == before[day][name] > 0


def test_the_plan_stands_before_the_purchase_and_the_bill_beside_it(runs: dict[str, Any]) -> None:
    (before,) = [m for m in materialised(runs["stopped"], "replay_plan") if m.partition == DAYS[0]]
    assert before.metadata["calls"].value == 18
    assert 0 < before.metadata["expected_usd"].value < before.metadata["worst_usd"].value
    rows = [row.data for row in before.metadata["by_teacher"].records]
    assert {row["teacher"]: (row["calls"], row["billed_usd"]) for row in rows} == dict.fromkeys(
        NAMES, (9, "nothing")
    )
    (beside,) = [o for o in observed(runs["stopped"], "replay_plan") if o.partition == DAYS[0]]
    for row in (row.data for row in beside.metadata["plan_and_bill"].records):
        assert row["calls"] == 9
        assert 0 < float(row["billed_usd"]) < row["worst_usd"]


def test_each_purchase_and_each_ceiling_writes_the_budget(
    bench: Bench, runs: dict[str, Any]
) -> None:
    (bought,) = materialised(runs["stopped"], "budget")
    scopes = {row.data["scope"]: row.data for row in bought.metadata["scopes"].records}
    mine = scopes[f"root:{runs['stopped'].run_id}"]
    assert (mine["ceiling_usd"], float(mine["spent_usd"]) > 0) == (str(TYPED), True)
    assert bought.metadata["spent_usd"].value == float(scopes["global"]["spent_usd"]) > 0
    assert runs["lowered"].success
    (lowered,) = materialised(runs["lowered"], "budget")
    assert lowered.metadata["ceiling_usd"].value == 0.000001
    assert not bench.set_ceiling("nowhere", 1).success
    assert not bench.set_ceiling("global", "much").success
    assert bench.set_ceiling("global", "none").success
    assert (
        "ceiling_usd"
        not in materialised(bench.set_ceiling("month:2026-11", 3), "budget")[0].metadata
    )


def test_the_check_has_a_result_in_every_run(runs: dict[str, Any]) -> None:
    for name in ("stopped", "again", "more", "free"):
        result = runs[name]
        found = [e for e in result.get_asset_check_evaluations() if e.check_name == "within_budget"]
        assert {e.asset_key.path[-1] for e in found} == set(NAMES)
        assert all(e.passed for e in found)


def test_a_ceiling_below_what_was_spent_is_said_and_blocks_nothing(runs: dict[str, Any]) -> None:
    def said(name: str) -> set[str]:
        found = runs[name].get_asset_check_evaluations()
        return {str(e.description) for e in found if e.check_name == "within_budget"}

    (sentence,) = said("free")
    for part in ("ceiling of global", "0.000001 USD", "nothing is bought until it is raised"):
        assert part in sentence
    assert not [one for one in said("more") if "nothing is bought" in one]
    # Not blocked: every check ran, and what comes after the check did.
    assert runs["free"].success
    assert materialised(runs["free"], "preference_pairs")


def test_a_ceiling_is_chosen_from_a_list(bench: Bench) -> None:
    job = bench.defs.resolve_job_def("choose_ceiling")
    assert job.partitions_def is not None
    for key in job.partitions_def.get_partition_keys():
        done = job.execute_in_process(instance=bench.instance, partition_key=key)
        assert done.success
        with Ledger(Path(bench.lake.root) / "ledger.db") as ledger:
            ceiling = ledger.status()["global"].ceiling
        wanted = None if key == "no ceiling" else Decimal(key.removesuffix(" USD")) * 10**12
        assert ceiling == wanted
    done = job.execute_in_process(instance=bench.instance, raise_on_error=False)
    (failed,) = [event for event in done.all_events if event.is_step_failure]
    said = failed.step_failure_data.user_failure_data
    assert said is not None
    assert "choose an amount" in str(said.description)


def test_a_budget_that_waited_does_not_hide_the_check_of_a_newer_purchase(bench: Bench) -> None:
    """Dagster shows the check whose run was asked for last, and none if a page is newer than it."""
    whole = bench.defs.resolve_implicit_global_asset_job_def()
    job = whole.get_subset(asset_selection={BUDGET_KEY})
    waiting = bench.instance.create_run_for_job(job)
    assert bench.set_ceiling("global", "none").success  # it writes the page and its check
    assert execute_run(InMemoryJob(job), waiting, bench.instance).success
    shown = bench.instance.get_latest_asset_check_evaluation_record(AFFORDED)
    assert shown is not None
    context = LoadingContextForTest(bench.instance)
    assert asyncio.run(shown.targets_latest_materialization(context))


@pytest.mark.usefixtures("runs")
def test_the_budget_is_written_where_it_is_asked_for(bench: Bench) -> None:
    time.sleep(1)  # SQLite knows the time of a run by the second
    job = bench.defs.resolve_implicit_global_asset_job_def()
    made = job.execute_in_process(instance=bench.instance, asset_selection=[BUDGET_KEY])
    (page,) = materialised(made, "budget")
    assert page.metadata["spent_usd"].value > 0
