"""The demo end to end: sessions in, trained and evaluated model out, twice.

The model is a small random one, so that the run takes a minute; SmolLM2-135M itself is
trained in tests/trainers/trl/test_smollm2.py and by ``make demo``.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from composer_pipeline.settings import recipes_dir
from composer_pipeline.testing.training import write_tiny_model
from examples.demo.profile import demo_settings
from examples.demo.run import INTERRUPTED, run_demo
from tests.places import ROOT


@pytest.fixture(scope="module")
def summaries(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    """What two demos of the same sessions report."""
    folder = tmp_path_factory.mktemp("demo")
    recipe = yaml.safe_load((recipes_dir() / "train" / "demo.yaml").read_text())
    recipe["model"] = str(write_tiny_model(folder / "model"))
    recipe["diloco"] |= {"rounds": 2, "inner_steps": 2}
    (folder / "train.yaml").write_text(yaml.safe_dump(recipe))
    settings = demo_settings(lake=str(folder / "lake")).model_copy(
        update={"train": str(folder / "train.yaml"), "evaluate_per_kind": 2}
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
        card = Path(published["card"]).read_text(encoding="utf-8")
        assert "imulated" in card
        charts = re.findall(r"\]\((assets/\S+\.svg)\)", card)
        assert charts
        assert all((Path(published["card"]).parent / chart).is_file() for chart in charts)
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


@pytest.mark.slow
def test_of_two_nights_the_second_is_refused_and_each_has_a_page(
    summaries: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    first, second = (summary["nights"] for summary in summaries)
    assert [*first.values()] == ["promoted", "held"]
    assert first == second
    for page, outcome in first.items():
        assert outcome in Path(page).read_text(encoding="utf-8")


#: The demo with a storage of its own; it prints what the instance holds after the harvest.
WATCHED = """
import json, sys
from pathlib import Path
from examples.demo import run

run.ROOT, run_job = Path.cwd(), run._run

def told(defs, job, instance, *rest):
    done = run_job(defs, job, instance, *rest)
    found = [r for k in instance.get_asset_keys()
             for r in instance.fetch_materializations(k, limit=9999).records]
    origin = instance.get_run_by_id(done.run_id).remote_job_origin
    (by_label,) = instance.get_runs(run.dg.RunsFilter(tags={
        run.REPOSITORY_LABEL_TAG: "__repository__@composer_pipeline"}))
    print(json.dumps([len(found), sum(not r.run_id for r in found), origin.job_name,
                      origin.repository_origin.get_label(), by_label.job_name]), flush=True)
    return done

run._run = told
sys.argv = ["demo", "--lake", "lake"]
run.main()
"""


@pytest.mark.slow
def test_runs_have_an_origin_and_ctrl_c_ends_them(tmp_path: Path) -> None:
    """Every materialisation is of a run that the UI's pages of jobs show."""
    for name in ("dagster.yaml", "workspace.yaml"):
        shutil.copy(ROOT / name, tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", WATCHED], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    ) as demo:  # fmt: skip
        assert demo.stdout is not None
        line = next(line for line in demo.stdout if line.startswith("["))
        next(line for line in demo.stdout if line.startswith("replay"))
        os.killpg(demo.pid, signal.SIGINT)  # as the terminal does
        rest = demo.stdout.read()
    events, runless, *names = json.loads(line)
    assert (events > 0, runless) == (True, 0)
    assert names == ["harvest", "__repository__@composer_pipeline", "harvest"]
    assert (demo.returncode, len(rest.splitlines())) == (INTERRUPTED, 1), rest
