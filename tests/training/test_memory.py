"""Predicted memory: shapes from public figures, parts, loads, and what to lower."""

import json

import pytest

from composer_pipeline.errors import InputError
from composer_pipeline.training.plan import (
    KNOWN,
    Load,
    ModelShape,
    RowSize,
    assumed_rows,
    kept_by_layer,
    kept_on_disk,
    loads_of,
    peak,
    require_fit,
)
from composer_pipeline.training.recipe import TrainingRecipe
from tests.places import ROOT

CONFIGS = ROOT / "tests" / "fixtures" / "configs"
ALL = {"r": 16, "alpha": 32, "targets": "all-linear"}
ONLY_SFT = {"grpo": {"weight": 0}, "sdpo": {"weight": 0}, "dpo": {"weight": 0}}


def recipe_of(**fields):
    return TrainingRecipe.model_validate({"name": "x", "lora": ALL, **fields})


@pytest.fixture(scope="module")
def smollm2():
    return ModelShape.load(CONFIGS / "smollm2-135m.json")


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("smollm2-135m", 134_515_008),
        ("qwen2.5-0.5b", 494_032_768),
        ("qwen2.5-1.5b", 1_543_714_304),
        ("qwen2.5-7b", 7_615_616_512),
        ("qwen2.5-32b", 32_763_876_352),
    ],
)
def test_parameters_are_those_that_the_models_publish(name, parameters):
    assert ModelShape.load(CONFIGS / f"{name}.json").parameters == parameters


#: What PyTorch's saved_tensors_hooks counted on SmolLM2-135M, bytes a token: distinct storages
#: that are no parameter, less the rotary table and the bf16 copies of parameters (256 tokens).
COUNTED = [
    ({"lora": {"r": 8, "targets": ["q_proj", "v_proj"]}}, False, 948_392 - 512),
    ({"lora": {"r": 8, "targets": ["q_proj", "v_proj"]}}, True, 1_071_016 - 256),
    ({}, False, 1_213_352 - 512),
    ({"dtype": "bf16", "lora": {"r": 8, "targets": ["q_proj", "v_proj"]}}, False,
     582_064 - 256 - 3600),
    ({"dtype": "bf16"}, False, 852_640 - 256 - 38_160),
    ({"lora": {"r": 0}}, False, 1_342_772 - 512 - 8 - 2 * 2304 - 4),
    ({"dtype": "bf16", "lora": {"r": 0}}, False, 1_745_972 - 829_440 - 512 - 8 - 2 * 2304 - 4),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "padded", "counted"), COUNTED)
def test_a_layer_keeps_what_autograd_saved(smollm2, fields, padded, counted):
    load = Load("sft", 2 if padded else 1, 256, 10, padded)
    kept = smollm2.layers * kept_by_layer(smollm2, recipe_of(**fields), load) / load.tokens
    assert kept == pytest.approx(counted, rel=0.001)


