"""What each partition was made from: the one answer to "is this up to date?".

A stage describes what a partition depends on (:class:`Derivation`). When it has written the
partition it stores a :class:`Record` in ``made/<table>/<key>=<value>/….json``; a stage that was
killed in between has no record that fits, and its day is made again. Inputs are compared by size
and time, and where these differ by hash, so that a copied lake and an input that was rewritten
with the same bytes change nothing.
"""

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from composer_pipeline.lake.place import BUILD
from composer_pipeline.lake.store import Lake

FOLDER = "made"
#: A partition: its table and its keys.
Part = tuple[str, Mapping[str, str]]


class Derivation(msgspec.Struct, frozen=True):
    """What a partition is made from: other partitions, and named settings and versions."""

    table: str
    keys: Mapping[str, str]
    inputs: Sequence[Part]
    settings: Mapping[str, str]

    @property
    def record_name(self) -> str:
        """The name of the partition's record below the lake's root."""
        return f"{FOLDER}/{_name(self.table, self.keys)}.json"


class Record(msgspec.Struct, frozen=True):
    """What a partition was made from: input -> [size and time, hash], and the settings."""

    inputs: dict[str, tuple[str, str]]
    settings: dict[str, str]
    #: Rows that could not be obtained, why, and how many runs with these inputs tried.
    missing: int = 0
    tries: int = 0
    why: str = ""


class Staleness(msgspec.Struct, frozen=True):
    """Why a day is stale: never made, made from something else, or lacking some rows."""

    reason: str
    kind: Literal["absent", "changed", "missing"] = "changed"


#: Day -> why it is stale.
StaleDays = dict[str, Staleness]


class FileStamps:
    """Sizes, times and hashes of a lake's files: each table is listed and each file read once."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._tables: dict[str, dict[str, str]] = {}
        self._hashes: dict[str, str] = {}

    def of(self, part: Part) -> str:
        """Return size and time of a partition's file, or an empty string."""
        table, keys = part
        if table not in self._tables:
            self._tables[table] = _file_stamps(self._lake, table)
        return self._tables[table].get(self._lake.path(table, **keys), "")

    def hash_of(self, part: Part) -> str:
        """Return the hash of a partition's bytes, or an empty string."""
        name = _name(*part)
        if name not in self._hashes:
            self._hashes[name] = _hash(self._lake, part)
        return self._hashes[name]


def record_of(derivation: Derivation, stamps: FileStamps) -> Record:
    """Return the record of a partition that is made now; call it before its inputs are read."""
    inputs = {
        _name(*part): (stamp, stamps.hash_of(part) if stamp else "")
        for part in derivation.inputs
        for stamp in [stamps.of(part)]
    }
    return Record(inputs, dict(derivation.settings))


def write_record(lake: Lake, derivation: Derivation, record: Record) -> None:
    """Store what a partition was made from; call it after the partition is written."""
    lake.put_bytes(derivation.record_name, msgspec.json.encode(record, order="deterministic"))


@contextmanager
def recorded(lake: Lake, derivation: Derivation, stamps: FileStamps) -> Iterator[None]:
    """Store, when the block has written a partition, what it was made from.

    The days of one stage may share the stamps: an input that is written meanwhile has another
    time than its record, and is then compared by its hash.
    """
    record = record_of(derivation, stamps)
    yield
    write_record(lake, derivation, record)


def read_record(lake: Lake, derivation: Derivation) -> Record | None:
    """Return the record of one partition; ``None`` without a readable one."""
    if not lake.exists(derivation.record_name):
        return None
    try:
        return msgspec.json.decode(lake.get_bytes(derivation.record_name), type=Record)
    except msgspec.MsgspecError:
        return None


def read_records(lake: Lake, table: str) -> dict[str, Record]:
    """Return name -> record of all partitions of a table; unreadable ones are left out."""
    try:
        paths = [str(path) for path in lake.fs.find(f"{lake.root}/{FOLDER}/{table}")]
    except FileNotFoundError:
        return {}
    paths = [path for path in paths if path.endswith(".json")]
    if lake.local:
        bodies = {path: lake.fs.cat_file(path) for path in paths}
    else:  # in parallel: a bucket is far away
        bodies = lake.fs.cat(paths) if paths else {}
    found = {}
    for path, body in bodies.items():
        try:
            record = msgspec.json.decode(body, type=Record)
        except msgspec.MsgspecError:  # the day is made again
            continue
        found[str(path)[str(path).index(f"{FOLDER}/{table}/") :]] = record
    return found


