"""What a model or an adapter holds, so that other weights under the same name are another run.

Belongs here: digests of weights, tokenizer and template, and their cache. Does not belong here:
finding a model (``training.models``) and what else makes a run (``runs.identity``).

A folder's digest is over the bytes of its files. That of a large file is kept with size, times
and inode, as git does: a file is read again when one of them differs, or when it was written so
shortly before that a later write could have the same time.
"""

import hashlib
import json
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from composer_pipeline.errors import StorageError
from composer_pipeline.files import replace
from composer_pipeline.training.hub_models import commit_of
from composer_pipeline.training.models import (
    CONVERSION,
    GGUF,
    SMOLLM2,
    adapter_folder,
    cache_dir,
    gguf_folder,
    model_folder,
)

#: Files below this are read each time.
SMALL = 1 << 20
#: A file changed within this many seconds may change again without another time.
RACY_S = 2.0
#: Files of a model folder that say nothing about what it computes.
IGNORED = ("README.md", "LICENSE", "composer.json")

Kind = Literal["offline default", "folder", "hub", "run"]


@dataclass(frozen=True)
class Content:
    """What is behind a name in a recipe.

    ``name`` is for other machines: a Hub id or the offline default as it is, a folder by its
    last part. ``digest`` is ``commit:…`` of a Hub id and ``blake2b:…`` of files otherwise.
    ``licence`` is empty where it is not known.
    """

    name: str
    kind: Kind
    digest: str
    licence: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


def model_content(name: str) -> Content:
    """Return what a recipe's ``model`` is now.

    The offline default is known by the file it is converted from; where its package is not
    installed the digest is empty, and loading it says what to install.

    Raises:
        InputError: no such folder, an adapter in place of a model, or the Hub refuses.
    """
    if name == SMOLLM2:
        source = gguf_folder()
        digest = f"{file_digest(source / GGUF)}-v{CONVERSION}" if source else ""
        return Content(name, "offline default", f"blake2b:{digest}", "apache-2.0")
    folder = model_folder(name)
    if folder is None:
        return Content(name, "hub", f"commit:{commit_of(name)}")
    return Content(folder.name, "folder", f"blake2b:{folder_digest(folder)}", _licence(folder))


def adapter_content(name: str) -> Content:
    """Return what a recipe's ``start_from`` is now.

    Raises:
        InputError: no such adapter.
    """
    folder = adapter_folder(name)
    if folder is None:
        return Content(name, "hub", f"commit:{commit_of(name, 'start_from')}")
    # The checkpoint of a run is better known by the run's name.
    said = folder.parent.name if folder.name == "checkpoint" else folder.name
    return Content(said, "folder", f"blake2b:{folder_digest(folder)}", _licence(folder))


def folder_digest(folder: Path) -> str:
    """Return a digest of names and bytes of a folder's own files; not of folders in it."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(folder.iterdir()):
        if path.is_file() and not path.name.startswith(".") and path.name not in IGNORED:
            digest.update(f"{path.name}\0{file_digest(path)}\0".encode())
    return digest.hexdigest()


def file_digest(path: Path) -> str:
    """Return a digest of a file's bytes; read once for as long as the file stays as it is."""
    stat = path.stat()
    if stat.st_size < SMALL:
        return _digest(path)
    key = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]
    place = hashlib.blake2b(str(path.absolute()).encode(), digest_size=16).hexdigest()
    known = cache_dir() / "digests" / f"{place}.json"
    with suppress(OSError, ValueError):
        found = json.loads(known.read_text(encoding="utf-8"))
        if found["key"] == key:
            return str(found["digest"])
    digest = _digest(path)
    if time.time() - max(stat.st_mtime, stat.st_ctime) > RACY_S:
        with suppress(StorageError):  # only a cache
            replace(known, json.dumps({"key": key, "digest": digest}))
    return digest


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _licence(folder: Path) -> str:
    """Return the licence that a model card in the folder names."""
    with suppress(OSError, yaml.YAMLError, UnicodeDecodeError):
        head = (folder / "README.md").read_text(encoding="utf-8").split("---\n")
        front = yaml.safe_load(head[1]) if len(head) > 2 and not head[0] else None
        if isinstance(front, dict):
            return str(front.get("license") or "")
    return ""
