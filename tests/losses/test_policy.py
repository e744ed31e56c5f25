"""The policy gradient and its mask beside TRL's."""

import os

import pytest
import torch

from composer_pipeline.losses.policy import off_policy_mask, policy_gradient

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")


@pytest.fixture
def answers():
    torch.manual_seed(0)
    logps = -torch.rand(6, 5).double() * 3
    mask = (torch.arange(5) < torch.tensor([5, 3, 1, 4, 2, 5]).unsqueeze(-1)).double()
    sampling = -torch.rand(6, 5).double()
    sampling[4] = torch.nan
    return logps, sampling, torch.tensor([0.5, -0.5, -0.1, 0.0, -0.3, -0.2]).double(), mask


@pytest.mark.parametrize("threshold", [0.3, 0.9, 1.5])
def test_the_mask_is_trls(answers, threshold):
    from trl import GRPOTrainer

    logps, sampling, advantages, mask = answers
    theirs = GRPOTrainer.get_off_policy_mask(
        advantages.unsqueeze(1), logps, sampling, mask, off_policy_threshold=threshold
    )
    ours = off_policy_mask(advantages, logps, sampling, mask, threshold=threshold)
    assert torch.equal(ours, theirs.squeeze(1))
    assert ours[4] == 1  # NaN is no evidence


def test_the_mask_drops_some_and_keeps_some(answers):
    logps, sampling, advantages, mask = answers
    kept = off_policy_mask(advantages, logps, sampling, mask, threshold=0.9)
    assert 0 < kept.sum() < len(kept)


def test_the_gradient_is_that_of_the_expected_reward():
    logits = torch.randn(7, dtype=torch.double, requires_grad=True)
    rewards = torch.rand(7, dtype=torch.double)
    expected = (logits.softmax(-1) * rewards).sum()
    (wanted,) = torch.autograd.grad(-expected, logits)
    logps = logits.log_softmax(-1).unsqueeze(-1)  # every answer of one token, weighted by p
    weights = logps.detach().exp()
    (found,) = torch.autograd.grad(policy_gradient(logps, rewards, weights), logits)
    assert torch.allclose(found, wanted)
