"""Archive the raw bytes of session files, before anything else looks at them.

Claude Code deletes transcripts after 30 days; the archive keeps them. A blob is
``archive/<first two hex digits>/<sha256 of the raw bytes>.jsonl.zst``; the table ``raw_files`` is
the manifest, and a file deleted at its source stays in it.
"""

import hashlib
import io
import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import zstandard

from composer_pipeline.errors import InputError
from composer_pipeline.lake.place import check_days
from composer_pipeline.lake.store import Lake
from composer_pipeline.reports import Progress
from composer_pipeline.settings import Settings
from composer_pipeline.traces.discover import (
    Forgotten,
    Head,
    SourceFile,
    UnreadableFile,
    assign_days,
    discover,
    excluded,
    read_head,
    without_home,
)

Row = dict[str, Any]
BUFFER = 1 << 20

# -- blobs -----------------------------------------------------------------------


def blob_name(sha256: str) -> str:
    """Return the name of a blob below the lake's root."""
    return f"archive/{sha256[:2]}/{sha256}.jsonl.zst"


def read_blob(lake: Lake, sha256: str) -> bytes:
    """Return raw session bytes from the archive."""
    try:
        data = lake.get_bytes(blob_name(sha256))
    except FileNotFoundError as error:
        raise InputError(f"lake {lake.url} has no archived file {sha256}") from error
    return zstandard.ZstdDecompressor().decompressobj().decompress(data)


@contextmanager
def open_archived(lake: Lake, row: Row) -> Iterator[Iterable[bytes]]:
    """Open the raw bytes of a manifest row, as lines; only a part is in memory at a time."""
    with ExitStack() as stack:
        streams = []
        for sha256 in row.get("pieces") or [row["sha256"]]:
            try:
                file = stack.enter_context(lake.open(blob_name(sha256)))
            except FileNotFoundError as error:
                raise InputError(f"lake {lake.url} has no archived file {sha256}") from error
            decompress = zstandard.ZstdDecompressor()
            streams.append(decompress.stream_reader(file, read_across_frames=True))
        try:
            yield _lines(streams, row["size"])
        except (zstandard.ZstdError, EOFError) as error:
            raise InputError(
                f"lake {lake.url}: archived file {row['sha256']} of day {row['day']} is damaged"
                f" ({error}); run composer-pipeline verify"
            ) from error


def _lines(streams: list[Any], size: int) -> Iterator[bytes]:
    """Yield the lines of a file from its pieces; a line may span two of them."""
    begun = b""
    for stream in streams:
        for line in io.BufferedReader(stream, BUFFER):
            size -= len(line)
            if line.endswith(b"\n"):
                yield begun + line if begun else line
                begun = b""
            else:  # only the last line of a piece
                begun += line
    if size:  # a truncated zstd stream ends like a complete one
        raise EOFError(f"{size} bytes are missing")
    if begun:
        yield begun


# -- the manifest ------------------------------------------------------------------


@dataclass(slots=True)
class Plan:
    """Files with their heads, the day of each session, and why other files are none."""

    sources: list[tuple[SourceFile, Head]]
    days: dict[str, str]
    unreadable: dict[str, str]


def make_plan(
    rows: Iterable[Row],
    paths: Iterable[Path | str],
    exclude: Sequence[str] = (),
    lake: Lake | None = None,
) -> Plan:
    """Find the files, their sessions and days; refuse bad input before any write."""
    # Several days may hold different sessions under one relative path.
    versions: dict[str, list[Row]] = {}
    known_days: dict[str, str] = {}
    for row in rows:
        versions.setdefault(row["path"].split("#")[0], []).append(row)
        day = known_days.get(row["session_id"], row["day"])
        known_days[row["session_id"]] = min(day, row["day"])
    given = list(paths)
    globs = (*exclude, *Settings.from_env().excluded)
    found = [source for source in discover(given, lake) if not excluded(source.file, globs)]
    if not found:
        raise InputError(f"every session file is excluded by {', '.join(globs)}")
    sources: list[tuple[SourceFile, Head]] = []
    unreadable: dict[str, str] = {}
    for source in found:
        known = _untouched(versions.get(source.path, ()), source)
        if known is not None:
            whose = known["agent_id"]
            head = Head(True, known["session_id"], known["day"], agent_id=whose, untouched=True)
        else:
            head = read_head(source)
        if head.is_session:
            sources.append((source, head))
        else:
            unreadable[source.shown] = head.why
    if not sources:
        folders = ", ".join(str(path) for path in given)
        why = next(iter(unreadable.values()), "no file has a session of a known agent")
        raise InputError(f"{folders} holds no session: {why}")
    dated = [(head.session_id, head.day) for _, head in sources]
    return Plan(sources, assign_days(dated, known_days), unreadable)


