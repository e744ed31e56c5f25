"""An optimizer's state and the random numbers to come, as tensors and plain numbers.

Belongs here: taking them and putting them back. Does not belong here: the file (``file``).
"""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from composer_pipeline.diloco.tensors.outer import Tensors

#: Tensors and plain JSON of one thing that is kept.
Part = tuple[Tensors, dict[str, Any]]


def bare(optimizer: Any) -> torch.optim.Optimizer:
    """Return the optimizer itself: accelerate wraps it."""
    found: torch.optim.Optimizer = getattr(optimizer, "optimizer", optimizer)
    return found


def optimizer_state(optimizer: torch.optim.Optimizer) -> Part:
    """Return an optimizer's state as tensors and numbers, by ``<parameter's number>/<name>``.

    Its groups are left out: rates and decay are the recipe's, and the schedule's.
    """
    tensors, numbers = Tensors(), dict[str, Any]()
    for number, values in optimizer.state_dict()["state"].items():
        for name, value in values.items():
            key = f"{number}/{name}"
            if isinstance(value, torch.Tensor):
                tensors[key] = value
            else:
                numbers[key] = value
    return tensors, numbers


def load_optimizer_state(
    optimizer: torch.optim.Optimizer, tensors: Tensors, numbers: Mapping[str, Any]
) -> None:
    """Restore :func:`optimizer_state`; without any, the optimizer is as at its beginning."""
    state: dict[int, dict[str, Any]] = {}
    for key, value in {**tensors, **numbers}.items():
        number, _, name = key.partition("/")
        state.setdefault(int(number), {})[name] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def random_state() -> Part:
    """Return the random numbers to come of Python, NumPy, torch and this process's GPU."""
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    tensors = {
        "python": torch.tensor(words, dtype=torch.int64),
        "numpy": torch.from_numpy(np.asarray(keys).astype(np.int64)),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        tensors["cuda"] = torch.cuda.get_rng_state()
    return tensors, {
        "python": [version, gauss],
        "numpy": [kind, int(position), int(has_gauss), float(cached)],
    }


def set_random_state(tensors: Tensors, numbers: Mapping[str, Any]) -> None:
    """Restore :func:`random_state`."""
    version, gauss = numbers["python"]
    random.setstate((version, tuple(tensors["python"].tolist()), gauss))
    kind, position, has_gauss, cached = numbers["numpy"]
    keys = tensors["numpy"].numpy().astype(np.uint32)
    np.random.set_state((kind, keys, position, has_gauss, cached))
    torch.set_rng_state(tensors["torch"])
    if "cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["cuda"])