def saved(kind, layers, attention, tokens):
    """Return the bytes that autograd saves of a small model's states, without its parameters."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        kind, vocab_size=96, hidden_size=48, intermediate_size=80, num_hidden_layers=layers,
        num_attention_heads=6, num_key_value_heads=2, head_dim=8, pad_token_id=0, bos_token_id=1,
        eos_token_id=2,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    own, sizes, held = {p.data_ptr() for p in model.parameters()}, {}, []

    def keep(tensor):
        storage = tensor.untyped_storage()
        held.append(tensor)  # or its place would be given to another
        if storage.data_ptr() not in own:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.model(torch.ones(1, tokens, dtype=torch.long), use_cache=False)
    return sum(sizes.values()), config


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_a_layer_of_each_family_keeps_what_autograd_saves(kind, attention, tmp_path):
    (two, config), (one, _) = (saved(kind, n, attention, 64) for n in (2, 1))
    config.save_pretrained(tmp_path)
    recipe = recipe_of(lora={"r": 0}, attention=attention)
    kept = kept_by_layer(ModelShape.load(tmp_path), recipe, Load("sft", 1, 64, 9, padded=False))
    assert kept == pytest.approx(two - one, rel=0.01)


#: What autograd saved of a layer of SmolLM2-135M with `eager`, bytes of 256 tokens, less the bf16
#: copies of trained parameters.
EAGER = [
    ({"lora": {"r": 8, "targets": ["q_proj", "v_proj"]}}, 10_635_264),
    ({"lora": {"r": 8, "targets": "all-linear"}}, 13_428_736),
    ({"dtype": "bf16", "lora": {"r": 8, "targets": ["q_proj", "v_proj"]}}, 8_562_688),
    ({"dtype": "bf16", "lora": {"r": 8, "targets": "all-linear"}}, 10_549_248),
    ({"dtype": "bf16", "lora": {"r": 0}}, 11_700_224),
]


@pytest.mark.parametrize(("fields", "counted"), EAGER)
@pytest.mark.parametrize("rows", [1, 2])
def test_a_layer_keeps_what_autograd_saved_of_eager_attention(smollm2, fields, counted, rows):
    """With padding as without it: the mask is not kept."""
    load = Load("sft", rows, 256, 10, padded=rows > 1)
    kept = kept_by_layer(smollm2, recipe_of(attention="eager", **fields), load)
    assert kept == pytest.approx(rows * counted, rel=0.001)


def test_sampling_holds_keys_and_values_of_all_layers(smollm2):
    load = [Load("grpo", 4, 1000, 4, padded=True, cache=True)]
    half = peak(smollm2, recipe_of(dtype="bf16"), load, device=True)
    assert half.passing == 4000 * 30 * 2 * (3 * 64) * 2
    assert (half.activations, half.logits) == (0, 4 * 49_152 * 4 * 3)


def test_a_checkpoint_holds_parameters_moments_and_an_averaged_teacher(smollm2):
    trained = smollm2.trained(recipe_of())
    assert kept_on_disk(smollm2, recipe_of()) == (4 + 8) * trained
    averaged = recipe_of(channels={"sdpo": {"teacher": "ema"}}, optimizer="sgd")
    assert kept_on_disk(smollm2, averaged) == (4 + 0 + 4) * trained
    idle = recipe_of(channels={"sdpo": {"teacher": "ema", "weight": 0}})
    assert kept_on_disk(smollm2, idle) == (4 + 8) * trained


def test_checkpointing_keeps_a_layers_input_and_one_layer(smollm2):
    load = [Load("sft", 1, 1024, 64, padded=False)]
    plain = peak(smollm2, recipe_of(), load, device=False)
    saved = peak(smollm2, recipe_of(activation_checkpointing=True), load, device=False)
    assert saved.activations == 1024 * (30 * 576 * 4 + 576 * 4)  # 71,424 counted by PyTorch
    assert saved.activations + saved.passing < 0.2 * (plain.activations + plain.passing)


def test_parts_that_a_recipe_decides(smollm2):
    load = [Load("sft", 1, 256, 64, padded=False)]

    def of(**fields):
        return peak(smollm2, recipe_of(**fields), load, device=False)

    every = smollm2.parameters
    adapter = of().adapter // 4
    assert of().weights == 4 * every
    assert of(dtype="bf16").weights == 2 * every
    assert of().optimizer == 8 * adapter
    assert of(optimizer="sgd").optimizer == 0
    assert of().measured_gradients == 3 * 4 * adapter
    assert of(channels=ONLY_SFT).measured_gradients == 0
    whole = of(lora={"r": 0}, dtype="bf16")
    assert (whole.weights, whole.adapter, whole.gradients) == (4 * every, 0, 4 * every)
    assert whole.teacher == 4 * every  # the frozen copy of SDPO
    assert of().teacher == 0
    assert of(channels={"sdpo": {"teacher": "ema"}}).teacher == 4 * adapter


def test_logits_of_each_loss(smollm2):
    v = smollm2.vocabulary

    def logits(channel, tokens, selected, *, device=False):
        load = [Load(channel, 1, tokens, selected, padded=False)]
        return peak(smollm2, recipe_of(), load, device=device).logits

    # Chunks of 256 positions are projected, and again in the backward: no logits are kept.
    assert logits("sft", 1000, 256) == 256 * v * 4 + 256 * 576 * 2 * 4
    assert logits("sft", 1000, 600) - logits("sft", 1000, 500) == 100 * 576 * 2 * 4
    # TRL projects every position on the host, and those of answers on a device.
    assert logits("grpo", 1000, 10) == 1000 * 32768 * (4 + 29)
    assert logits("grpo", 1000, 10, device=True) == 10 * 32768 * 4
    # The divergence: student and teacher, and on a device two buffers as large.
    assert logits("sdpo", 1000, 600) < 2.1 * 256 * v * 4
    assert logits("sdpo", 1000, 256, device=True) == 4 * 256 * v * 4 + 256 * 576 * 3 * 4


def test_the_kernels_of_a_large_vocabulary_by_hand():
    """Qwen2.5: V = 151,936; 2**25 // V = 220 tokens a chunk, 510 MiB of four float32 buffers."""
    shape = ModelShape.load(CONFIGS / "qwen2.5-7b.json")

    def logits(channel, selected):
        recipe = recipe_of(dtype="bf16", activation_checkpointing=True)
        load = [Load(channel, 1, 17_408, selected, padded=False)]
        return peak(shape, recipe, load, device=True).logits / 2**20

    narrow = 220 * 151_936 * 2 / 2**20
    states = 1024 * 3584 * 2 / 2**20
    assert logits("sdpo", 1024) == pytest.approx(510 + narrow + 3 * states, rel=0.001)
    # DPO's eight sides of 1,024 tokens: one chunk, not 5.1 GiB of logits.
    assert logits("dpo", 8192) == pytest.approx(256 * 151_936 * 6 / 2**20 + 16 * states, rel=0.001)


