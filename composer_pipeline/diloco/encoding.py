"""States and deltas as safetensors bytes.

Belongs here: encoding, decoding and the hash of a state. Does not belong here: arithmetic
(``outer``) and the store.
"""

from collections.abc import Mapping

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from composer_pipeline.diloco.log import CorruptObject, sha256
from composer_pipeline.diloco.outer import OuterState, Tensors


def encode_state(state: OuterState) -> bytes:
    """Return the state as safetensors bytes; equal states give equal bytes."""
    tensors = {f"theta.{name}": tensor for name, tensor in state.theta.items()}
    tensors |= {f"momentum.{name}": tensor for name, tensor in state.momentum.items()}
    return bytes(save(tensors))


def decode_state(data: bytes) -> OuterState:
    """Return the state in ``data``.

    Raises:
        CorruptObject: not safetensors, or tensors other than pairs of θ and momentum.
    """
    tensors = _load(data)
    theta = {n.removeprefix("theta."): t for n, t in tensors.items() if n.startswith("theta.")}
    momentum = {
        n.removeprefix("momentum."): t for n, t in tensors.items() if n.startswith("momentum.")
    }
    if theta.keys() != momentum.keys() or len(tensors) != 2 * len(theta):
        raise CorruptObject("the state's tensors are not pairs of theta and momentum")
    return OuterState(theta, momentum)


def state_sha(state: OuterState) -> str:
    """Return the SHA-256 of the encoded state, which identifies it in the log."""
    return sha256(encode_state(state))


def encode_delta(delta: Mapping[str, torch.Tensor]) -> bytes:
    """Return a delta as safetensors bytes (codec ``fp32``: 4 bytes a parameter)."""
    return bytes(save(dict(delta)))


def decode_delta(data: bytes, like: Mapping[str, torch.Tensor]) -> Tensors:
    """Return the delta in ``data``, checked against the parameters it is for.

    Raises:
        CorruptObject: not safetensors, other names, shapes or dtypes, or a value that is
            not finite.
    """
    tensors = _load(data)
    if tensors.keys() != like.keys():
        raise CorruptObject("the delta's parameter names are not the model's")
    for name, tensor in tensors.items():
        if tensor.shape != like[name].shape or tensor.dtype != torch.float32:
            raise CorruptObject(f"the delta of {name} is {tensor.dtype} {tuple(tensor.shape)}")
        if not bool(torch.isfinite(tensor).all()):
            raise CorruptObject(f"the delta of {name} has values that are not finite")
    return tensors


def _load(data: bytes) -> Tensors:
    try:
        return dict(load(data))
    except SafetensorError as error:
        raise CorruptObject(f"not a safetensors object: {error}") from None
