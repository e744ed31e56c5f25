"""Which rows a replica sees, and when: drawn by state, so that rows which begin alike meet.

Belongs here: the order of rows, a function of recipe, data and slot alone, so that a restarted
replica goes on where its round begins and the base pass knows what is coming. Does not belong
here: who begins like whom (``trainers.trl.rows.beginnings``) and tensors
(``trainers.trl.rows.batches``).

A step draws several states. Around each one the channels take what they have left of it in their
epoch, or of a state whose prompt begins like it; where nothing does, a row of another state, rather
one of which other channels have something left too. Every channel sees each of its rows once an
epoch, and the rows of a step are as many as the recipe says.
"""

import random
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from composer_pipeline.errors import InputError
from composer_pipeline.training.data import CHANNELS, TrainingData
from composer_pipeline.training.recipe import TrainingRecipe
from trainers.trl.rows.beginnings import Beginnings

#: A row is drawn for its beginning where it has at least this part of its prompt in common.
ALIKE = 0.25
#: Where channels differ in their rows a step, a state brings this many of one channel.
AROUND = 2
#: Rows, drawn at random, among which a new state is chosen.
CANDIDATES = 16


def rows_of(data: TrainingData, channel: str) -> Sequence[Any]:
    """Return the rows that feed a channel."""
    rows: Sequence[Any] = getattr(data, CHANNELS[channel][0])
    return rows


def planned(recipe: TrainingRecipe, data: TrainingData, slot: int) -> dict[str, list[int]]:
    """Return, by channel, the row numbers that a replica takes in the whole run.

    Optimizer step k, from 0, takes those from k·n to (k + 1)·n, n being the channel's rows a
    step. A longer run begins with the rows of a shorter one.

    Raises:
        InputError: a weighted channel has no row.
    """
    per_step = recipe.channels.rows_per_step()
    rows = {channel: rows_of(data, channel) for channel in per_step}
    for channel, of in rows.items():
        if not of:
            raise InputError(f"channel {channel} has a weight and no row")
    alike = Beginnings(rows)
    own = _share(alike.places, recipe.seed, slot, recipe.diloco.replicas)
    draw = random.Random(f"{recipe.seed}/{slot}")  # noqa: S311 - an order, not a secret
    bags = {
        channel: _Bag([(alike.places[channel][i], i) for i in own[channel]], alike, draw)
        for channel in per_step
    }
    taken: dict[str, list[int]] = {channel: [] for channel in per_step}
    states = states_of(per_step)
    for _ in range(recipe.total_steps):
        for state in range(states):
            around: list[int] = []
            # The channel with the fewest rows left has the least choice, so it chooses first.
            order = sorted(per_step, key=lambda name: len(bags[name]))
            for at, channel in enumerate(order):
                many = per_step[channel]
                wanting = [bags[name] for name in order[at + 1 :]]
                filled = [bags[name] for name in order[:at]]
                for _ in range((state + 1) * many // states - state * many // states):
                    place, row = bags[channel].take(around, wanting, filled)
                    around.append(place)
                    taken[channel].append(row)
        for bag in bags.values():
            bag.end_of_step()
    return taken


def states_of(per_step: Mapping[str, int]) -> int:
    """Return around how many states a step draws its rows.

    As many as the channel with the fewest rows a step has rows, so that a run of one channel
    draws each of its rows by itself; and enough that no state brings more than two of a channel.
    """
    return max(min(per_step.values()), -(-max(per_step.values()) // AROUND))


class _Bag:
    """Rows of a channel that its epoch still holds, in the order of their places."""

    def __init__(
        self, rows: Sequence[tuple[int, int]], alike: Beginnings, draw: random.Random
    ) -> None:
        self._all, self._alike, self._draw = sorted(rows), alike, draw
        self._left = list(self._all)
        self._step: list[tuple[int, int]] = []
        self._early: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._left)

    def has(self, place: int) -> bool:
        """Say whether a row of a place is left."""
        at = bisect_left(self._left, (place, -1))
        return at < len(self._left) and self._left[at][0] == place

    def take(
        self, around: Sequence[int], wanting: Sequence["_Bag"], filled: Sequence["_Bag"]
    ) -> tuple[int, int]:
        """Return place and number of a row, the one that is most like the given places.

        Args:
            around: places of the rows that are drawn already.
            wanting: channels that draw after this one.
            filled: channels that have drawn.
        """
        if not self._left:
            self._refill()
        at = self._most_like(around)
        row = self._left.pop(self._new(wanting, filled) if at is None else at)
        self._step.append(row)
        return row

    def _new(self, wanting: Sequence["_Bag"], filled: Sequence["_Bag"]) -> int:
        """Return, of some rows drawn at random, one of a state that the step can make most of.

        That is one of which those that still draw have rows left, and the others none: theirs
        would later stand alone.
        """

        def worth(i: int) -> int:
            place = self._left[i][0]
            return sum(bag.has(place) for bag in wanting) - sum(bag.has(place) for bag in filled)

        many = len(self._left)
        return max(self._draw.sample(range(many), min(many, CANDIDATES)), key=worth)

    def end_of_step(self) -> None:
        """Let the rows that waited be drawn."""
        for row in self._early:
            insort(self._left, row)
        self._step, self._early = [], []

    def _refill(self) -> None:
        """Begin an epoch; a row that this step holds already waits for the next one."""
        if self._early:  # the step is longer than an epoch
            self._left, self._early = self._early, []
            return
        held = set(self._step)
        self._left = [row for row in self._all if row not in held]
        self._early = [row for row in self._all if row in held]
        if not self._left:
            self._left, self._early = self._early, []

    def _most_like(self, around: Sequence[int]) -> int | None:
        best, found = ALIKE, None
        for place in around:
            at = bisect_left(self._left, (place, -1))
            # In the order of beginnings nobody is more like a place than those beside it.
            for i in (at, at - 1):
                if 0 <= i < len(self._left):
                    alike = self._alike.shared(place, self._left[i][0])
                    if alike > best or (found is None and alike == best):
                        best, found = alike, i
        return found


def _share(
    places: Mapping[str, Sequence[int]], seed: int, slot: int, replicas: int
) -> dict[str, list[int]]:
    """Return the row numbers of one slot by channel: a channel's slots differ by one row at most.

    All rows of a state go to one slot as far as that allows. A channel with fewer rows than
    replicas is shared whole by all of them.
    """
    own = {c: list(range(len(of))) for c, of in places.items() if len(of) < replicas}
    dealt = {c: of for c, of in places.items() if c not in own}
    own |= {channel: [] for channel in dealt}
    room = {
        channel: [len(range(s, len(of), replicas)) for s in range(replicas)]
        for channel, of in dealt.items()
    }
    states = defaultdict[int, list[tuple[str, int]]](list)
    for channel, of in dealt.items():
        for row, place in enumerate(of):
            states[place].append((channel, row))
    order = sorted(states)
    random.Random(seed).shuffle(order)  # noqa: S311 - an order, not a secret
    slots = range(replicas)
    for place in order:
        rows = states[place]
        home = max(slots, key=lambda s: (sum(room[c][s] / len(dealt[c]) for c, _ in rows), -s))
        for channel, row in rows:
            left = room[channel]
            taker = home if left[home] else max(slots, key=lambda s: (left[s], -s))
            left[taker] -= 1
            if taker == slot:
                own[channel].append(row)
    return own
