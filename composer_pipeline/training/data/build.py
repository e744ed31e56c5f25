"""From the dataset tables to a folder of token windows.

Belongs here: reading, counting what was dropped and why, and when that is too much. Does not
belong here: what a row becomes (``training.data.make``) and the files
(``training.data.arrow_rows``). Imports no torch.

Rows are made part by part of a table and written to ``parts/``, so memory does not grow with their
number, and a build that was killed goes on with the part that is missing. In the end the parts
are joined, and the summary is written.
"""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from composer_pipeline.errors import InputError
from composer_pipeline.files import replace
from composer_pipeline.lake import Lake
from composer_pipeline.modes import make_folder
from composer_pipeline.training.data.arrow_rows import RowWriter, writing_rows
from composer_pipeline.training.data.folder import (
    CHANNELS,
    SUMMARY,
    TrainingData,
    file_of,
    finish,
)
from composer_pipeline.training.data.make import (
    LOST_FILE,
    ZERO_VARIANCE,
    Prompt,
    demonstration_of,
    group_of,
    hint_of,
    pair_of,
    success_of,
)
from composer_pipeline.training.data.tables import feeds
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.rewards import Grader
from composer_pipeline.training.windows import Dropped, Windows

_Row = Mapping[str, Any]
_Maker = Callable[[Prompt, _Row], Any]

#: Rows of a table in one part, and the folder of the parts.
PART, PARTS = 64, "parts"


def build(
    lake: Lake, tokenizer: Any, recipe: TrainingRecipe, folder: Path, *, split: str = "train"
) -> TrainingData:
    """Write the windows of a split for the weighted channels into ``folder``, and open it.

    Raises:
        InputError: a weighted channel has no usable row, or loses more rows than
            ``data.max_dropped_share`` (zero-variance groups are not counted as loss).
        StorageError: the disk is full or read-only.
    """
    make_folder(folder)
    for left in folder.rglob(".*.tmp"):  # of a build that was killed
        left.unlink()
    windows = Windows(tokenizer, recipe.data)
    consensus = _consensus(lake, split) if "sdpo" in recipe.channels.weights() else {}
    grpo = recipe.channels.grpo
    recorded, grader = not grpo.sampled, Grader(grpo.rewards)
    failed = _failed(lake, split) if "outcome" in grader.weights else None
    makers: dict[str, dict[str, _Maker]] = {
        "dataset_groups": {
            "grpo": lambda prompt, row: group_of(
                prompt,
                row,
                grader,
                recorded=recorded,
                failed=None if failed is None else row["state_id"] in failed,
            ),
            "sft": demonstration_of,
        },
        "dataset_hints": {
            "sdpo": lambda prompt, row: hint_of(prompt, row, consensus.get(row["state_id"])),
        },
        "dataset_pairs": {"dpo": pair_of},
        "dataset_successes": {"sft": success_of},
    }
    tables = feeds(recipe.channels)
    tally = {channel: Tally() for channel in recipe.channels.weights()}
    files: dict[str, list[Path]] = {channel: [] for channel in CHANNELS}
    for table in sorted({table for read in tables.values() for table in read}):
        making = {channel: makers[table][channel] for channel in tally if table in tables[channel]}
        for number, rows in enumerate(_parts(lake.iter_rows(table, split=split))):
            part = folder / PARTS / f"{table}-{number:06d}"
            if not (part / SUMMARY).is_file():
                _make(part, making, windows, rows)
            for channel, counted in json.loads((part / SUMMARY).read_bytes()).items():
                tally[channel].add(Tally(**counted))
                files[channel].append(file_of(part, CHANNELS[channel][0]))
    for channel, counted in tally.items():
        _check(recipe, channel, counted)
    for channel, (name, kind) in CHANNELS.items():
        with writing_rows(file_of(folder, name), kind) as out:
            for file in files[channel]:
                out.copy(file)
    finish(
        folder,
        {
            "seen": {channel: counted.seen for channel, counted in tally.items()},
            "dropped": {
                f"{channel}: {reason}": rows
                for channel, counted in tally.items()
                for reason, rows in sorted(counted.dropped.items())
            },
            "statistics": {channel: counted.statistics() for channel, counted in tally.items()},
        },
    )
    shutil.rmtree(folder / PARTS)
    return TrainingData.load(folder)


