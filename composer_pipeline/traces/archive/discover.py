"""Which session files lie below the given paths.

Belongs here: walking folders, telling main files from subagent files, opening packed
files. Does not belong here: what a file holds (``traces.archive.heads``).
"""

import gzip
import io
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import IO, Any

import zstandard

from composer_pipeline.errors import InputError
from composer_pipeline.redaction import redact_text
from composer_pipeline.traces.archive.given_paths import SUFFIXES, expanded

#: Files of Claude Code that are no sessions.
_OTHER = frozenset({"history.jsonl", "journal.jsonl"})
_AGENT = re.compile(r"^agent-(?P<id>.+?)\.jsonl(?:\.gz|\.zst)?$")


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file to harvest.

    ``shown`` is its path relative to the PATH it was found under; ``path`` is the same
    with user names removed, the key of the manifest. ``agent_id`` is empty for a main
    file; ``parent_path`` is the manifest key of a subagent's main file where that can be
    told from the path.
    """

    file: Path
    shown: str
    path: str
    agent_id: str
    parent_path: str
    explicit: bool
    size: int
    mtime_ns: int

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Open the raw, decompressed bytes.

        Raises:
            InputError: a compressed file is damaged or cut short.
        """
        with self.file.open("rb") as raw:
            try:
                if self.file.suffix == ".gz":
                    yield gzip.GzipFile(fileobj=raw)  # type: ignore[misc]
                elif self.file.suffix == ".zst":
                    yield io.BufferedReader(_Frames(raw), 1 << 20)
                else:
                    yield raw
            except (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError) as error:
                raise InputError(f"{self.file} is not a whole compressed file: {error}") from error


class _Frames(io.RawIOBase):
    """The content of zstd frames; unlike the library's reader it tells one that is cut short."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self._frame: Any = zstandard.ZstdDecompressor().decompressobj()
        self._begun = False
        self._have = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._have:
            data = self._frame.unused_data or self._raw.read(1 << 17)
            if self._frame.eof:
                self._frame, self._begun = zstandard.ZstdDecompressor().decompressobj(), False
            if not data:
                if self._begun:
                    raise EOFError("it ends inside a frame")
                return 0
            self._have = self._frame.decompress(data)
            self._begun = not self._frame.eof
        count = min(len(buffer), len(self._have))
        buffer[:count] = self._have[:count]
        self._have = self._have[count:]
        return count


def discover(paths: Iterable[Path | str]) -> list[SourceFile]:
    """List the candidate files, sorted by path within each PATH, each file once.

    Raises:
        InputError: a path is missing or a folder holds no ``.jsonl`` file.
    """
    return [_source(file, root, explicit=named) for file, root, named in files_below(paths)]


def files_below(paths: Iterable[Path | str]) -> list[tuple[Path, Path, bool]]:
    """Return each candidate file once, with its folder of reference, and whether it was named.

    Raises:
        InputError: as :func:`discover`.
    """
    given = [path for item in paths for path in expanded(item)]
    if not given:
        raise InputError("no PATH given: name session files or folders of them")
    found: list[tuple[Path, Path, bool]] = []
    seen: set[Path] = set()
    for path in given:
        if not path.exists():
            raise InputError(f"{path} does not exist")
        named = not path.is_dir()
        files, root = [path], path.parent
        if not named:
            files = sorted(f for f in path.rglob("*.jsonl*") if f.is_file() and _is_candidate(f))
            root = path
            if not files:
                raise InputError(f"{path} holds no session file (*.jsonl)")
        for file in files:
            if (real := file.resolve()) not in seen:
                seen.add(real)
                found.append((file, root, named))
    return found


def _is_candidate(file: Path) -> bool:
    if not file.name.endswith(SUFFIXES):
        return False
    if file.name in _OTHER:
        return False
    return "subagents" not in file.parts or _AGENT.match(file.name) is not None


def _source(file: Path, root: Path, *, explicit: bool) -> SourceFile:
    shown = file.relative_to(root).as_posix()
    for suffix in (".gz", ".zst"):  # the same session, however it is packed
        shown = shown.removesuffix(suffix)
    agent = _AGENT.match(file.name)
    stat = file.stat()
    return SourceFile(
        file=file,
        shown=shown,
        path=without_home(shown),
        agent_id=agent["id"] if agent else "",
        parent_path=without_home(_parent_of(shown)) if agent else "",
        explicit=explicit,
        size=stat.st_size,
        mtime_ns=stat.st_mtime_ns,
    )


def excluded(file: Path, globs: Sequence[str]) -> bool:
    """Say whether a glob names a file, by its whole path or by the name of it or of a folder."""
    path = file.absolute()
    return any(fnmatchcase(name, glob) for glob in globs for name in (str(path), *path.parts))


def without_home(path: str) -> str:
    """Remove user names from a relative path, also from encoded ones (``-home-x-``)."""
    return redact_text(path)[0] if path else ""


def _parent_of(shown: str) -> str:
    """``<session>/subagents/**/agent-x.jsonl`` belongs to ``<session>.jsonl``."""
    parts = PurePosixPath(shown).parts
    if "subagents" in parts[1:]:
        at = len(parts) - 1 - parts[::-1].index("subagents")
        return "/".join(parts[:at]) + ".jsonl"
    return ""
