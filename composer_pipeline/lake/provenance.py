"""What each partition was made from: the bytes of its inputs, and the versions and rules.

Belongs here: noting that when a stage has written a day, and comparing it with now. Does not
belong here: what a stage's inputs and settings are (the stage says), and which days are asked
about (``care.currency``).

A note is a small file ``made/<table>/<key>=<value>/….json``, written after the partition. A stage
that was killed in between has no note that fits, and its day is made again: with the same bytes.
Inputs are compared by size and time, and where these differ by their hash, so that a copied lake
and an input that was written again with the same bytes change nothing.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from composer_pipeline.lake.place import BUILD
from composer_pipeline.lake.store import Lake


def build_id(lake: Lake) -> str:
    """Return the name of the build that the dataset tables are of; empty where there is none."""
    if not lake.exists(BUILD):
        return ""
    try:
        found = json.loads(lake.get_bytes(BUILD))
    except ValueError:
        return ""
    return str(found.get("id", "")) if isinstance(found, dict) else ""


def stamp(lake: Lake, table: str) -> str:
    """Return a hash of the names, sizes and times of a table's files; nothing is opened.

    Partitions are replaced whole, so another content has another stamp.
    """
    digest = hashlib.blake2b(digest_size=16)
    for name, about in sorted(file_stamps(lake, table).items()):
        digest.update(f"{name} {about}".encode("utf-8", "surrogateescape") + b"\n")
    return digest.hexdigest()


def file_stamps(lake: Lake, table: str) -> dict[str, str]:
    """Return path -> size and time of each file of a table; nothing is opened."""
    return _local(lake, table) if lake.local else _remote(lake, table)


def _local(lake: Lake, table: str) -> dict[str, str]:
    found = {}
    for folder, _, names in os.walk(f"{lake.root}/{table}"):
        for name in names:
            about = Path(folder, name).stat()
            found[f"{folder}/{name}"] = f"{about.st_size} {about.st_mtime_ns} {about.st_ino}"
    return found


def _remote(lake: Lake, table: str) -> dict[str, str]:
    try:
        files = lake.fs.find(f"{lake.root}/{table}", detail=True)
    except FileNotFoundError:
        return {}
    times = ("e_tag", "ETag", "last_modified", "LastModified", "mtime", "created")
    return {
        str(name): f"{about.get('size')} {[str(about[key]) for key in times if key in about]}"
        for name, about in files.items()
    }


FOLDER = "made"
#: A partition: its table and its keys.
Part = tuple[str, Mapping[str, str]]


class Origin(msgspec.Struct, frozen=True):
    """What a partition is made from, as a stage says: other partitions, and named settings."""

    table: str
    keys: Mapping[str, str]
    inputs: Sequence[Part]
    settings: Mapping[str, str]

    @property
    def name(self) -> str:
        """The note's name below the lake's root."""
        return f"{FOLDER}/{_name(self.table, self.keys)}.json"


class Made(msgspec.Struct, frozen=True):
    """What a partition was made from: input -> [size and time, hash], and the settings.

    ``missing`` counts rows that should be there and could not be had, ``why`` says why, and
    ``tries`` how often that was so with the same inputs and settings.
    """

    inputs: dict[str, tuple[str, str]]
    settings: dict[str, str]
    missing: int = 0
    tries: int = 0
    why: str = ""


class Stamps:
    """Sizes, times and hashes of a lake's files: each table is listed and each file read once."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._of: dict[str, dict[str, str]] = {}
        self._hashes: dict[str, str] = {}

    def of(self, part: Part) -> str:
        """Return size and time of a partition's file; empty where there is none."""
        table, keys = part
        if table not in self._of:
            self._of[table] = file_stamps(self._lake, table)
        return self._of[table].get(self._lake.path(table, **keys), "")

    def hash_of(self, part: Part) -> str:
        """Return the hash of a partition's bytes; empty where there is no file any more."""
        name = _name(*part)
        if name not in self._hashes:
            self._hashes[name] = _hash(self._lake, part)
        return self._hashes[name]


def look(origin: Origin, stamps: Stamps) -> Made:
    """Return what a partition would be made from now; call it before its inputs are read."""
    inputs = {
        _name(*part): (stamp, stamps.hash_of(part) if stamp else "")
        for part in origin.inputs
        for stamp in [stamps.of(part)]
    }
    return Made(inputs, dict(origin.settings))


def note(lake: Lake, origin: Origin, made: Made) -> None:
    """Write what a partition was made from.

    Raises:
        StorageError: the lake is not writable.
    """
    lake.put_bytes(origin.name, msgspec.json.encode(made, order="deterministic"))


@contextmanager
def noting(lake: Lake, origin: Origin, stamps: Stamps) -> Iterator[None]:
    """Note, when the block has written a partition, what it was made from.

    The days of one stage may share the stamps: an input that is written meanwhile has another
    time than its note, and is then compared by its hash.

    Raises:
        StorageError: the lake is not writable.
    """
    made = look(origin, stamps)
    yield
    note(lake, origin, made)


def notes_of(lake: Lake, table: str) -> dict[str, Made]:
    """Return name -> note of all partitions of a table; one that cannot be read is none."""
    try:
        paths = [str(path) for path in lake.fs.find(f"{lake.root}/{FOLDER}/{table}")]
    except FileNotFoundError:
        return {}
    paths = [path for path in paths if path.endswith(".json")]
    if lake.local:
        bodies = {path: lake.fs.cat_file(path) for path in paths}
    else:  # side by side: a bucket is far away
        bodies = lake.fs.cat(paths) if paths else {}
    found = {}
    for path, body in bodies.items():
        try:
            made = msgspec.json.decode(body, type=Made)
        except msgspec.MsgspecError:  # the day is made again
            continue
        found[str(path)[str(path).index(f"{FOLDER}/{table}/") :]] = made
    return found


def changed(origin: Origin, made: Made | None, stamps: Stamps) -> list[str]:
    """Return what differs between how a partition was made and how it would be made now.

    Nothing is opened where sizes and times are those of the note.

    Args:
        origin: as the stage says it now.
        made: the note; ``None`` where there is none.
        stamps: of the lake, as it is now.
    """
    if made is None:
        return [f"nobody noted what {origin.table} was made from"]
    found = [
        f"{name} {made.settings.get(name, 'not noted')} -> {origin.settings.get(name, 'none')}"
        for name in sorted({*made.settings, *origin.settings})
        if made.settings.get(name) != origin.settings.get(name)
    ]
    names = {_name(*part): part for part in origin.inputs}
    found += [f"{name} is gone" for name in sorted(made.inputs.keys() - names.keys())]
    for name, part in sorted(names.items()):
        stamp, digest = made.inputs.get(name, ("", ""))
        now = stamps.of(part)
        if name not in made.inputs:
            found.append(f"{name} is new")
        elif now != stamp and (not now or not digest or stamps.hash_of(part) != digest):
            found.append(f"{name} was made again")
    return found


def _hash(lake: Lake, part: Part) -> str:
    total = hashlib.sha256()
    try:
        with lake.open(lake.path(part[0], **part[1]).removeprefix(lake.root + "/")) as file:
            while data := file.read(1 << 20):
                total.update(data)
    except FileNotFoundError:  # forgotten meanwhile
        return ""
    return total.hexdigest()


def _name(table: str, keys: Mapping[str, str]) -> str:
    return "/".join([table, *(f"{key}={keys[key]}" for key in keys)])
