"""A replay that takes a while shows in Dagster how far it is."""

import re
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

import assets.replay
from assets.definitions import build_defs
from assets.partitions import day_ranges
from assets.schedules import range_tags
from composer_pipeline.teachers import run
from composer_pipeline.testing.samples import sample_sessions_dir
from composer_pipeline.traces.archive import session_days
from examples.demo.profile import demo_settings, loopback
from examples.demo.run import QUIET


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


def test_observations_while_it_runs(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assets.replay, "EVERY_S", 0.0)  # the last moment is told too
    monkeypatch.setattr(run, "TICK_S", 0.05)
    defs = build_defs(demo_settings(lake=str(tmp_path / "lake"), max_usd="5"))
    first = day_ranges(sorted(session_days([sample_sessions_dir()])))[0][0]
    with loopback():
        for job in ("harvest", "replay_and_pair"):
            result = defs.resolve_job_def(job).execute_in_process(
                instance=instance,
                tags=range_tags(first, first),
                run_config=QUIET,
                raise_on_error=False,
            )
    seen = [
        event.event_specific_data.asset_observation  # type: ignore[union-attr]
        for event in result.all_events
        if event.event_type_value == "ASSET_OBSERVATION"
    ]
    careful = [one for one in seen if one.asset_key.path[-1] == "careful"]
    assert careful
    assert {one.partition for one in careful} == {first}
    last = {name: str(value.value) for name, value in careful[-1].metadata.items()}
    done, total = re.findall(r"\d+", last["progress"])[:2]
    assert 0 < int(done) == int(total)
    settled, _, ceiling = map(float, re.findall(r"\$([\d.]+)", last["money"]))
    assert (0 < settled < 5, ceiling) == (True, 5.0)
    # A number would be drawn as a plot of the asset.
    assert not any(isinstance(value.value, int | float) for value in careful[-1].metadata.values())
