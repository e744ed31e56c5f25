"""The attention of packed trees as on CUDA, emulated on the CPU: how often it is compiled."""

import random

import pytest
import torch
from torch.nn.attention import flex_attention as flex
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM

from composer_pipeline.errors import ComposerError
from composer_pipeline.testing.training import tiny_recipe
from composer_pipeline.training.recipe import TrainingRecipe
from tests.places import ROOT
from tests.trainers.trl import oracle
from tests.trainers.trl.toy import random_rows
from trainers.common import attention
from trainers.common.policy import Policy, frozen_copy
from trainers.common.rows import Row
from trainers.common.shared_prefix import PROMPT, why_not
from trainers.common.trees import Layout, Tree, block_mask, visible


def shipped():
    """Return the shipped recipes of this trainer, and one of those that here train alike."""
    paths = sorted((ROOT / "recipes" / "train").glob("*.yaml"), reverse=True)
    found = {}
    for path in paths:
        recipe = TrainingRecipe.load(path)
        if recipe.trainer == "trl":
            of_state = (recipe.channels.weights(), recipe.channels.sdpo.teacher, recipe.draw)
            found[repr((*of_state, recipe.lora, recipe.activation_checkpointing))] = path
    return sorted(found.values())


#: Those that differ most in what they train run with the quick tests.
RECIPES = [
    pytest.param(
        path, id=path.stem, marks=() if path.stem in ("default", "smoke") else pytest.mark.slow
    )
    for path in shipped()
]
STEPS = 24


@pytest.fixture
def compiled(monkeypatch):
    """Send this device's trees through the compiled call; return the graphs that were compiled."""
    graphs = []

    def backend(graph, example):
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(attention, "DEVICES", ("cpu",))
    monkeypatch.setattr(attention, "BACKEND", backend)
    # torch refuses a backward of FlexAttention on a CPU, where it has no fused one.
    monkeypatch.setattr(flex, "_validate_device", lambda *_: None)
    attention._compiled.cache_clear()
    torch._dynamo.reset()
    yield graphs
    attention._compiled.cache_clear()
    torch._dynamo.reset()


def model():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=40, hidden_size=24, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=3, num_key_value_heads=1, max_position_embeddings=4096,
        tie_word_embeddings=True, pad_token_id=4, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def small(path, **changes):
    """Return a shipped recipe with its channels and settings, for a tiny model and 24 steps."""
    fields = TrainingRecipe.load(path).model_dump() | {
        "model": "toy", "dtype": "fp32", "threads": 1, "steps": None, "epochs": None, "ranks": {},
        "data": {"max_prompt_tokens": 512, "max_completion_tokens": 64}, "micro_batch_tokens": 450,
        "diloco": {"replicas": 1, "rounds": 1, "inner_steps": STEPS}, **changes,
    }  # fmt: skip
    fields["channels"]["sdpo"]["hint_gain"] = False
    return TrainingRecipe.model_validate(fields)


@pytest.mark.parametrize("path", RECIPES)
def test_a_recipe_compiles_few_variants_whatever_its_windows(
    path, compiled, build_trainer, tiny_tokenizer
):
    trainer = build_trainer(model(), tiny_tokenizer, small(path), random_rows(12, 120))
    assert trainer.apart is None
    assert trainer.policy.packed
    draw = random.Random(1)
    for _ in range(STEPS):
        for channel in trainer.channels:
            channel._per_step = draw.randrange(1, 4)
        trainer._micro_batch_tokens = draw.choice([150, 300, 450, 700])
        trainer.training_step(trainer.model, {})
        trainer.state.global_step = (trainer.state.global_step + 1) % 4
    assert 1 <= len(compiled) <= 3


@pytest.mark.parametrize("softcap", [None, 0.7])
def test_the_compiled_call_is_attention_with_a_dense_mask(compiled, softcap):
    rows = [Row([1] * 9, [2] * 150), Row([1] * 9, [3] * 40), Row([4] * 7, [5] * 30)]
    layout = Layout([Tree(rows[:2]), Tree(rows[2:])], 0, packed=True)
    width, torch_seed = layout.ids.shape[-1], torch.manual_seed(0)
    query, key, value = (
        torch.randn(1, heads, width, 8, generator=torch_seed, requires_grad=True)
        for heads in (4, 2, 2)
    )
    mask = block_mask(layout.ends, "cpu")
    out, _ = attention._forward(None, query, key, value, mask, 0.9, softcap)
    scores = query @ key.repeat_interleave(2, 1).mT * 0.9
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    scores = scores.masked_fill(~visible(layout.ends).unsqueeze(1), -torch.inf)
    wanted = (scores.softmax(-1) @ value.repeat_interleave(2, 1)).transpose(1, 2)
    torch.testing.assert_close(out, wanted)
    inputs = [query, key, value]
    found = torch.autograd.grad((out**2).sum(), inputs)
    right = torch.autograd.grad((wanted**2).sum(), inputs)
    torch.testing.assert_close(found, right, atol=1e-4, rtol=1e-4)


def test_precision_and_gradient_are_the_callers(compiled):
    """All callers share one graph, which has a gradient and is outside of autocast."""
    layout = Layout([Tree([Row([1] * 9, [2, 3])])], 0, packed=True)
    query, key, value = torch.randn(3, 1, 1, layout.ids.shape[-1], 8).unbind()
    mask = block_mask(layout.ends, "cpu")
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        half, _ = attention._forward(None, query, key, value, mask, 0.3)
    assert (half.dtype, half.requires_grad) == (torch.bfloat16, False)
    whole, _ = attention._forward(None, query, key, value, mask, 0.3)
    assert (whole.dtype, whole.requires_grad) == (torch.float32, True)


