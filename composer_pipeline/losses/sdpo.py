"""SDPO: per-token self-distillation losses, the importance clip, and the reductions.

Belongs here: what lasgroup/SDPO and TRL's ``SDPOTrainer`` compute from logits. Does not
belong here: building the hinted context and aligning its tokens (``trainers.trl``).
"""

from dataclasses import asdict, dataclass, fields

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from composer_pipeline.losses.divergence import entries_from_logps, generalized_jsd

#: Largest log-mass that the kept entries may have, so that the tail stays finite.
_MAX_LOG_MASS = -1e-7


def full_logits(student_logits: Tensor, teacher_logits: Tensor, *, alpha: float) -> Tensor:
    """Return the generalised JSD with α in the role of β; logits (..., V), result (...,)."""
    return generalized_jsd(student_logits, teacher_logits, beta=alpha)


def topk_logits(
    student_logits: Tensor, teacher_logits: Tensor, *, alpha: float, top_k: int, tail: bool
) -> Tensor:
    """Return the JSD over the student's top-k entries, shape (...,).

    Log-probabilities are normalised over the full vocabulary, restricted to the support,
    then either get one bucket with the remaining mass (``tail``) or are renormalised. An
    approximation: it measures 0.5 to 0.98 of the full divergence.

    Args:
        student_logits: (..., V).
        teacher_logits: (..., V).
        alpha: 0 forward KL, 1 reverse KL.
        top_k: size of the support.
        tail: append the tail bucket instead of renormalising.
    """
    student = log_softmax(student_logits, -1)
    teacher = log_softmax(teacher_logits.detach(), -1)
    index = student.detach().topk(min(top_k, student.shape[-1]), dim=-1).indices
    student, teacher = student.gather(-1, index), teacher.gather(-1, index)
    shape = _with_tail if tail else _renormalised
    return entries_from_logps(shape(student), shape(teacher), alpha).sum(-1)


def sampled_token(student_logps: Tensor, teacher_logps: Tensor) -> Tensor:
    """Return the sampled-token reverse KL, sg(log p_s - log p_t)·log p_s; all are (...,)."""
    return (student_logps - teacher_logps).detach() * student_logps


def importance_ratio(logps: Tensor, old_logps: Tensor, *, clip: float = 2.0) -> Tensor:
    """Return the detached ratio min(exp(clamp(log p - log p_old, ±20)), clip); all are (...,).

    Being detached it can be folded into token weights.
    """
    return (logps.detach() - old_logps).clamp(-20.0, 20.0).exp().clamp(max=clip)


def token_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Reduce (B, S) to a scalar as lasgroup's default: Σ m·d / max(Σ m, 1) over all tokens."""
    return (values * mask).sum() / mask.sum().clamp(min=1)


def seq_mean_token_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Reduce (B, S) to a scalar: the mean, over sequences with active tokens, of token means."""
    means = (values * mask).sum(-1) / (mask.sum(-1) + 1e-8)
    active = (mask.sum(-1) > 0).to(values.dtype)
    return (means * active).sum() / active.sum().clamp(min=1)


def trl_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Reduce (B, S) to a scalar as TRL: mean over all sequences, inactive ones count as 0."""
    return ((values * mask).sum(-1) / mask.sum(-1).clamp(min=1)).mean()


def _with_tail(logps: Tensor) -> Tensor:
    mass = torch.logsumexp(logps, -1, keepdim=True).clamp(max=_MAX_LOG_MASS)
    return torch.cat([logps, torch.log(-torch.expm1(mass))], dim=-1)


def _renormalised(logps: Tensor) -> Tensor:
    return logps - torch.logsumexp(logps, -1, keepdim=True)


@dataclass
class TaidScheduler:
    """Moves ``t`` from ``t_start`` towards ``t_end`` (SakanaAI/TAID, arXiv 2501.16937).

    Feed :meth:`update` the globally reduced loss once per optimizer step, after it. The
    first call only remembers the loss. State is kept in float32, as upstream does, and
    belongs in the checkpoint (:meth:`state_dict`).
    """

    total_steps: int
    t_start: float = 0.4
    t_end: float = 1.0
    alpha: float = 5e-4
    beta: float = 0.99
    disable_adaptive: bool = False
    t: float | None = None
    previous: float | None = None
    momentum: float = 0.0

    def __post_init__(self) -> None:
        if self.t is None:
            self.t = _f32(self.t_start)

    def update(self, loss: float, step: int) -> float | None:
        """Advance ``t`` and return Δ, or ``None`` on the first call.

        With r = (previous - loss) / (previous + 1e-15): momentum ← β·momentum + (1-β)·r,
        Δ = α·sigmoid(momentum)·(1 - t), target = t_start + (t_end - t_start)·step/total,
        t ← min(t_end, max(target, t + Δ)).
        """
        now = torch.tensor(loss, dtype=torch.float32)
        if self.previous is None:
            self.previous = float(now)
            return None
        t = torch.tensor(self.t, dtype=torch.float32)
        before = torch.tensor(self.previous, dtype=torch.float32)
        change = (before - now) / (before + 1e-15)
        momentum = self.beta * torch.tensor(self.momentum) + (1 - self.beta) * change
        delta = self.alpha * torch.sigmoid(momentum) * (1 - t)
        target = self.t_start + (self.t_end - self.t_start) * step / self.total_steps
        moved = target if self.disable_adaptive else min(self.t_end, max(target, float(t + delta)))
        self.t, self.momentum, self.previous = _f32(moved), float(momentum), float(now)
        return float(delta)

    def state_dict(self) -> dict[str, float | int | bool | None]:
        """Return everything that :meth:`load_state_dict` needs, as plain numbers."""
        return asdict(self)

    def load_state_dict(self, state: dict[str, float | int | bool | None]) -> None:
        """Restore :meth:`state_dict`."""
        for field in fields(self):
            setattr(self, field.name, state[field.name])


def _f32(value: float) -> float:
    return float(torch.tensor(value, dtype=torch.float32))
