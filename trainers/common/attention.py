"""Attention of a packed row of trees on CUDA: one compiled call of FlexAttention for everything.

Policy, teachers, base model and the probe share it. Whether a tensor needs a gradient, autocast and
the length are made alike before it, so that torch compiles one variant. torch replaces a call of
which it has compiled too many by one that holds all scores; here that is an error instead.
"""

import importlib.util
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from transformers import AttentionInterface

from composer_pipeline.errors import ComposerError
from trainers.common.rows import backbone_and_head

#: Its name among transformers' attention functions.
NAME = "composer_trees"
#: Where it is used, and what compiles it.
DEVICES, BACKEND = ("cuda",), "inductor"  # type: tuple[str, ...], str | Callable[..., Any]


def is_fused(model: Any, device: Any) -> bool:
    """Return whether trees go through FlexAttention: on CUDA, unless the recipe says ``eager``."""
    implementation = backbone_and_head(model)[0].config._attn_implementation
    return torch.device(device).type in DEVICES and implementation != "eager"


def can_compile() -> bool:
    """Return whether what compiles FlexAttention is installed."""
    return BACKEND != "inductor" or importlib.util.find_spec("triton") is not None


def _forward(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: BlockMask,
    scaling: float,
    softcap: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Return attention (B, S, heads, width), as transformers' other functions do."""
    given = [name for name in ("s_aux", "position_bias") if options.get(name) is not None]
    if given or not isinstance(attention_mask, BlockMask):
        raise ValueError(f"its attention has {given[0] if given else 'a mask of its own'}")
    kind, learns = query.device.type, torch.is_grad_enabled()
    inputs = [query, key, value]
    if torch.is_autocast_enabled(kind):
        inputs = [tensor.to(torch.get_autocast_dtype(kind)) for tensor in inputs]
    with torch.enable_grad(), torch.autocast(kind, enabled=False):
        inputs = [t if t.requires_grad else t.detach().requires_grad_() for t in inputs]
        try:
            out: Tensor = _compiled(scaling, softcap, query.device)(*inputs, attention_mask)
        except torch._dynamo.exc.FailOnRecompileLimitHit as error:
            raise ComposerError(
                "FlexAttention was compiled too often in this process, and what torch would run in"
                " its place holds all attention scores: set shared_prefix: off"
            ) from error
    return (out if learns else out.detach()).transpose(1, 2).contiguous(), None


@lru_cache
def _compiled(scaling: float, softcap: float | None, device: torch.device) -> Callable[..., Tensor]:
    # torch would make a float of the closure a symbol, which FlexAttention does not take.
    cap = None if softcap is None else torch.tensor(softcap, device=device)

    def capped(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return cap * torch.tanh(score / cap)

    def attend(query: Tensor, key: Tensor, value: Tensor, mask: BlockMask) -> Tensor:
        out: Tensor = flex_attention(
            query, key, value, score_mod=None if cap is None else capped, block_mask=mask,
            scale=scaling, enable_gqa=True,
        )  # fmt: skip
        return out

    # One graph for all lengths; no part of it may run uncompiled.
    compiled: Callable[..., Tensor] = torch.compile(
        attend, backend=BACKEND, dynamic=True, fullgraph=True
    )
    return compiled


AttentionInterface.register(NAME, _forward)
# A measured step goes back through one forward for each channel, so that its buffers must stay.
torch._functorch.config.donated_buffer = False
