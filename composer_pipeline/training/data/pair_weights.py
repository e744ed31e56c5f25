"""How much each preference pair counts.

Belongs here: weights of a table to factors of a loss. Does not belong here: the weights
themselves (``preferences``) and the loss (``losses.preference``).
"""

import math
from collections.abc import Sequence

from composer_pipeline.errors import InputError
from composer_pipeline.training.data.arrow_rows import column_of
from composer_pipeline.training.data.rows import Pair


def loss_factors(pairs: Sequence[Pair]) -> dict[str, float]:
    """Return pair id to the factor of its loss: its weight over the mean weight of all pairs.

    The mean is over the whole channel and not over a batch: a batch of one pair would
    otherwise never be weighted. The mean factor is 1, so a weight moves attention between pairs
    and not the size of a step. Equal weights give exactly 1.0.

    Raises:
        InputError: a weight is not a number above 0 (weight 0 is dropped before the dataset).
    """
    ids, weights = column_of(pairs, "id"), column_of(pairs, "weight")
    for name, weight in zip(ids, weights, strict=True):
        if not 0 < weight < math.inf:
            raise InputError(
                f"table dataset_pairs: pair {name}: weight must be above 0, not {weight}"
            )
    if not weights or min(weights) == max(weights):
        return dict.fromkeys(ids, 1.0)
    mean = math.fsum(weights) / len(weights)
    return {name: weight / mean for name, weight in zip(ids, weights, strict=True)}
