"""``train --plan``: what a run will need, on every shipped recipe and on a tiny model."""

import json
from pathlib import Path

import pytest

from composer_pipeline.errors import InputError
from composer_pipeline.testing.training import tiny_recipe
from composer_pipeline.training.plan import RowSize, plan
from composer_pipeline.training.recipe import TrainingRecipe
from tests.places import ROOT
from trainers.trl import plan as planner
from trainers.trl.plan import main
from trainers.trl.rows import packed, windows_of
from trainers.trl.rows import planned as planned_rows

RECIPES = sorted((ROOT / "recipes" / "train").glob("*.yaml"))
CONFIGS = {
    "smollm2-135m": ("smollm2-135m", 8),
    "Qwen/Qwen2.5-1.5B-Instruct": ("qwen2.5-1.5b", 24),
    "Qwen/Qwen2.5-7B-Instruct": ("qwen2.5-7b", 80),
    "Qwen/Qwen2.5-32B-Instruct": ("qwen2.5-32b", 80),
}


def planned(capsys, *options):
    code = main([str(option) for option in options])
    out, err = capsys.readouterr()
    events = [json.loads(text) for text in out.splitlines() if text.startswith("{")]
    return code, events[-1] if events else None, err


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_shipped_recipe_fits_where_it_says(path, lake, tmp_path, capsys):
    recipe = TrainingRecipe.load(path)
    name, gib = CONFIGS[recipe.model]
    where = ("--recipe", path, "--lake", lake.url, "--run-dir", tmp_path)
    config = ROOT / "tests" / "fixtures" / "configs" / f"{name}.json"
    code, found, err = planned(
        capsys, *where, "--model-config", config, "--memory-gib", gib
    )  # fmt: skip
    assert (code, err) == (0, "")
    assert found["lengths"] == "assumed"
    rows = {
        "grpo": 8,
        "sdpo": 8,
        "dpo": 8,
        "sft": 16 if recipe.channels.sft.source == "both" else 8,
    }
    assert found["rows"] == {channel: rows[channel] for channel in recipe.channels.weights()}
    assert found["peak_gib"] == pytest.approx(sum(found["memory_gib"].values()))
    assert found["peak_gib"] < gib
    # A tenth of it is too little, and the sentence names a field.
    code, found, err = planned(
        capsys, *where, "--model-config", config, "--memory-gib", gib / 100
    )  # fmt: skip
    assert (code, found) == (2, None)
    assert err.startswith("error: the run needs ")
    assert err.count("\n") == 1


def test_windows_take_the_rows_that_training_takes(tiny_model, data):
    recipe = tiny_recipe(tiny_model, micro_batch_tokens=600)
    windows = windows_of(recipe, data)
    for step in range(recipe.total_steps):
        taken = planned_rows(recipe, data, 0)["dpo"][2 * step : 2 * step + 2]
        assert windows["dpo"][step] == [
            RowSize(
                2 * (len(p.prompt_ids) + max(len(p.chosen_ids), len(p.rejected_ids))),
                len(p.prompt_ids),
                (len(p.chosen_ids), len(p.rejected_ids)),
                len(p.chosen_ids) + len(p.rejected_ids),
            )
            for p in (data.pairs[i] for i in taken)
        ]
        (group,) = (data.groups[i] for i in planned_rows(recipe, data, 0)["grpo"][step : step + 1])
        answers = [row.responses for row in windows["grpo"][step]]
        assert answers == [(len(ids),) for ids in group.completions]
    for batches in packed(windows, recipe).values():
        assert all(len(b) == 1 or len(b) * max(r.size for r in b) <= 600 for b in batches)


def test_shorter_prompts_shrink_a_row():
    recipe = TrainingRecipe.model_validate({"name": "x", "data": {"max_prompt_tokens": 64}})
    (batch,) = packed({"dpo": [[RowSize(220, 100, (10, 8), 18)]]}, recipe)["dpo"]
    assert batch == [RowSize(148, 64, (10, 8), 18)]


