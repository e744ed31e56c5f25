"""``train --plan``: what a run will need, on every shipped recipe and on a tiny model."""

import json
from pathlib import Path

import pytest

from composer_pipeline.errors import InputError
from composer_pipeline.testing.training import tiny_recipe
from composer_pipeline.training.plan import Load, ModelShape, RowSize, peak, plan
from composer_pipeline.training.recipe import TrainingRecipe
from tests.places import ROOT
from trainers.common.rows import loads, packed, windows_of
from trainers.common.rows import planned as planned_rows
from trainers.trl import plan as planner
from trainers.trl.plan import main

OTHERS = {"prime-rl", "verl"}  # other trainers, whose memory is not predicted
RECIPES = [
    path for path in sorted((ROOT / "recipes" / "train").glob("*.yaml")) if path.stem not in OTHERS
]
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


#: At a row of 17,408 tokens, in bytes. H, I, q and kv are the widths of states, MLP, queries and
#: keys: 1536, 8960, 1536 and 256, or 3584, 18944, 3584 and 512; 28 layers; V is 151,936,
#: or 152,064.
BY_HAND = {
    "gpu-24gb": {
        "weights": 2 * 1_543_714_304,
        # r 16 of (q+H) + 2 (kv+H) + (H+q) + 3 (I+H) = 41,216 a layer.
        "adapter": 4 * 28 * 16 * 41_216,
        # A layer's input in bf16, and the last norm's in float32.
        "activations": 17_408 * (28 * 1536 * 2 + 1536 * 4),
        # Backward of one layer: gradients 4 I in bf16 and 3 H in float32; it holds two norms in
        # float32, q, k, v, result and log-sums, the MLP, adapters' inputs; and 2 casts of adapters.
        "passing": 17_408 * (
            4 * 8960 * 2 + 3 * 1536 * 4
            + 2 * (4 * 1536 + 4) + 2 * (2 * 1536 + 2 * 256) + 4 * 12 + 3 * 2 * 8960
            + 2 * (5 * 1536 + 8960 + 1536) + 2 * 16 * 7
        ) + 2 * 16 * 41_216,
        # 2**25 // V = 220 tokens: four float32 buffers, a 16-bit gradient; 4,096 states thrice.
        "logits": 220 * 151_936 * (16 + 2) + 4096 * 1536 * 3 * 2,
    },
    "gpu-80gb": {
        "weights": 2 * 7_615_616_512,
        "adapter": 4 * 28 * 16 * 90_112,
        "activations": 17_408 * (28 * 3584 * 2 + 3584 * 4),
        "passing": 17_408 * (
            4 * 18_944 * 2 + 3 * 3584 * 4
            + 2 * (4 * 3584 + 4) + 2 * (2 * 3584 + 2 * 512) + 4 * 28 + 3 * 2 * 18_944
            + 2 * (5 * 3584 + 18_944 + 3584) + 2 * 16 * 7
        ) + 2 * 16 * 90_112,
        "logits": 220 * 152_064 * (16 + 2) + 4096 * 3584 * 3 * 2,
    },
}  # fmt: skip


@pytest.mark.parametrize(("name", "total"), [("gpu-24gb", 8.55), ("gpu-80gb", 26.11)])
def test_the_recipes_for_one_device_are_planned_as_by_hand(name, total):
    recipe = TrainingRecipe.load(ROOT / "recipes" / "train" / f"{name}.yaml")
    config = CONFIGS[recipe.model][0]
    shape = ModelShape.load(ROOT / "tests" / "fixtures" / "configs" / f"{config}.json")
    memory = peak(shape, recipe, loads(recipe, planner._assumed(recipe)), device=True)
    wanted = BY_HAND[name]
    adapter = wanted["adapter"]  # once more for gradients and the second channel's; AdamW twice
    wanted = wanted | {
        "gradients": adapter,
        "measured_gradients": adapter,
        "optimizer": 2 * adapter,
    }
    assert {part: size for part, size in memory.parts().items() if size} == wanted
    assert memory.worst == "sdpo"
    assert memory.total / 2**30 == pytest.approx(total, abs=0.05)


