"""Steps of recipes drawn at random against the formulas of ``oracle``, in float64 on both sides."""

import copy
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM

from composer_pipeline.testing.training import tiny_recipe
from composer_pipeline.training.rows import Group
from tests.trainers.trl import oracle, toy

SIZES = {
    "vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "pad_token_id": 4, "bos_token_id": 0, "eos_token_id": 1, "initializer_range": 0.25,
}  # fmt: skip
DATA = toy.random_rows(6, 12, seed=11)
LOSSES = (
    "sigmoid", "hinge", "ipo", "sigmoid_norm", "robust", "exo_pair", "nca_pair", "sppo_hard",
    "apo_zero", "apo_down", "discopop", "simpo",
)  # fmt: skip


@st.composite
def recipes(draw):
    """Draw the fields of channels, adapter, packing and forwards."""
    divergence = draw(st.sampled_from(["jsd", "taid", "eopd"]))
    loss = draw(st.sampled_from(LOSSES))
    smoothed = loss in ("robust", "exo_pair", "simpo")
    channels = {
        "grpo": {"groups_per_step": 2,
                 "off_policy_threshold": draw(st.sampled_from([None, 0.02, 0.5]))},
        "sdpo": {"rows_per_step": 3, "hint_gain": False, "divergence": divergence,
                 "jsd_beta": draw(st.sampled_from([0.0, 0.2, 0.5, 1.0])),
                 "temperature": draw(st.sampled_from([1.0, 1.7])),
                 "importance_clip": draw(st.sampled_from([None, 1.1]))},
        "dpo": {"pairs_per_step": 3, "loss": loss, "beta": draw(st.sampled_from([0.1, 0.4])),
                "label_smoothing": 0.1 if smoothed else 0.0},
        "sft": {"rows_per_step": 2},
    }  # fmt: skip
    weighted = draw(st.sets(st.sampled_from(sorted(channels)), min_size=1))
    for name, fields in channels.items():
        fields["weight"] = draw(st.sampled_from([0.3, 1.3])) if name in weighted else 0
    return tiny_recipe(
        "toy", channels=channels,
        lora=draw(st.sampled_from([{"r": 4, "alpha": 8, "targets": "all-linear"}, {"r": 0}])),
        shared_prefix=draw(st.sampled_from(["on", "off"])),
        micro_batch_tokens=draw(st.sampled_from([64, 4096])),
        activation_checkpointing=draw(st.booleans()),
    )  # fmt: skip


#: Kinds of head: as it is, multiplied, divided, and soft-capped where it bites.
HEADS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("llama", {}),
    "multiplied": ("cohere", {"logit_scale": 0.6}),
    "divided": ("granite", {"logits_scaling": 1.7, "attention_multiplier": 0.35}),
    "capped": ("gemma3_text", {"final_logit_softcapping": 3.0, "head_dim": 8,
                               "query_pre_attn_scalar": 8}),
}  # fmt: skip


def base_model(head):
    """Return a random model with one of the :data:`HEADS`.

    Transformers' eager attention, Gemma 2's only one, takes its softmax in float32, where
    float64's mask of a padded row is −inf and the result NaN.
    """
    kind, fields = HEADS[head]
    torch.manual_seed(3)
    config = AutoConfig.for_model(kind, **SIZES, **fields)
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").double().eval()


@pytest.fixture(scope="module")
def check(tmp_path_factory):
    """Compare a step of a recipe with the formulas: relative errors of loss and gradient."""

    def compare(recipe, head="plain", data=DATA):
        base = base_model(head)
        folder = tmp_path_factory.mktemp("run")
        trainer = toy.trainer(folder, base, toy.tokenizer(), recipe, data)
        torch.manual_seed(5)
        with torch.no_grad():
            for parameter in trainer.policy.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
        loss = float(trainer.training_step(trainer.model, {}).detach())
        assert not trainer._dropped
        found = oracle.gradient(trainer.policy.model)
        wanted, right = oracle.step(trainer, data, None if recipe.lora.r else copy.deepcopy(base))
        scale = max(float(right.norm()), 1e-6)
        assert loss == pytest.approx(wanted, rel=2e-5, abs=1e-6)
        assert float((found - right).norm()) / scale < 2e-5

    return compare