def _parts(rows: Iterator[_Row]) -> Iterator[list[_Row]]:
    """Yield rows in lists of :data:`PART`."""
    while part := list(islice(rows, PART)):
        yield part


def _make(part: Path, makers: Mapping[str, _Maker], windows: Windows, rows: Sequence[_Row]) -> None:
    """Write what some rows of a table become in each channel, and last of all their tally."""
    tally = {channel: Tally() for channel in makers}
    with ExitStack() as stack:
        out: dict[str, RowWriter[Any]] = {}
        for channel in makers:
            name, kind = CHANNELS[channel]
            out[channel] = stack.enter_context(writing_rows(file_of(part, name), kind))
        for row in rows:
            prompt = Prompt(windows, row)
            for channel, maker in makers.items():
                tally[channel].seen += 1
                try:
                    out[channel].append(maker(prompt, row))
                except Dropped as reason:
                    tally[channel].dropped[str(reason)] += 1
                else:
                    tally[channel].keep(prompt)
    replace(part / SUMMARY, json.dumps({name: vars(counted) for name, counted in tally.items()}))


@dataclass
class Tally:
    """What became of the rows of one channel."""

    seen: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    kept: int = 0
    cut: int = 0
    tokens: int = 0
    longest: int = 0

    def keep(self, prompt: "Prompt") -> None:
        """Count a row that is kept."""
        self.kept += 1
        self.cut += prompt.cut
        self.tokens += len(prompt.ids)
        self.longest = max(self.longest, len(prompt.ids))

    def add(self, other: "Tally") -> None:
        """Count the rows of another tally too."""
        self.seen += other.seen
        self.dropped.update(other.dropped)
        self.kept += other.kept
        self.cut += other.cut
        self.tokens += other.tokens
        self.longest = max(self.longest, other.longest)

    def statistics(self) -> dict[str, float]:
        """Return the numbers of ``TrainingData.statistics``; lengths are tokens of prompts."""
        return {
            "rows": self.kept,
            "cut_share": self.cut / max(1, self.kept),
            "prompt_tokens_mean": self.tokens / max(1, self.kept),
            "prompt_tokens_max": self.longest,
            "lost_file": self.dropped[LOST_FILE],
        }


def _check(recipe: TrainingRecipe, channel: str, counted: Tally) -> None:
    table, seen = " and ".join(feeds(recipe.channels)[channel]), counted.seen
    why = ", ".join(f"{rows} {reason}" for reason, rows in counted.dropped.most_common(6))
    if not counted.kept:
        raise InputError(
            f"channel {channel}: none of {seen} rows of {table} can be trained on"
            f" ({why or 'the split is empty'})"
        )
    lost = counted.dropped.total() - counted.dropped[ZERO_VARIANCE]
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
    counts = rows_of_tables(lake, recipe, split)
    for channel, rows in counts.items():
        if not rows:
            tables = feeds(recipe.channels)[channel]
            raise InputError(
                f"recipe field channels.{channel}.weight is not 0, but"
                f" table{'s' * (len(tables) > 1)} {' and '.join(tables)} of lake"
                f" {lake.url} has no row with split={split}"
            )
    return counts


def rows_of_tables(lake: Lake, recipe: TrainingRecipe, split: str) -> dict[str, int]:
    """Return the rows that the tables of each weighted channel have."""
    return {
        channel: sum(lake.read(t, columns=["state_id"], split=split).num_rows for t in tables)
        for channel, tables in feeds(recipe.channels).items()
    }


def _failed(lake: Lake, split: str) -> set[str]:
    """Return the states whose action the trace shows an error of."""
    rows = lake.iter_rows("dataset_hints", columns=["state_id"], split=split)
    return {row["state_id"] for row in rows}


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
