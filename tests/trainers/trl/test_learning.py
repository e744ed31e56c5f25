"""Each channel alone moves its own held-out metric the right way; what breaks it does not."""

from typing import Any

import msgspec
import pytest
import torch

from composer_pipeline.testing.training import tiny_recipe
from composer_pipeline.training.rewards import Grade
from composer_pipeline.training.rows import TrainingData
from tests.trainers.trl import toy
from trainers.common.gradients import DeadChannel

CHANNELS = ("grpo", "sdpo", "dpo", "sft")
STEPS = 12
ROWS = {"grpo": "groups_per_step", "dpo": "pairs_per_step"}


@pytest.fixture
def train(make, toy_base):
    """Train some channels on the toy task; return the held-out numbers before and after."""

    def run(data: TrainingData | None = None, *, rate: float = 1e-2, **channels: dict[str, Any]):
        off = {name: {"weight": 0} for name in CHANNELS if name not in channels}
        on = {
            name: {ROWS.get(name, "rows_per_step"): 8, **options}
            for name, options in channels.items()
        }
        recipe = tiny_recipe(
            "toy", channels=off | on, diloco={"replicas": 1, "rounds": 1, "inner_steps": STEPS},
            learning_rate=rate, lora={"r": 8, "alpha": 16, "targets": "all-linear"},
            data={"max_prompt_tokens": 64, "max_completion_tokens": 8},
        )  # fmt: skip
        trainer = make(recipe, data)
        trainer.train()
        before, after = toy.held_out(toy_base), toy.held_out(trainer.policy.model)
        return {name: after[name] - before[name] for name in before}

    return run


def test_the_base_is_wrong_without_a_hint_and_right_with_one(toy_base):
    before = toy.held_out(toy_base)
    assert before["margin"] < -1
    ids = torch.tensor([toy.hinted(x) for x in toy.HELD_OUT])
    with torch.no_grad():
        logps = toy_base(input_ids=ids).logits[:, -1].log_softmax(-1)
    assert float(logps.gather(-1, ids[:, -1:]).mean()) > -0.5


@pytest.mark.parametrize("channel", CHANNELS)
def test_a_channel_alone_teaches_what_it_should(train, channel):
    options = {"dpo": {"beta": 0.5}, "sdpo": {"jsd_beta": 0.0}}
    moved = train(**{channel: options.get(channel, {})})
    assert moved["margin"] > 0.7, moved
    if channel != "dpo":  # DPO promises a margin, not a likelihood
        assert moved["right"] > 0.3, moved
    if channel != "sft":
        assert moved["wrong"] < 0, moved


@pytest.mark.parametrize("divergence", ["jsd", "taid", "eopd"])
@pytest.mark.parametrize("teacher", ["frozen", "ema"])
def test_every_divergence_and_teacher_teaches_the_hint(train, divergence, teacher):
    moved = train(sdpo={"divergence": divergence, "teacher": teacher})
    assert moved["margin"] > 0.3, moved


def test_simpo_teaches_the_pair_without_a_reference(train, monkeypatch):
    monkeypatch.setattr("trainers.common.base_scores.BaseScores.references", lambda _: {})
    moved = train(dpo={"loss": "simpo", "beta": 2.0})
    assert moved["margin"] > 0.7, moved


def test_sampled_answers_teach_too(train, monkeypatch):
    monkeypatch.setattr(
        "trainers.common.sampling.Sampler.grade",
        lambda self, group, answer: Grade(float(answer[0] == group.prompt_ids[-1]), {}),
    )
    moved = train(grpo={"source": "sampled", "group_size": 8}, rate=3e-3)
    assert moved["margin"] > 0.5, moved
    assert moved["right"] > 0.2, moved


def test_swapped_pairs_teach_the_opposite(train):
    swapped = [
        msgspec.structs.replace(p, chosen_ids=p.rejected_ids, rejected_ids=p.chosen_ids)
        for p in toy.rows().pairs
    ]
    data = msgspec.structs.replace(toy.rows(), pairs=swapped)
    assert train(data, dpo={"beta": 0.5})["margin"] < -0.3


def test_hints_of_the_next_row_teach_nothing_right(train):
    """A hint off by one says another value: the right answer must not gain by it."""
    hints = toy.rows().hints
    shifted = [
        msgspec.structs.replace(h, teacher_prompt_ids=toy.hinted(h.prompt_ids[-1], x))
        for h, x in zip(hints, [*toy.TRAIN[1:], toy.TRAIN[0]], strict=True)
    ]
    data = msgspec.structs.replace(toy.rows(), hints=shifted)
    honest = train(sdpo={"hint_gain": False, "jsd_beta": 0.0})
    wrong = train(data, sdpo={"hint_gain": False, "jsd_beta": 0.0})
    assert wrong["right"] < honest["right"] - 0.5


def test_hints_that_help_nobody_are_stopped_at_the_gate(train):
    hints = [msgspec.structs.replace(h, teacher_prompt_ids=h.prompt_ids) for h in toy.rows().hints]
    from composer_pipeline.errors import InputError

    with pytest.raises(InputError, match="none of 16 hints helps the base model"):
        train(msgspec.structs.replace(toy.rows(), hints=hints), sdpo={})


def test_without_alpha_the_uncovered_half_learns_less(train):
    """Pairs for a quarter of the values, hints for all: what SDPO adds is on the others."""
    few = msgspec.structs.replace(toy.rows(), pairs=toy.rows().pairs[:2])
    both = train(few, dpo={"weight": 0.1}, sdpo={"jsd_beta": 0.0})
    alone = train(few, dpo={"weight": 0.1})
    assert both["right"] > alone["right"] + 0.3


def test_a_dead_channel_ends_the_run(train):
    flat = [msgspec.structs.replace(g, rewards=[1.0] * 3) for g in toy.rows().groups]
    with pytest.raises(DeadChannel, match="channel grpo"):
        train(msgspec.structs.replace(toy.rows(), groups=flat), grpo={}, sft={})
