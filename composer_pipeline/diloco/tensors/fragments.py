"""Which parameters make a fragment: the part of a model that one round merges.

Belongs here: dealing parameters by names and sizes, the same on every machine. Does not belong
here: whose turn it is in a round (``spec``) and what is merged (``merging``).
"""

import re
from collections.abc import Mapping

import torch

from composer_pipeline.diloco.spec import Fragment
from composer_pipeline.diloco.tensors.outer import Tensors
from composer_pipeline.errors import InputError

#: The beginning of a parameter's name up to the number of its layer.
_LAYER = re.compile(r"(?:.*?\.)??\d+(?=\.)")


def dealt(parameters: Mapping[str, torch.Tensor], count: int) -> list[list[str]]:
    """Return the names of each fragment's parameters, in their order; each name is in one.

    What belongs to one layer (or, outside of the layers, to one module) stays together. The
    largest go first, each to the fragment with the fewest elements so far; equal ones in the
    order of their numbers, so that neighbouring layers go to different fragments. With fewer of
    them than fragments, each parameter goes by itself.

    Raises:
        InputError: there are fewer parameters than fragments.
    """
    if len(parameters) < count:
        raise InputError(
            f"diloco.fragments is {count}, and the model has {len(parameters)} trained tensors:"
            " a fragment has one at least"
        )
    units: dict[str, list[str]] = {}
    for name in sorted(parameters):
        layer = _LAYER.match(name)
        units.setdefault(layer[0] if layer else name.rpartition(".")[0], []).append(name)
    if len(units) < count:
        units = {name: [name] for name in parameters}
    sizes = {unit: sum(parameters[n].numel() for n in names) for unit, names in units.items()}
    fragments: list[list[str]] = [[] for _ in range(count)]
    filled = [0] * count
    for unit in sorted(units, key=lambda unit: (-sizes[unit], _natural(unit))):
        # By the number of names too: a tensor without elements fills nothing.
        least = min(range(count), key=lambda index: (filled[index], len(fragments[index])))
        fragments[least] += units[unit]
        filled[least] += sizes[unit]
    return [sorted(names) for names in fragments]


def _natural(name: str) -> list[tuple[int, str]]:
    """Return what sorts names by the numbers in them: layer 2 before layer 10."""
    return [(int(part) if part.isdecimal() else -1, part) for part in re.split(r"(\d+)", name)]


def fragment_of(parameters: Mapping[str, torch.Tensor], count: int, fragment: Fragment) -> Tensors:
    """Return the parameters of one of ``count`` fragments (0-based), or ``ALL`` of them."""
    if isinstance(fragment, int):
        return {name: parameters[name] for name in dealt(parameters, count)[fragment]}
    return dict(parameters)
