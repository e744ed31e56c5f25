"""The arguments that each asset passes to its stage, and what a run reports; runs no stage."""

import importlib
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import dagster as dg
import msgspec
import pytest
import yaml

from assets import checks, traces
from assets.checks import WITHIN_BUDGET, purchase_results
from assets.definitions import build_defs
from assets.money import UNANSWERED_TAG
from assets.pages import column_schema, figures, usd
from assets.preferences import build_preferences, quality_numbers, quality_pictures
from assets.publication import PublishConfig, published_dataset
from assets.replay import _progress, build_replay
from assets.resources import (
    LakeResource,
    PublicationResource,
    RecipesResource,
    SessionsResource,
    TeachersResource,
    default_resources,
)
from assets.schedules import (
    nightly_harvest,
    nightly_pairs,
    nightly_publish,
    nightly_replay,
    range_tags,
)
from composer_pipeline import build_hints, ingest
from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.errors import InputError
from composer_pipeline.lake.provenance import FileStamps, record_of, write_record
from composer_pipeline.lake.store import Lake
from composer_pipeline.maintenance.status import TRIES
from composer_pipeline.money import Pico
from composer_pipeline.preferences.quality import write_statistics
from composer_pipeline.preferences.rules import PreferenceRules
from composer_pipeline.settings import Settings, recipes_dir
from composer_pipeline.teachers.ledger import operations
from composer_pipeline.teachers.ledger.ledger import Ledger, standing_ceilings
from composer_pipeline.teachers.ledger.values import Call
from composer_pipeline.teachers.replies import replies_derivation
from composer_pipeline.teachers.report import (
    ReplayReport,
    Snapshot,
    TeacherFigures,
    TeacherProgress,
)
from composer_pipeline.teachers.teachers import TeacherSet
from examples.demo.profile import demo_settings
from tests.fixtures.lake_states import DAY, write_session
from tests.fixtures.recorded_calls import record
from tests.fixtures.sessions import Script

NEXT = "2026-11-17"
TEACHERS = recipes_dir() / "teachers" / "demo.yaml"
RECIPES = RecipesResource(normalize="n.yaml", train="t.yaml", run_root="runs")


@pytest.fixture
def lake(tmp_path: Path) -> LakeResource:
    return LakeResource(url=str(tmp_path / "lake"))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[Any, Any]]:
    """Call an asset for one of two days; return what it asked a stage for."""

    def call(stage: str, asset: Any, days: str = NEXT, **resources: Any) -> dict[Any, Any]:
        seen = record(monkeypatch, stage)
        context = [dg.build_asset_context(partition_key=days)] if days else []
        with pytest.raises((InputError, dg.Failure), match="recorded"):
            _all_of(asset(*context, **resources))
        return seen

    return call


def _all_of(made: Any) -> None:
    list(made if isinstance(made, Iterator) else ())


def preference(name: str) -> dg.AssetsDefinition:
    return {a.key.path[-1]: a for a in build_preferences([])}[name]


def test_each_asset_works_on_the_days_of_its_run(
    asked: Callable[..., dict[Any, Any]], lake: LakeResource, tmp_path: Path
) -> None:
    sessions = SessionsResource(path=str(tmp_path))
    teachers = TeachersResource(file=str(TEACHERS))
    resources = {"lake": lake, "sessions": sessions, "teachers": teachers}
    seen = asked("traces.archive.harvest", traces.raw_sessions, **resources)
    assert (seen[1], seen["days"]) == ([tmp_path], {NEXT})
    asset = preference("normalized_pairs")
    seen = asked("normalization.stage.normalize", asset, lake=lake, recipes=RECIPES)
    assert (seen[1], seen["days"]) == ("n.yaml", [NEXT])


def test_each_day_of_a_parse_shows_its_own_redactions(
    lake: LakeResource, monkeypatch: pytest.MonkeyPatch
) -> None:
    redactions = {DAY: {"HOME": 1}, NEXT: {"EMAIL": 2}}
    found = SimpleNamespace(day=lambda _: {}, redactions_by_day=redactions)
    seen: dict[str, Any] = {}

    def audit(_: Any, day: str, counts: Any) -> dict[str, Any]:
        seen[day] = counts
        return {}

    parse = importlib.import_module("composer_pipeline.traces.parse")
    monkeypatch.setattr(parse, "parse_days", lambda *_: found)
    stage = importlib.import_module("composer_pipeline.traces.ingest")
    monkeypatch.setattr(stage, "day_audit", audit)
    context = dg.build_asset_context(partition_key_range=dg.PartitionKeyRange(DAY, NEXT))
    monkeypatch.setattr(type(context), "add_asset_metadata", lambda *_, **__: None)
    cast(Any, traces.trace_states)(context, lake=lake)
    assert seen == redactions


