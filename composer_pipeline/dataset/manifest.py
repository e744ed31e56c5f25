"""The manifest of a dataset build: what it was made from, and the files that it wrote.

It is written last: a dataset without a manifest that fits is refused.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from composer_pipeline.dataset.files import CONFIGS, file_path, shard_bounds, write_shard
from composer_pipeline.errors import InputError
from composer_pipeline.lake.provenance import (
    Derivation,
    FileStamps,
    Record,
    differences,
    read_record,
    record_of,
    write_record,
)
from composer_pipeline.lake.schema import JSON_LIST, SCHEMA_VERSION, TABLES
from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences.quality import ALL

#: What a build reads on its days, besides the sessions.
_BY_DAY = ("normalized_pairs", "replies", "hints", "outcomes", "states", "messages", "chains",
           "toolsets", "votes")  # fmt: skip
_AGAIN = "run composer-pipeline dataset"


class DatasetFile(msgspec.Struct, frozen=True):
    """One file of the published dataset.

    ``path`` is its path in the repository, ``name`` that of the partition below the lake's root;
    ``decoded`` counts the bytes of its columns before compression. ``part`` is empty if it is the
    whole partition, else the (first, end) of its row groups.
    """

    config: str
    split: str
    path: str
    name: str
    rows: int
    bytes: int
    sha256: str
    decoded: int
    part: list[int] = []


class Build(msgspec.Struct, frozen=True):
    """A build: the same lake gives the same one.

    ``id`` names its content. ``partitions`` has a hash for each file of the lake that was written,
    ``files`` those with rows, in the order in which they are published.
    """

    id: str
    schema_version: int
    partitions: dict[str, str]
    files: list[DatasetFile]
    figures: dict[str, Any]


def _derivation(lake: Lake, rules: str = "") -> Derivation:
    """Return what a build is made from: the tables on the days that contribute rows, and rules."""
    days = sorted({day for table in _BY_DAY[:4] for day in lake.days(table)})
    inputs = [
        (table, part)
        for table in (*_BY_DAY, "sessions")
        for part in lake.partitions(table)
        if table == "sessions" or part["day"] in days
    ]
    return Derivation("dataset", {}, inputs, {"rules": rules})


def inputs_of(lake: Lake, rules: str = "") -> Record:
    """Return the record of a build that is made now; call it before anything is read."""
    return record_of(_derivation(lake, rules), FileStamps(lake))


def changed_inputs(lake: Lake, rules: str = "") -> list[str]:
    """Return the tables that have changed since the dataset was built from them, and the rules.

    ``rules`` is the digest of the preference recipe, which is not compared if it is empty.
    """
    derivation, ignore = _derivation(lake, rules), () if rules else ("rules",)
    changes = differences(derivation, read_record(lake, derivation), FileStamps(lake), ignore)
    return sorted({change.partition("/")[0] for change in changes})


def _hash_of(lake: Lake, name: str) -> str:
    with lake.open(name) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(lake: Lake, inputs: Record, figures: dict[str, Any] | None = None) -> Build:
    """Write the manifest of a build whose files are all in place, and return the build.

    ``inputs`` are those of :func:`inputs_of` before anything was read; ``figures`` are what the
    build found out, as JSON.
    """
    hashes, files = {}, list[DatasetFile]()
    for config, table in CONFIGS.items():
        for part in lake.partitions(table):
            name = lake.file_name(table, **part)
            hashes[name] = _hash_of(lake, name)
            files += _files_of(lake, config, part["split"], name, hashes[name])
    content = msgspec.json.encode([SCHEMA_VERSION, hashes, figures], order="deterministic")
    name = hashlib.sha256(content).hexdigest()[:16]
    write_record(lake, _derivation(lake), inputs)
    build = Build(name, SCHEMA_VERSION, hashes, files, figures or {})
    text = msgspec.json.format(msgspec.json.encode(build, order="deterministic"), indent=1)
    lake.put_bytes(Lake.BUILD, text)
    return build


def _files_of(lake: Lake, config: str, split: str, name: str, digest: str) -> Iterator[DatasetFile]:
    """Yield the files that a partition becomes; one without rows becomes none."""
    with lake.open(name) as file:
        footer = pq.read_metadata(file)
        size = file.seek(0, 2)
    parts = shard_bounds(footer, size) if footer.num_rows else []
    for number, (first, end) in enumerate(parts):
        groups = [footer.row_group(i) for i in range(first, end)]
        path = file_path(config, split, number, len(parts))
        rows = sum(group.num_rows for group in groups)
        decoded = sum(group.total_byte_size for group in groups)
        if len(parts) == 1:
            yield DatasetFile(config, split, path, name, rows, size, digest, decoded)
            continue
        with tempfile.TemporaryFile() as out:
            write_shard(lake, CONFIGS[config], name, (first, end), out)
            bytes_ = out.tell()
            out.seek(0)
            own = hashlib.file_digest(out, "sha256").hexdigest()
            yield DatasetFile(config, split, path, name, rows, bytes_, own, decoded, [first, end])


def read_build(lake: Lake) -> Build:
    """Return the lake's build; refuse one that is missing, half built, mixed or out of date."""
    known = any(lake.partitions(table) for table in CONFIGS.values())
    if not lake.exists(Lake.BUILD):
        if not known:
            raise InputError(f"lake {lake.url} has no dataset; {_AGAIN}")
        raise InputError(
            f"lake {lake.url}: the dataset is half built, or of an older version; {_AGAIN}"
        )
    try:
        build = msgspec.json.decode(lake.get_bytes(Lake.BUILD), type=Build)
    except msgspec.DecodeError as error:
        raise InputError(f"lake {lake.url}: {Lake.BUILD} is damaged ({error}); {_AGAIN}") from error
    if build.schema_version != SCHEMA_VERSION:
        raise InputError(
            f"lake {lake.url}: the dataset has schema version {build.schema_version}, and this"
            f" version of composer-pipeline writes {SCHEMA_VERSION}; {_AGAIN}"
        )
    there = {
        lake.file_name(table, **part) for table in CONFIGS.values()
        for part in lake.partitions(table)
    }  # fmt: skip
    for name in sorted(there | set(build.partitions)):
        if name not in there or _hash_of(lake, name) != build.partitions.get(name):
            raise InputError(f"lake {lake.url}: {name} is not of the dataset's build; {_AGAIN}")
    if changed := changed_inputs(lake):
        raise InputError(
            f"lake {lake.url}: the dataset is older than {', '.join(changed)}; {_AGAIN}"
        )
    return build


