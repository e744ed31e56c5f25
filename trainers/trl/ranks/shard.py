"""The model's layers in parts, one a rank (PyTorch's FSDP2), and tensors that are whole again.

Belongs here: ``fully_shard`` on a backbone, and the way between parts and whole tensors. Does not
belong here: when they are needed (``trainers.trl.ranks.outer``).

The decoder layers are cut; embeddings, last norm and head stay whole on every rank, since the
losses read the head's weight outside of any forward. An adapter comes after the cut and stays
whole too: with LoRA everything that is trained is an ordinary tensor.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from composer_pipeline.errors import InputError
from trainers.trl.ranks.group import Ranks
from trainers.trl.rows.batches import backbone_and_head


def shard(model: Any, ranks: Ranks) -> None:
    """Cut a bare model's layers over the ranks; gradients of them are summed, not averaged.

    On an accelerator each layer moves there as it is cut, so that no rank needs room for all.

    Raises:
        InputError: the model has no list of layers.
    """
    backbone, _ = backbone_and_head(model)
    layers = getattr(backbone, "layers", None)
    if not isinstance(layers, torch.nn.ModuleList):
        raise InputError(
            f"recipe field ranks.sharding: the layers of model {model.config.model_type} are not"
            " known; use ddp"
        )
    mesh = init_device_mesh("cuda" if torch.cuda.is_available() else "cpu", (ranks.size,))
    inside = {id(p) for p in layers.parameters()}
    whole = {p for p in backbone.parameters() if id(p) not in inside}
    for module in (*layers, backbone):
        fully_shard(module, mesh=mesh, ignored_params=whole)
    for module in (*layers, backbone):
        module.set_gradient_divide_factor(1.0)
        # Gloo has no sum that multiplies first.
        module.set_force_sum_reduction_for_comms(True)
    # Sampling must go on until the last rank is through (transformers' synced_gpus).
    model._is_fsdp_managed_module = True


def part(tensor: Tensor) -> Tensor:
    """Return what this rank holds of a tensor: all of it, where it is not cut."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def is_cut(tensor: Tensor) -> bool:
    """Return whether a tensor is in parts."""
    return isinstance(tensor, DTensor)


def whole(tensor: Tensor) -> Tensor:
    """Return a whole copy on the CPU; every rank must ask where it is in parts."""
    full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return full.detach().cpu()


def take_part(tensor: Tensor, full: Tensor, ranks: Ranks) -> None:
    """Set what this rank holds of a tensor from a whole one."""
    pieces: Sequence[Tensor] = full.chunk(ranks.size)
    own = part(tensor)
    if own.numel():  # fewer rows than ranks leave the last ones none
        own.copy_(pieces[ranks.rank])
