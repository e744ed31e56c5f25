"""Which session files lie below the given paths, and to which session and day they belong.

Belongs here: walking folders, telling main files from subagent files, reading the head
of a file, the rule for days. Does not belong here: copying bytes (``traces.archive.harvest``).

The day of a session is the UTC date of its first timestamped record. Files of one
session (also its subagents, which carry the parent's session id) share the earliest
day among them; a day that the lake already knows wins over everything.
"""

import gzip
import io
import re
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import IO

import zstandard

from composer_pipeline.errors import InputError
from composer_pipeline.redaction.text import redact_text
from composer_pipeline.traces.reading.contents import parse_time
from composer_pipeline.traces.reading.records import KNOWN_TYPES, LineStats
from composer_pipeline.traces.reading.sources import read_any

#: Files of Claude Code that are no sessions.
_OTHER = frozenset({"history.jsonl", "journal.jsonl"})
_AGENT = re.compile(r"^agent-(?P<id>.+?)\.jsonl(?:\.gz|\.zst)?$")
_SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
#: A PATH that stands for standard input.
STDIN = "-"


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
                    reader = zstandard.ZstdDecompressor().stream_reader(
                        raw, read_across_frames=True
                    )
                    yield io.BufferedReader(reader, 1 << 20)
                else:
                    yield raw
            except (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError) as error:
                raise InputError(f"{self.file} is not a whole compressed file: {error}") from error


@dataclass(frozen=True, slots=True)
class Head:
    """What the first records of a file say; ``session_id`` may be empty."""

    is_session: bool
    session_id: str
    day: str | None


def discover(paths: Iterable[Path | str]) -> list[SourceFile]:
    """List the candidate files, sorted by path within each PATH, each file once.

    Raises:
        InputError: a path is missing or a folder holds no ``.jsonl`` file.
    """
    given = [path for item in paths for path in _expanded(item)]
    if not given:
        raise InputError("no PATH given: name session files or folders of them")
    found: list[SourceFile] = []
    seen: set[Path] = set()
    for path in given:
        if not path.exists():
            raise InputError(f"{path} does not exist")
        if path.is_dir():
            files = sorted(f for f in path.rglob("*.jsonl*") if f.is_file() and _is_candidate(f))
            if not files:
                raise InputError(f"{path} holds no session file (*.jsonl)")
            root = path
        else:
            files, root = [path], path.parent
        for file in files:
            if (real := file.resolve()) not in seen:
                seen.add(real)
                found.append(_source(file, root, explicit=not path.is_dir()))
    return found


def _expanded(given: Path | str) -> list[Path]:
    """Return what a PATH stands for: itself, the matches of a glob, or standard input."""
    if str(given) == STDIN:
        return [_standard_input()]
    path = Path(given).expanduser()
    if path.exists() or not any(char in str(path) for char in "*?["):
        return [path]
    root = Path(path.anchor or ".")
    pattern = str(path.relative_to(path.anchor)) if path.anchor else str(path)
    found = sorted(f for f in root.glob(pattern) if f.is_dir() or f.name.endswith(_SUFFIXES))
    if not found:
        raise InputError(f"{given} matches no session file (*.jsonl, *.jsonl.gz, *.jsonl.zst)")
    return found


def _standard_input() -> Path:
    """Copy standard input to a file that lasts as long as this process."""
    folder = tempfile.TemporaryDirectory(prefix="composer-pipeline-")
    _KEPT.append(folder)
    target = Path(folder.name, "stdin.jsonl")
    with target.open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file, 1 << 20)
    return target


_KEPT: list[tempfile.TemporaryDirectory[str]] = []


def _is_candidate(file: Path) -> bool:
    if not file.name.endswith(_SUFFIXES):
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


def read_head(source: SourceFile) -> Head:
    """Read a file until its session and its first timestamp are known.

    Raises:
        InputError: a file that was named explicitly cannot be read.
    """
    session_id, moment, is_session = "", None, False
    try:
        with source.open() as lines:
            for record in read_any(lines, LineStats()):
                known = record.type in KNOWN_TYPES or bool(record.session_id or record.uuid)
                is_session = is_session or (record.type is not None and known)
                session_id = session_id or record.session_id or ""
                moment = moment or parse_time(record.timestamp)
                if is_session and session_id and moment:
                    break
    except OSError as error:
        if source.explicit:
            raise InputError(f"{source.file} cannot be read: {error.strerror}") from error
        return Head(False, "", None)
    return Head(is_session, session_id, moment.date().isoformat() if moment else None)


def fallback_day(source: SourceFile) -> str:
    """Return the day of a file without any timestamp: when it was last written."""
    return datetime.fromtimestamp(source.mtime_ns / 1e9, UTC).date().isoformat()


def assign_days(sessions: Sequence[tuple[str, str]], known: dict[str, str]) -> dict[str, str]:
    """Return session id to day.

    Args:
        sessions: ``(session id, day of the file's first timestamp)`` of each file.
        known: days that the lake already has.
    """
    days = dict(known)
    for session_id, day in sessions:
        if session_id not in known:
            days[session_id] = min(day, days.get(session_id, day))
    return days