def check_statistics(lake: Lake, build: Build) -> None:
    """Refuse statistics of the whole lake that were measured on another build."""
    rows = lake.rows("preference_statistics", scope=ALL, columns=["statistic", "a"])
    if rows and build.id not in {row["a"] for row in rows if row["statistic"] == "build"}:
        raise InputError(
            f"lake {lake.url}: the statistics are of another build of the dataset;"
            " run composer-pipeline statistics"
        )


def copy_file(lake: Lake, file: DatasetFile, target: Path) -> None:
    """Write a file of the dataset to ``target`` on the local disk; link it if possible."""
    if file.part:
        with target.open("wb") as out:
            write_shard(lake, CONFIGS[file.config], file.name, file.part, out)
        return
    if lake.local:
        try:
            os.link(f"{lake.root}/{file.name}", target)
        except OSError:  # another disk
            shutil.copyfile(f"{lake.root}/{file.name}", target)
        return
    with lake.open(file.name) as source, target.open("wb") as out:
        shutil.copyfileobj(source, out, 1 << 20)


_NAMES = {pa.string(): "string", pa.bool_(): "bool", pa.int32(): "int32", pa.int64(): "int64",
          pa.float64(): "float64"}  # fmt: skip


def dataset_info(build: Build) -> list[dict[str, Any]]:
    """Return the card's ``dataset_info``: an entry for each configuration that has a file."""
    found: dict[str, dict[str, Any]] = {}
    splits: dict[tuple[str, str], dict[str, Any]] = {}
    for file in build.files:
        info = found.setdefault(file.config, {
            "config_name": file.config,
            "features": [_feature(field) for field in TABLES[CONFIGS[file.config]].schema],
            "splits": [], "download_size": 0, "dataset_size": 0,
        })  # fmt: skip
        key = file.config, file.split
        if key not in splits:
            splits[key] = {"name": file.split, "num_bytes": 0, "num_examples": 0}
            info["splits"].append(splits[key])
        splits[key]["num_bytes"] += file.decoded
        splits[key]["num_examples"] += file.rows
        info["download_size"] += file.bytes
        info["dataset_size"] += file.decoded
    return list(found.values())


def _feature(field: pa.Field) -> dict[str, Any]:
    if field.type == JSON_LIST:
        return {"name": field.name, "list": "json"}
    if pa.types.is_list(field.type):
        return {"name": field.name, "list": _NAMES[field.type.value_type]}
    return {"name": field.name, "dtype": _NAMES[field.type]}
