"""A replay that got nothing, or lost what was paid for, fails in Dagster with one sentence."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from assets.definitions import build_defs
from assets.money import UNANSWERED_TAG
from assets.schedules import range_tags
from composer_pipeline.lake.store import Lake
from composer_pipeline.settings import Settings
from composer_pipeline.states.load import load_states
from composer_pipeline.testing.openrouter.faults import Fault, SeenRequest
from composer_pipeline.testing.openrouter.server import LoopbackOpenRouter
from composer_pipeline.testing.personas import Script
from examples.demo.profile import demo_settings
from examples.demo.run import QUIET
from tests.fixtures.lake_states import DAY, write_sessions

Fails = Callable[[SeenRequest], Fault | None]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    settings = demo_settings(lake=str(tmp_path / "lake"), max_usd="5")
    write_sessions(Lake(settings.lake), sessions=1, turns=2)
    return settings


@pytest.fixture
def materialise(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Any]]:
    """Materialise a teacher's replies of the day, and more, at a provider with faults."""
    with dg.DagsterInstance.ephemeral() as instance:

        def run(faults: Fails | None, *more: dg.AssetKey) -> Any:
            script = Script.from_states(load_states(Lake(settings.lake)), {})
            server = LoopbackOpenRouter(script, lifetime=120, flaky_faults=False, faults=faults)
            with server:
                monkeypatch.setenv("COMPOSER_OPENROUTER_URL", server.url)
                return (
                    build_defs(settings)
                    .resolve_job_def("replay_and_pair")
                    .execute_in_process(
                        instance=instance,
                        tags=range_tags(DAY, DAY),
                        asset_selection=[dg.AssetKey(["teacher_replies", "careful"]), *more],
                        run_config=QUIET,
                        raise_on_error=False,
                    )
                )

        yield run


def told(result: Any) -> str:
    """Return the description of the failure that the UI shows."""
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    return str(failure.step_failure_data.user_failure_data.description)


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (Fault("error", 400), "no reply came: 2 questions were not answered"),
        (Fault("odd", code="deep"), "2 unreadable and kept"),
    ],
)
def test_a_run_that_got_nothing_fails(
    materialise: Callable[..., Any], fault: Fault, sentence: str
) -> None:
    result = materialise(lambda asked: fault)
    assert not result.success
    assert sentence in told(result)


def test_a_stopped_teacher_is_named(materialise: Callable[..., Any]) -> None:
    result = materialise(lambda asked: Fault("unavailable", 404, code="model_deprecated"))
    assert not result.success
    assert "careful" in told(result)
    assert "model_deprecated" in told(result)


def test_a_run_that_got_its_replies_succeeds(materialise: Callable[..., Any]) -> None:
    assert materialise(None).success


def test_one_teacher_of_several_that_is_away_is_the_only_one_red(
    materialise: Callable[..., Any],
) -> None:
    """The other one's day is done, the pairs are made of it, and every check has a result."""
    others = (dg.AssetKey(["teacher_replies", "steady"]), dg.AssetKey("preference_pairs"))
    away = Fault("unavailable", 404, code="model_deprecated")
    result = materialise(lambda asked: away if "steady" in asked.model else None, *others)
    assert result.success
    made = {e.asset_key.path[-1] for e in result.get_asset_materialization_events()}
    assert made == {"careful", "preference_pairs", "budget"}
    checks = result.get_asset_check_evaluations()
    (red,) = [e for e in checks if not e.passed and e.severity is dg.AssetCheckSeverity.ERROR]
    assert (red.asset_key.path[-1], red.check_name) == ("steady", "replies_cover_states")
    assert "2 replies are missing: teacher stopped: model_deprecated" in str(red.description)
    planned = [
        (data.asset_key, data.check_name)
        for event in result.all_events
        if event.event_type_value == "ASSET_CHECK_EVALUATION_PLANNED"
        for data in [event.event_specific_data]
    ]
    assert set(planned) <= {(e.asset_key, e.check_name) for e in checks}
    assert result.dagster_run.tags[UNANSWERED_TAG] == "steady"
