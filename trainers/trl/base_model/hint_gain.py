"""The hint-gain gate: only hints that help the base model are taught.

Belongs here: which rows pass, and the statistics of it. Does not belong here: the numbers
themselves (``trainers.trl.base_model.base_pass``).
"""

from collections.abc import Mapping
from statistics import quantiles

import msgspec

from composer_pipeline.errors import InputError
from composer_pipeline.training.data import SomeRows, TrainingData, column_of
from composer_pipeline.training.recipe import TrainingRecipe


def gate(
    recipe: TrainingRecipe, data: TrainingData, gains: Mapping[str, float]
) -> tuple[TrainingData, dict[str, float]]:
    """Return the data with the hints that pass, and the numbers of the gate.

    The numbers: ``hints_seen``, ``hints_kept_share`` and the quartiles of the gain in nats. With
    ``channels.sdpo.hint_gain: false`` everything is kept and the numbers are the same.

    Raises:
        InputError: the channel has a weight and no hint passes.
    """
    if "sdpo" not in recipe.channels.weights() or not data.hints:
        return data, {}
    ids = column_of(data.hints, "id")
    kept = [i for i, name in enumerate(ids) if gains[name] > 0]
    values = sorted(gains[name] for name in ids)
    numbers = {"hints_seen": float(len(values)), "hints_kept_share": len(kept) / len(values)}
    quarters = quantiles(values, n=4) if len(values) > 1 else values * 3
    numbers |= {f"hint_gain_p{25 * (i + 1)}": value for i, value in enumerate(quarters)}
    if not recipe.channels.sdpo.hint_gain:
        return data, numbers
    if not kept:
        raise InputError(
            f"channel sdpo: none of {len(values)} hints helps the base model (gain at most"
            f" {values[-1]:.3g} nats): set channels.sdpo.weight to 0, use a larger model, or"
            " train on them all the same with channels.sdpo.hint_gain: false"
        )
    return msgspec.structs.replace(data, hints=SomeRows(data.hints, kept)), numbers
