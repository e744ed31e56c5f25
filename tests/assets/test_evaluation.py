"""The check that stops a model that is worse than its base."""

import json
from pathlib import Path

import dagster as dg
import pytest

from assets.checks import not_worse_than_base


@pytest.mark.parametrize(
    ("worse", "unknown", "passed", "said"),
    [
        (["easy states: -0.1"], [], False, "Worse than its base on easy states: -0.1."),
        ([], ["recovery states: there is none"], True, "Not known whether it is worse on recovery"),
        ([], [], True, "Not surely worse"),
        (None, None, False, "There is no evaluation"),
    ],
)
def test_it_says_what_the_evaluation_says(worse, unknown, passed, said, tmp_path: Path) -> None:
    if worse is not None:
        text = json.dumps({"worse": worse, "unknown": unknown})
        (tmp_path / "evaluation.json").write_text(text)
    instance = dg.DagsterInstance.ephemeral()
    instance.report_runless_asset_event(
        dg.AssetMaterialization(
            "model_evaluation", metadata={"run_dir": dg.MetadataValue.path(str(tmp_path))}
        )
    )
    found = not_worse_than_base(dg.build_asset_check_context(instance=instance))
    assert isinstance(found, dg.AssetCheckResult)
    assert found.passed is passed
    assert said in str(found.description)
