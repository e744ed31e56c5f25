"""Archive the raw bytes of session files before anything else looks at them.

Belongs here: the archive of blobs, the manifest ``raw_files``, the rule that neither
shrinks. Does not belong here: parsing (``traces.parse``).

Claude Code deletes transcripts after 30 days; the archive keeps them. A blob is
``archive/<first two hex digits>/<sha256 of the raw bytes>.jsonl.zst``. The manifest
names, for each file, the longest version known: a shorter re-read does not replace it, a
file deleted at its source stays. A version that is no continuation of the known one (a
file rewritten in place, or two folders with the same relative path) is kept beside it,
as ``<path>#<first 8 digits of its sha256>``.
"""

import hashlib
import io
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zstandard

from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.reports import Progress
from composer_pipeline.traces.archive.discover import (
    Head,
    SourceFile,
    assign_days,
    discover,
    fallback_day,
    read_head,
)

Row = dict[str, Any]

_BUFFER = 1 << 20


@dataclass(slots=True)
class Harvested:
    """One source file and the manifest row that stands for it now."""

    source: SourceFile
    row: Row
    day: str


@dataclass(slots=True)
class HarvestReport:
    """What a harvest did.

    ``days`` are all days of the given files, ``changed_days`` those with new bytes;
    ``files_by_day`` counts the manifest's rows; ``unreadable`` names the files that
    hold no record.
    """

    files: list[Harvested] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    days: list[str] = field(default_factory=list)
    changed_days: list[str] = field(default_factory=list)
    files_by_day: dict[str, int] = field(default_factory=dict)
    new_files: int = 0
    grown_files: int = 0
    unchanged_files: int = 0
    bytes_archived: int = 0
    _by_day: dict[str, Counter[str]] = field(default_factory=dict)

    def day(self, day: str) -> dict[str, int]:
        """Return the numbers of one day: files, bytes, new, grown and unchanged files."""
        names = ("files", "bytes", "new_files", "grown_files", "unchanged_files")
        counts = self._by_day.get(day, Counter())
        return {name: counts[name] for name in names}

    def _count(self, day: str, what: str) -> None:
        self._by_day.setdefault(day, Counter())[what] += 1
        setattr(self, what, getattr(self, what) + 1)


def blob_name(sha256: str) -> str:
    """Return the name of a blob below the lake's root."""
    return f"archive/{sha256[:2]}/{sha256}.jsonl.zst"


def read_blob(lake: Lake, sha256: str) -> bytes:
    """Return raw session bytes from the archive.

    Raises:
        InputError: the archive does not hold them.
    """
    try:
        data = lake.get_bytes(blob_name(sha256))
    except FileNotFoundError as error:
        raise InputError(f"lake {lake.url} has no archived file {sha256}") from error
    return zstandard.ZstdDecompressor().decompressobj().decompress(data)


@contextmanager
def open_archived(lake: Lake, row: Row) -> Iterator[Iterable[bytes]]:
    """Open the raw bytes of a manifest row, as lines; only a part is in memory at a time.

    Raises:
        InputError: the archive does not hold them.
    """
    with ExitStack() as stack:
        streams = []
        for sha256 in row.get("pieces") or [row["sha256"]]:
            try:
                file = stack.enter_context(lake.open(blob_name(sha256)))
            except FileNotFoundError as error:
                raise InputError(f"lake {lake.url} has no archived file {sha256}") from error
            decompress = zstandard.ZstdDecompressor()
            streams.append(decompress.stream_reader(file, read_across_frames=True))
        yield io.BufferedReader(_Joined(streams), _BUFFER)


class _Joined(io.RawIOBase):
    """Pieces of a file, one after the other; a line may go over their ends."""

    def __init__(self, streams: list[Any]) -> None:
        self._left = streams[::-1]

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while self._left:
            if count := self._left[-1].readinto(buffer):
                return int(count)
            self._left.pop()
        return 0


def session_days(paths: Iterable[Path | str]) -> set[str]:
    """Return the days that a harvest of ``paths`` into a new lake would fill.

    Reads only the head of each file.

    Raises:
        InputError: as :func:`harvest`.
    """
    plan = _plan({}, paths)
    return {plan.days[head.session_id] for _, head in plan.sources}


def days_changed(lake: Lake, paths: Iterable[Path | str]) -> list[str]:
    """Return the days with a file that is new or changed since the last harvest, sorted.

    Compares sizes and modification times and reads only the head of new files.

    Raises:
        InputError: as :func:`harvest`.
    """
    manifest = _manifest(lake)
    plan = _plan(manifest, paths)
    return sorted(
        {
            plan.days[head.session_id]
            for source, head in plan.sources
            if _unchanged(manifest.get(source.path, ()), source) is None
        }
    )