def test_the_heaviest_micro_batch_counts(smollm2):
    loads = [Load("sft", 1, 256, 64, padded=False), Load("dpo", 2, 900, 128, padded=False)]
    assert peak(smollm2, recipe_of(), loads, device=False).worst == "dpo"


def test_forwards_of_micro_batches():
    recipe = recipe_of(channels={"grpo": {"source": "sampled", "group_size": 3}})
    answers = [RowSize(110, 100, (10,), 10), RowSize(85, 65, (20,), 20)]
    loads = loads_of(recipe, {"grpo": [answers], "dpo": [[RowSize(220, 100, (10, 8), 18)]]})
    # Prompts are padded on the left and answers on the right.
    assert Load("grpo", 2, 120, 30, padded=True) in loads
    assert Load("dpo", 2, 110, 18, padded=True) in loads
    longest = 100 + recipe.data.max_completion_tokens
    assert Load("grpo", 3, longest, 3, padded=True, cache=True) in loads
    assert len(loads) == 3


def test_assumed_rows_are_as_long_as_they_may_be():
    recipe = recipe_of(channels={"grpo": {"groups_per_step": 2, "group_size": 3}})
    assert assumed_rows(recipe, "dpo") == [RowSize(2560, 1024, (256, 256), 512)] * 2
    assert assumed_rows(recipe, "grpo") == [RowSize(1280, 1024, (256,), 256)] * 6


