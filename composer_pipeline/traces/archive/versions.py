"""One file into the archive: what is new of it, and which version the manifest names.

Belongs here: the rule that neither the archive nor the manifest shrinks. Does not belong
here: days and the order of writes (``traces.archive.harvest``).

The manifest names, for each file, the longest version known: a shorter re-read does not
replace it. A version that is no continuation of the known one (a file rewritten in place,
or two folders with the same relative path) is kept beside it, as
``<path>#<first 8 digits of its sha256>``.
"""

import hashlib
import tempfile
from contextlib import closing
from typing import Any

import zstandard

from composer_pipeline.lake import Lake
from composer_pipeline.traces.archive.blobs import BUFFER, Row, blob_name, open_archived
from composer_pipeline.traces.archive.discover import SourceFile
from composer_pipeline.traces.archive.heads import Head
from composer_pipeline.traces.archive.plan import unchanged
from composer_pipeline.traces.archive.report import HarvestReport


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
