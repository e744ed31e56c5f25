"""Which session files lie below the given paths, whose session each is, and on which day."""

import gzip
import io
import json
import re
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any

import zstandard

from composer_pipeline.errors import InputError, StorageError
from composer_pipeline.lake.place import bucket_errors
from composer_pipeline.lake.store import Lake
from composer_pipeline.lake.withdrawn import Withdrawn, digest_of
from composer_pipeline.redaction.redact import redact_text
from composer_pipeline.traces.records import KNOWN_TYPES, AgentRecord, LineStats, parse_time
from composer_pipeline.traces.source import LINES, Member, read_any, source_of_file, sources

#: A PATH that stands for standard input.
STDIN = "-"
#: Files of Claude Code that are not sessions.
_OTHER = frozenset({"history.jsonl", "journal.jsonl"})
_AGENT = re.compile(r"^agent-(?P<id>.+?)\.jsonl(?:\.gz|\.zst)?$")

_stdin_folders: list[tempfile.TemporaryDirectory[str]] = []


def _expanded(given: Path | str) -> list[Path]:
    """Return what a PATH stands for: itself, the matches of a glob, or standard input."""
    if not str(given):
        raise InputError("an empty PATH names nothing")
    if str(given) == STDIN:
        _stdin_folders.append(tempfile.TemporaryDirectory(prefix="composer-pipeline-"))
        target = Path(_stdin_folders[-1].name, "stdin.jsonl")
        with target.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file, 1 << 20)
        return [target]
    path = Path(given).expanduser()
    if path.exists() or not any(char in str(path) for char in "*?["):
        return [path]
    root = Path(path.anchor or ".")
    pattern = str(path.relative_to(path.anchor)) if path.anchor else str(path)
    endings = tuple({ending for source in sources() for ending in source.endings})
    found = sorted(f for f in root.glob(pattern) if f.is_dir() or f.name.endswith(endings))
    if not found:
        raise InputError(f"{given} matches no session file (*{', *'.join(sorted(endings))})")
    return found


def agents_here() -> dict[str, list[Path]]:
    """Return agent to the folders (or databases) of its sessions that are on this machine."""
    found = {source.name: list(filter(_has_sessions, source.folders())) for source in sources()}
    return {name: folders for name, folders in sorted(found.items()) if folders}


def _has_sessions(place: Path) -> bool:
    return place.is_file() or any(f.is_file() and _is_candidate(f) for f in place.rglob("*.*"))


def session_folders(given: str = "") -> list[Path]:
    """Return the one folder that is given, or those of every agent on this machine."""
    if given:
        return [Path(given).expanduser()]
    return [folder for folders in agents_here().values() for folder in folders]


class UnreadableFile(InputError):
    """A session file cannot be read, or is cut off; the others of its folder are read."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file to harvest."""

    file: Path
    shown: str  # path relative to the PATH it was found under
    path: str  # the same without user names, the key of the manifest
    agent_id: str  # empty for a main file
    parent_path: str  # key of a subagent's main file, if the path gives it
    explicit: bool  # it was named itself
    size: int
    mtime_ns: int
    member: Member | None = None  # the session of a file that holds many

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Open the raw, decompressed bytes; raise UnreadableFile."""
        given = self.member.lines() if self.member is not None else _whole(self.file)
        if given is not None:
            try:
                yield io.BufferedReader(_Stream(given), 1 << 20)
            except (InputError, OSError, zstandard.ZstdError) as error:
                raise UnreadableFile(str(error)) from error
            return
        try:
            file = self.file.open("rb")
        except OSError as error:
            raise UnreadableFile(f"{self.file} cannot be read: {error.strerror}") from error
        with file as raw:
            try:
                if self.file.suffix == ".gz":
                    yield gzip.GzipFile(fileobj=raw)  # type: ignore[misc]
                elif self.file.suffix == ".zst":
                    yield io.BufferedReader(_Stream(_frames(raw)), 1 << 20)
                else:
                    yield raw
            except (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError) as error:
                why = f"{self.file} is not a whole compressed file: {error}"
                raise UnreadableFile(why) from error


class _Stream(io.RawIOBase):
    """Bytes that come in pieces, as a file."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._have = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._have:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._have = memoryview(piece)
        count = min(len(buffer), len(self._have))
        buffer[:count] = self._have[:count]
        self._have = self._have[count:]
        return count


