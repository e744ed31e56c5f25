"""Small datasets of a few columns, as files and as the build that names them."""

from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from composer_pipeline.dataset.consent import Consent
from composer_pipeline.dataset.files import CONFIGS, file_path
from composer_pipeline.dataset.manifest import Build, DatasetFile
from composer_pipeline.lake.parquet import table_from_rows
from composer_pipeline.lake.schema import SCHEMA_VERSION, TABLES
from composer_pipeline.lake.store import Lake
from composer_pipeline.publishing.card import card_files

Row = dict[str, Any]


class File(NamedTuple):
    """One file of a publication."""

    config: str
    split: str
    local: Path


def dataset(
    folder: Path, rows: dict[tuple[str, str], list[Row]], figures: Row | None = None
) -> tuple[Build, list[File]]:
    """Write rows, whose other columns are null, by (configuration, split)."""
    files, named = [], []
    for (config, split), mine in rows.items():
        path = folder / f"{config}-{split}.parquet"
        pq.write_table(table_from_rows(TABLES[CONFIGS[config]], mine), path)
        files.append(File(config, split, path))
        size = path.stat().st_size
        named.append(
            DatasetFile(
                config=config, split=split, path=file_path(config, split), name=path.name,
                rows=len(mine), bytes=size, decoded=2 * size, sha256="0" * 64,
            )
        )  # fmt: skip
    return Build("b" * 16, SCHEMA_VERSION, {}, named, figures or {}), files


def pair(**columns: Any) -> Row:
    """Return a pair of the columns that a test is about."""
    known = {"pair_id": "p", "chosen_models": [], "tier": "gold", "outcome": "unknown",
             "chosen_text": "c", "rejected_text": "r", "task": "t",
             "recipe": "all@1", "training_terms": "enforced"}  # fmt: skip
    return {**known, **columns}


def made_card(
    folder: Path, rows: dict[tuple[str, str], list[Row]], consent: Consent | None = None
) -> str:
    """Return the card of rows, of a lake that has nothing else."""
    build, files = dataset(folder, rows)
    lake = Lake(folder / "lake")
    return card_files(lake, "a/b", build, files, consent=consent)["README.md"].decode()