def test_pairs_are_made_by_the_recipe_of_the_run(
    asked: Callable[..., dict[Any, Any]], lake: LakeResource, tmp_path: Path
) -> None:
    recipe = tmp_path / "rules.yaml"
    recipe.write_text("max_pairs_per_session: 3\n")
    resources = {
        "lake": lake,
        "recipes": RecipesResource(
            normalize="n.yaml", train="t.yaml", run_root="runs", preferences=str(recipe)
        ),
        "teachers": TeachersResource(file=str(TEACHERS)),
    }
    seen = asked("preferences.pairs.build_pairs", preference("preference_pairs"), **resources)
    assert (seen["days"], seen["rules"].max_pairs_per_session) == ([NEXT], 3)


def test_statistics_are_of_the_days_of_the_run(
    asked: Callable[..., dict[Any, Any]], lake: LakeResource, monkeypatch: pytest.MonkeyPatch
) -> None:
    teachers = TeachersResource(file=str(TEACHERS))
    asset = preference("preference_pairs")
    stage = "preferences.quality.write_statistics"
    seen = asked(stage, asset, lake=lake, recipes=RECIPES, teachers=teachers)
    assert seen["days"] == [NEXT]


def test_a_publication_is_private_and_a_dry_run_commits_nothing(
    asked: Callable[..., dict[Any, Any]], lake: LakeResource
) -> None:
    where = {"lake": lake, "publication": PublicationResource(repo="c/d")}
    config = PublishConfig(repo="a/b")
    seen = asked("publishing.publish.publish", published_dataset, "", config=config, **where)
    assert (seen["private"], seen["dry_run"], seen["allow_simulated"]) == (True, False, False)
    assert seen[1] == "a/b"
    config = PublishConfig(dry_run=True, allow_simulated=True)
    seen = asked("publishing.publish.publish", published_dataset, "", config=config, **where)
    assert (seen["dry_run"], seen["allow_simulated"], seen[1]) == (True, True, "c/d")


def test_without_a_repository_nothing_is_published_and_nothing_fails(lake: LakeResource) -> None:
    nowhere = PublicationResource()
    made = published_dataset(config=PublishConfig(), lake=lake, publication=nowhere)
    assert list(cast("Iterator[Any]", made)) == []


def test_the_night_publishes_when_it_was_told_to(lake: LakeResource) -> None:
    def asked(**options: Any) -> list[Any]:
        with dg.build_schedule_context(
            resources={"lake": lake, "publication": PublicationResource(**options)}
        ) as context:
            found = nightly_publish.evaluate_tick(context)
            return list(found.run_requests or [])

    lake.open().write("normalized_pairs", [], day=NEXT)
    assert asked(repo="a/b") == asked(nightly=True) == []
    assert len(asked(repo="a/b", nightly=True)) == 1


def test_a_replay_buys_what_its_run_may(
    lake: LakeResource, monkeypatch: pytest.MonkeyPatch
) -> None:
    asset = build_replay(TeacherSet.load(TEACHERS))
    teachers = TeachersResource(file=str(TEACHERS), max_usd="3")

    def asked_with(**config: Any) -> dict[Any, Any]:
        seen = record(monkeypatch, "teachers.run.replay")
        made = dg.materialize(
            [asset],
            partition_key=NEXT,
            resources={"lake": lake, "teachers": teachers},
            run_config={"ops": {"replay": {"config": config}}},
            raise_on_error=False,
        )
        assert not made.success
        return seen

    seen = asked_with(max_states=2)
    assert (seen["max_states"], seen["days"], seen["max_usd"]) == (2, [NEXT], Decimal(3))
    assert seen["run_id"]
    assert (seen["budget"], seen["days_first"]) == (f"root:{seen['run_id']}", "oldest")
    seen = asked_with(max_usd=0.5, days_first="NEWEST")
    assert (seen["max_usd"], seen["max_states"]) == (Decimal("0.5"), None)
    assert seen["days_first"] == "newest"


