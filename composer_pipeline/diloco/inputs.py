"""What a replica on another machine needs: files under content-addressed keys, and their list.

Belongs here: putting a run's files into its log, and getting them. Does not belong here: which
files those are and what is in them (the trainer). No torch.

``inputs.json`` is created once and last, so that it names only objects that are there. Nothing
secret belongs in a log: credentials stay in each machine's environment.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from composer_pipeline.diloco.log import CorruptObject, OuterLog
from composer_pipeline.diloco.spec import DiLoCoSpec
from composer_pipeline.errors import InputError

LIST = "inputs.json"


class File(msgspec.Struct, frozen=True):
    """One object: its key, SHA-256 and size in bytes."""

    key: str
    sha256: str
    size: int


class Inputs(msgspec.Struct, frozen=True):
    """A run as it was begun.

    Attributes:
        identity: what makes it this run, name to hash or text.
        spec: JSON of the agreement, without what replicas find themselves.
        here: slots 0 to ``here`` - 1 belong to the machine that began it.
        copy_of: name of the base model's folder, of which each machine needs a copy of its own;
            empty where its name is enough.
        files: path in a run folder to its object.
    """

    identity: dict[str, str]
    spec: str
    here: int
    copy_of: str = ""
    files: dict[str, File] = {}

    @property
    def agreement(self) -> DiLoCoSpec:
        """What the replicas agree on."""
        return DiLoCoSpec.from_json(self.spec, LIST)


def read(log: OuterLog) -> Inputs | None:
    """Return the inputs of a run, or None for one that has not begun.

    Raises:
        InputError: they are of another version of this library.
    """
    data = log.store.get(LIST)
    if data is None:
        return None
    try:
        return msgspec.json.decode(data, type=Inputs)
    except msgspec.DecodeError as error:
        raise InputError(
            f"{LIST} of run {log.run_id} in {log.store.url} cannot be read: {error}"
        ) from None


def require_same(log: OuterLog, there: Inputs, identity: Mapping[str, str]) -> None:
    """Refuse to go on with another run under this run's id.

    Raises:
        InputError: says what differs.
    """
    odd = [name for name, value in identity.items() if there.identity.get(name) != value]
    if odd:
        raise InputError(
            f"run {log.run_id} in {log.store.url} was begun with another {' and '.join(odd)};"
            " choose another diloco.run_id"
        )


def publish(log: OuterLog, inputs: Inputs, given: Mapping[str, Path]) -> Inputs:
    """Put files into the log, by their path in a run folder; return what the log has then.

    Raises:
        InputError: another run has this id.
    """
    there = {entry.key for entry in log.store.list("inputs")}
    files = {}
    for path, file in given.items():
        digest = _digest(file)
        key = f"inputs/{digest[:16]}-{Path(path).name}"
        if key not in there:
            log.store.upload(key, file)
        files[path] = File(key, digest, file.stat().st_size)
    whole = msgspec.structs.replace(inputs, files=files)
    if log.store.create(LIST, msgspec.json.encode(whole)):
        return whole
    first = read(log)
    assert first is not None
    require_same(log, first, inputs.identity)
    return first


def fetch(log: OuterLog, inputs: Inputs, folder: Path, *, below: tuple[str, ...] = ("",)) -> None:
    """Get the files that a folder lacks or has otherwise.

    Args:
        log: the run's log.
        inputs: of the run.
        folder: gets them.
        below: how the wanted paths begin.

    Raises:
        CorruptObject: an object is not what the list says.
        InputError: the list names a path outside of the folder.
    """
    wanted = {path: file for path, file in inputs.files.items() if path.startswith(below)}
    # What makes a folder of rows complete comes last.
    for path, file in sorted(wanted.items(), key=lambda item: item[0].endswith(".json")):
        target = folder / path
        if not target.resolve().is_relative_to(folder.resolve()):
            raise InputError(f"{LIST} of run {log.run_id} names the path {path!r}")
        if target.is_file() and _digest(target) == file.sha256:
            continue
        if log.store.download(file.key, target) != file.sha256:
            target.unlink()
            raise CorruptObject(f"{file.key} has another SHA-256 than its record")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