def harvest(
    lake: Lake,
    paths: Iterable[Path | str],
    *,
    days: Iterable[str] | None = None,
    progress: Progress | None = None,
) -> HarvestReport:
    """Archive session files and write the manifest of each day that changed.

    Idempotent; an unchanged file costs one ``stat``. Blobs are written before the
    manifest that names them, so a killed harvest is simply run again. A subagent's file
    goes to the day of its session.

    Args:
        lake: where to.
        paths: files or folders; what to harvest.
        days: only files of these days; all when ``None``.
        progress: called with ``("harvest", done, total)``.

    Raises:
        InputError: a path is missing, a folder holds no session, a file that was named
            holds no record, or the lake is not writable. The lake is as it was.
    """
    manifest = _manifest(lake)
    plan = _plan(manifest, paths)
    lake.check_writable()
    wanted = None if days is None else set(days)
    report = HarvestReport(unreadable=plan.unreadable)
    rows: dict[str, dict[str, Row]] = {}
    for row in (row for versions in manifest.values() for row in versions):
        rows.setdefault(row["day"], {})[row["path"]] = row
    written: set[str] = set()
    changed: set[str] = set()
    for done, (source, head) in enumerate(plan.sources, 1):
        day = plan.days[head.session_id]
        if wanted is None or day in wanted:
            before = dict(rows.get(day, {}))
            row = _harvest_file(lake, rows.setdefault(day, {}), source, head, day, report)
            report.files.append(Harvested(source, row, day))
            if rows[day] != before:
                written.add(day)
            if _hashes(rows[day]) != _hashes(before):
                changed.add(day)
        if progress is not None:
            progress("harvest", done, len(plan.sources))
    for day in sorted(written):
        table = [_stored(rows[day][path]) for path in sorted(rows[day])]
        lake.write("raw_files", table, day=day)
    report.days = sorted({item.day for item in report.files})
    report.changed_days = sorted(changed)
    report.files_by_day = {day: len(rows[day]) for day in sorted(rows)}
    for day, known in rows.items():
        counts = report._by_day.setdefault(day, Counter())
        counts["files"] = len(known)
        counts["bytes"] = sum(row["size"] for row in known.values())
    return report


# -- planning --------------------------------------------------------------------


@dataclass(slots=True)
class _Plan:
    sources: list[tuple[SourceFile, Head]]
    days: dict[str, str]
    unreadable: list[str]


def _plan(manifest: Mapping[str, list[Row]], paths: Iterable[Path | str]) -> _Plan:
    """Find the files, their sessions and days; refuse bad input before any write."""
    given = list(paths)
    sources: list[tuple[SourceFile, Head]] = []
    unreadable: list[str] = []
    for source in discover(given):
        known = _unchanged(manifest.get(source.path, ()), source)
        if known is not None:
            sources.append((source, Head(True, known["session_id"], known["day"])))
            continue
        head = read_head(source)
        if not head.is_session:
            if source.explicit:
                raise InputError(f"{source.file} holds no Claude Code record (JSON lines)")
            unreadable.append(source.shown)
            continue
        session_id = head.session_id or f"file:{source.path}"
        sources.append((source, Head(True, session_id, head.day or fallback_day(source))))
    if not sources:
        folders = ", ".join(str(path) for path in given)
        raise InputError(f"{folders} holds no session: no .jsonl file has a Claude Code record")
    known_days: dict[str, str] = {}
    for row in (row for versions in manifest.values() for row in versions):
        day = known_days.get(row["session_id"], row["day"])
        known_days[row["session_id"]] = min(day, row["day"])
    dated = [(head.session_id, head.day or "") for _, head in sources]
    return _Plan(sources, assign_days(dated, known_days), unreadable)


def _manifest(lake: Lake) -> dict[str, list[Row]]:
    """Return the manifest's rows by path, each with its ``day``.

    Two folders can hold different sessions under one relative path; a path then has a
    row in several days.
    """
    manifest: dict[str, list[Row]] = {}
    for row in lake.rows("raw_files"):
        manifest.setdefault(row["path"].split("#")[0], []).append(row)
    return manifest


def _unchanged(versions: Iterable[Row], source: SourceFile) -> Row | None:
    """Return the version that has the size and the time of ``source``, if one has."""
    for row in versions:
        if row["size"] == source.size and row["mtime_ns"] == source.mtime_ns:
            return row
    return None


# -- one file --------------------------------------------------------------------


def _harvest_file(
    lake: Lake,
    rows: dict[str, Row],
    source: SourceFile,
    head: Head,
    day: str,
    report: HarvestReport,
) -> Row:
    """Archive one file and put its row into ``rows``; return the row that holds it."""
    known = rows.get(source.path)
    untouched = _unchanged(_versions(rows, source.path), source)
    if untouched is not None:
        report._count(day, "unchanged_files")
        return untouched
    with closing(_Copy(known)) as whole:
        whole.read(source)
        return _keep(lake, rows, source, head, day, report, known, whole)


