"""Rows to tensors, and the order of rows: what a step takes, micro-batches and response states.

Shapes: B rows, S positions, N selected response tokens, H hidden size, V vocabulary.
"""

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar
from zlib import crc32

import torch
from torch import Tensor

from composer_pipeline.errors import InputError
from composer_pipeline.losses.divergence import LogitTransform
from composer_pipeline.training.plan import Load, RowSize, loads_of, shared_loads
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.rows import CHANNELS, SomeRows, TrainingData, bytes_of

T = TypeVar("T")
#: Configuration fields that multiply logits.
MULTIPLIERS = ("logit_scale", "output_multiplier", "lm_head_multiplier")


@dataclass(frozen=True)
class Row:
    """A response after a prompt, and the span of it that counts."""

    prompt: Sequence[int]
    response: Sequence[int]
    start: int = 0
    length: int | None = None

    @property
    def size(self) -> int:
        """Selected response tokens."""
        return len(self.response) - self.start if self.length is None else self.length


def micro_batches(rows: Sequence[T], sizes: Sequence[int], limit: int) -> list[list[T]]:
    """Pack rows of like size into padded micro-batches of at most ``limit`` tokens, or one row."""
    order = sorted(range(len(rows)), key=lambda i: -sizes[i])
    batches: list[list[int]] = []
    for i in order:
        # The first row of a batch is its longest.
        if batches and (len(batches[-1]) + 1) * sizes[batches[-1][0]] <= limit:
            batches[-1].append(i)
        else:
            batches.append([i])
    return [[rows[i] for i in batch] for batch in batches]


def padded(rows: Sequence[Row], pad: int, device: Any) -> tuple[Tensor, Tensor]:
    """Return right-padded ids and attention mask, both (B, S)."""
    sequences = [[*row.prompt, *row.response] for row in rows]
    width = max(len(sequence) for sequence in sequences)
    ids = torch.full((len(rows), width), pad, dtype=torch.long)
    # Made from lengths: a pad id may equal the end token.
    mask = torch.zeros((len(rows), width), dtype=torch.long)
    for i, sequence in enumerate(sequences):
        ids[i, : len(sequence)] = torch.tensor(sequence, dtype=torch.long)
        mask[i, : len(sequence)] = 1
    return ids.to(device), mask.to(device)