# -- what a replay tells ------------------------------------------------------------------


def report(**changes: Any) -> ReplayReport:
    figures = TeacherFigures(calls=3, replies=3, cached=2, unknown=1, cost_picodollars=2 * 10**12)
    found = ReplayReport(
        run_id="r", simulated=True, states=2, calls=1, replies=1, cached=0, recovered=0, refused=0,
        unknown=0, spent_usd=Decimal("0.5"), reserved_usd=Decimal("0.25"), ceiling_usd=Decimal(1),
        exhausted_scope="", by_teacher={"careful": figures, "steady": figures},
        by_day_teacher={
            DAY: {"careful": {"rows": 3, "cost_picodollars": 5 * 10**11, "ok": 3}},
            NEXT: {"careful": {"rows": 1, "cost_picodollars": 0, "ok": 1}},
        },
        skipped=[], not_bought=[],
    )  # fmt: skip
    return msgspec.structs.replace(found, **changes)


@pytest.fixture
def materialised(
    lake: LakeResource, monkeypatch: pytest.MonkeyPatch
) -> Callable[[ReplayReport], tuple[dict[str, Any], dict[str, Any], str]]:
    """Materialise two teachers on two days; return the metadata of runs and days, and why not."""

    def run(found: ReplayReport) -> tuple[dict[str, Any], dict[str, Any], str]:
        engine = importlib.import_module("composer_pipeline.teachers.run")
        monkeypatch.setattr(engine, "replay", lambda *_, **__: found)
        teachers = TeacherSet.load(TEACHERS)
        two = [t for t in teachers.teachers if t.name in ("careful", "steady")]
        asset = build_replay(teachers.model_copy(update={"teachers": two}))
        with dg.DagsterInstance.ephemeral() as instance:
            made = dg.materialize(
                [asset],
                instance=instance,
                tags=range_tags(DAY, NEXT),
                resources={"lake": lake, "teachers": TeachersResource(file=str(TEACHERS))},
                raise_on_error=False,
            )
            ended = instance.get_run_by_id(made.run_id)
        days: dict[Any, Any] = {}
        for event in made.get_asset_materialization_events():
            told = event.step_materialization_data.materialization
            if told.partition is None:
                continue  # the budget, which each purchase writes again
            where = told.asset_key.path[-1], told.partition
            assert where not in days
            days[where] = {name: value.value for name, value in told.metadata.items()}
        failed = [e.step_failure_data.user_failure_data for e in made.get_step_failure_events()]
        why = str(failed[0].description) if failed and failed[0] else ""
        return dict(ended.tags) if ended else {}, days, why

    return run


