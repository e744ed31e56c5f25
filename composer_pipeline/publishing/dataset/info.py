"""Features and row counts of a build, for the card's YAML.

Belongs here: ``dataset_info`` as the Hub and ``datasets`` read it. Does not belong here: the rest
of the card. ``datasets`` compares the counts with what it loads, so a partial dataset is found.
"""

from typing import Any

import pyarrow as pa

from composer_pipeline.lake import JSON_LIST, TABLES
from composer_pipeline.publishing.configs import CONFIGS
from composer_pipeline.publishing.dataset.marker import Build

_NAMES = {pa.string(): "string", pa.bool_(): "bool", pa.int32(): "int32", pa.int64(): "int64",
          pa.float64(): "float64"}  # fmt: skip


def dataset_info(build: Build) -> list[dict[str, Any]]:
    """Return an entry for each configuration that has a file, in the order of the files."""
    return [
        {
            "config_name": config,
            "features": [_feature(field) for field in TABLES[CONFIGS[config]].schema],
            "splits": _splits(build, config),
            "download_size": sum(f.bytes for f in build.files if f.config == config),
            "dataset_size": sum(f.decoded for f in build.files if f.config == config),
        }
        for config in dict.fromkeys(file.config for file in build.files)
    ]


def _splits(build: Build, config: str) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for file in build.files:
        if file.config == config:
            split = found.setdefault(
                file.split, {"name": file.split, "num_bytes": 0, "num_examples": 0}
            )
            split["num_bytes"] += file.decoded
            split["num_examples"] += file.rows
    return list(found.values())


def _feature(field: pa.Field) -> dict[str, Any]:
    if field.type == JSON_LIST:
        return {"name": field.name, "list": "json"}
    if pa.types.is_list(field.type):
        return {"name": field.name, "list": _NAMES[field.type.value_type]}
    return {"name": field.name, "dtype": _NAMES[field.type]}
