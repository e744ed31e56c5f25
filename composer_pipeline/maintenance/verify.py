"""Checks of a lake's contents: every byte, every count, every cent."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from composer_pipeline.lake.parquet import DamagedFile
from composer_pipeline.lake.place import check_days, is_known
from composer_pipeline.lake.schema import TABLES
from composer_pipeline.lake.store import Lake, doubled_states, exports, incomplete_prefixes
from composer_pipeline.lake.withdrawn import Withdrawn
from composer_pipeline.redaction.scanning import BATCH, Findings, Scanner
from composer_pipeline.reports import Progress, Report
from composer_pipeline.states.load import chain_digest, sessions_of_messages
from composer_pipeline.teachers.ledger.ledger import Ledger, existing_ledger
from composer_pipeline.traces.archive import blob_name
from composer_pipeline.traces.parse import is_current, is_redacted

_CHUNK = 1 << 20


@dataclass(slots=True)
class VerifyReport(Report):
    """What was checked, and a sentence for each problem."""

    problems: list[str] = field(default_factory=list)
    days: int = 0
    files: int = 0
    archived: int = 0
    archived_bytes: int = 0
    #: Archived pieces that no manifest names, of a killed ingest; the next one uses them.
    unnamed: int = 0
    replies: int = 0


def verify(
    lake: Lake,
    days: Iterable[str] | None = None,
    *,
    ledger: str | Path | None = None,
    progress: Progress | None = None,
) -> VerifyReport:
    """Read a whole lake and report what is wrong with it; nothing is changed."""
    report = VerifyReport()
    wanted = None if days is None else set(check_days(days))
    parts = [
        (table, part)
        for table in TABLES
        for part in lake.partitions(table)
        if wanted is None or part.get("day") in wanted
    ]
    manifest = _manifest(lake, wanted)
    total = len(parts) + len(manifest)
    report.problems += _litter(lake)
    damaged: set[str] = set()
    whole = list(parts)
    for done, (table, part) in enumerate(parts, start=1):
        report.files += 1
        try:
            lake.check_file(table, **part)
        except DamagedFile as error:
            report.problems.append(str(error))
            damaged.add(table)
            whole.remove((table, part))
        if progress is not None:
            progress("verify", done, total)
    for done, row in enumerate(manifest, start=len(parts) + 1):
        report.archived += 1
        report.archived_bytes += row["size"]
        report.problems += _archived(lake, row)
        if progress is not None:
            progress("verify", done, total)
    named = {piece for row in manifest for piece in row["pieces"] or [row["sha256"]]}
    if wanted is None:
        report.unnamed = sum(name not in named for name in blobs(lake))
    report.problems += _days(lake, sorted({row["day"] for row in manifest}), damaged)
    report.days = len({row["day"] for row in manifest})
    report.problems += _withdrawn(lake, damaged)
    report.problems += _private(lake, whole, progress)
    opened = existing_ledger(ledger) if ledger else None
    if opened is not None and "replies" not in damaged:
        with opened:
            report.problems += _ledger(lake, opened, wanted, report)
    return report


def _litter(lake: Lake) -> Iterator[str]:
    """Yield a sentence for each file in the lake that no stage writes or reads."""
    with suppress(FileNotFoundError):
        for path in sorted(map(str, lake.fs.find(lake.root))):
            name = path.removeprefix(f"{lake.root}/")
            if not is_known(name):
                yield f"lake {lake.url}: {name} is no file of a lake; move it elsewhere"


def _private(
    lake: Lake, parts: list[tuple[str, dict[str, str]]], progress: Progress | None
) -> list[str]:
    """Return a sentence for each place, in tables and exports, that publishing would refuse."""
    findings = Findings(Scanner(lake))
    for done, (table, part) in enumerate(parts, start=1):
        where, at = "/".join([table, *part.values()]), 0
        with suppress(DamagedFile):  # reported with its bytes
            of_day = sessions_of_messages(lake, part["day"]) if table == "messages" else None
            for rows, _ in lake.batches(table, None, BATCH, **part):
                if of_day is not None:
                    names = [min(of_day[n], default="") for n in rows["n"].to_pylist()]
                    rows = rows.append_column("session_id", pa.array(names))
                at = findings.rows(rows, where, at)
        if progress is not None:
            progress("verify what is private", done, len(parts))
    for path in exports(lake):
        findings.file(str(path), path)
    return findings.lines()


def _withdrawn(lake: Lake, damaged: set[str]) -> Iterator[str]:
    """Yield a sentence for each withdrawn session that is in the lake all the same."""
    withdrawn = Withdrawn(lake)
    if not withdrawn:
        return
    found: set[str] = set()
    for name, spec in TABLES.items():
        if name not in damaged and "session_id" in spec.schema.names:
            found |= set(lake.read(name, columns=["session_id"])["session_id"].to_pylist())
    for session in sorted(found):
        if withdrawn.session(session):
            yield (
                f"lake {lake.url}: session {session} is here although it was withdrawn;"
                f" composer-pipeline withdraw --session {session} removes it"
            )


def blobs(lake: Lake) -> Iterator[str]:
    """Yield the SHA-256 in the name of each archived piece."""
    with suppress(FileNotFoundError):
        for path in lake.fs.find(f"{lake.root}/archive"):
            name = str(path).rpartition("/")[2]
            if name.endswith(".jsonl.zst") and not name.startswith("."):
                yield name.removesuffix(".jsonl.zst")


def _manifest(lake: Lake, days: set[str] | None) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for day in lake.days("raw_files"):
        if days is None or day in days:
            with suppress(DamagedFile):  # reported with the other tables
                rows += lake.rows("raw_files", days=[day])
    return rows


def _archived(lake: Lake, row: dict[str, Any]) -> Iterator[str]:
    """Hash the pieces of an archived file, and the file."""
    whole, size = hashlib.sha256(), 0
    at = f"lake {lake.url}: day {row['day']}: archived"
    for piece in row["pieces"] or [row["sha256"]]:
        own = hashlib.sha256()
        try:
            with (
                lake.open(blob_name(piece)) as file,
                zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True) as data,
            ):
                while chunk := data.read(_CHUNK):
                    own.update(chunk)
                    whole.update(chunk)
                    size += len(chunk)
        except FileNotFoundError:
            yield f"{at} bytes {blob_name(piece)} are missing; put them back from a backup"
            return
        except zstandard.ZstdError as error:
            yield f"{at} bytes {blob_name(piece)} are damaged ({error})"
            return
        if own.hexdigest() != piece:
            yield f"{at} bytes {blob_name(piece)} are not those that their name is the hash of"
            return
    if (whole.hexdigest(), size) != (row["sha256"], row["size"]):
        yield f"{at} file {row['path']} is not the {row['size']} bytes that the manifest names"


def _days(lake: Lake, days: list[str], damaged: set[str]) -> Iterator[str]:
    for day in days:
        at, mend = f"lake {lake.url}: day {day}", f"run composer-pipeline reparse --day {day}"
        try:
            if not is_redacted(lake, day):
                yield f"{at} was redacted by other rules than the current ones; {mend}"
            elif not is_current(lake, day):
                yield f"{at} was not parsed from what is archived, or by an older parser; {mend}"
            elif not damaged & {"messages", "chains"} and (broken := _broken_chains(lake, day)):
                yield f"{at}: {broken} chains do not fit their messages; {mend}"
        except DamagedFile:
            continue  # reported with the other tables
    if not damaged:
        for what, ids in (
            ("states stand in two rows", doubled_states(lake)),
            ("states or chains lack a message", incomplete_prefixes(lake)),
        ):
            if ids:
                yield (
                    f"lake {lake.url}: {len(ids)} {what} ({ids[0]}); run composer-pipeline reparse"
                )


def _broken_chains(lake: Lake, day: str) -> int:
    """Count chains written for other messages, and messages with a wrong hash."""
    hashes: dict[int, str] = {}
    broken = 0
    for row in lake.read("messages", days=[day], columns=["n", "hash", "json"]).to_pylist():
        hashes[row["n"]] = row["hash"]
        own = hashlib.blake2b(row["json"].encode(), digest_size=16).hexdigest()
        broken += own != row["hash"]
    for row in lake.rows("chains", days=[day], columns=["messages", "digest"]):
        broken += row["digest"] != chain_digest(hashes.get(n) for n in row["messages"])
    return broken


def _ledger(
    lake: Lake, ledger: Ledger, days: set[str] | None, report: VerifyReport
) -> Iterator[str]:
    """Compare the lake's replies with the ledger's, and its sums with its attempts."""
    for part in lake.partitions("replies"):
        teacher, day = part["teacher"], part["day"]
        if days is not None and day not in days:
            continue
        kept = {
            (row["state_id"], row["request_hash"]): row["cost_picodollars"]
            for row in lake.rows("replies", **part)
            if row["created_at"] is not None
        }
        booked = {
            (row["state_id"], row["key"]): row["cost"]
            for row in ledger.rows(teacher, day)
            if row["outcome"] != "unknown"
        }
        report.replies += len(kept)
        at = f"lake {lake.url}: replies of {teacher} on {day}"
        if lost := kept.keys() - booked.keys():
            yield f"{at}: ledger {ledger.name} does not know {len(lost)} of them;" + _REBUILD
        if late := booked.keys() - kept.keys():
            yield f"{at}: {len(late)} are in ledger {ledger.name} only; run replay"
        if other := [key for key in kept.keys() & booked.keys() if kept[key] != booked[key]]:
            yield f"{at}: {len(other)} cost something else in ledger {ledger.name}"
    if scopes := ledger.sums_that_differ():
        yield (
            f"ledger {ledger.name}: the sums of {', '.join(scopes)} are not those of its attempts"
        )


_REBUILD = " run composer-pipeline budget rebuild"


def wrong_columns(lake: Lake, table: str, days: Iterable[str] | None, **keys: str) -> list[str]:
    """Return what is wrong with the columns of a table's partitions; only footers are read."""
    known = TABLES[table].schema
    found = []
    for part in _parts(lake, table, days, keys):
        with lake.open(lake.file_name(table, **part)) as file:
            schema = pq.read_schema(file)
        name = "/".join([table, *part.values()])
        for column in schema:
            if column.name not in known.names:
                found.append(f"{name}: {column.name} is no column")
            elif column.type != known.field(column.name).type:
                found.append(f"{name}: {column.name} is {column.type}")
    return found


def doubled_rows(lake: Lake, table: str, days: Iterable[str] | None, **keys: str) -> list[str]:
    """Return the keys that occur twice in a table's partitions."""
    spec = TABLES[table]
    found = []
    for part in _parts(lake, table, days, keys):
        columns = [name for name in spec.key if name in spec.schema.names]
        rest = {name: value for name, value in part.items() if name != "day"}
        at = [part["day"]] if "day" in part else None
        rows = lake.read(table, days=at, columns=columns, **rest).select(columns).to_pylist()
        counted = Counter(tuple(map(str, row.values())) for row in rows)
        found += [" ".join(row) for row, count in counted.items() if count > 1]
    return found


def _parts(
    lake: Lake, table: str, days: Iterable[str] | None, keys: dict[str, str]
) -> list[dict[str, str]]:
    wanted = None if days is None else set(days)
    return [
        part
        for part in lake.partitions(table, **keys)
        if wanted is None or part.get("day") in wanted
    ]