def _manifest_rows(lake: Lake, days: list[str] | None = None) -> tuple[list[Row], set[str]]:
    """Return the manifest with paths redacted by the current rules, and the days this changed."""
    rows: list[Row] = []
    changed: set[str] = set()
    taken: set[tuple[str, str]] = set()
    for row in lake.rows("raw_files", days=days):
        path, parent = without_home(row["path"]), without_home(row["parent_path"])
        if (row["day"], path) in taken:  # they differed only by the redacted name
            path = f"{path}#{row['sha256'][:8]}"
        taken.add((row["day"], path))
        if (path, parent) != (row["path"], row["parent_path"]):
            changed.add(row["day"])
        rows.append({**row, "path": path, "parent_path": parent})
    return rows, changed


def _write_manifest(lake: Lake, day: str, rows: Iterable[Row]) -> None:
    table = [
        {name: value for name, value in row.items() if name != "day"}
        for row in sorted(rows, key=lambda row: str(row["path"]))
    ]
    lake.write("raw_files", table, day=day)


def redact_manifest(lake: Lake, day: str) -> None:
    """Rewrite a day's manifest if the current rules redact its paths differently."""
    rows, changed = _manifest_rows(lake, [day])
    if changed:
        _write_manifest(lake, day, rows)


def _untouched(versions: Iterable[Row], source: SourceFile) -> Row | None:
    """Return the version that has the size and the time of ``source``, if there is one."""
    for row in versions:
        same = source.member is not None or row["size"] == source.size
        if same and row["mtime_ns"] == source.mtime_ns:
            return row
    return None


# -- one file ----------------------------------------------------------------------


@dataclass(slots=True)
class HarvestedFile:
    """One source file and its current manifest row."""

    source: SourceFile
    row: Row
    day: str


@dataclass(slots=True)
class HarvestReport:
    """What a harvest did."""

    files: list[HarvestedFile] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)  # files of folders, and why
    new_files: int = 0
    grown_files: int = 0
    unchanged_files: int = 0
    forgotten_files: int = 0  # of forgotten or withdrawn sessions
    bytes_archived: int = 0
    by_day: dict[str, Counter[str]] = field(default_factory=dict)

    def day(self, day: str) -> dict[str, int]:
        """Return the numbers of one day: files, bytes, new, grown and unchanged files."""
        names = ("files", "bytes", "new_files", "grown_files", "unchanged_files")
        counts = self.by_day.get(day, Counter())
        return {name: counts[name] for name in names}

    def count(self, day: str, what: str) -> None:
        """Add one to a number, of the day and in total."""
        self.by_day.setdefault(day, Counter())[what] += 1
        setattr(self, what, getattr(self, what) + 1)


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
    versions = [
        row
        for path, row in rows.items()
        if path == source.path or path.startswith(f"{source.path}#")
    ]
    if (untouched := _untouched(versions, source)) is not None:
        report.count(day, "unchanged_files")
        return untouched
    with closing(FileCopy(known)) as copy:
        copy.read(source)
        row: Row = {
            "path": source.path,
            "sha256": copy.sha256,
            "size": copy.size,
            "mtime_ns": source.mtime_ns,
            "session_id": head.session_id,
            "agent_id": head.agent_id,
            "parent_path": source.parent_path,
            "offset": copy.offset,
            "pieces": copy.pieces,
            "day": day,
        }
        if same := [row for row in versions if row["sha256"] == copy.sha256]:
            report.count(day, "unchanged_files")
            kept = {name: same[0][name] for name in ("path", "offset", "pieces")}
            rows[kept["path"]] = {**row, **kept}  # only the time differs
            return rows[kept["path"]]
        shorter = known is not None and copy.size < known["size"]
        if known is not None and shorter and _begins_with(lake, known, copy):
            report.count(day, "unchanged_files")
            return known
        report.bytes_archived += copy.archive(lake)
        report.count(day, "new_files" if known is None else "grown_files")
        if known is not None and not copy.grew:
            aside = row if shorter else known
            aside = {**aside, "path": f"{source.path}#{aside['sha256'][:8]}"}
            rows[aside["path"]] = aside
            if shorter:
                return aside
        rows[source.path] = row
        return row


