"""What a restarted replica needs besides the committed parameters, in its own folder.

Belongs here: one file a replica, written whole at the end of each round. Does not belong here:
the outer log, which holds what replicas share. The optimizer's moments are not kept: they are
twice the size of the parameters, and DiLoCo does not merge them.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from composer_pipeline.files import replace
from trainers.trl.channels.base import Channel


def save_state(file: Path, channels: Sequence[Channel[Any]], step: int) -> None:
    """Write the channels' states as they are after ``step`` steps of the run."""
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, Any] = {}
    for channel in channels:
        own, numbers[channel.name] = channel.state()
        tensors |= {f"{channel.name}/{name}": tensor.contiguous() for name, tensor in own.items()}
    metadata = {"step": str(step), "numbers": json.dumps(numbers)}
    replace(file, save(tensors, metadata))


def load_state(file: Path, channels: Sequence[Channel[Any]], step: int) -> bool:
    """Restore a state of the same step; return whether there was one."""
    if not file.is_file():
        return False
    with safe_open(str(file), framework="pt") as source:
        metadata = source.metadata()
        if int(metadata["step"]) != step:
            return False
        tensors = {name: source.get_tensor(name) for name in source.keys()}  # noqa: SIM118
    numbers = json.loads(metadata["numbers"])
    for channel in channels:
        prefix = f"{channel.name}/"
        own = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
        channel.load_state(own, numbers[channel.name])
    return True