def test_packed_rows_have_the_states_of_padded_ones(compiled):
    """Also those of the copy that a whole model's frozen teacher is."""
    rows = [Row([1] * 9, [2, 3, 4, 5], 1, 2), Row([1] * 9, [2, 7]), Row([3], [5, 6], 1)]
    policy = Policy(model(), pad=4, device="cpu")
    states, ids = policy.states(rows)
    policy.packed = True
    frozen = frozen_copy(policy)
    assert frozen.packed
    for packed, same in (policy.states(rows), frozen.states(rows)):
        torch.testing.assert_close(packed, states)
        assert torch.equal(same, ids)
    assert ids.tolist() == [3, 4, 2, 7, 6]


def test_a_model_with_eager_attention_stays_with_dense_masks(compiled):
    fused = model()
    for implementation in ("sdpa", "flash_attention_2"):
        fused.config._attn_implementation = implementation
        assert attention.is_fused(fused, "cpu")
    fused.config._attn_implementation = "eager"
    assert not attention.is_fused(fused, "cpu")
    assert not attention.is_fused(model(), "meta")


@pytest.mark.parametrize(
    ("teacher", "lora"), [("frozen", {"r": 4}), ("ema", {"r": 4}), ("frozen", {"r": 0})]
)
def test_no_forward_but_the_probes_leaves_the_compiled_call(
    compiled, build_trainer, tiny_tokenizer, teacher, lora
):
    """Base pass, policy, teacher, and what checkpointing computes again on the way back."""
    read, base = [], model()
    for layer in base.model.layers:
        layer.self_attn.register_forward_pre_hook(
            lambda module, _, given: read.append(
                (given["hidden_states"].shape[-2], module.config._attn_implementation)
            ),
            with_kwargs=True,
        )
    sdpo = {"teacher": teacher, "hint_gain": False}
    how = tiny_recipe(
        "toy", channels={"grpo": {}, "sdpo": sdpo, "dpo": {}, "sft": {}}, lora=lora,
        activation_checkpointing=True,
    )  # fmt: skip
    trainer = build_trainer(base, tiny_tokenizer, how, random_rows(4, 120))
    scored = len(read)
    trainer.training_step(trainer.model, {})
    assert len(read) > scored
    assert {name for tokens, name in read if tokens > 2 * PROMPT} == {attention.NAME}
    plain = how.model_copy(update={"activation_checkpointing": False})
    other = build_trainer(model(), tiny_tokenizer, plain, random_rows(4, 120))
    other.training_step(other.model, {})
    torch.testing.assert_close(oracle.gradient(trainer.model), oracle.gradient(other.model))


@pytest.mark.parametrize("fault", ["refuses", "returns nothing of use"])
def test_a_compiled_call_that_fails_on_a_device_is_found_by_the_probe(compiled, monkeypatch, fault):
    """Rows are then read apart; otherwise the run would end, or train on wrong states."""

    def faulty(module, query, *_, **__):
        if fault == "refuses":
            raise ValueError("no kernel for this head")
        return torch.zeros_like(query).transpose(1, 2), None

    monkeypatch.setitem(AttentionInterface._global_mapping, attention.NAME, faulty)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=40, hidden_size=24, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=3, initializer_range=0.5,
    )  # fmt: skip
    policy = Policy(LlamaForCausalLM(config).eval(), pad=4, device="cpu")
    assert why_not(policy, tiny_recipe("toy")) is not None
    assert not policy.packed
    monkeypatch.undo()


def test_a_measured_step_goes_back_several_times_through_one_compiled_call(compiled, monkeypatch):
    """Once for each channel: torch may not reuse the memory of the first way back."""
    monkeypatch.setattr(attention, "BACKEND", "aot_eager")
    layout = Layout([Tree([Row([1] * 9, [2, 3])])], 0, packed=True)
    query, key, value = (
        torch.randn(1, 1, layout.ids.shape[-1], 8, requires_grad=True) for _ in "qkv"
    )
    out, _ = attention._forward(None, query, key, value, block_mask(layout.ends, "cpu"), 0.3)
    (first,) = torch.autograd.grad(out.sum(), query, retain_graph=True)
    (second,) = torch.autograd.grad(out.sum(), query)
    assert torch.equal(first, second)


def test_one_graph_serves_all_lengths(compiled):
    for tokens in (9, 300, 500, 700, 900):
        attend(1, tokens)
    assert len(compiled) == 1


def attend(heads, tokens=9, **changed):
    """Run the attention of a packed row of two blocks or more, with its backward."""
    layout = Layout([Tree([Row([1] * tokens, [2, 3])])], 0, packed=True)
    size = (1, heads, layout.ids.shape[-1], 8)
    query, key, value = (torch.randn(size, requires_grad=True) for _ in "qkv")
    mask = block_mask(layout.ends, "cpu")
    out, _ = attention._forward(None, query, key, value, mask, 0.3, **changed)
    out.sum().backward()
    return query.grad


def test_where_torch_would_hold_all_scores_it_ends_with_a_sentence(compiled):
    with torch._dynamo.config.patch(recompile_limit=2):
        attend(1)
        attend(2)
        with pytest.raises(ComposerError, match=r"compiled too often .* set shared_prefix: off"):
            attend(3)
    assert len(compiled) == 2


def test_what_it_cannot_compute_is_refused(compiled):
    for name in ("s_aux", "position_bias"):
        with pytest.raises(ValueError, match=name):
            attend(1, **{name: torch.zeros(1)})
    query, key, value = torch.randn(3, 1, 1, 4, 8).unbind()
    with pytest.raises(ValueError, match="a mask of its own"):
        attention._forward(None, query, key, value, torch.zeros(4, 4), 0.3)
    assert attend(1, softcap=2.0).isfinite().all()
    assert not torch.equal(attend(1, softcap=0.01), attend(1))
