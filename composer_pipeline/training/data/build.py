"""From dataset rows to the token windows of every channel.

Belongs here: what a row of each channel becomes, which rows are dropped, and the count of
why. Does not belong here: rendering (``training.windows``), the files
(``training.data.arrow_rows``), batches and tensors (``trainers``). Imports no torch.

Rows are read, made and written one by one, so memory does not grow with their number. A build
that was killed leaves no summary, and the next one begins again.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from composer_pipeline.errors import InputError
from composer_pipeline.lake import Lake
from composer_pipeline.training.data.arrow_rows import RowWriter, writing_rows
from composer_pipeline.training.data.folder import CHANNELS, TrainingData, file_of, finish
from composer_pipeline.training.data.rows import Demonstration, Group, Hint, Pair
from composer_pipeline.training.data.tables import TABLE_OF
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.rewards import action_match
from composer_pipeline.training.windows import Dropped, Windows, action_message

#: Dropping these is how GRPO works, not a sign of wrong data.
ZERO_VARIANCE = "zero-variance group"

_Row = Mapping[str, Any]


def build(
    lake: Lake, tokenizer: Any, recipe: TrainingRecipe, folder: Path, *, split: str = "train"
) -> TrainingData:
    """Write the windows of a split for the weighted channels into ``folder``, and open it.

    Raises:
        InputError: a weighted channel has no usable row, or loses more rows than
            ``data.max_dropped_share`` (zero-variance groups are not counted as loss).
        StorageError: the disk is full or read-only.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(".*.tmp"):  # of a build that was killed
        left.unlink()
    windows = Windows(tokenizer, recipe.data)
    consensus = _consensus(lake, split) if "sdpo" in recipe.channels.weights() else {}
    recorded = not recipe.channels.grpo.sampled
    makers: dict[str, Callable[[_Row], Any]] = {
        "grpo": lambda row: _group(windows, row, recorded=recorded),
        "sdpo": lambda row: _hint(windows, row, consensus.get(row["state_id"])),
        "dpo": lambda row: pair(windows, row),
        "sft": lambda row: _demonstration(windows, row),
    }
    seen: Counter[str] = Counter()
    dropped: dict[str, Counter[str]] = {c: Counter() for c in recipe.channels.weights()}
    with ExitStack() as stack:
        out: dict[str, RowWriter[Any]] = {
            channel: stack.enter_context(writing_rows(file_of(folder, name), kind))
            for channel, (name, kind) in CHANNELS.items()
        }
        for table in sorted({TABLE_OF[channel] for channel in dropped}):
            for row in lake.iter_rows(table, split=split):
                for channel in (c for c in dropped if TABLE_OF[c] == table):
                    seen[channel] += 1
                    try:
                        out[channel].append(makers[channel](row))
                    except Dropped as reason:
                        dropped[channel][str(reason)] += 1
        for channel, reasons in dropped.items():
            _check(recipe, channel, seen[channel], out[channel].count, reasons)
    finish(
        folder,
        {
            "seen": dict(seen),
            "dropped": {f"{c}: {r}": n for c, rs in dropped.items() for r, n in sorted(rs.items())},
            "statistics": {},
        },
    )
    return TrainingData.load(folder)


def _check(
    recipe: TrainingRecipe, channel: str, seen: int, kept: int, reasons: Counter[str]
) -> None:
    table = TABLE_OF[channel]
    why = ", ".join(f"{n} {reason}" for reason, n in reasons.most_common())
    if not kept:
        raise InputError(
            f"channel {channel}: none of {seen} rows of {table} can be trained on"
            f" ({why or 'the split is empty'})"
        )
    lost = reasons.total() - reasons[ZERO_VARIANCE]
    if lost > recipe.data.max_dropped_share * seen:
        raise InputError(
            f"channel {channel}: {lost} of {seen} rows of {table} dropped"
            f" ({why}), more than data.max_dropped_share {recipe.data.max_dropped_share}"
        )


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


def _consensus(lake: Lake, split: str) -> dict[str, list[Any]]:
    """Return state id to the consensus of the error turns that teachers answered too."""
    wanted = {
        row["state_id"]
        for row in lake.iter_rows("dataset_hints", columns=["state_id"], split=split)
    }
    columns = ["state_id", "consensus"]
    rows = lake.iter_rows("dataset_groups", columns=columns, split=split)
    return {
        row["state_id"]: row["consensus"]
        for row in rows
        if row["state_id"] in wanted and row["consensus"]
    }


def _group(windows: Windows, row: _Row, *, recorded: bool) -> Group:
    """Return a group; where the model answers too, recorded rewards may be all the same."""
    consensus = _consensus_of(row)
    candidates = [action_message([message]) for message in row["candidates"] or []]
    window, tools = windows.window(row["prompt"], row["tools"] or [], [*candidates, consensus])
    counts: Counter[tuple[int, ...]] = Counter()
    rewards: dict[tuple[int, ...], float] = {}
    for candidate in candidates:
        try:
            ids = tuple(windows.response_ids(window, tools, candidate))
        except Dropped:
            continue
        counts[ids] += 1
        rewards.setdefault(ids, action_match(candidate, consensus))
    if not counts:
        raise Dropped("response is too long")
    if recorded and max(rewards.values()) - min(rewards.values()) < 1e-9:
        raise Dropped(ZERO_VARIANCE)
    return Group(
        row["state_id"],
        windows.prompt_ids(window, tools),
        [list(ids) for ids in counts],
        list(counts.values()),
        list(rewards.values()),
        msgspec.json.encode(consensus).decode(),
    )


def _demonstration(windows: Windows, row: _Row) -> Demonstration:
    consensus = _consensus_of(row)
    window, tools = windows.window(row["prompt"], row["tools"] or [], [consensus])
    response = windows.response_ids(window, tools, consensus)
    return Demonstration(row["state_id"], windows.prompt_ids(window, tools), response)


def _consensus_of(row: _Row) -> dict[str, Any]:
    if not row["consensus"]:
        raise Dropped("no consensus")
    return action_message(row["consensus"])


def _hint(windows: Windows, row: _Row, consensus: list[Any] | None) -> Hint:
    if not (row["hint"] or "").strip():
        raise Dropped("empty hint")
    action = action_message(row["action"])
    window, tools = windows.window(row["prompt"], row["tools"] or [], [action])
    response = windows.response_ids(window, tools, action)
    call = -1 if row["span_call"] is None else int(row["span_call"])
    start, length = windows.span(window, tools, action, call)
    teacher = windows.prompt_ids(windows.hinted(window, row["hint"].strip()), tools)
    prompt = windows.prompt_ids(window, tools)
    target = _target(windows, window, tools, response, consensus, row["recovery"])
    return Hint(row["state_id"], prompt, teacher, response, start, length, target)


def _target(
    windows: Windows,
    window: Any,
    tools: Any,
    response: list[int],
    *known: list[Any] | None,
) -> list[int]:
    """Return the ids of the first better action that is one: not the failing one again."""
    for messages in known:
        try:
            ids = windows.response_ids(window, tools, action_message(messages or []))
        except Dropped:
            continue
        if ids != response:
            return ids
    return []
