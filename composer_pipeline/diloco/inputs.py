"""A run's files for replicas on other machines: content-addressed objects and their list. No torch.

``inputs.json`` is created once and last, so that it names only existing objects. Nothing secret
belongs in a log: credentials stay in each machine's environment.
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
    """A run as it was started.

    Attributes:
        identity: what makes it this run, name to hash or text.
        spec: JSON of the agreement, without what replicas find themselves.
        here: slots 0 to ``here`` - 1 belong to the machine that started it.
        copy_of: name of the base model's folder, of which each machine needs its own copy;
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
    """Return the inputs of a run, or None for one that has not started."""
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
    """Raise ``InputError`` where the run under this id is another one."""
    odd = [name for name, value in identity.items() if there.identity.get(name) != value]
    if odd:
        raise InputError(
            f"run {log.run_id} in {log.store.url} was started with another {' and '.join(odd)};"
            " choose another diloco.run_id"
        )


def publish(log: OuterLog, inputs: Inputs, given: Mapping[str, Path]) -> Inputs:
    """Upload files by their path in a run folder; return what the log has then."""
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
    """Download files whose path begins with one of ``below``, unless the folder has them."""
    wanted = {path: file for path, file in inputs.files.items() if path.startswith(below)}
    # The file that marks a folder of rows as complete comes last.
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
