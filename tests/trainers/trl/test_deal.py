"""Rows are distributed by tokens, each to one rank, alike on every rank."""

import pytest
import torch

from trainers.common.gradients import StepGradients
from trainers.common.ranks import distribute, idle_share


def test_every_item_falls_to_one_rank_and_loads_are_even():
    sizes = [900, 100, 500, 400, 300, 200]
    hands = distribute(range(6), sizes, 3)
    assert sorted(i for hand in hands for i in hand) == list(range(6))
    assert sorted(sum(sizes[i] for i in hand) for hand in hands) == [700, 800, 900]
    assert all(hand == sorted(hand) for hand in hands), "in their order"


def test_fewer_items_than_ranks_leave_the_last_ones_none():
    assert distribute(["a"], [5], 3) == [["a"], [], []]
    assert distribute([], [], 2) == [[], []]


def test_one_rank_has_everything():
    assert distribute("abc", [1, 3, 2], 1) == [["a", "b", "c"]]


def test_the_share_that_waits_for_the_busiest():
    assert idle_share([10, 10]) == 0
    assert idle_share([10, 0]) == 0.5
    assert idle_share([0, 0]) == 0


def test_channels_are_summed_in_one_order_whichever_a_rank_runs_first():
    parameter = torch.nn.Parameter(torch.zeros(2))
    gradients = StepGradients([parameter], measured=True, channels=["dpo", "sft"])
    gradients.drop()
    for channel, value in (("sft", 3.0), ("dpo", 4.0), ("sft", 1.0)):
        parameter.grad = torch.full((2,), value)
        gradients.end_of(channel)
    numbers = gradients.finish()
    names = [name for name in numbers if name.endswith("_grad_norm")]
    assert names == ["dpo_grad_norm", "sft_grad_norm"]
    assert numbers["dpo_cos_sft"] == pytest.approx(1)
    assert numbers["dpo_grad_norm"] == pytest.approx(4 * 2**0.5)
    assert numbers["sft_grad_norm"] == pytest.approx(4 * 2**0.5)
