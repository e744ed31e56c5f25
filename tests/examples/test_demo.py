"""The demo end to end: sessions in, trained and evaluated model out, twice.

The model is a small random one, so that the run takes a minute; SmolLM2-135M itself is
trained in tests/trainers/trl/test_smollm2.py and by ``make demo``.
"""

from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from composer_pipeline.settings import recipes_dir
from composer_pipeline.testing.training import write_tiny_model
from examples.demo.profile import demo_settings
from examples.demo.run import run_demo


@pytest.fixture(scope="module")
def summaries(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    """What two demos of the same sessions report."""
    folder = tmp_path_factory.mktemp("demo")
    recipe = yaml.safe_load((recipes_dir() / "train" / "demo.yaml").read_text())
    recipe["model"] = str(write_tiny_model(folder / "model"))
    recipe["diloco"] |= {"rounds": 2, "inner_steps": 2}
    (folder / "train.yaml").write_text(yaml.safe_dump(recipe))
    settings = demo_settings(lake=str(folder / "lake")).model_copy(
        update={"train": str(folder / "train.yaml")}
    )
    with dg.DagsterInstance.ephemeral() as instance:
        return run_demo(settings, instance), run_demo(settings, instance)


@pytest.mark.slow
def test_every_stage_gives_something(summaries: tuple[dict[str, Any], dict[str, Any]]) -> None:
    first, _ = summaries
    assert first["sessions"] >= 12
    assert first["states"] > 100
    assert first["redactions"] > 0
    assert len(first["replies"]) >= 3
    assert first["calls"] > first["states"]
    assert first["pairs"] == first["kept"] + first["dropped"]
    assert first["dropped"] > 0
    assert first["fixups"] >= 2 <= first["culprits"]
    assert first["splits"]["train"] > first["splits"]["validation"] > 0


@pytest.mark.slow
def test_the_dataset_is_published_to_a_hub_of_this_machine(
    summaries: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    for summary in summaries:
        published = summary["published"]
        for split, rows in summary["splits"].items():
            assert published["rows"][f"pairs/{split}"] == rows
        assert published["address"].endswith("/datasets/demo/agent-pairs")
        assert "imulated" in Path(published["card"]).read_text(encoding="utf-8")
    tags = {summary["published"]["tag"] for summary in summaries}
    assert len(tags) == 1, "the same sessions give the same files"


@pytest.mark.slow
def test_all_channels_and_both_replicas(
    summaries: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    training = summaries[0]["training"]
    for channel in ("grpo", "sdpo", "dpo"):
        assert training[f"{channel}_active"] > 0
    assert training["rounds"] == training["rounds_with_all_replicas"] == 2
    assert Path(training["checkpoint"], "adapter_model.safetensors").is_file()


@pytest.mark.slow
def test_held_out_numbers_before_and_after(
    summaries: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    evaluation = summaries[0]["evaluation"]
    assert 0 < evaluation["states"] <= 24
    assert evaluation["hard_right_nll_before"] != evaluation["hard_right_nll_after"]
    for when in ("before", "after"):
        assert 0 <= evaluation[f"hard_preference_{when}"] <= 1
        assert 0 <= evaluation[f"easy_canonical_{when}"] <= 1


@pytest.mark.slow
def test_the_second_demo_buys_and_trains_nothing(
    summaries: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    first, second = summaries
    assert second["calls"] == 0
    assert second["training"]["reused"]
    assert second["replies"].keys() == first["replies"].keys()
    for teacher, row in second["replies"].items():
        assert row["picodollars"] == first["replies"][teacher]["picodollars"]
    assert second["evaluation"] == first["evaluation"]