class FileCopy:
    """A file's bytes as they were when read, split into a known and a new part.

    The bytes after the known version become a piece of their own, so that a session that
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
                self._start_piece()
            data = data[cut:]
        self._add(data)

    def _add(self, data: bytes) -> None:
        self._whole.update(data)
        self._tail.update(data)
        self._writer.write(data)
        if (newline := data.rfind(b"\n")) >= 0:
            self.offset = self.size + newline + 1
        self.size += len(data)

    def _start_piece(self) -> None:
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
            while data := file.read(BUFFER):
                self.add(data)
        self._writer.close()
        if self.size > self._start or not self.pieces:
            self.pieces.append(self._tail.hexdigest())

    def close(self) -> None:
        """Drop the temporary file."""
        self._temporary.close()

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


def _begins_with(lake: Lake, known: Row, copy: FileCopy) -> bool:
    digest, left = hashlib.sha256(), copy.size
    with open_archived(lake, known) as lines:
        for line in lines:
            digest.update(line[:left])
            left -= min(left, len(line))
            if not left:
                break
    return digest.hexdigest() == copy.sha256


# -- the stage -----------------------------------------------------------------------

#: Label of the progress call while another process holds the writer lock.
WAITING = "wait for another ingest"


def writer_lock(lake: Lake, progress: Progress | None) -> AbstractContextManager[None]:
    """Hold the writer lock; calls ``progress(WAITING, 0, 0)`` if another process has it."""
    if progress is None:
        return lake.locked("traces")
    return lake.locked("traces", partial(progress, WAITING, 0, 0))


def session_days(paths: Iterable[Path | str]) -> set[str]:
    """Return the days that a harvest into a new lake would fill; reads only heads of files."""
    plan = make_plan((), paths)
    return {plan.days[head.session_id] for _, head in plan.sources}


def days_changed(lake: Lake, paths: Iterable[Path | str]) -> list[str]:
    """Return the days with a new or changed file, sorted; reads only heads of new files."""
    plan = make_plan(_manifest_rows(lake)[0], paths, lake=lake)
    return sorted({plan.days[head.session_id] for _, head in plan.sources if not head.untouched})


def harvest(
    lake: Lake,
    paths: Iterable[Path | str] | Path | str,
    *,
    days: Iterable[str] | None = None,
    exclude: Sequence[str] = (),
    progress: Progress | None = None,
) -> HarvestReport:
    """Archive session files and write the manifest of each day that changed.

    Idempotent; an unchanged file costs one ``stat``. A subagent's file goes to the day of its
    session. ``days`` limits the files, ``exclude`` has globs besides ``COMPOSER_EXCLUDE``. Harvests
    of one lake add up: one waits for the other. Bad input raises InputError before any write.
    """
    paths = [paths] if isinstance(paths, str | Path) else list(paths)
    # Bad input creates no lake, not even its lock.
    first = None if lake.days("raw_files") else make_plan((), paths, exclude, lake)
    lake.check_writable()
    with writer_lock(lake, progress):
        known, renamed = _manifest_rows(lake)
        plan = first if first and not known else make_plan(known, paths, exclude, lake)
        wanted = None if days is None else set(check_days(days))
        # Changed redaction rules apply to all days, unless only some were requested.
        written = renamed if wanted is None else set[str]()
        return _harvest(lake, known, plan, wanted, written, progress)


def _note_unreadable(report: HarvestReport, source: SourceFile, error: UnreadableFile) -> None:
    if source.explicit:
        raise error
    report.unreadable[source.shown] = str(error)


def _harvest(
    lake: Lake,
    known: list[Row],
    plan: Plan,
    wanted: set[str] | None,
    written: set[str],
    progress: Progress | None,
) -> HarvestReport:
    report = HarvestReport(unreadable=plan.unreadable)
    rows: dict[str, dict[str, Row]] = {}
    for row in known:
        rows.setdefault(row["day"], {})[row["path"]] = row
    forgotten = Forgotten(lake)
    for done, (source, head) in enumerate(plan.sources, 1):
        day = plan.days[head.session_id]
        if head.session_id in forgotten or forgotten.folder(head.cwd):
            report.forgotten_files += 1
        elif wanted is None or day in wanted:
            before = dict(rows.get(day, {}))
            try:
                row = _harvest_file(lake, rows.setdefault(day, {}), source, head, day, report)
                report.files.append(HarvestedFile(source, row, day))
            except UnreadableFile as error:  # its head could be read
                _note_unreadable(report, source, error)
            if rows[day] != before:
                written.add(day)
        if progress is not None:
            progress("harvest", done, len(plan.sources))
    # After the blobs that it names: a killed harvest is simply run again.
    for day in sorted(written):
        _write_manifest(lake, day, rows[day].values())
    for day, files in rows.items():
        counts = report.by_day.setdefault(day, Counter())
        counts["files"] = len(files)
        counts["bytes"] = sum(row["size"] for row in files.values())
    return report


# -- the high-water mark ---------------------------------------------------------------

#: Path to (size, sha256) of every archived file at the last check that found nothing.
HIGH_WATER = "checks/raw_sessions_high_water.json"


def forget_files(lake: Lake, paths: Iterable[str]) -> None:
    """Take deliberately removed files out of the high-water mark."""
    if lake.exists(HIGH_WATER):
        before, gone = json.loads(lake.get_bytes(HIGH_WATER)), set(paths)
        kept = {path: value for path, value in before.items() if path not in gone}
        lake.put_bytes(HIGH_WATER, json.dumps(kept, sort_keys=True).encode())


def shrunk_or_lost(lake: Lake) -> list[str]:
    """Return the archived files that are shorter than at the last clean check, or lack bytes."""
    now = {
        path: [int(size), sha]
        for path, size, sha in lake.query("SELECT path, size, sha256 FROM raw_files")
    }
    before = json.loads(lake.get_bytes(HIGH_WATER)) if lake.exists(HIGH_WATER) else {}
    bad = {path for path, (size, _) in before.items() if now.get(path, [-1])[0] < size}
    pieces = "SELECT path, unnest(coalesce(pieces, [sha256])) FROM raw_files"
    bad |= {path for path, sha in lake.query(pieces) if not lake.exists(blob_name(sha))}
    if not bad:
        lake.put_bytes(HIGH_WATER, json.dumps(now, sort_keys=True).encode())
    return sorted(bad)
