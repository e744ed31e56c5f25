"""From hidden states to logits: the product with the head, and what a model does to it then.

Belongs here: scaling and soft-capping (Gemma, Cohere, Granite and others), and products that
keep the accuracy of float32 where the weights are bf16. Does not belong here: any loss, and
reading a model's configuration (``trainers.trl.rows.batches``).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

#: Vocabulary entries of a head that are widened at a time where no kernel adds up in float32.
_TILE = 8192


@dataclass(frozen=True)
class LogitTransform:
    """``softcap·tanh(scale·y / softcap)`` of a product y with the head; no cap: ``scale·y``."""

    scale: float = 1.0
    softcap: float | None = None

    def apply_(self, logits: Tensor) -> Tensor:
        """Transform logits (..., V) in place, and return them."""
        if self.scale != 1.0:
            logits.mul_(self.scale)
        if self.softcap is not None:
            logits.div_(self.softcap).tanh_().mul_(self.softcap)
        return logits

    def slope(self, transformed: Tensor) -> Tensor | None:
        """Return the derivative at each of the logits (..., V) of :meth:`apply_`.

        ``None`` without a cap: it is ``scale`` everywhere.
        """
        if self.softcap is None:
            return None
        return (transformed / self.softcap).square_().neg_().add_(1.0).mul_(self.scale)


PLAIN = LogitTransform()


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return what logits and sums of tensors of a type are kept in: float32, or float64."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def project_(out: Tensor, hidden: Tensor, head: Tensor) -> Tensor:
    """Write ``hidden @ head.T``, not rounded to bf16, into ``out``, and return it.

    Args:
        out: (C, V), float32 or float64.
        hidden: (C, H).
        head: (V, H).
    """
    if hidden.dtype == head.dtype == out.dtype:
        return torch.mm(hidden, head.T, out=out)
    if out.is_cuda and hidden.dtype == head.dtype:
        return torch.mm(hidden, head.T, out_dtype=out.dtype, out=out)
    wide = hidden.to(out.dtype)
    for start in range(0, head.shape[0], _TILE):
        tile = slice(start, start + _TILE)
        out[:, tile] = wide @ head[tile].to(out.dtype).T
    return out


def add_product_(total: Tensor, grad: Tensor, hidden: Tensor) -> None:
    """Add ``grad.T @ hidden`` to ``total``, not rounded to bf16 before it is added.

    Args:
        total: (V, H), float32 or float64.
        grad: (C, V), of the logits.
        hidden: (C, H).
    """
    if total.is_cuda and hidden.dtype != total.dtype:
        # Tensor cores multiply bf16 and add up in float32.
        torch.addmm(
            total, grad.to(hidden.dtype).T, hidden, out_dtype=total.dtype, out=total
        )  # fmt: skip
    else:
        total.addmm_(grad.T, hidden.to(total.dtype))


def multiply_(out: Tensor, grad: Tensor, head: Tensor) -> None:
    """Write ``grad @ head`` into ``out``: each row once, so that no rounding adds up.

    Args:
        out: (C, H), of the hidden states' type.
        grad: (C, V), float32 or float64.
        head: (V, H).
    """
    if out.dtype == grad.dtype == head.dtype:
        torch.mm(grad, head, out=out)
    else:
        out.copy_(grad.to(head.dtype) @ head)
