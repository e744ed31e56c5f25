"""From dataset rows to the token windows of every channel.

Belongs here: what a row of each channel becomes, which rows are dropped, and the count of
why. Does not belong here: rendering (``training.windows``), batches and tensors
(``trainers``). Imports no torch.

Traces hold text, not token ids, so windows are rendered by us, and SDPO on a recorded
action is off-policy context distillation. GRPO sees recorded groups with importance ratio
1, as if they were sampled from the current policy: a bias towards the recorded actions.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from composer_pipeline.errors import InputError
from composer_pipeline.files import replace
from composer_pipeline.lake import Lake
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.rewards import action_match
from composer_pipeline.training.windows import Dropped, Windows, action_message

#: Dropping these is how GRPO works, not a sign of wrong data.
ZERO_VARIANCE = "zero-variance group"
TABLE_OF = {"grpo": "dataset_groups", "sdpo": "dataset_hints", "dpo": "dataset_pairs"}


class Group(msgspec.Struct, frozen=True):
    """Recorded answers to one state with their rewards; ``group_size`` of each."""

    id: str
    prompt_ids: list[int]
    completions: list[list[int]]
    rewards: list[float]


class Pair(msgspec.Struct, frozen=True):
    """A preference pair; ``weight`` is that of the table, by what became of the agent's action."""

    id: str
    prompt_ids: list[int]
    chosen_ids: list[int]
    rejected_ids: list[int]
    weight: float = 1.0


class Hint(msgspec.Struct, frozen=True):
    """An error turn: one response behind a plain and behind a hinted prompt.

    ``start`` and ``length`` are the taught span inside ``response_ids``.
    """

    id: str
    prompt_ids: list[int]
    teacher_prompt_ids: list[int]
    response_ids: list[int]
    start: int
    length: int


class TrainingData(msgspec.Struct):
    """Everything that a replica needs, and what was left out and why.

    ``seen`` counts rows by channel, ``dropped`` rows by ``channel: reason``.
    """

    groups: list[Group]
    pairs: list[Pair]
    hints: list[Hint]
    seen: dict[str, int]
    dropped: dict[str, int]

    def counts(self) -> dict[str, int]:
        """Return the usable rows of each channel."""
        return {"grpo": len(self.groups), "sdpo": len(self.hints), "dpo": len(self.pairs)}

    def save(self, path: Path) -> None:
        """Write the data so that it appears whole or not at all."""
        replace(path, msgspec.msgpack.encode(self))

    @staticmethod
    def load(path: Path) -> "TrainingData":
        """Read :meth:`save`'s file."""
        return msgspec.msgpack.decode(path.read_bytes(), type=TrainingData)


def build(
    lake: Lake, tokenizer: Any, recipe: TrainingRecipe, *, split: str = "train"
) -> TrainingData:
    """Read a split of the dataset tables and return windows for the weighted channels.

    Raises:
        InputError: a weighted channel has no usable row, or loses more rows than
            ``data.max_dropped_share`` (zero-variance groups are not counted as loss).
    """
    windows = Windows(tokenizer, recipe.data)
    size = recipe.channels.grpo.group_size
    data = TrainingData([], [], [], {}, {})
    makers: dict[str, tuple[list[Any], Callable[[Mapping[str, Any]], Any]]] = {
        "grpo": (data.groups, lambda row: _group(windows, row, size)),
        "sdpo": (data.hints, lambda row: _hint(windows, row)),
        "dpo": (data.pairs, lambda row: pair(windows, row)),
    }
    for channel in recipe.channels.weights():
        out, make = makers[channel]
        rows = lake.rows(TABLE_OF[channel], split=split)
        reasons: Counter[str] = Counter()
        for row in rows:
            try:
                out.append(make(row))
            except Dropped as reason:
                reasons[str(reason)] += 1
        data.seen[channel] = len(rows)
        data.dropped |= {f"{channel}: {reason}": n for reason, n in sorted(reasons.items())}
        lost = reasons.total() - reasons[ZERO_VARIANCE]
        why = ", ".join(f"{n} {reason}" for reason, n in reasons.most_common())
        if not out:
            raise InputError(
                f"channel {channel}: none of {len(rows)} rows of {TABLE_OF[channel]} can be"
                f" trained on ({why or 'the split is empty'})"
            )
        if lost > recipe.data.max_dropped_share * len(rows):
            raise InputError(
                f"channel {channel}: {lost} of {len(rows)} rows of {TABLE_OF[channel]} dropped"
                f" ({why}), more than data.max_dropped_share {recipe.data.max_dropped_share}"
            )
    return data


