"""Whether anything is new since the last ingest of the same paths, by sizes and times alone.

Belongs here: what an ingest remembers of the files it was given and of the lake it left, and
comparing that with now. Does not belong here: which files changed (``traces.archive.plan``), and
whether bytes are still what they were (``composer-pipeline verify``).

A person ingests every day, and of two years of days one has changed, or none. To open each day's
tables in order to find that out takes longer than reading what is new.
"""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from composer_pipeline.lake import Lake, stamp
from composer_pipeline.redaction import redaction_version
from composer_pipeline.settings import Settings
from composer_pipeline.traces.archive import STDIN, files_below
from composer_pipeline.versions import PARSER_VERSION

#: What an ingest writes and what it leaves behind, beside the archive.
_TABLES = ("raw_files", "messages", "chains", "states", "sessions")


class Receipt(msgspec.Struct):
    """What an ingest was given and left, as hashes, and what it said."""

    files: str
    lake: str
    said: dict[str, Any]


class Before:
    """The files of some paths, as they are before an ingest looks at them.

    A file that grows while it is read is thus another one at the next ingest.

    Args:
        lake: the lake.
        paths: as the ingest is given them.
        exclude: the globs of what it leaves out.

    Raises:
        InputError: a path is missing, or a folder holds no session.
    """

    def __init__(self, lake: Lake, paths: Sequence[Path | str], exclude: Sequence[str]) -> None:
        self._lake = lake
        globs = [*exclude, *Settings.from_env().excluded]
        given = "\0".join([*(str(Path(path).expanduser().absolute()) for path in paths), *globs])
        self._name = f"receipts/{_hash(given)}.json"
        self._files = "" if STDIN in map(str, paths) else _hash("\n".join(_stats(paths)))

    def said(self) -> dict[str, Any] | None:
        """Return what the last ingest of these paths said, unless a file or the lake is new.

        Reads sizes and times, and one small file.
        """
        if not self._files or not self._lake.exists(self._name):
            return None
        try:
            found = msgspec.json.decode(self._lake.get_bytes(self._name), type=Receipt)
        except msgspec.MsgspecError:  # it is only a shortcut: without it, everything is compared
            return None
        same = found.files == self._files and found.lake == _left(self._lake)
        return found.said if same else None

    def keep(self, said: dict[str, Any]) -> None:
        """Remember what the ingest of these files left and said.

        Raises:
            StorageError: the lake is not writable.
        """
        if self._files:
            receipt = Receipt(self._files, _left(self._lake), said)
            self._lake.put_bytes(self._name, msgspec.json.encode(receipt))


def _stats(paths: Sequence[Path | str]) -> Iterator[str]:
    for file, _, _ in files_below(paths):
        about = file.stat()
        yield f"{file.absolute()}\0{about.st_size} {about.st_mtime_ns}"


def _left(lake: Lake) -> str:
    tables = " ".join(stamp(lake, table) for table in _TABLES)
    return _hash(f"{PARSER_VERSION} {redaction_version()} {tables}")


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