def test_a_rank_holds_its_part_of_the_layers_and_the_rest_whole(smollm2):
    def weights(**ranks):
        loads = [Load("sft", 1, 256, 64, padded=False)]
        return peak(smollm2, recipe_of(ranks=ranks), loads, device=True).weights // 4

    layer, layers = smollm2.layer_parameters, 30 * smollm2.layer_parameters
    assert weights() == weights(processes=4) == weights(sharding="fsdp2") == smollm2.parameters
    # Two layers are whole for a while: the one in use and the one that is fetched.
    cut = weights(processes=4, sharding="fsdp2")
    assert cut == smollm2.parameters - layers + -(-layers // 4) + 2 * layer


def test_parts_of_what_is_trained_have_the_optimizers_state_and_adapters_are_whole(smollm2):
    def parts(r, **ranks):
        recipe = recipe_of(lora={"r": r}, channels={"sdpo": {"weight": 0}}, ranks=ranks)
        return peak(smollm2, recipe, [Load("sft", 1, 256, 64, padded=False)], device=True)

    several = {"processes": 4, "sharding": "fsdp2"}
    layers = 30 * smollm2.layer_parameters
    held = smollm2.parameters - layers + -(-layers // 4)
    whole = parts(0, **several)
    assert (whole.gradients, whole.optimizer) == (4 * held, 8 * held)
    assert parts(8, **several).optimizer == parts(8).optimizer


def test_the_recipe_for_eight_devices_fits_them_and_would_not_without_parts():
    recipe = TrainingRecipe.load(ROOT / "recipes" / "train" / "gpu-8x80gb.yaml")
    shape = ModelShape.load(CONFIGS / "qwen2.5-32b.json")
    # A row of full length is a micro-batch of its own.
    loads = loads_of(
        recipe, {n: [[row] for row in assumed_rows(recipe, n)] for n in ("sdpo", "sft")}
    )
    assert peak(shape, recipe, loads, device=True).total < 72 * 2**30
    alone = recipe.model_copy(update={"ranks": recipe.ranks.model_copy(update={"sharding": "ddp"})})
    assert peak(shape, alone, loads, device=True).total > 80 * 2**30


def fit(shape, limit_gib, **fields):
    recipe = recipe_of(**fields)

    def predict(changed):
        width = min(changed.micro_batch_tokens, changed.data.max_prompt_tokens)
        return peak(shape, changed, [Load("sft", 1, width, 64, padded=False)], device=True)

    require_fit(recipe, predict, int(limit_gib * 2**30), "device 0")


@pytest.mark.parametrize(
    ("limit", "fields", "said"),
    [
        (4, {}, r"with activation_checkpointing: true it needs"),
        (2.05, {"activation_checkpointing": True}, "with micro_batch_tokens: "),
        (
            1.6,
            {"activation_checkpointing": True},
            "with dtype: bf16, micro_batch_tokens: 512, data",
        ),
        (0.5, {}, "choose a smaller model"),
    ],
)
def test_what_does_not_fit_names_the_field(smollm2, limit, fields, said):
    fields = {"micro_batch_tokens": 4096, "data": {"max_prompt_tokens": 4096}, **fields}
    with pytest.raises(InputError, match=rf"device 0 has {limit:.1f} GiB: .*{said}") as error:
        fit(smollm2, limit, **fields)
    assert "\n" not in str(error.value)


def test_what_fits_passes(smollm2):
    fit(smollm2, 16)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (None, "cannot be read"),
        ("{", "not JSON"),
        ('{"model_type": "mamba"}', "model_type 'mamba' is not predicted"),
        ('{"model_type": "llama", "hidden_size": 1}', "has no num_attention_heads"),
    ],
)
def test_a_config_that_says_too_little_is_refused(tmp_path, config, said):
    path = tmp_path / "config.json"
    if config is not None:
        path.write_text(config)
    with pytest.raises(InputError, match=said):
        ModelShape.load(tmp_path / "config.json")


def test_configs_are_what_a_reader_may_check():
    for path in CONFIGS.glob("*.json"):
        assert json.loads(path.read_text())["model_type"] in ("qwen2", "llama")


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", KNOWN)
def test_every_known_family_has_the_parameters_that_transformers_gives_it(kind, tied, tmp_path):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        kind, vocab_size=96, hidden_size=48, intermediate_size=80, num_hidden_layers=3,
        num_attention_heads=6, num_key_value_heads=2, head_dim=8, tie_word_embeddings=tied,
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    config.save_pretrained(tmp_path)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert ModelShape.load(tmp_path).parameters == model.num_parameters()


@pytest.mark.parametrize("kind", ["gemma3_text", "qwen3_moe", "gpt_oss", "glm4_moe", "phi3"])
def test_a_family_that_is_not_counted_is_refused_and_named(kind, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    with pytest.raises(InputError, match=rf"memory of model_type '{kind}' is not predicted"):
        ModelShape.load(tmp_path)
