"""The asset published_dataset and its checks, in a run, against the Hub on the loopback."""

import sys
import time
from typing import Any, cast

import dagster as dg
import pytest

from assets import publication
from assets.definitions import build_defs
from composer_pipeline.lake.store import Lake
from composer_pipeline.publishing import commit
from composer_pipeline.publishing.publish import publish
from composer_pipeline.testing.hub.server import LoopbackHub
from examples.demo.profile import demo_settings
from tests.publishing.conftest import REPO, TOKEN, fill, row


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A Hub that everything in this process asks: ``HF_ENDPOINT`` is read at import."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    with LoopbackHub(TOKEN) as hub:
        real = (publish, commit.published_refs, commit.published_rows)

        def here(action: Any) -> Any:
            return lambda *args, **more: action(*args, endpoint=hub.endpoint, **more)

        for action in real:
            monkeypatch.setattr(sys.modules[action.__module__], action.__name__, here(action))
        monkeypatch.setattr(commit, "first_rows", lambda repo, at: hub.loaded)  # type: ignore[attr-defined]
        yield hub


def run(lake: Lake, instance: dg.DagsterInstance, repo: str = REPO) -> Any:
    settings = demo_settings(lake=lake.url).model_copy(update={"publish_repo": repo})
    job = build_defs(settings).resolve_job_def("publish")
    return job.execute_in_process(instance=instance, raise_on_error=False)


def test_a_run_publishes_and_looks_at_it_again(hub: Any, tmp_path: Any) -> None:
    lake = fill(Lake(tmp_path / "lake"), [row(1, "train")], [row(9, "validation")])
    names = ["pairs/train", "pairs/validation", "groups/train", "groups/validation"]
    hub.loaded = {name: ["prompt"] for name in names}
    with dg.DagsterInstance.ephemeral() as instance:
        done = run(lake, instance)
        assert done.success
        (made,) = done.get_asset_materialization_events()
        said = made.step_materialization_data.materialization.metadata
        head = hub.repos[REPO].head.oid
        assert said["link"].value == f"{hub.endpoint}/datasets/{REPO}/tree/{head}"
        assert said["dagster/row_count"].value == 4
        first = said["diff"].records[0].data
        assert (first["added"], first["removed"]) == (1, 0)
        checks = {e.check_name: e.passed for e in done.get_asset_check_evaluations()}
        assert checks == {
            "published_revision": True,
            "published_rows": True,
            "published_loads": True,
        }

        hub.repos[REPO].tags.clear()
        hub.loaded = {}
        for check in (publication.published_revision, publication.published_loads):
            context = dg.build_asset_check_context(instance=instance)
            assert not cast(dg.AssetCheckResult, check(context)).passed


def test_what_no_other_attempt_would_mend_is_not_tried_again(hub: Any, tmp_path: Any) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        done = run(Lake(tmp_path / "none"), instance)
        assert not done.success
        (failed,) = [e for e in done.all_events if e.is_step_failure]
        assert "has no dataset; run composer-pipeline dataset" in str(
            failed.step_failure_data.error
        )
        assert not [e for e in done.all_events if e.is_step_up_for_retry]


def test_without_a_repository_the_asset_is_skipped(hub: Any, tmp_path: Any) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        done = run(Lake(tmp_path / "none"), instance, repo="")
        assert done.success
        assert done.get_asset_materialization_events() == []
    assert hub.requests == []
