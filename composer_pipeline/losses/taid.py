"""The schedule of TAID's target between student and teacher.

Belongs here: the state machine of ``t``. Does not belong here: the loss
(``losses.divergence.taid``, ``losses.fused``).
"""

from dataclasses import asdict, dataclass, fields

import torch


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
