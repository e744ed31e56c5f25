"""Policy gradient at ratio 1, and the mask of answers that the policy has left."""

import torch
from torch import Tensor


def off_policy_mask(
    advantages: Tensor, logps: Tensor, sampling_logps: Tensor, mask: Tensor, *, threshold: float
) -> Tensor:
    """Return 1 for each answer that is kept and 0 for each that is left alone, (B,).

    DeepSeek-V3.2's off-policy sequence mask (arXiv 2512.02556), as TRL's ``get_off_policy_mask``:
    an answer is kept if its advantage is at least 0, or if the mean over its tokens of
    log p_sampling − log p is at most ``threshold``. A NaN in ``sampling_logps`` counts as 0, no
    evidence.

    Args:
        advantages: (B,).
        logps: (B, S), nats, of the answers' tokens under the policy; no gradient flows.
        sampling_logps: (B, S), nats, under the model that gave the answers.
        mask: (B, S), 0 or 1.
        threshold: nats per token.
    """
    gap = torch.nan_to_num(sampling_logps - logps.detach(), nan=0.0)
    mean = (gap * mask).sum(-1) / mask.sum(-1).clamp(min=1)
    return ((advantages >= 0) | (mean <= threshold)).to(logps.dtype)


def policy_gradient(logps: Tensor, advantages: Tensor, weights: Tensor) -> Tensor:
    """Return −Σ weight · advantage · p / sg(p), a scalar whose gradient is REINFORCE's.

    It is TRL's clipped GRPO loss where every ratio is 1, so that nothing clips; with the weight
    1 / (answers · length) it is Dr. GRPO's (arXiv 2503.20783).

    Args:
        logps: (B, S), nats, of the answers' tokens at temperature 1.
        advantages: (B,).
        weights: (B, S), mask and normaliser.
    """
    ratio = (logps - logps.detach()).exp()
    return -(weights * advantages.unsqueeze(-1) * ratio).sum()