def _keep(
    lake: Lake,
    rows: dict[str, Row],
    source: SourceFile,
    head: Head,
    day: str,
    report: HarvestReport,
    known: Row | None,
    whole: "_Copy",
) -> Row:
    """Archive what was read and put its row into ``rows``."""
    row: Row = {
        "path": source.path,
        "sha256": whole.sha256,
        "size": whole.size,
        "mtime_ns": source.mtime_ns,
        "session_id": head.session_id,
        "agent_id": source.agent_id,
        "parent_path": source.parent_path,
        "offset": whole.offset,
        "pieces": whole.pieces,
        "day": day,
    }
    same = [r for r in _versions(rows, source.path) if r["sha256"] == whole.sha256]
    if same:
        report._count(day, "unchanged_files")
        kept = {name: same[0][name] for name in ("path", "offset", "pieces")}
        rows[same[0]["path"]] = {**row, **kept}  # touched: same bytes
        return rows[same[0]["path"]]
    if known is not None and whole.size < known["size"] and _begins(lake, known, whole):
        report._count(day, "unchanged_files")
        return known
    report.bytes_archived += whole.archive(lake)
    report._count(day, "new_files" if known is None else "grown_files")
    if known is not None and not whole.grew:
        aside = row if whole.size < known["size"] else known
        aside = {**aside, "path": f"{source.path}#{aside['sha256'][:8]}"}
        rows[aside["path"]] = aside
        if whole.size < known["size"]:
            return aside
    rows[source.path] = row
    return row


class _Copy:
    """A file's bytes as they were when read, split into what is known and what is new.

    The bytes behind the known version become a piece of their own, so that a session that
    grows for weeks is archived once. A file that changes while it is read counts as it was
    read: the next harvest sees another size or time and reads it again.
    """

    def __init__(self, known: Row | None) -> None:
        self.size = 0
        self.grew = False
        self.pieces: list[str] = []
        self.offset = 0
        self._known = known if known is not None and known["size"] else None
        self._whole = hashlib.sha256()
        self._tail = hashlib.sha256()
        self._start = 0
        self._temporary = tempfile.TemporaryFile(prefix="composer-pipeline-")  # noqa: SIM115
        self._writer = self._compressor()

    def _compressor(self) -> Any:
        return zstandard.ZstdCompressor(level=3).stream_writer(self._temporary, closefd=False)

    def add(self, data: bytes) -> None:
        """Take the next bytes; split them where the known version ends."""
        limit = self._known["size"] if self._known is not None else -1
        if self.size < limit <= self.size + len(data):
            cut = limit - self.size
            self._add(data[:cut])
            if self._whole.hexdigest() == self._known["sha256"]:  # type: ignore[index]
                self._continue()
            data = data[cut:]
        self._add(data)

    def _add(self, data: bytes) -> None:
        self._whole.update(data)
        self._tail.update(data)
        self._writer.write(data)
        if (newline := data.rfind(b"\n")) >= 0:
            self.offset = self.size + newline + 1
        self.size += len(data)

    def _continue(self) -> None:
        assert self._known is not None
        self.grew = True
        self.pieces = list(self._known.get("pieces") or [self._known["sha256"]])
        self._tail = hashlib.sha256()
        self._start = self.size
        self._writer.close()
        self._temporary.seek(0)
        self._temporary.truncate()
        self._writer = self._compressor()

    def read(self, source: SourceFile) -> None:
        """Take all bytes of a file."""
        with source.open() as file:
            while data := file.read(_BUFFER):
                self.add(data)
        self._finish()

    def close(self) -> None:
        """Drop the temporary file."""
        self._temporary.close()

    def _finish(self) -> None:
        self._writer.close()
        if self.size > self._start or not self.pieces:
            self.pieces.append(self._tail.hexdigest())

    @property
    def sha256(self) -> str:
        """The hash of all bytes."""
        return self._whole.hexdigest()

    def archive(self, lake: Lake) -> int:
        """Write the new piece unless the archive has it; return the raw bytes written."""
        name = blob_name(self.pieces[-1])
        if lake.exists(name):
            return 0
        self._temporary.seek(0)
        lake.put_stream(name, self._temporary)
        return self.size - self._start


def _begins(lake: Lake, known: Row, whole: _Copy) -> bool:
    """Say whether the known version begins with the bytes of ``whole``."""
    digest, left = hashlib.sha256(), whole.size
    with open_archived(lake, known) as lines:
        for line in lines:
            digest.update(line[:left])
            left -= min(left, len(line))
            if not left:
                break
    return digest.hexdigest() == whole.sha256


def _versions(rows: dict[str, Row], path: str) -> list[Row]:
    return [row for name, row in rows.items() if name == path or name.startswith(f"{path}#")]


def _hashes(rows: dict[str, Row]) -> dict[str, str]:
    return {path: row["sha256"] for path, row in rows.items()}


def _stored(row: Row) -> Row:
    return {name: value for name, value in row.items() if name != "day"}
