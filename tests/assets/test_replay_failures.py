"""A replay that got nothing, or lost what was paid for, fails in Dagster with one sentence."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from assets.definitions import build_defs
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
) -> Iterator[Callable[[Fails | None], Any]]:
    """Materialise one teacher's replies of the day at a provider with faults."""
    with dg.DagsterInstance.ephemeral() as instance:

        def run(faults: Fails | None) -> Any:
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
                        asset_selection=[dg.AssetKey(["teacher_replies", "careful"])],
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
    materialise: Callable[[Fails | None], Any], fault: Fault, sentence: str
) -> None:
    result = materialise(lambda asked: fault)
    assert not result.success
    assert sentence in told(result)


def test_a_stopped_teacher_is_named(materialise: Callable[[Fails | None], Any]) -> None:
    result = materialise(lambda asked: Fault("unavailable", 404, code="model_deprecated"))
    assert not result.success
    assert "careful" in told(result)
    assert "model_deprecated" in told(result)


def test_a_run_that_got_its_replies_succeeds(materialise: Callable[[Fails | None], Any]) -> None:
    assert materialise(None).success
