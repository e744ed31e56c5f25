"""Archive the raw bytes of session files before anything else looks at them.

Belongs here: the stage, the order of its writes, the manifest ``raw_files``. Does not
belong here: one file (``traces.archive.versions``) and parsing (``traces.parse``).

Claude Code deletes transcripts after 30 days; the archive keeps them. A blob is
``archive/<first two hex digits>/<sha256 of the raw bytes>.jsonl.zst``; a file deleted at
its source stays in the manifest.
"""

import hashlib
import io
import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zstandard

from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.reports import Progress
from composer_pipeline.settings import Settings
from composer_pipeline.traces.discover import (
    Forgotten,
    Head,
    SourceFile,
    assign_days,
    discover,
    excluded,
    fallback_day,
    read_head,
    without_home,
)

Row = dict[str, Any]
BUFFER = 1 << 20


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
        InputError: the archive does not hold them, or not all of them.
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
        try:
            yield io.BufferedReader(_Joined(streams, row["size"]), BUFFER)
        except (zstandard.ZstdError, EOFError) as error:
            raise InputError(
                f"lake {lake.url}: archived file {row['sha256']} of day {row['day']} is damaged"
                f" ({error}); run composer-pipeline verify"
            ) from error


class _Joined(io.RawIOBase):
    """Pieces of a file, one after the other; a line may go over their ends.

    A stream that was cut short ends as a whole one does, so the bytes are counted.
    """

    def __init__(self, streams: list[Any], size: int) -> None:
        self._left = streams[::-1]
        self._missing = size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while self._left:
            if count := self._left[-1].readinto(buffer):
                self._missing -= count
                return int(count)
            self._left.pop()
        if self._missing:
            raise EOFError(f"{self._missing} bytes are missing")
        return 0


@dataclass(slots=True)
class Plan:
    """Files with their heads, the day of each session, and the files without a record."""

    sources: list[tuple[SourceFile, Head]]
    days: dict[str, str]
    unreadable: list[str]


def make_plan(
    manifest: Mapping[str, list[Row]], paths: Iterable[Path | str], exclude: Sequence[str] = ()
) -> Plan:
    """Find the files, their sessions and days; refuse bad input before any write."""
    given = list(paths)
    globs = (*exclude, *Settings.from_env().excluded)
    found = [source for source in discover(given) if not excluded(source.file, globs)]
    if not found:
        raise InputError(f"every session file is excluded by {', '.join(globs)}")
    sources: list[tuple[SourceFile, Head]] = []
    unreadable: list[str] = []
    for source in found:
        known = unchanged(manifest.get(source.path, ()), source)
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
        when = head.day or fallback_day(source)
        sources.append((source, Head(True, session_id, when, head.cwd)))
    if not sources:
        folders = ", ".join(str(path) for path in given)
        raise InputError(f"{folders} holds no session: no .jsonl file has a Claude Code record")
    known_days: dict[str, str] = {}
    for row in (row for versions in manifest.values() for row in versions):
        day = known_days.get(row["session_id"], row["day"])
        known_days[row["session_id"]] = min(day, row["day"])
    dated = [(head.session_id, head.day or "") for _, head in sources]
    return Plan(sources, assign_days(dated, known_days), unreadable)


def manifest_of(lake: Lake) -> dict[str, list[Row]]:
    """Return the manifest's rows by path, each with its ``day``.

    Two folders can hold different sessions under one relative path; a path then has a
    row in several days. Paths are redacted by the rules of now (:func:`redacted_again`).
    """
    manifest: dict[str, list[Row]] = {}
    for row in redacted_again(lake.rows("raw_files")):
        manifest.setdefault(row["path"].split("#")[0], []).append(row)
    return manifest


def redacted_again(rows: Iterable[Row]) -> list[Row]:
    """Return rows of the manifest with their paths as the rules of now redact them.

    Files that only a name in their path told apart still have a path each.
    """
    out: list[Row] = []
    taken: set[tuple[str, str]] = set()
    for row in rows:
        path, parent = without_home(row["path"]), without_home(row["parent_path"])
        if (row["day"], path) in taken:
            path = f"{path}#{row['sha256'][:8]}"
        taken.add((row["day"], path))
        out.append({**row, "path": path, "parent_path": parent})
    return out


def stored(row: Row) -> Row:
    """Return a row of the manifest as its partition holds it."""
    return {name: value for name, value in row.items() if name != "day"}


