"""The asset and the schedule that keep outcomes up to date."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import dagster as dg

from assets.resources import LakeResource, RepositoriesResource
from assets.schedules import nightly_outcomes
from assets.traces import edit_outcomes, trace_states
from composer_pipeline.lake.store import Lake
from composer_pipeline.traces.ingest import ingest_changes
from tests.survival.script import Script


def requests_of(lake: Lake, file: str = "") -> list[Any]:
    resources = {
        "lake": LakeResource(url=lake.url),
        "repositories": RepositoriesResource(file=file),
    }
    return list(cast(Any, nightly_outcomes(dg.build_schedule_context(resources=resources))))


def test_a_night_asks_about_days_whose_repository_changed(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    script = Script("own", tmp_path / "work")
    script.now = datetime(2026, 11, 10, 9, tzinfo=UTC)  # the graph has this day
    repo, agent = script.start("app.py")
    repo.insert(agent, "app.py")
    repo.commit("Work")
    lake = Lake(str(tmp_path / "lake"))
    ingest_changes(lake, [str(script.history().sessions)])
    (day,) = lake.days("states")
    (request,) = requests_of(lake)
    assert request.tags == {
        "dagster/asset_partition_range_start": day, "dagster/asset_partition_range_end": day,
    }  # fmt: skip
    done = dg.materialize(
        [trace_states.to_source_asset(), edit_outcomes],
        partition_key=day,
        resources={"lake": LakeResource(url=lake.url), "repositories": RepositoriesResource()},
    )
    (event,) = done.get_asset_materialization_events()
    metadata = event.step_materialization_data.materialization.metadata
    assert metadata["alive_commit"].value == 1.0
    assert "svg" in str(metadata["lines_alive"].value)
    (skipped,) = requests_of(lake)
    assert isinstance(skipped, dg.SkipReason)


def test_a_file_of_repositories_is_read_from_the_environments_setting(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    script = Script("own", tmp_path / "work")
    repo, _ = script.start("app.py")
    file = tmp_path / "repositories.yaml"
    file.write_text(f"repositories:\n  - {repo.root.relative_to(tmp_path)}\n")
    assert RepositoriesResource(file=str(file)).folders() == (str(repo.root.resolve()),)
