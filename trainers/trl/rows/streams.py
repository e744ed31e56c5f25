"""Which rows a replica sees, and when.

Belongs here: the order of rows, a function of recipe, data and slot alone, so that a restarted
replica goes on where its round begins and the base pass knows what is coming. Does not belong
here: tensors (``trainers.trl.rows.batches``).
"""

import random
from collections.abc import Sequence
from typing import Any

from composer_pipeline.diloco.spec import shard
from composer_pipeline.errors import InputError
from composer_pipeline.training.data import CHANNELS, TrainingData
from composer_pipeline.training.recipe import TrainingRecipe


class Stream:
    """Row numbers without end: a seeded shuffle of a replica's share, again for each epoch.

    A channel with fewer rows than replicas is shared whole by all of them.

    Args:
        rows: number of rows of the channel.
        seed: of the run; the split between replicas depends on nothing else.
        slot: 0-based replica.
        replicas: number of replicas.

    Raises:
        InputError: there is no row.
    """

    def __init__(self, rows: int, *, seed: int, slot: int = 0, replicas: int = 1) -> None:
        if not rows:
            raise InputError("a channel with a weight has no row")
        order = list(range(rows))
        random.Random(seed).shuffle(order)  # noqa: S311 - an order, not a secret
        if rows >= replicas:
            order = [order[i] for i in shard(rows, slot=slot, replicas=replicas)]
        self._rows, self._seed, self._slot = order, seed, slot
        self._epoch: list[int] = []
        self._epochs = 0

    def take(self, count: int) -> list[int]:
        """Return the next ``count`` row numbers."""
        while len(self._epoch) < count:
            again = list(self._rows)
            shuffler = random.Random(f"{self._seed}/{self._slot}/{self._epochs}")  # noqa: S311
            shuffler.shuffle(again)
            self._epoch += again
            self._epochs += 1
        out, self._epoch = self._epoch[:count], self._epoch[count:]
        return out


def rows_of(data: TrainingData, channel: str) -> Sequence[Any]:
    """Return the rows that feed a channel."""
    rows: Sequence[Any] = getattr(data, CHANNELS[channel][0])
    return rows


def planned(recipe: TrainingRecipe, rows: int, channel: str, slot: int) -> list[int]:
    """Return the row numbers that a replica takes from a channel of ``rows`` rows in the whole run.

    Optimizer step k, from 0, takes those from k·n to (k + 1)·n, n being its rows a step.

    Raises:
        InputError: the channel has no row.
    """
    replicas = recipe.diloco.replicas
    stream = Stream(rows, seed=recipe.seed, slot=slot, replicas=replicas)
    return stream.take(recipe.total_steps * recipe.channels.rows_per_step()[channel])
