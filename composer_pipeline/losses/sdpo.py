"""SDPO's importance ratio and the schedule of TAID's target."""

from dataclasses import asdict, dataclass, fields

import torch
from torch import Tensor


def importance_ratio(logps: Tensor, old_logps: Tensor, *, clip: float = 2.0) -> Tensor:
    """Return the detached ratio min(exp(clamp(log p - log p_old, ±20)), clip); all are (...,).

    Being detached it can be folded into token weights.
    """
    return (logps.detach() - old_logps).clamp(-20.0, 20.0).exp().clamp(max=clip)


@dataclass
class TaidScheduler:
    """Moves ``t`` from ``t_start`` towards ``t_end`` (SakanaAI/TAID, arXiv 2501.16937).

    Call :meth:`update` with the globally reduced loss after each optimizer step; the first call
    only records the loss. ``t``, ``previous`` and ``momentum`` are float32, as upstream, and
    belong in the checkpoint. The defaults are the paper's.
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
