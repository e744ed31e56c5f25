"""The files of a dataset as they are at one moment, on the local disk.

Belongs here: which files of the lake are published, and keeping them from changing between gate and
upload. Does not belong here: how they were built (``publishing.dataset``).
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from composer_pipeline.errors import InputError
from composer_pipeline.lake import Lake
from composer_pipeline.publishing.configs import CONFIGS, file_path
from composer_pipeline.publishing.splits import SPLITS


@dataclass(frozen=True)
class DataFile:
    """A Parquet file: ``path`` in the repository, ``local`` on this disk, and its rows."""

    config: str
    split: str
    path: str
    local: Path
    rows: int


def snapshot(lake: Lake, folder: Path) -> list[DataFile]:
    """Take the lake's files with rows into ``folder`` and return them.

    A file of a local lake is linked, where the disk allows: a build that replaces it makes a new
    one. ``load_dataset`` fails on a split whose files hold no row, so there is no such file.

    Raises:
        InputError: the dataset has not been built, or is empty.
    """
    found = []
    for config, table in CONFIGS.items():
        for split in SPLITS:
            name = lake.path(table, split=split).removeprefix(lake.root + "/")
            if not lake.exists(name):
                raise InputError(f"lake {lake.url} has no {table} of split {split}; run dataset")
            lake.read(table, split=split, columns=[])  # damage is told by the file's name
            local = folder / f"{config}-{split}.parquet"
            _take(lake, name, local)
            if rows := pq.read_metadata(local).num_rows:
                found.append(DataFile(config, split, file_path(config, split), local, rows))
    if not any(file.config == "pairs" for file in found):
        raise InputError(f"lake {lake.url}: the dataset has no pair; nothing to publish")
    return found


def _take(lake: Lake, name: str, local: Path) -> None:
    if lake.local:
        try:
            os.link(f"{lake.root}/{name}", local)
        except OSError:  # another disk
            shutil.copyfile(f"{lake.root}/{name}", local)
        return
    with lake.open(name) as source, local.open("wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
