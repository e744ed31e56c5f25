"""Curtailed voting from Dagster: fewer calls, and what it may have missed in the metadata."""

from pathlib import Path

import dagster as dg
import yaml

from assets.definitions import build_defs
from assets.schedules import range_tags
from composer_pipeline.lake.store import Lake
from composer_pipeline.settings import recipes_dir
from composer_pipeline.teachers.teachers import sampled
from examples.demo.profile import demo_settings, loopback
from examples.demo.run import QUIET
from tests.fixtures.lake_states import DAY, write_sessions


def test_a_teacher_files_selection_is_followed_and_reported(tmp_path: Path) -> None:
    data = yaml.safe_load((recipes_dir() / "teachers" / "demo.yaml").read_text())
    data["teachers"] = [t for t in data["teachers"] if t["name"] != "flaky"]
    data["selection"] = {"curtail": "exact", "audit_share": 0.2}
    file = tmp_path / "teachers.yaml"
    file.write_text(yaml.safe_dump(data))
    settings = demo_settings(lake=str(tmp_path / "lake"), teachers=str(file))
    lake = Lake(settings.lake)
    write_sessions(lake, sessions=6, turns=5)
    instance = dg.DagsterInstance.ephemeral()
    with loopback():
        result = (
            build_defs(settings)
            .resolve_job_def("replay_and_pair")
            .execute_in_process(
                instance=instance,
                tags=range_tags(DAY, DAY),
                run_config=QUIET,
                asset_selection=[
                    dg.AssetKey(["teacher_replies", name])
                    for name in ("careful", "steady", "contrarian")
                ],
            )
        )
    assert result.success
    run = instance.get_run_by_id(result.run_id)
    assert run is not None
    kind = "composer/selection_"
    found = {n.removeprefix(kind): float(v) for n, v in run.tags.items() if n.startswith(kind)}
    assert found["full"] == 90
    assert found["asked"] == len(lake.rows("replies")) < 90
    assert found["audited"] > 0
    assert found["missed_pairs"] == 0


def test_a_controls_unasked_states_are_no_failure(tmp_path: Path) -> None:
    data = yaml.safe_load((recipes_dir() / "teachers" / "demo.yaml").read_text())
    data["teachers"] = [t for t in data["teachers"] if t["name"] in ("careful", "contrarian")]
    data["teachers"][1] |= {"control": True, "ask_share": 0.25}
    file = tmp_path / "teachers.yaml"
    file.write_text(yaml.safe_dump(data))
    settings = demo_settings(lake=str(tmp_path / "lake"), teachers=str(file))
    lake = Lake(settings.lake)
    ids = write_sessions(lake, sessions=6, turns=5)
    keys = [dg.AssetKey(["teacher_replies", name]) for name in ("careful", "contrarian")]
    defs = build_defs(settings)
    with loopback():
        result = defs.resolve_job_def("replay_and_pair").execute_in_process(
            instance=dg.DagsterInstance.ephemeral(),
            tags=range_tags(DAY, DAY),
            run_config=QUIET,
            asset_selection=keys,
        )
    assert result.success
    asked = {row["state_id"] for row in lake.rows("replies") if row["control"]}
    assert asked == {state_id for state_id in ids if sampled(state_id, 0.25)}
    assert 0 < len(asked) < len(lake.rows("replies")) - len(asked) == 30
    made = [event.step_materialization_data.materialization for event in
            result.get_asset_materialization_events()]  # fmt: skip
    bought = {one.asset_key for one in made if one.asset_key.path[0] == "teacher_replies"}
    assert bought == set(keys)
    said = defs.resolve_asset_graph().get(keys[1]).description
    assert said is not None
    assert "a control that never votes) to a fixed sample (25.00%) of the states" in said
