"""A trainer on the device, and FlexAttention emulated where the device is a CPU."""

import pytest
import torch
from torch.nn.attention import flex_attention as flex

from tests.gpu import device
from tests.trainers.trl import toy
from trainers.common import attention


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    """On a CPU send trees through FlexAttention all the same, uncompiled."""
    if not device.CUDA:
        monkeypatch.setattr(attention, "DEVICES", ("cpu",))
        monkeypatch.setattr(attention, "BACKEND", "eager")
        monkeypatch.setattr(flex, "_validate_device", lambda *_: None)
    attention._compiled.cache_clear()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


@pytest.fixture
def make(tmp_path):
    """Build a trainer on random rows: ``make(recipe, model, data)``; its base pass is done."""

    def build(recipe, model, data, **options):
        folder = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
        trainer = toy.trainer(folder, model, toy.tokenizer(), recipe, data, **options)
        torch.manual_seed(5)
        with torch.no_grad():  # a fresh adapter is zero, and so are some gradients
            for name, parameter in trainer.policy.model.named_parameters():
                if parameter.requires_grad and "lora" in name:
                    parameter.add_(0.05 * torch.randn_like(parameter))
        return trainer

    return build
