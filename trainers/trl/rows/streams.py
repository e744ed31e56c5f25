"""Which rows a replica sees, and when.

Belongs here: the order of rows, a function of recipe, data and slot alone, so that a restarted
replica goes on where its round begins and the base pass knows what is coming. Does not belong
here: tensors (``trainers.trl.rows.batches``).

Each channel shuffles its rows again for every epoch. With ``draw: by-state`` one channel leads, and
each that follows changes places among its own rows, so that those of a state which is in the step
already come now. A row whose state no other channel has stays where the shuffle put it.
"""

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any
from zlib import crc32

from composer_pipeline.diloco.spec import shard
from composer_pipeline.errors import InputError
from composer_pipeline.training.data import CHANNELS, SomeRows, TrainingData, bytes_of
from composer_pipeline.training.recipe import TrainingRecipe

#: All hints, as they are before the gain gate. Who is in a step is drawn around them, and so is
#: the same for the base pass, which scores hints for the gate, and for the replicas behind it.
LEAD = "every hint"
#: Who leads and who follows. The hints that are taught come last, as the gate leaves them.
DRAWN = (LEAD, "dpo", "grpo", "sft", "sdpo")
CHANNEL_OF = {LEAD: "sdpo"}


class Stream:
    """Row numbers without end: a seeded shuffle of a replica's share, again for each epoch.

    Args:
        states: the state of each row of the share, by row number, in an order that is the same
            in every process.
        partners: states that other channels have too; their rows may change places.
        seed: of the run and the slot.

    Raises:
        InputError: there is no row.
    """

    def __init__(
        self, states: Mapping[int, int], *, partners: Iterable[int] = (), seed: str = "0"
    ) -> None:
        if not states:
            raise InputError("a channel with a weight has no row")
        self._states, self._partners, self._seed = states, frozenset(partners), seed
        self._of_state = defaultdict[int, list[int]](list)
        for row, state in states.items():
            self._of_state[state].append(row)
        self._epoch: list[int] = []
        self._place: dict[int, int] = {}
        self._next = self._epochs = 0

    def take(self, count: int, present: Sequence[int] = ()) -> list[int]:
        """Return the next ``count`` row numbers, those of the states that are present if any."""
        wanted = list(dict.fromkeys(present))
        taken = []
        for _ in range(count):
            if self._next == len(self._epoch):
                self._shuffle()
            row = self._epoch[self._next]
            if self._states[row] in self._partners:
                row = self._swapped(row, wanted)
                if self._states[row] in wanted:  # the others first
                    wanted.remove(self._states[row])
                    wanted.append(self._states[row])
            taken.append(row)
            self._next += 1
        return taken

    def _shuffle(self) -> None:
        self._epoch = list(self._states)
        shuffler = random.Random(f"{self._seed}/{self._epochs}")  # noqa: S311 - an order
        shuffler.shuffle(self._epoch)
        self._place = {row: place for place, row in enumerate(self._epoch)}
        self._next, self._epochs = 0, self._epochs + 1

    def _swapped(self, row: int, wanted: Sequence[int]) -> int:
        """Return a row of a wanted state that the epoch still holds; ``row`` takes its place."""
        left = (r for s in wanted for r in self._of_state[s] if self._place[r] >= self._next)
        other = next(left, row)
        place = self._place[other]
        self._epoch[self._next], self._epoch[place] = other, row
        self._place[other], self._place[row] = self._next, place
        return other


def rows_of(data: TrainingData, channel: str) -> Sequence[Any]:
    """Return the rows that feed a channel."""
    rows: Sequence[Any] = getattr(data, CHANNELS[channel][0])
    return rows


def planned(recipe: TrainingRecipe, data: TrainingData, slot: int) -> dict[str, list[int]]:
    """Return, by channel, the row numbers that a replica takes in the whole run.

    Optimizer step k, from 0, takes those from k·n to (k + 1)·n, n being the channel's rows a
    step. A longer run begins with the rows of a shorter one. No other channel's rows depend on
    which hints there are.

    Raises:
        InputError: a weighted channel has no row.
    """
    per_step = recipe.channels.rows_per_step()
    by_state = recipe.draw == "by-state"
    homes: dict[int, int] = {}
    own: dict[str, dict[int, int]] = {}
    for name in DRAWN if by_state else per_step:
        if CHANNEL_OF.get(name, name) not in per_step:
            continue
        states = _states(data, name) if by_state else range(len(rows_of(data, name)))
        share = _share(states, recipe.seed, slot, recipe.diloco.replicas, homes if by_state else {})
        own[name] = {row: states[row] for row in share}
    seed = f"{recipe.seed}/{slot}"
    streams = {}
    for name, mine in own.items():
        others = (own[n].values() for n in own if by_state and n not in (name, "sdpo"))
        streams[name] = Stream(mine, partners=set[int]().union(*others), seed=seed)
    taken: dict[str, list[int]] = {name: [] for name in own}
    for _ in range(recipe.total_steps):
        present: dict[str, list[int]] = {}
        for name, stream in streams.items():
            if name == "sdpo":  # it follows rows that are in the step
                present.pop(LEAD, None)
            count = per_step[CHANNEL_OF.get(name, name)]
            rows = stream.take(count, list(chain.from_iterable(present.values())))
            taken[name] += rows
            present[name] = [own[name][row] for row in rows]
    return {channel: taken[channel] for channel in per_step}


def _states(data: TrainingData, name: str) -> list[int]:
    """Return a number for each row: one for all rows with its prompt."""
    rows = rows_of(data, CHANNEL_OF.get(name, name))
    if name == LEAD and isinstance(rows, SomeRows):
        rows = rows.whole
    return [crc32(prompt) for prompt in bytes_of(rows, "prompt_ids")]


def _share(
    states: Sequence[int], seed: int, slot: int, replicas: int, homes: dict[int, int]
) -> list[int]:
    """Return the row numbers of a slot; slots differ by one row at most.

    A row goes where rows of its state went before, as far as there is room. A channel with fewer
    rows than replicas is shared whole by all of them.

    Args:
        states: of each row.
        seed: of the run; the split depends on nothing else.
        slot: 0-based replica.
        replicas: number of replicas.
        homes: the slot of each state that channels before have; gets this one's.
    """
    order = list(range(len(states)))
    random.Random(seed).shuffle(order)  # noqa: S311 - an order, not a secret
    if len(order) < replicas:
        return order
    room = [len(shard(len(order), slot=s, replicas=replicas)) for s in range(replicas)]
    slots: dict[int, int] = {}
    for row in order:
        home = homes.get(states[row])
        if home is not None and room[home]:
            slots[row] = home
            room[home] -= 1
    for at, row in enumerate(r for r in order if r not in slots):
        taker = at % replicas
        if not room[taker]:
            taker = max(range(replicas), key=lambda s: room[s])
        slots[row] = taker
        room[taker] -= 1
    for row in order:
        homes.setdefault(states[row], slots[row])
    return [row for row in order if slots[row] == slot]