def test_a_replay_tells_each_day_and_the_run(
    materialised: Any, lake: LakeResource, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[str, Any] = {}
    monkeypatch.setattr("assets.replay.record_run", lambda _, numbers: told.update(numbers))
    store, at = lake.open(), datetime(2026, 11, 20, tzinfo=UTC)
    for day, statuses in ((DAY, ["ok", "unusable"]), (NEXT, ["ok"])):
        rows = [
            {"state_id": str(n), "session_id": "s", "family": "f", "request_hash": str(n),
             "model": "m", "status": status, "cost_picodollars": 250_000_000_000,
             "latency_ms": 40.0, "simulated": True, "created_at": at}
            for n, status in enumerate(statuses)
        ]  # fmt: skip
        store.write("replies", rows, day=day, teacher="careful")
    _, days, why = materialised(report())
    assert why == ""
    # The run's numbers are told once, of all teachers, and stand on no day.
    assert (told["cached"], told["unknown"], told["budget_left_usd"]) == (4, 2, 0.25)
    assert told["calls"] == 6
    assert not [name for metadata in days.values() for name in metadata if "cached" in name]
    first, second = days["careful", DAY], days["careful", NEXT]
    assert [m["dagster/partition_row_count"] for m in (first, second)] == [2, 1]
    assert [m["cost_usd"] for m in (first, second)] == [0.5, 0.25]
    assert (first["usable_share"], first["latency_p50_ms"]) == (0.5, 40.0)
    # Nothing was measured of a teacher without replies: no number is 0 but the rows.
    assert days["steady", DAY] == {"dagster/partition_row_count": 0}


def test_a_day_shows_what_the_recipe_was_given_and_what_it_dropped(
    lake: LakeResource, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = {"rows": 9, "kept": 6, "dropped": 3}
    found = SimpleNamespace(by_day={NEXT: counts}, by_op={})
    drop = {"pair_id": "p", "state_id": "s", "step": "2:text_length_filter", "op": "o",
            "field": "f", "stat": "", "value": "", "bound": ""}  # fmt: skip
    lake.open().write("drops", [drop], day=NEXT, stage="normalize")
    stage = importlib.import_module("composer_pipeline.normalization.stage")
    monkeypatch.setattr(stage, "normalize", lambda *_, **__: found)
    context, told = dg.build_asset_context(partition_key=NEXT), []

    def add(_: Any, metadata: Any, **at: Any) -> None:
        told.append(metadata)

    monkeypatch.setattr(type(context), "add_asset_metadata", add)
    monkeypatch.setattr(
        type(context), "add_asset_metadata", lambda _, data, **at: told.append(data)
    )
    preference("normalized_pairs")(context, lake=lake, recipes=RECIPES)
    (day,) = told
    assert (day["rows"], day["dropped"]) == (9, 3)
    (by_op,) = day["dropped_by_op"].records
    assert by_op.data == {"op": "2:text_length_filter", "dropped": 1}


def test_a_teacher_that_misses_replies_is_not_recorded(materialised: Any) -> None:
    missing = [{"state_id": "s", "teacher": "careful", "why": "lost"}]
    gone = {DAY: {"careful": 1}}
    tags, days, why = materialised(report(not_bought=missing, missing=gone))
    # Of one day; the other one, and the other teacher, are whole.
    assert set(days) == {("steady", DAY), ("steady", NEXT), ("careful", NEXT)}
    assert (why, tags[UNANSWERED_TAG]) == ("", "careful")
    _, _, why = materialised(report(not_bought=missing, missing=gone, replies=0))
    assert why == "no reply came: 1 questions were not answered (lost)"


def test_stopped_teachers_are_named_also_where_nothing_was_bought(materialised: Any) -> None:
    stopped = TeacherFigures(stopped="no such model", stopped_scope="teacher")
    missing = [{"state_id": "s", "teacher": name, "why": "x"} for name in ("careful", "steady")]
    changes = {"replies": 0, "by_teacher": {"careful": stopped, "steady": stopped}}
    _, _, why = materialised(report(not_bought=missing, **changes))
    assert "careful (1 replies; no such model)" in why
    assert "steady (1 replies; no such model)" in why


def test_a_run_that_goes_on_is_told_every_ten_seconds() -> None:
    seen: list[Any] = []
    tags: dict[str, str] = {}
    context = SimpleNamespace(
        partition_keys=[DAY], log=SimpleNamespace(info=lambda line: None), log_event=seen.append,
        run_id="r", instance=SimpleNamespace(add_run_tags=lambda _, more: tags.update(more)),
    )  # fmt: skip
    tell = _progress(cast(Any, context), ["careful"])
    moment = TeacherProgress(1, 2, 0, 0, 1, 4, None, None, None, "ok")
    for elapsed in (9.0, 10.0, 11.0, 19.9, 20.5, 21.0):
        snapshot = Snapshot(
            "asking",
            elapsed,
            1,
            2,
            0,
            0,
            Decimal("0.25"),
            Decimal(0),
            Decimal(1),
            {"careful": moment},
        )
        tell(snapshot)
    assert len(seen) == 2
    assert tags == {"composer/cost_usd": "0.250000"}  # what a run that is killed leaves behind


# -- checks, schedules, resources -----------------------------------------------------------


def test_what_may_have_been_spent_counts_against_the_ceiling(lake: LakeResource) -> None:
    key = dg.AssetCheckKey(dg.AssetKey(["teacher_replies", "careful"]), WITHIN_BUDGET)

    def result(*, free: bool = False) -> dg.AssetCheckResult:
        teachers = TeachersResource(file=str(TEACHERS))
        (found,) = purchase_results(lake.open(), teachers, [key], free=free)
        return found

    def passed() -> bool:
        return result().passed

    assert passed()  # no ledger, no ceiling
    with Ledger(Path(lake.url) / "ledger.db") as ledger:
        ledger.do(operations.set_ceiling("global", Decimal(10) / 10**12))
        call = Call("s", "kimi", "x", DAY, {})
        sent = ledger.do(operations.reserve("k", Pico(9), ["global"], call))
        ledger.do(operations.mark_unknown(sent.attempt, "reset"))
    assert passed()
    with Ledger(Path(lake.url) / "ledger.db") as ledger:
        ledger.do(operations.set_ceiling("global", Decimal(8) / 10**12))
    assert passed()  # so one stops spending
    with Ledger(Path(lake.url) / "ledger.db") as ledger:
        ledger.do(operations.set_ceiling("global", Decimal(10) / 10**12))
        ledger.do(operations.reconcile(sent.attempt, Pico(12)))
    assert not passed()
    assert result().severity == dg.AssetCheckSeverity.ERROR
    # Who buys nothing is not held up by what another has overspent.
    assert result(free=True).severity == dg.AssetCheckSeverity.WARN


def test_every_violation_is_counted_and_five_are_named(lake: LakeResource) -> None:
    same = [{"role": "assistant", "content": "x"}]
    rows = [{"pair_id": f"p{n}", "chosen": same, "rejected": same} for n in range(7)]
    lake.open().write("pairs", rows, day=DAY)
    result = cast(Any, checks.chosen_differs_from_rejected)(lake=lake)
    assert not result.passed
    assert result.metadata["violations"].value == 7
    assert result.metadata["examples"].value == "p0, p1, p2, p3, p4"


def test_the_nightly_harvest_takes_days_that_are_partitions(
    lake: LakeResource, tmp_path: Path
) -> None:
    folder = tmp_path / "sessions"

    def tonight() -> list[Any]:
        resources = {"lake": lake, "sessions": SessionsResource(path=str(folder))}
        return list(cast(Any, nightly_harvest(dg.build_schedule_context(resources=resources))))

    for name, day in (("old", "1970-01-01"), ("new", DAY)):
        script = Script(name, day)
        script.user("go")
        script.write(folder)
    (request,) = tonight()
    assert request.run_key == f"{DAY}..{DAY}"
    (folder / "new.jsonl").unlink()
    (skipped,) = tonight()
    assert isinstance(skipped, dg.SkipReason)


@pytest.mark.parametrize("held", [False, True])
def test_a_night_goes_over_a_day_without_sessions_and_not_over_one_that_is_done(
    lake: LakeResource, tmp_path: Path, *, held: bool
) -> None:
    folder = tmp_path / "sessions"

    def write(*days: int) -> None:
        for day in days:
            script = Script(f"s{day}", f"2026-11-{day:02}")
            script.user("go")
            script.write(folder)

    if held:
        write(3)
        ingest(lake.open(), [folder])
        build_hints(lake.open())
    write(2, 4)
    resources = {"lake": lake, "sessions": SessionsResource(path=str(folder))}
    requests = cast(Any, nightly_harvest(dg.build_schedule_context(resources=resources)))
    keys = [request.run_key for request in requests]
    apart = ["2026-11-02..2026-11-02", "2026-11-04..2026-11-04"]
    assert keys == (apart if held else ["2026-11-02..2026-11-04"])


def test_the_nightly_replay_counts_days_in_utc(
    lake: LakeResource, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_session(lake.open(), "s", [(Action("", (ToolCall("Read", {"file_path": "/a"}),)), "x")])
    tonight = datetime.fromisoformat(f"{DAY}T03:30:00+00:00")
    teachers = TeachersResource(file=str(TEACHERS))
    context = dg.build_schedule_context(
        resources={"lake": lake, "teachers": teachers}, scheduled_execution_time=tonight
    )
    (skipped,) = list(cast(Any, nightly_replay(context)))
    assert "No ceiling" in skipped.skip_message
    with Ledger(Path(lake.url) / "ledger.db") as ledger:
        ledger.do(operations.set_ceiling("run:r", Decimal(1)))
        assert standing_ceilings(Path(lake.url) / "ledger.db", tonight.date()) == []
        ledger.do(operations.set_ceiling(f"month:{DAY[:7]}", Decimal(1)))
    monkeypatch.setenv("TZ", "America/Los_Angeles")
    time.tzset()
    try:
        (request,) = list(cast(Any, nightly_replay(context)))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert request.run_key == f"{DAY}..{DAY}"


def test_a_teacher_that_failed_too_often_is_left_out_of_the_night(lake: LakeResource) -> None:
    store = lake.open()
    write_session(store, "s", [(Action("", (ToolCall("Read", {"file_path": "/a"}),)), "x")])
    with Ledger(Path(lake.url) / "ledger.db") as ledger:
        ledger.do(operations.set_ceiling("global", Decimal(1)))
    context = dg.build_schedule_context(
        resources={"lake": lake, "teachers": TeachersResource(file=str(TEACHERS))},
        scheduled_execution_time=datetime.fromisoformat(f"{DAY}T03:30:00+00:00"),
    )
    (everybody,) = list(cast(Any, nightly_replay(context)))
    assert everybody.asset_selection is None
    teacher_set = TeacherSet.load(TEACHERS)
    tired, *others = teacher_set.teachers
    origin = replies_derivation(teacher_set, tired, DAY)
    made = msgspec.structs.replace(
        record_of(origin, FileStamps(store)), missing=1, tries=TRIES, why="x"
    )
    write_record(store, origin, made)
    (request,) = list(cast(Any, nightly_replay(context)))
    assert request.asset_selection == [
        dg.AssetKey(["teacher_replies", teacher.name]) for teacher in others
    ]


def test_pairs_that_a_paid_judge_decides_are_not_made_at_night(
    lake: LakeResource, tmp_path: Path
) -> None:
    file = tmp_path / "judge.yaml"
    judge = {"teacher": "careful", "max_usd": "1"}
    file.write_text(yaml.safe_dump({"semantic_judge": judge}))
    recipes = default_resources(Settings(lake=lake.url, preferences=str(file)))["recipes"]
    context = dg.build_schedule_context(resources={"lake": lake, "recipes": recipes})
    (skipped,) = list(cast(Any, nightly_pairs(context)))
    assert "paid judge" in skipped.skip_message


def test_resources_hold_no_password_and_a_users_own_take_their_place(tmp_path: Path) -> None:
    secret = "postgresql://me:hunter2@db/ledger"  # a URL with a password
    made = default_resources(Settings(ledger=secret, sessions="~/sessions"))
    assert cast(TeachersResource, made["teachers"]).ledger == ""
    assert "hunter2" not in str(made)
    assert cast(SessionsResource, made["sessions"]).paths() == [Path.home() / "sessions"]
    kept = default_resources(Settings(ledger="/books.db"))
    assert cast(TeachersResource, kept["teachers"]).ledger == "/books.db"
    mine = LakeResource(url=str(tmp_path / "mine"))
    defs = build_defs(demo_settings(lake=str(tmp_path / "lake")), {"lake": mine})
    assert (defs.resources or {})["lake"] is mine


def test_the_jobs_hold_what_their_names_say(tmp_path: Path) -> None:
    defs = build_defs(demo_settings(lake=str(tmp_path / "lake")))

    def of(job: str) -> set[str]:
        keys = defs.resolve_job_def(job).asset_layer.executable_asset_keys
        return {key.path[0] for key in keys}

    pairs = {"preference_pairs", "normalized_pairs"}
    assert of("replay_and_pair") == {"replay_plan", "teacher_replies", *pairs}
    assert of("publish") == {"published_dataset"}
    assert of("train") == {"training_dataset", "trained_model", "model_evaluation", "report"}


def test_numbers_become_plots_and_columns_have_their_own_words() -> None:
    found = figures("normalized_pairs", {"rows": 3, "share": 0.5, "ok": True, "why": "x"})
    assert found.pop("rows") == 3
    assert [row.data for row in found.pop("other_numbers").records] == [
        {"number": "share", "value": 0.5}
    ]
    assert not found
    assert usd(1_250_000_000_000) == 1.25
    described = {column.description for column in column_schema("pairs").columns}
    assert len(described) == len(column_schema("pairs").columns)


def test_what_was_not_measured_says_why(lake: LakeResource) -> None:
    store: Lake = lake.open()
    quality = write_statistics(store, days=[DAY]).by_scope[DAY]
    assert quality_numbers(quality)["krippendorff_alpha"] is None
    found = quality_pictures(quality, PreferenceRules())
    assert found["noise_floor"] == "not measured: no control replies"