def test_trees_are_planned_as_full_as_a_micro_batch_can_be():
    rows = {
        "dpo": [[RowSize(220, 100, (10, 8), 18)], [RowSize(20, 5, (5, 5), 10)]],
        "sft": [[RowSize(60, 50, (10,), 10)] * 2, [RowSize(9, 4, (5,), 5)]],
    }

    def forwards(**changes):
        found = loads(TrainingRecipe.model_validate({"name": "x", **changes}), rows)
        return {(load.channel, load.rows, load.width, load.selected) for load in found}

    # All rows of a step, as long as they fit; of a pair the prompt counts once.
    whole = {("dpo", 1, 238, 18), ("sft", 1, 238, 20), ("dpo", 1, 24, 10), ("sft", 1, 24, 5)}
    assert forwards(micro_batch_tokens=4096) == whole
    cut = {("dpo", 1, 200, 18), ("sft", 1, 200, 20), ("dpo", 1, 24, 10), ("sft", 1, 24, 5)}
    assert forwards(micro_batch_tokens=200) == cut
    # One row may exceed a micro-batch, and cut prompts shrink it.
    assert ("dpo", 1, 118, 18) in forwards(micro_batch_tokens=64)
    data = {"max_prompt_tokens": 64}
    assert ("dpo", 1, 82, 18) in forwards(micro_batch_tokens=64, data=data)
    assert ("dpo", 2, 110, 18) in forwards(micro_batch_tokens=64, shared_prefix="off")


def test_sampled_answers_are_planned_beside_trees():
    grpo = {"source": "sampled", "group_size": 3}
    recipe = TrainingRecipe.model_validate({"name": "x", "channels": {"grpo": grpo}})
    rows = {c: [[RowSize(60, 50, (10,), 10)]] for c in recipe.channels.weights()}
    found = {load.channel: load for load in loads(recipe, rows) if load.cache}
    assert found["grpo"].tokens == 3 * (50 + recipe.data.max_completion_tokens)


def test_a_mask_of_trees_is_counted_on_the_host_alone():
    """There it is dense, one for all layers, and each layer repeats its keys and values for it."""
    shape = ModelShape.load(ROOT / "tests" / "fixtures" / "configs" / "smollm2-135m.json")
    recipe = TrainingRecipe.model_validate({"name": "x", "lora": {"r": 8, "targets": ["q_proj"]}})

    def memory(device, **changes):
        load = Load("grpo", 1, 1000, 10, padded=False, **changes)
        return peak(shape, recipe, [load], device=device)

    plain = memory(device=True).activations
    assert memory(device=True, shared=True).activations == plain
    repeated = 30 * 1000 * 4 * 2 * (576 - 192)
    assert memory(device=False, shared=True).activations == plain + repeated + 1000 * 1000 * 4
    # The log-probabilities of trees are the product's own kernel's, not TRL's.
    assert memory(device=False, shared=True).logits == 10 * 49_152 * 4 + 10 * 576 * 2 * 4


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


def test_a_device_that_lacks_less_than_a_tenth_of_the_plan_is_taken(data, monkeypatch):
    path = ROOT / "tests" / "fixtures" / "configs" / "smollm2-135m.json"
    recipe = tiny_recipe("smollm2-135m")
    forwards = loads(recipe, windows_of(recipe, data))
    need = peak(ModelShape.load(path), recipe, forwards, device=True).total / 2**30 + 1
    monkeypatch.setattr(planner, "devices", lambda: [planner_device("0", need / 1.09)])
    planner.require_devices(recipe, data, str(path))
    monkeypatch.setattr(planner, "devices", lambda: [planner_device("0", need / 1.11)])
    with pytest.raises(InputError, match="the run needs"):
        planner.require_devices(recipe, data, str(path))


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