def require_rows(lake: Lake, recipe: TrainingRecipe, *, split: str = "train") -> dict[str, int]:
    """Return the rows of each weighted channel, before any model is loaded.

    Raises:
        InputError: a weighted channel has none.
    """
    counts = {}
    for channel in recipe.channels.weights():
        table = TABLE_OF[channel]
        counts[channel] = lake.read(table, columns=["state_id"], split=split).num_rows
        if not counts[channel]:
            raise InputError(
                f"recipe field channels.{channel}.weight is not 0, but table {table} of lake"
                f" {lake.url} has no row with split={split}"
            )
    return counts


def loss_factors(pairs: Sequence[Pair]) -> dict[str, float]:
    """Return pair id to the factor of its loss: its weight over the mean weight of all pairs.

    The mean is over the whole channel and not over a batch: a batch of one pair would
    otherwise never be weighted. The mean factor is 1, so a weight moves attention between pairs
    and not the size of a step. Equal weights give exactly 1.0.

    Raises:
        InputError: a weight is not a number above 0 (weight 0 is dropped before the dataset).
    """
    for row in pairs:
        if not 0 < row.weight < math.inf:
            raise InputError(
                f"table dataset_pairs: pair {row.id}: weight must be above 0, not {row.weight}"
            )
    weights = [row.weight for row in pairs]
    if not weights or min(weights) == max(weights):
        return {row.id: 1.0 for row in pairs}
    mean = math.fsum(weights) / len(weights)
    return {row.id: row.weight / mean for row in pairs}


def pair(windows: Windows, row: Mapping[str, Any]) -> Pair:
    """Return a pair of ``dataset_pairs`` as token ids.

    Raises:
        Dropped: it does not fit, or both sides have the same tokens.
    """
    chosen, rejected = action_message(row["chosen"]), action_message(row["rejected"])
    window, tools = windows.window(row["prompt"], row["tools"] or [], [chosen, rejected])
    chosen_ids = windows.response_ids(window, tools, chosen)
    rejected_ids = windows.response_ids(window, tools, rejected)
    if chosen_ids == rejected_ids:
        raise Dropped("chosen equals rejected")
    prompt_ids = windows.prompt_ids(window, tools)
    weight = row.get("weight")
    return Pair(
        row["pair_id"], prompt_ids, chosen_ids, rejected_ids, 1.0 if weight is None else weight
    )


def _group(windows: Windows, row: Mapping[str, Any], size: int) -> Group:
    if not row["consensus"]:
        raise Dropped("no consensus")
    consensus = action_message(row["consensus"])
    candidates = [action_message([message]) for message in row["candidates"] or []]
    window, tools = windows.window(row["prompt"], row["tools"] or [], [*candidates, consensus])
    kept: list[tuple[list[int], float]] = []
    for candidate in candidates:
        try:
            ids = windows.response_ids(window, tools, candidate)
        except Dropped:
            continue
        kept.append((ids, action_match(candidate, consensus)))
    if not kept:
        raise Dropped("response is too long")
    kept = _exactly(kept, size)
    rewards = [reward for _, reward in kept]
    if max(rewards) - min(rewards) < 1e-9:
        raise Dropped(ZERO_VARIANCE)
    ids_of = [ids for ids, _ in kept]
    return Group(row["state_id"], windows.prompt_ids(window, tools), ids_of, rewards)


def _exactly(kept: list[tuple[list[int], float]], size: int) -> list[tuple[list[int], float]]:
    """Take ``size`` answers: all repeated in turn, or the extremes first and then in order."""
    if len(kept) > size:
        order = sorted(range(len(kept)), key=lambda i: kept[i][1])
        extremes = [order[0], order[-1]]
        rest = [i for i in range(len(kept)) if i not in extremes]
        kept = [kept[i] for i in sorted([*extremes, *rest][:size])]
    return [kept[i % len(kept)] for i in range(size)]


def _hint(windows: Windows, row: Mapping[str, Any]) -> Hint:
    if not (row["hint"] or "").strip():
        raise Dropped("empty hint")
    action = action_message(row["action"])
    window, tools = windows.window(row["prompt"], row["tools"] or [], [action])
    response = windows.response_ids(window, tools, action)
    call = -1 if row["span_call"] is None else int(row["span_call"])
    start, length = windows.span(window, tools, action, call)
    teacher = windows.prompt_ids(windows.hinted(window, row["hint"].strip()), tools)
    prompt = windows.prompt_ids(window, tools)
    return Hint(row["state_id"], prompt, teacher, response, start, length)
