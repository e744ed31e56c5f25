"""Bytes that are no state are refused."""

import pytest
import torch
from safetensors.torch import save

from composer_pipeline.diloco.codecs import decode_state, encode_state
from composer_pipeline.diloco.log import CorruptObject
from composer_pipeline.diloco.outer_optimizer import OuterState


def test_a_state_has_pairs_of_tensors_and_nothing_else() -> None:
    state = OuterState.initial({"w": torch.ones(2)})
    assert torch.equal(decode_state(bytes(encode_state(state))).theta["w"], state.theta["w"])
    pair = {"theta.w": torch.ones(2), "momentum.w": torch.zeros(2)}
    for foreign in ({"step": torch.ones(1)}, {"theta.v": torch.ones(1)}):
        with pytest.raises(CorruptObject, match="not pairs"):
            decode_state(save(pair | foreign))