@pytest.mark.slow
def test_a_plan_counts_the_runs_rows_and_times_its_steps(lake, tiny_model, tmp_path):
    recipe = tiny_recipe(tiny_model, epochs=1, diloco={"replicas": 1, "inner_steps": 2})
    report = plan(lake, recipe, tmp_path, probe=True, memory_gib=4)
    assert report.lengths == "counted"
    assert report.rows == {"grpo": 8, "sdpo": 8, "dpo": 8, "sft": 8}
    assert report.steps_per_epoch == report.steps == 8  # one group a step
    assert report.dropped == {}
    assert set(report.cut_share) == {"grpo", "sdpo", "dpo", "sft"}
    assert report.tokens_per_step > 400
    assert (report.where, report.limit_gib) == ("--memory-gib", 4)
    probe = report.probe
    assert probe["steps"] == planner.PROBE_STEPS
    whole = probe["seconds_per_step"] * report.steps + probe["base_pass_seconds"]
    assert probe["hours"] == pytest.approx(whole / 3600)
    assert min(probe["seconds_per_step"], probe["base_pass_seconds"]) > 0
    # Training finds the windows where the plan has made them.
    assert report.run_dir is not None
    assert (report.run_dir / "data" / "data.json").is_file()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"memory_gib": 0.5}, "the run needs .* --memory-gib has 0.5 GiB"),
        ({"probe": True, "model_config": "x.json"}, "plans without it"),
        ({"model_config": "none.json"}, "none.json cannot be read: No such file"),
    ],
)
def test_bad_input_of_a_plan_is_one_sentence(
    lake, tiny_model, tmp_path, monkeypatch, options, said
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(InputError, match=said):
        plan(lake, tiny_recipe(tiny_model), tmp_path, **options)


def test_flash_attention_that_is_not_installed_names_the_field(lake, tiny_model, tmp_path):
    recipe = tiny_recipe(tiny_model, attention="flash_attention_2")
    with pytest.raises(InputError, match=r"recipe field attention: .* not installed"):
        plan(lake, recipe, tmp_path)


def test_a_device_with_too_little_memory_is_named_before_the_first_step(
    tiny_model, data, monkeypatch
):
    recipe = tiny_recipe(tiny_model)
    planner.require_devices(recipe, data, tiny_model)  # a CPU is not judged
    several = [planner_device("0", 80), planner_device("1", 0.5)]
    monkeypatch.setattr(planner, "devices", lambda: several[:1])
    planner.require_devices(recipe, data, tiny_model)
    monkeypatch.setattr(planner, "devices", lambda: several[1:])
    with pytest.raises(InputError, match=r"the run needs .* and device 1 has 0\.[56] GiB") as said:
        planner.require_devices(recipe, data, tiny_model)
    assert "\n" not in str(said.value)
    monkeypatch.setattr(planner, "devices", lambda: [planner_device("0", None), *several[1:]])
    planner.require_devices(recipe, data, tiny_model)  # its memory is not known


def test_devices_are_judged_by_what_a_run_does_here(tiny_model, data, tmp_path, monkeypatch):
    small = planner_device("1", 0.5)
    monkeypatch.setattr(planner, "devices", lambda: [planner_device("0", 80), small])
    both = tiny_recipe(tiny_model, diloco={"replicas": 2})
    with pytest.raises(InputError, match="device 1 has"):
        planner.require_devices(both, data, tiny_model)
    ranks = tiny_recipe(tiny_model, ranks={"processes": 2})
    with pytest.raises(InputError, match="device 1 has"):
        planner.require_devices(ranks, data, tiny_model)
    # Of four replicas three run on other machines, and have devices there.
    here = {"replicas": 4, "local_replicas": 1, "log": str(tmp_path)}
    elsewhere = tiny_recipe(tiny_model, diloco=here)
    planner.require_devices(elsewhere, data, tiny_model)
    assert planner._limit(elsewhere, None) == (80 * 2**30, "device 0")
    monkeypatch.setattr(planner, "devices", lambda: [small])
    with pytest.raises(InputError, match="device 1 has"):
        planner.require_devices(elsewhere, data, tiny_model)
    # A family that the planner does not count trains all the same.
    (tmp_path / "config.json").write_text('{"model_type": "gemma3_text"}')
    planner.require_devices(elsewhere, data, str(tmp_path))


def test_more_replicas_than_devices_are_refused(lake, tiny_model, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(planner, "devices", lambda: [planner_device("0", 24)])
    path = Path(tmp_path / "recipe.yaml")
    path.write_text(tiny_recipe(tiny_model, diloco={"replicas": 2}).model_dump_json())
    where = ("--recipe", path, "--lake", lake.url, "--run-dir", tmp_path)
    code, _, err = planned(capsys, *where)
    assert code == 2
    assert "diloco.replicas: 2 replicas need a device each, and 1 is visible" in err


def planner_device(name, gib):
    from composer_pipeline.training.plan import Device

    return Device(name, gib and int(gib * 2**30))


def test_the_memory_of_a_machine_is_shared_by_all_processes(monkeypatch):
    monkeypatch.setattr(planner, "devices", list)
    monkeypatch.setattr(planner, "host_memory", lambda: 12 * 2**30)
    recipe = tiny_recipe("toy", ranks={"processes": 3}, diloco={"replicas": 2})
    said = "this machine's free memory / 2 replicas / 3 processes of each"
    assert planner._limit(recipe, None) == (2 * 2**30, said)