#: Combinations in which a change once lived: a clip behind a later span, a scaled head, EMA.
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("lora", [{"r": 0}, {"r": 4, "targets": "all-linear"}])
def test_a_clipped_divergence_of_each_head(check, head, lora):
    off = {name: {"weight": 0} for name in ("grpo", "dpo", "sft")}
    sdpo = {"hint_gain": False, "rows_per_step": 3, "importance_clip": 1.05, "temperature": 1.3}
    check(tiny_recipe("toy", channels={**off, "sdpo": sdpo}, lora=lora), head)


@pytest.mark.parametrize("head", [head for head in HEADS if head != "plain"])
@pytest.mark.parametrize("shared", ["on", "off"])
def test_all_channels_of_each_head(check, head, shared):
    """By trees the product's kernels read the head, by rows GRPO's loss is TRL's own."""
    channels = {"grpo": {"off_policy_threshold": 0.02}, "sdpo": {"hint_gain": False}}
    check(tiny_recipe("toy", channels=channels, shared_prefix=shared), head)


def test_each_head_bites():
    """Without its cap or factor a model's logits are others by more than the tolerance above."""
    ids = torch.tensor([[5, 6, 7, 8]])
    for head in HEADS:
        model = base_model(head)
        states = model.base_model(ids).last_hidden_state @ model.get_output_embeddings().weight.T
        off = (model(ids).logits - states).norm() / states.norm()
        assert (off > 0.1) == (head != "plain"), head


def test_an_answer_that_both_sides_gave_counts_for_both(make):
    """``source: mixed``: recorded and sampled counts of one answer add up."""
    off = {name: {"weight": 0} for name in ("sdpo", "dpo", "sft")}
    recipe = tiny_recipe("toy", channels={**off, "grpo": {"groups_per_step": 1}})
    (channel,) = make(recipe).channels
    group = Group("g8", [0, 8], [[8, 1], [3, 1]], [2, 1], [1.0, 0.0], "{}")
    channel._base_logps = {"g8": [[-1.0, -1.0], [-2.0, -2.0]]}
    answers = channel._answers(group, ([[8, 1], [9, 1]], [3, 2], [1.0, 0.5]), 1)
    assert [answer.share for answer in answers] == [5 / 8, 1 / 8, 2 / 8]


def test_an_averaged_teacher_of_a_whole_model_has_a_head_of_its_own(make):
    """With a tied head that is trained, the average's head is not the policy's."""
    off = {name: {"weight": 0} for name in ("grpo", "dpo", "sft")}
    sdpo = {"teacher": "ema", "ema_rate": 0.5, "hint_gain": False}
    trainer = make(tiny_recipe("toy", channels={**off, "sdpo": sdpo}, lora={"r": 0}))
    (channel,) = trainer.channels
    teacher, (hint, *_) = channel._teacher, channel.drawn(0)
    row = channel.sequences(hint)
    before = teacher.states(row)[2].clone()
    with torch.no_grad():
        for parameter in trainer.policy.parameters():
            parameter.add_(0.1)
    assert torch.equal(teacher.states(row)[2], before)
    teacher.follow()
    assert torch.allclose(teacher.states(row)[2], before + 0.05)
    assert torch.allclose(trainer.policy.head, before + 0.1)


def test_tokens_are_counted_once_however_a_window_is_split(make):
    off = {name: {"weight": 0} for name in ("grpo", "dpo", "sdpo")}
    recipe = tiny_recipe("toy", channels={**off, "sft": {"rows_per_step": 4}})
    for shared in ("on", "off"):
        trainer = make(recipe.model_copy(update={"shared_prefix": shared}))
        (channel,) = trainer.channels
        for limit in (4096, 5):
            trainer._micro_batch_tokens = limit
            trainer.training_step(trainer.model, {})
            assert channel.numbers["active"] == 8  # four answers of two tokens


@settings(
    max_examples=10,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(recipe=recipes(), head=st.sampled_from(sorted(HEADS)))
def test_a_drawn_step_is_that_of_the_formulas(check, recipe, head):
    check(recipe, head)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(recipe=recipes(), head=st.sampled_from(sorted(HEADS)))
@example(
    recipe=tiny_recipe(
        "toy",
        shared_prefix="off",
        channels={"grpo": {"groups_per_step": 2}, "sdpo": {"weight": 0}, "sft": {"weight": 0}},
    ),
    head="capped",
)
def test_many_drawn_steps_are_those_of_the_formulas(check, recipe, head):
    check(recipe, head)