def redact_manifest(lake: Lake, day: str) -> bool:
    """Write a day's manifest with its paths by the rules of now; say whether they differed."""
    before = lake.rows("raw_files", days=[day])
    rows = [stored(row) for row in redacted_again(before)]
    names = ("path", "parent_path")
    if [[row[n] for n in names] for row in rows] == [[row[n] for n in names] for row in before]:
        return False
    lake.write("raw_files", sorted(rows, key=lambda row: str(row["path"])), day=day)
    return True


def unchanged(versions: Iterable[Row], source: SourceFile) -> Row | None:
    """Return the version that has the size and the time of ``source``, if one has."""
    for row in versions:
        if row["size"] == source.size and row["mtime_ns"] == source.mtime_ns:
            return row
    return None


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
    hold no record; ``forgotten_files`` counts those of sessions that `forget` or
    `withdraw` took out.
    """

    files: list[Harvested] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    days: list[str] = field(default_factory=list)
    changed_days: list[str] = field(default_factory=list)
    files_by_day: dict[str, int] = field(default_factory=dict)
    new_files: int = 0
    grown_files: int = 0
    unchanged_files: int = 0
    forgotten_files: int = 0
    bytes_archived: int = 0
    _by_day: dict[str, Counter[str]] = field(default_factory=dict)

    def day(self, day: str) -> dict[str, int]:
        """Return the numbers of one day: files, bytes, new, grown and unchanged files."""
        names = ("files", "bytes", "new_files", "grown_files", "unchanged_files")
        counts = self._by_day.get(day, Counter())
        return {name: counts[name] for name in names}

    def count(self, day: str, what: str) -> None:
        """Add one to a number, of the day and of all."""
        self._by_day.setdefault(day, Counter())[what] += 1
        setattr(self, what, getattr(self, what) + 1)


def harvest_file(
    lake: Lake,
    rows: dict[str, Row],
    source: SourceFile,
    head: Head,
    day: str,
    report: HarvestReport,
) -> Row:
    """Archive one file and put its row into ``rows``; return the row that holds it."""
    known = rows.get(source.path)
    untouched = unchanged(_versions(rows, source.path), source)
    if untouched is not None:
        report.count(day, "unchanged_files")
        return untouched
    with closing(Copy(known)) as whole:
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
    whole: "Copy",
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
        report.count(day, "unchanged_files")
        kept = {name: same[0][name] for name in ("path", "offset", "pieces")}
        rows[same[0]["path"]] = {**row, **kept}  # touched: same bytes
        return rows[same[0]["path"]]
    if known is not None and whole.size < known["size"] and _begins(lake, known, whole):
        report.count(day, "unchanged_files")
        return known
    report.bytes_archived += whole.archive(lake)
    report.count(day, "new_files" if known is None else "grown_files")
    if known is not None and not whole.grew:
        aside = row if whole.size < known["size"] else known
        aside = {**aside, "path": f"{source.path}#{aside['sha256'][:8]}"}
        rows[aside["path"]] = aside
        if whole.size < known["size"]:
            return aside
    rows[source.path] = row
    return row


class Copy:
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
            while data := file.read(BUFFER):
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


def _begins(lake: Lake, known: Row, whole: Copy) -> bool:
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


WAITING = "wait for another ingest"


@contextmanager
def one_writer(lake: Lake, progress: Progress | None) -> Iterator[None]:
    """Be the only process that harvests or parses this lake, for a block.

    Args:
        lake: the lake.
        progress: called with ``(WAITING, 0, 0)`` where another one has to end first.

    Raises:
        InputError, StorageError: the lake is not writable.
    """

    def waiting() -> None:
        if progress is not None:
            progress(WAITING, 0, 0)

    with lake.locked("traces", waiting):
        yield


def session_days(paths: Iterable[Path | str]) -> set[str]:
    """Return the days that a harvest of ``paths`` into a new lake would fill.

    Reads only the head of each file.

    Raises:
        InputError: as :func:`harvest`.
    """
    plan = make_plan({}, paths)
    return {plan.days[head.session_id] for _, head in plan.sources}


def days_changed(lake: Lake, paths: Iterable[Path | str]) -> list[str]:
    """Return the days with a file that is new or changed since the last harvest, sorted.

    Compares sizes and modification times and reads only the head of new files.

    Raises:
        InputError: as :func:`harvest`.
    """
    manifest = manifest_of(lake)
    plan = make_plan(manifest, paths)
    return sorted(
        {
            plan.days[head.session_id]
            for source, head in plan.sources
            if unchanged(manifest.get(source.path, ()), source) is None
        }
    )


def harvest(
    lake: Lake,
    paths: Iterable[Path | str],
    *,
    days: Iterable[str] | None = None,
    exclude: Sequence[str] = (),
    progress: Progress | None = None,
) -> HarvestReport:
    """Archive session files and write the manifest of each day that changed.

    Idempotent; an unchanged file costs one ``stat``. Blobs are written before the
    manifest that names them, so a killed harvest is simply run again. A subagent's file
    goes to the day of its session. Harvests of one lake, also from several machines, add up:
    one waits for the other.

    Args:
        lake: where to.
        paths: files or folders; what to harvest.
        days: only files of these days; all when ``None``.
        exclude: globs of files and folders that are not read, besides ``COMPOSER_EXCLUDE``.
        progress: called with ``("harvest", done, total)``, and once with
            :data:`WAITING` where another harvest or parse has to end first.

    Raises:
        InputError: a path is missing, a folder holds no session, a file that was named
            holds no record, or the lake is not writable. The lake is as it was.
    """
    paths = list(paths)
    # Bad input makes no lake, not even its lock.
    first = None if lake.days("raw_files") else make_plan({}, paths, exclude)
    lake.check_writable()
    with one_writer(lake, progress):
        manifest = manifest_of(lake)
        plan = first if first is not None and not manifest else make_plan(manifest, paths, exclude)
        return _harvest(lake, manifest, plan, None if days is None else set(days), progress)


def _harvest(
    lake: Lake,
    manifest: dict[str, list[Row]],
    plan: Plan,
    wanted: set[str] | None,
    progress: Progress | None,
) -> HarvestReport:
    report = HarvestReport(unreadable=plan.unreadable)
    rows: dict[str, dict[str, Row]] = {}
    for row in (row for versions in manifest.values() for row in versions):
        rows.setdefault(row["day"], {})[row["path"]] = row
    written = _redacted_otherwise(lake, rows) if wanted is None else set[str]()
    changed: set[str] = set()
    forgotten = Forgotten(lake)
    for done, (source, head) in enumerate(plan.sources, 1):
        day = plan.days[head.session_id]
        if head.session_id in forgotten or forgotten.folder(head.cwd):
            report.forgotten_files += 1
        elif wanted is None or day in wanted:
            before = dict(rows.get(day, {}))
            row = harvest_file(lake, rows.setdefault(day, {}), source, head, day, report)
            report.files.append(Harvested(source, row, day))
            if rows[day] != before:
                written.add(day)
            if _hashes(rows[day]) != _hashes(before):
                changed.add(day)
        if progress is not None:
            progress("harvest", done, len(plan.sources))
    for day in sorted(written):
        table = [stored(rows[day][path]) for path in sorted(rows[day])]
        lake.write("raw_files", table, day=day)
    report.days = sorted({item.day for item in report.files})
    report.changed_days = sorted(changed)
    report.files_by_day = {day: len(rows[day]) for day in sorted(rows)}
    for day, known in rows.items():
        counts = report._by_day.setdefault(day, Counter())
        counts["files"] = len(known)
        counts["bytes"] = sum(row["size"] for row in known.values())
    return report


# -- one file --------------------------------------------------------------------


def _hashes(rows: dict[str, Row]) -> dict[str, str]:
    return {path: row["sha256"] for path, row in rows.items()}


def _redacted_otherwise(lake: Lake, rows: dict[str, dict[str, Row]]) -> set[str]:
    """Return the days whose stored paths are not those of the rules of now."""
    stored: dict[str, set[str]] = {}
    for row in lake.rows("raw_files"):
        stored.setdefault(row["day"], set()).update((row["path"], row["parent_path"]))
    return {
        day
        for day, paths in stored.items()
        if paths != {p for row in rows[day].values() for p in (row["path"], row["parent_path"])}
    }


#: Path to (size, sha256) of every archived file at the last check that found nothing.
HIGH_WATER = "checks/raw_sessions_high_water.json"


def forget_files(lake: Lake, paths: Iterable[str]) -> None:
    """Take files out of the high-water mark: they are gone on purpose."""
    if lake.exists(HIGH_WATER):
        before, gone = json.loads(lake.get_bytes(HIGH_WATER)), set(paths)
        kept = {path: value for path, value in before.items() if path not in gone}
        lake.put_bytes(HIGH_WATER, json.dumps(kept, sort_keys=True).encode())


def shrunk_or_lost(lake: Lake) -> list[str]:
    """Return the archived files that are shorter than at the last check, or lack bytes.

    Where there is none, the manifest of now is what the next check compares with.
    """
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