def _frames(raw: IO[bytes]) -> Iterator[bytes]:
    """Yield the content of zstd frames; unlike the library's reader detect a truncated one."""
    frame: Any = zstandard.ZstdDecompressor().decompressobj()
    begun = False
    while True:
        data = frame.unused_data or raw.read(1 << 17)
        if frame.eof:
            frame, begun = zstandard.ZstdDecompressor().decompressobj(), False
        if not data:
            if begun:
                raise EOFError("it ends inside a frame")
            return
        yield frame.decompress(data)
        begun = not frame.eof


def discover(paths: Iterable[Path | str], lake: Lake | None = None) -> list[SourceFile]:
    """List the candidate files, sorted by path within each PATH, each file once."""
    found: list[SourceFile] = []
    for file, root, named in files_below(paths, lake):
        shown = file.relative_to(root).as_posix()
        for suffix in (".gz", ".zst"):  # the same session, however it is packed
            shown = shown.removesuffix(suffix)
        agent = _AGENT.match(file.name)
        stat = file.stat()
        whole = SourceFile(
            file=file,
            shown=shown,
            path=without_home(shown),
            agent_id=agent["id"] if agent else "",
            parent_path=without_home(main_file_of(shown)) if agent else "",
            explicit=named,
            size=stat.st_size,
            mtime_ns=stat.st_mtime_ns,
        )
        found += _members(whole)
    return found


def _members(whole: SourceFile) -> Iterator[SourceFile]:
    """Yield the sessions of a file that holds many, or the file itself."""
    file = whole.file
    source = None if file.name.endswith(LINES) else source_of_file(file)
    try:
        members = source.members(file) if source is not None else None
        if members is None:
            yield whole
            return
        for member in members:
            shown, path = (f"{name}/{member.name}.jsonl" for name in (whole.shown, whole.path))
            changed = member.changed_ns
            yield replace(whole, shown=shown, path=path, mtime_ns=changed, size=0, member=member)
    except InputError as error:
        yield replace(whole, member=Member("", 0, partial(_refused, str(error))))


def _whole(file: Path) -> Iterator[bytes] | None:
    """Return the lines of a file that continues another one, with those; else ``None``."""
    if not file.name.endswith(LINES):
        return None
    found = (source.whole(file) for source in sources())
    return next((lines for lines in found if lines is not None), None)


def _refused(why: str) -> Iterator[bytes]:
    raise UnreadableFile(why)


def files_below(
    paths: Iterable[Path | str], lake: Lake | None = None
) -> list[tuple[Path, Path, bool]]:
    """Return each candidate file once, with its root folder, and whether it was named.

    Files of the lake itself, such as its archive, are none.
    """
    own = Path(lake.root).resolve() if lake is not None and lake.local else None
    given = [path for item in paths for path in _expanded(item)]
    if not given:
        looked = ", ".join(str(folder) for source in sources() for folder in source.folders())
        raise InputError(
            f"no PATH given, and no agent keeps sessions here: none of {looked} exists"
        )
    found: list[tuple[Path, Path, bool]] = []
    seen: set[Path] = set()
    for path in given:
        if not path.exists():
            raise InputError(f"{path} does not exist")
        if own and path.resolve().is_relative_to(own):
            raise InputError(f"{path} is inside lake {own}: name the folder of the sessions")
        named = not path.is_dir()
        files, root = [path], path.parent
        if not named:
            files = sorted(f for f in path.rglob("*.*") if f.is_file() and _is_candidate(f))
            root = path
            if not files:
                raise InputError(f"{path} holds no session file of a known agent")
        for file in files:
            if (real := file.resolve()) not in seen and not (own and real.is_relative_to(own)):
                seen.add(real)
                found.append((file, root, named))
    return found


def _is_candidate(file: Path) -> bool:
    if not file.name.endswith(LINES):
        return source_of_file(file) is not None
    if file.name in _OTHER:
        return False
    return "subagents" not in file.parts or _AGENT.match(file.name) is not None


def excluded(file: Path, globs: Sequence[str]) -> bool:
    """Return True if a glob matches the whole path, or the name of the file or a folder."""
    path = file.absolute()
    return any(fnmatchcase(name, glob) for glob in globs for name in (str(path), *path.parts))


def without_home(path: str) -> str:
    """Remove user names from a relative path, also from encoded ones (``-home-x-``)."""
    return redact_text(path)[0] if path else ""


def main_file_of(path: str) -> str:
    """Return the main file of ``<session>/subagents/**/agent-x.jsonl``; empty if not one."""
    parts = PurePosixPath(path).parts
    if "subagents" not in parts[1:]:
        return ""
    at = len(parts) - 1 - parts[::-1].index("subagents")
    return f"{PurePosixPath(*parts[:at])}.jsonl"