def differences(
    derivation: Derivation, record: Record | None, stamps: FileStamps, ignore: Collection[str] = ()
) -> list[str]:
    """Return what differs between how a partition was made and how it would be made now.

    No file is opened where sizes and times are those of the record. Settings in ``ignore`` are
    not compared.
    """
    if record is None:
        return [f"{derivation.table}: what it was made from is not recorded"]
    before, now = record.settings, derivation.settings
    found = [
        f"{name} {before.get(name, 'not recorded')} -> {now.get(name, 'none')}"
        for name in sorted({*before, *now}.difference(ignore))
        if before.get(name) != now.get(name)
    ]
    parts = {_name(*part): part for part in derivation.inputs}
    found += [f"{name} is gone" for name in sorted(record.inputs.keys() - parts.keys())]
    for name, part in sorted(parts.items()):
        stamp, digest = record.inputs.get(name, ("", ""))
        current = stamps.of(part)
        if name not in record.inputs:
            found.append(f"{name} is new")
        elif current != stamp and (not current or not digest or stamps.hash_of(part) != digest):
            found.append(f"{name} was made again")
    return found


def stale_days(
    lake: Lake,
    table: str,
    derivations: Iterable[Derivation],
    *,
    ignore: Collection[str] = (),
    absent: str = "not made yet",
) -> StaleDays:
    """Return the days whose partitions of a table are missing or made from something else."""
    stamps, records = FileStamps(lake), read_records(lake, table)
    found: StaleDays = {}
    for derivation in derivations:
        day, record = derivation.keys["day"], records.get(derivation.record_name)
        if record is None and not stamps.of((table, derivation.keys)):
            found[day] = Staleness(absent, "absent")
        elif changes := differences(derivation, record, stamps, ignore):
            more = f" and {len(changes) - 3} more" if len(changes) > 3 else ""
            found[day] = Staleness("; ".join(changes[:3]) + more)
        elif record is not None and record.missing:
            times = f", tried {record.tries} times" if record.tries > 1 else ""
            reason = f"{record.missing} {table} are missing ({record.why}){times}"
            found[day] = Staleness(reason, "missing")
    return dict(sorted(found.items()))


def build_id(lake: Lake) -> str:
    """Return the name of the dataset's build, or an empty string."""
    if not lake.exists(BUILD):
        return ""
    try:
        found = json.loads(lake.get_bytes(BUILD))
    except ValueError:
        return ""
    return str(found.get("id", "")) if isinstance(found, dict) else ""


def table_stamp(lake: Lake, table: str) -> str:
    """Return a hash of the names, sizes and times of a table's files; no file is opened."""
    digest = hashlib.blake2b(digest_size=16)
    for name, about in sorted(_file_stamps(lake, table).items()):
        digest.update(f"{name} {about}".encode("utf-8", "surrogateescape") + b"\n")
    return digest.hexdigest()


def _file_stamps(lake: Lake, table: str) -> dict[str, str]:
    """Return path -> size and time of each file of a table."""
    found = {}
    if lake.local:
        for folder, _, names in os.walk(f"{lake.root}/{table}"):
            for name in names:
                about = Path(folder, name).stat()
                found[f"{folder}/{name}"] = f"{about.st_size} {about.st_mtime_ns} {about.st_ino}"
        return found
    try:
        files = lake.fs.find(f"{lake.root}/{table}", detail=True)
    except FileNotFoundError:
        return {}
    times = ("e_tag", "ETag", "last_modified", "LastModified", "mtime", "created")
    for name, entry in files.items():
        seen = [str(entry[key]) for key in times if key in entry]
        found[str(name)] = f"{entry.get('size')} {seen}"
    return found


def _hash(lake: Lake, part: Part) -> str:
    try:
        with lake.open(lake.file_name(part[0], **part[1])) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:  # forgotten meanwhile
        return ""


def _name(table: str, keys: Mapping[str, str]) -> str:
    return "/".join([table, *(f"{key}={keys[key]}" for key in keys)])