def backbone_and_head(model: Any) -> tuple[Any, Tensor]:
    """Return the module that yields hidden states, and the head's weight (V, H)."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    head = base.get_output_embeddings()
    if getattr(head, "bias", None) is not None:
        kind = base.config.get_text_config().model_type
        raise InputError(f"model {kind}: a head with a bias is not supported")
    return base.base_model, head.weight


def logit_transform(model: Any) -> LogitTransform:
    """Return how a model scales and caps its logits (Gemma, Cohere, Granite, Falcon-H1)."""
    config = model.config.get_text_config()
    scale = next(
        (getattr(config, name) for name in MULTIPLIERS if getattr(config, name, None) is not None),
        1.0,
    )
    if (scaling := getattr(config, "logits_scaling", None)) is not None:
        # HyperCLOVA X multiplies by what the others divide by.
        scale = scaling if config.model_type == "hyperclovax" else 1.0 / scaling
    return LogitTransform(float(scale), getattr(config, "final_logit_softcapping", None))


def response_states(
    backbone: Any, rows: Sequence[Row], pad: int, device: Any
) -> tuple[Tensor, Tensor]:
    """Return the states (N, H) that predict the rows' selected tokens, and these tokens (N,)."""
    ids, mask = padded(rows, pad, device)
    hidden = backbone(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
    batch: list[int] = []
    position: list[int] = []
    for i, row in enumerate(rows):
        first = len(row.prompt) + row.start
        batch += [i] * row.size
        position += range(first, first + row.size)
    at, where = torch.tensor(batch, device=device), torch.tensor(position, device=device)
    return hidden[at, where - 1], ids[at, where]


#: All hints, before the gain gate. A step's other rows are drawn around them, so that the base
#: pass, which scores hints for the gate, and the replicas after it draw the same rows.
LEAD = "every hint"
#: Order of drawing; the hints that passed the gate come last.
DRAWN = (LEAD, "dpo", "grpo", "sft", "sdpo")
CHANNEL_OF = {LEAD: "sdpo"}


class Stream:
    """Endless row numbers: a seeded shuffle of a replica's share for each epoch.

    ``states`` maps the share's row numbers to states, in a fixed order; rows of ``partners``, the
    states of other channels, may change places.
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
        """Return the next ``count`` row numbers, preferring rows of the states ``present``."""
        wanted = list(dict.fromkeys(present))
        taken = []
        for _ in range(count):
            if self._next == len(self._epoch):
                self._shuffle()
            row = self._epoch[self._next]
            if self._states[row] in self._partners:
                row = self._swapped(row, wanted)
                if self._states[row] in wanted:  # serve the other states first
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
    """Return the rows of a channel."""
    rows: Sequence[Any] = getattr(data, CHANNELS[channel][0])
    return rows


def planned(recipe: TrainingRecipe, data: TrainingData, slot: int) -> dict[str, list[int]]:
    """Return, by channel, the row numbers that a replica takes in the whole run.

    Optimizer step k, from 0, takes those from k·n to (k + 1)·n, n being the channel's rows a
    step. A longer run begins with the rows of a shorter one. No other channel's rows depend on
    which hints there are.
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
    """Return a number for each row that is equal for rows with the same prompt."""
    rows = rows_of(data, CHANNEL_OF.get(name, name))
    if name == LEAD and isinstance(rows, SomeRows):
        rows = rows.whole
    return [crc32(prompt) for prompt in bytes_of(rows, "prompt_ids")]


def _share(
    states: Sequence[int], seed: int, slot: int, replicas: int, homes: dict[int, int]
) -> list[int]:
    """Return the row numbers of a slot; slots differ by one row at most.

    A row goes to its state's slot in earlier channels (``homes``, which is extended), if there is
    room. A channel with fewer rows than replicas gives all of them to each.
    """
    order = list(range(len(states)))
    random.Random(seed).shuffle(order)  # noqa: S311 - an order, not a secret
    if len(order) < replicas:
        return order
    room = [len(range(s, len(order), replicas)) for s in range(replicas)]
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


def sizes_of(row: Any, channel: str) -> list[RowSize]:
    """Return what a row brings into a window: a group its answers, any other row itself."""
    prompt = len(row.prompt_ids)
    if channel == "grpo":
        lengths = [len(answer) for answer in row.completions]
        return [RowSize(prompt + n, prompt, (n,), n) for n in lengths]
    if channel == "dpo":
        sides = (len(row.chosen_ids), len(row.rejected_ids))
        return [RowSize(2 * (prompt + max(sides)), prompt, sides, sum(sides))]
    answer = len(row.response_ids)
    if channel == "sdpo":
        # What is kept for backward is the policy's forward; the teacher's counts for packing.
        size = max(prompt, len(row.teacher_prompt_ids)) + answer
        return [RowSize(size, prompt, (answer,), row.length)]
    return [RowSize(prompt + answer, prompt, (answer,), answer)]


def windows_of(
    recipe: TrainingRecipe, data: TrainingData, *, slot: int = 0
) -> dict[str, list[list[RowSize]]]:
    """Return, by channel, the row sizes of each optimizer step of a replica."""
    out = {}
    plans = planned(recipe, data, slot)
    for channel, per_step in recipe.channels.rows_per_step().items():
        rows = rows_of(data, channel)
        taken = plans[channel]
        known: dict[int, list[RowSize]] = {}
        for number in taken:
            if number not in known:
                known[number] = sizes_of(rows[number], channel)
        out[channel] = [
            [size for number in taken[start : start + per_step] for size in known[number]]
            for start in range(0, len(taken), per_step)
        ]
    return out


def loads(recipe: TrainingRecipe, windows: dict[str, list[list[RowSize]]]) -> list[Load]:
    """Return the distinct forwards of windows; in trees, unless the recipe says otherwise."""
    apart = loads_of(recipe, packed(windows, recipe))
    if recipe.shared_prefix == "off":
        return apart
    longest = recipe.data.max_prompt_tokens
    cut = {c: [[_cut(row, longest) for row in w] for w in many] for c, many in windows.items()}
    sampled = [load for load in apart if load.cache]
    return [*sampled, *shared_loads(cut, recipe.micro_batch_tokens)]


def packed(
    windows: dict[str, list[list[RowSize]]], recipe: TrainingRecipe
) -> dict[str, list[list[RowSize]]]:
    """Return the micro-batches of windows, with prompts cut to the recipe's length."""
    longest = recipe.data.max_prompt_tokens
    return {
        channel: [
            batch
            for window in many
            for batch in _micro_batches([_cut(row, longest) for row in window], recipe)
        ]
        for channel, many in windows.items()
    }


def _micro_batches(rows: Sequence[RowSize], recipe: TrainingRecipe) -> list[list[RowSize]]:
    return micro_batches(rows, [row.size for row in rows], recipe.micro_batch_tokens)


def _cut(row: RowSize, longest: int) -> RowSize:
    over = row.prompt - longest
    if over <= 0:
        return row
    return RowSize(row.size - over * len(row.responses), longest, row.responses, row.selected)