#: Records after the first with session and time that are read for a working directory.
MOST_WITHOUT_FOLDER = 20


@dataclass(frozen=True, slots=True)
class Head:
    """What the first records of a file say; ``cwd`` may be empty."""

    is_session: bool
    session_id: str
    day: str
    cwd: str = ""
    agent_id: str = ""  # of a subagent, as the file says it
    untouched: bool = False  # an archived version has its size and time; it was not read
    why: str = ""  # it is no session


def read_head(source: SourceFile) -> Head:
    """Read a file until its session, its first timestamp and its folder are known."""
    session_id, moment, is_session, cwd, after = "", None, False, "", 0
    agent_id = source.agent_id
    why = f"{source.file} holds no session of a known agent"
    try:
        with source.open() as lines:
            for record in read_any(lines, LineStats()):
                known = record.type in KNOWN_TYPES or bool(record.session_id or record.uuid)
                is_session = is_session or (record.type is not None and known)
                moment = moment or parse_time(record.timestamp)
                cwd = cwd or record.cwd or ""
                if type(record) is AgentRecord and not session_id:
                    agent_id = record.agent_id or ""
                    if agent_id and not record.session_id:  # only its folder says whose it is
                        session_id = source.file.parent.name
                session_id = session_id or record.session_id or ""
                if is_session and session_id and moment:
                    after += 1
                    if cwd or after > MOST_WITHOUT_FOLDER:
                        break
    except UnreadableFile as error:
        is_session, why = False, str(error)
    if source.explicit and not is_session:
        raise UnreadableFile(why)
    moment = moment or datetime.fromtimestamp(source.mtime_ns / 1e9, UTC)
    day = moment.date().isoformat()
    session_id = session_id or f"file:{source.path}"
    return Head(is_session, session_id, day, cwd, agent_id, why=why)


def assign_days(sessions: Sequence[tuple[str, str]], known: dict[str, str]) -> dict[str, str]:
    """Return session id to day: the one that the lake knows, else the earliest of its files."""
    days = dict(known)
    for session_id, day in sessions:
        if session_id not in known:
            days[session_id] = min(day, days.get(session_id, day))
    return days


FILE = "forgotten.json"


class Forgotten:
    """The forgotten and withdrawn sessions of a lake."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._withdrawn = Withdrawn(lake)
        try:
            self._hashes = set(json.loads(lake.get_bytes(FILE))["sessions"])
        except FileNotFoundError:
            self._hashes = set()
        except (ValueError, KeyError, TypeError) as error:  # nothing is archived by a guess
            raise InputError(f"lake {lake.url}: {FILE} is damaged; put it back") from error

    def __contains__(self, session_id: str) -> bool:
        return digest_of(session_id) in self._hashes or self._withdrawn.session(session_id)

    def folder(self, cwd: str) -> bool:
        """Return True if a working directory lies in a repository that was withdrawn."""
        return self._withdrawn.names_folders and self._withdrawn.folder(redact_text(cwd)[0])

    def add(self, session_ids: Iterable[str]) -> None:
        """Put sessions on the list, durably."""
        self._hashes |= {digest_of(session_id) for session_id in session_ids}
        text = json.dumps({"sessions": sorted(self._hashes)}, indent=1)
        self._lake.put_bytes(FILE, text.encode())


# -- the first day -----------------------------------------------------------------

#: Claude Code did not exist before; a session with an earlier date has a wrong clock.
EARLIEST = "2025-02-24"


def first_day(lake_url: str, paths: Iterable[Path]) -> str:
    """Return the first day that a lake holds or that session files begin on, ``YYYY-MM-DD``.

    :data:`EARLIEST` if there is neither or the lake cannot be reached: surplus days are merely
    empty, but missing days would hide sessions.
    """
    try:
        found = [*Lake(lake_url).days("raw_files"), *_days_of(paths)]
    except (OSError, StorageError):
        return EARLIEST
    except bucket_errors():
        return EARLIEST
    today = str(datetime.now(UTC).date())
    return min((day for day in found if EARLIEST <= day <= today), default=EARLIEST)


def _days_of(paths: Iterable[Path]) -> Iterator[str]:
    for path in paths:
        try:
            found = discover([path])
        except InputError:  # it is gone or empty
            continue
        yield from (read_head(replace(source, explicit=False)).day for source in found)
