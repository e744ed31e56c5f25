"""Muon for the matrices of the layers and AdamW for everything else, as one optimizer.

The Trainer, the schedule and a restart inside a round know one optimizer. Muon (Jordan et al.
2024, https://kellerjordan.github.io/posts/muon/) makes the momentum of a matrix nearly orthogonal;
its steps are scaled to AdamW's (``match_rms_adamw``: arXiv 2502.16982, section 2.2), so that one
learning rate serves both. The formulas are PyTorch's.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

#: Its authors' and PyTorch's default.
MOMENTUM = 0.95


class MuonWithAdamW(torch.optim.Optimizer):
    """Muon for ``matrices``, AdamW for ``decayed`` and, without weight decay, ``plain``."""

    def __init__(
        self,
        matrices: Iterable[Tensor],
        decayed: Iterable[Tensor],
        plain: Iterable[Tensor],
        *,
        lr: float,
        weight_decay: float,
    ) -> None:
        matrices, decayed, plain = list(matrices), list(decayed), list(plain)
        self._parts: list[torch.optim.Optimizer] = []
        if matrices:
            self._parts.append(
                torch.optim.Muon(
                    matrices, lr=lr, weight_decay=weight_decay, momentum=MOMENTUM,
                    adjust_lr_fn="match_rms_adamw",
                )
            )  # fmt: skip
        rest = [(decayed, weight_decay), (plain, 0.0)]
        groups = [{"params": some, "weight_decay": decay} for some, decay in rest if some]
        if groups:
            self._parts.append(torch.optim.AdamW(groups, lr=lr))
        # The same group objects as the parts': a schedule that sets a rate here sets it there.
        super().__init__([group for part in self._parts for group in part.param_groups], {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Make one step of each part."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        groups = iter(self.param_groups)
        for part in self._parts:
            # Loading a state replaces both here, and the parts must follow.
            part.param_groups = [next(groups) for _ in part.param_groups]
            part.state = self.state
            part.step()
        return loss


def muon(model: torch.nn.Module, *, lr: float, weight_decay: float) -> MuonWithAdamW:
    """Return the optimizer of a model's trained parameters.

    Muon gets every matrix but embeddings and the head, whose rows are tokens and not directions
    (as its authors do); AdamW gets those, and one-dimensional parameters without decay.
    """
    tokens = [m for m in model.modules() if isinstance(m, torch.nn.Embedding)]
    output = getattr(model, "get_output_embeddings", lambda: None)()
    tokens += [] if output is None else [output]
    of_tokens = {id(p) for module in tokens for p in module.parameters()}
    trained = [p for p in model.parameters() if p.requires_grad]
    return MuonWithAdamW(
        matrices=[p for p in trained if p.ndim == 2 and id(p) not in of_tokens],
        decayed=[p for p in trained if p.ndim != 1 and (p.ndim != 2 or id(p) in of_tokens)],
        plain=[p for p in trained if p.ndim == 1],
        lr=lr,
        weight_decay=weight_decay,
    )
