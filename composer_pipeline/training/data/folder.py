"""A run's ``data`` folder: one Arrow file a channel and, last of all, ``data.json``.

Belongs here: the files' names and what makes the folder complete. Does not belong here: how
rows lie in a file (``training.data.arrow_rows``) and what they are (``training.data.build``).
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from composer_pipeline.errors import InputError
from composer_pipeline.files import replace
from composer_pipeline.training.data.arrow_rows import ArrowRows
from composer_pipeline.training.data.rows import Demonstration, Group, Hint, Pair

#: Its presence makes the folder complete.
SUMMARY = "data.json"
#: Channel to the field of :class:`TrainingData`, which is the file's name too, and its rows.
CHANNELS: dict[str, tuple[str, type[Any]]] = {
    "grpo": ("groups", Group),
    "sdpo": ("hints", Hint),
    "dpo": ("pairs", Pair),
    "sft": ("demonstrations", Demonstration),
}


class TrainingData(msgspec.Struct):
    """Everything that a replica needs, and what was left out and why.

    ``seen`` counts rows by channel, ``dropped`` rows by ``channel: reason``, and
    ``statistics`` holds numbers about the kept rows by channel.
    """

    groups: Sequence[Group] = ()
    pairs: Sequence[Pair] = ()
    hints: Sequence[Hint] = ()
    demonstrations: Sequence[Demonstration] = ()
    seen: dict[str, int] = {}
    dropped: dict[str, int] = {}
    statistics: dict[str, dict[str, float]] = {}

    def counts(self) -> dict[str, int]:
        """Return the usable rows of each channel."""
        return {channel: len(getattr(self, name)) for channel, (name, _) in CHANNELS.items()}

    @staticmethod
    def is_complete(folder: Path) -> bool:
        """Say whether a build has finished in ``folder``."""
        return (folder / SUMMARY).is_file()

    @staticmethod
    def load(folder: Path) -> "TrainingData":
        """Open a finished folder; rows are decoded one by one from memory maps.

        Raises:
            InputError: the folder is not complete, or a file of it is damaged.
        """
        if not TrainingData.is_complete(folder):
            raise InputError(f"{folder} holds no finished training data")
        summary = json.loads((folder / SUMMARY).read_bytes())
        rows: dict[str, Any] = {
            name: ArrowRows(file_of(folder, name), kind) for name, kind in CHANNELS.values()
        }
        return TrainingData(**rows, **summary)


def file_of(folder: Path, name: str) -> Path:
    """Return the file of one field of :class:`TrainingData`."""
    return folder / f"{name}.arrow"


def finish(folder: Path, summary: dict[str, Any]) -> None:
    """Make a folder complete: ``summary`` has ``seen``, ``dropped`` and ``statistics``."""
    replace(folder / SUMMARY, json.dumps(summary, indent=1))
