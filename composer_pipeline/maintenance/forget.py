"""Removing sessions from a lake for good: tables, archive, ledger, exports.

The plan is written into the lake before anything is removed, and removed when all is done. It
holds ids and names of files, no text. Any later run finishes it first. The sessions go on the list
of the forgotten before their bytes go, so that no harvest brings them back meanwhile.

What a trained model, a published dataset, a backup, or the disk's free blocks hold is not reached.
"""

import json
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from html import unescape
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import zstandard

from composer_pipeline.errors import InputError
from composer_pipeline.files import replace, replacing, strings
from composer_pipeline.lake.parquet import parquet_writer
from composer_pipeline.lake.place import UNFINISHED
from composer_pipeline.lake.schema import TABLES
from composer_pipeline.lake.store import Lake, exports, prune_exports
from composer_pipeline.lake.withdrawn import (
    add_withdrawal,
    releases_of,
    remove_withdrawal,
    withdrawals,
)
from composer_pipeline.maintenance.verify import blobs
from composer_pipeline.reports import Progress, Report
from composer_pipeline.states.load import sessions_of_messages
from composer_pipeline.teachers.ledger.ledger import Ledger, existing_ledger
from composer_pipeline.teachers.replies import redacted_row, write_replies
from composer_pipeline.traces.archive import (
    blob_name,
    forget_files,
    open_archived,
    read_blob,
    writer_lock,
)
from composer_pipeline.traces.discover import Forgotten
from composer_pipeline.traces.parse import ReparseReport, analyse, parse_days, rewrite_days


def from_archive(
    lake: Lake, sessions: set[str], pieces: Iterable[str], files: Iterable[str]
) -> None:
    """Remove the manifest's rows of sessions, and the archived pieces that only they used."""
    with writer_lock(lake, None):
        _from_table(lake, "raw_files", {"session_id": sessions})
        for piece in pieces:
            lake.remove(blob_name(piece))
        forget_files(lake, files)


def _drop_days(lake: Lake, days: Sequence[str]) -> None:
    with writer_lock(lake, None):
        for day in days:
            for table in Lake.FROM_ARCHIVE:
                lake.delete(table, day=day)


def from_tables(lake: Lake, sessions: set[str], states: set[str], pairs: set[str]) -> None:
    """Remove the rows of sessions, states and pairs from every table after the traces."""
    gone = {"session_id": sessions, "state_id": states, "pair_id": pairs, "near": pairs}
    for name, spec in TABLES.items():
        mine = {column: ids for column, ids in gone.items() if column in spec.schema.names}
        if mine and name not in (*Lake.FROM_ARCHIVE, "raw_files"):
            _from_table(lake, name, mine)


def _from_table(lake: Lake, name: str, gone: dict[str, set[str]]) -> None:
    """Remove the rows with one of the values from each partition of a table."""
    schema = TABLES[name].schema
    for part in lake.partitions(name):
        keys = {key: value for key, value in part.items() if key != "day"}
        days = [part["day"]] if "day" in part else None
        ids = lake.read(name, days=days, columns=list(gone), **keys)
        if (left := _without(ids, gone)) is ids:
            continue
        if not len(left) and "day" in part:
            lake.delete(name, **part)
            continue
        writer = lake.writer(name, **part)
        try:  # a split of a large dataset does not fit into memory at once
            for rows, _ in lake.batches(name, None, 64, **part):
                writer.write(_without(rows, gone).select(schema.names).cast(schema))
            writer.commit()
        finally:
            writer.discard()


def _without(table: pa.Table, gone: dict[str, set[str]]) -> pa.Table:
    """Return the table without rows that have one of the values; the same object if none has."""
    keep = None
    for column, values in gone.items():
        here = pc.is_in(table[column], value_set=pa.array(sorted(values), pa.string()))
        keep = here if keep is None else pc.or_(keep, here)
    assert keep is not None
    return table.filter(pc.invert(keep)) if pc.any(keep).as_py() else table


def _remove_leftovers(lake: Lake) -> None:
    if lake.local:
        for path in Path(lake.root).rglob(".*.tmp"):
            path.unlink(missing_ok=True)
        for folder in (UNFINISHED, "runs/nights"):  # of a killed build, of a killed night
            shutil.rmtree(Path(lake.root, folder), ignore_errors=True)


def exports_of(lake: Lake, sessions: set[str], pairs: set[str]) -> list[Path]:
    """Return the exported files with rows of sessions."""
    # A file without one of the columns, or that is not Parquet, is somebody else's: it stays.
    found = []
    for path in exports(lake):
        if path.suffix == ".parquet":
            touched = bool(_columns_with(path, sessions, pairs))
        else:
            data = path.read_bytes()
            touched = _is_whole(data, sessions) or _lines(data, sessions | pairs) != data
        if touched:
            found.append(path)
    return found


def from_exports(lake: Lake, sessions: set[str], pairs: set[str]) -> list[str]:
    """Remove the rows of sessions from exported files; return the files that had some."""
    changed = exports_of(lake, sessions, pairs)
    for path in changed:
        if path.suffix == ".parquet":
            left = _rewrite(path, _columns_with(path, sessions, pairs))
        else:
            data = path.read_bytes()
            kept = b"" if _is_whole(data, sessions) else _lines(data, sessions | pairs)
            replace(path, kept, str(path))
            left = len(kept)
        if not left:
            path.unlink()
    prune_exports(lake)
    return list(map(str, changed))


def _is_whole(data: bytes, sessions: set[str]) -> bool:
    return _is_session(data, sessions) or _shows(data, sessions)


def _shows(data: bytes, sessions: set[str]) -> bool:
    """Return True if a file is a report that shows a pair of one of these sessions."""
    if not data.startswith(b"<!doctype html>"):
        return False
    shown = re.findall(r'data-session="([^"]*)"', data.decode("utf-8", "replace"))
    return not sessions.isdisjoint(map(unescape, shown))


def _is_session(data: bytes, sessions: set[str]) -> bool:
    """Return True if a file is one of these sessions as ``export_sessions`` writes it."""
    try:
        head = json.loads(data.partition(b"\n")[0])
    except ValueError:
        return False
    if not isinstance(head, dict):
        return False
    if head.get("type") == "session":
        head = head.get("source") or {}
    elif not str(head.get("schema_version", "")).startswith("ATIF"):
        return False
    return head.get("session_id") in sessions


def _columns_with(path: Path, sessions: set[str], pairs: set[str]) -> dict[str, set[str]]:
    """Return what to remove by the columns of a Parquet file; nothing if it holds none of it."""
    gone = {"session_id": sessions, "pair_id": pairs}
    try:
        names = pq.read_schema(path).names
        columns = {name: ids for name, ids in gone.items() if name in names}
        ids = pq.read_table(path, columns=list(columns))
    except (pa.ArrowInvalid, OSError):
        return {}
    return columns if columns and _without(ids, columns) is not ids else {}


def _rewrite(path: Path, gone: dict[str, set[str]]) -> int:
    """Write a Parquet file without some rows, a few at a time; return how many are left."""
    left = 0
    with replacing(path, str(path)) as stream, pq.ParquetFile(path) as file:
        writer = parquet_writer(stream, file.schema_arrow, compact=False, grouped=False)
        for batch in file.iter_batches(64):
            rows = _without(pa.Table.from_batches([batch]), gone)
            left += len(rows)
            writer.write_table(rows)
        writer.close()
    return left


def _lines(data: bytes, ids: set[str]) -> bytes:
    """Return JSON lines without those that name a session or a pair; other lines stay."""
    marks = [json.dumps(name).encode() for name in ids]
    lines = data.splitlines(keepends=True)
    return b"".join(line for line in lines if not any(mark in line for mark in marks))


#: Levels of JSON inside JSON that are searched: a tool's result, quoted by another.
_DEPTH = 3


def _by_id(lake: Lake, beginning: str) -> set[str]:
    """Return the session of an id, or of an unambiguous beginning of one."""
    found = {name for name in _known(lake) if beginning and name.startswith(beginning)}
    if beginning in found:
        return {beginning}
    if len(found) > 1:
        raise InputError(f"session {beginning!r} is ambiguous: {len(found)} begin with it")
    if not found:
        raise InputError(f"lake {lake.url} has no session {beginning!r}")
    return found


def _by_project(lake: Lake, glob: str) -> set[str]:
    rows = lake.select("SELECT DISTINCT session_id, project FROM sessions")
    found = {row["session_id"] for row in rows if of_project(row["project"] or "", glob)}
    if not found:
        raise InputError(f"lake {lake.url} has no session of project {glob!r}")
    return found


def of_project(project: str, glob: str) -> bool:
    """Return True if a glob matches a project's path or its last folder."""
    return any(fnmatchcase(name, glob) for name in (project, project.rpartition("/")[2]))


def _by_text(lake: Lake, text: str, ledger: Ledger | None) -> set[str]:
    """Return the sessions that contain a text, raw or in a teacher's answer."""
    # Also inside JSON inside JSON; not where it is encoded otherwise (Base64, compressed).
    if len(text.strip()) < 3:
        raise InputError("--text needs three characters at least")
    forms = forms_of(text)
    found: set[str] = set()
    for row in lake.rows("raw_files"):
        if row["session_id"] not in found:
            with open_archived(lake, row) as lines:
                if any(holds(line, text, forms) for line in lines):
                    found.add(row["session_id"])
    for name, data in _answers(lake, ledger):
        if name not in found and holds(data, text, forms):
            found.add(name)
    if not found:
        raise InputError(f"lake {lake.url} has no session with that text")
    return found


def forms_of(text: str) -> list[bytes]:
    """Return a text as it is written in JSON, and in JSON inside JSON."""
    forms, found = {text}, {text.encode()}
    for _ in range(_DEPTH):
        plain = {json.dumps(form, ensure_ascii=False)[1:-1] for form in forms}
        forms = plain | {json.dumps(form)[1:-1] for form in forms}
        found |= {form.encode(errors="replace") for form in forms}
    return sorted(found)


def holds(data: bytes, text: str, forms: Sequence[bytes]) -> bool:
    """Return True if bytes hold a text in one of its forms, or as JSON of another spelling."""
    if any(form in data for form in forms):
        return True
    if rb"\u" not in data and rb"\/" not in data:
        return False
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return False
    return any(text in string for string in strings(value))


def _repeating(lake: Lake, sessions: set[str]) -> set[str]:
    """Return the other sessions that hold records of these: forks and resumed sessions."""
    # They share a response, or hold records that name a session. Of the same day only one
    # session has the state of a response; of other days the table tells.
    manifest = lake.rows("raw_files")
    days = {row["day"] for row in manifest if row["session_id"] in sessions}
    near = [row for row in manifest if row["day"] in days]
    states = lake.rows("states", columns=["session_id", "message_id"])
    found = set(sessions)
    while True:
        mine = set().union(*(_responses(lake, r) for r in near if r["session_id"] in found))
        marks = _marks(found)
        more = {
            row["session_id"]
            for row in manifest
            if row["session_id"] not in found
            and (_names(lake, row, marks) or (row["day"] in days and mine & _responses(lake, row)))
        }
        more |= {row["session_id"] for row in states if row["message_id"] in mine} - found
        if not more:
            return found - sessions
        found |= more


def _responses(lake: Lake, row: dict[str, Any]) -> set[str]:
    with open_archived(lake, row) as lines:
        graph, _, _ = analyse(lines, subagent=bool(row["agent_id"]))
    return graph.response_keys()


def _names(lake: Lake, row: dict[str, Any], marks: re.Pattern[bytes]) -> bool:
    with open_archived(lake, row) as lines:
        return any(marks.search(line) for line in lines)


def _known(lake: Lake) -> set[str]:
    tables = (
        "raw_files",
        "sessions",
        "states",
        "replies",
        "pairs",
        "dataset_pairs",
        "dataset_groups",
        "anchors",
    )
    columns = ["session_id"]
    return {r["session_id"] for table in tables for r in lake.rows(table, columns=columns)}


def _answers(lake: Lake, ledger: Ledger | None) -> Iterator[tuple[str, bytes]]:
    """Yield (session, bytes) of every teacher's answer."""
    for row in lake.rows("replies", columns=["session_id", "raw", "action"]):
        if row["raw"]:
            yield row["session_id"], zstandard.ZstdDecompressor().decompress(row["raw"])
        yield row["session_id"], (row["action"] or "").encode()
    yield from ledger.kept_bytes() if ledger else ()


def _unnamed_of(lake: Lake, names: Iterable[str], sessions: set[str]) -> set[str]:
    marks = _marks(sessions)
    return {name for name in names if marks.search(read_blob(lake, name))}


def _marks(sessions: Iterable[str]) -> re.Pattern[bytes]:
    """Return how records name their session, or the one that theirs was forked from."""
    names = "|".join(map(re.escape, sessions))
    fields = "sessionId|session_id|id|thread_id|forked_from_id"
    file = rf'"parentSession": ?"(?:[^"]*[_/])?(?:{names})(?:\.jsonl)?"'
    return re.compile(rf'"(?:{fields})": ?"(?:{names})"|{file}'.encode())


PLAN = "forget.json"
_STEPS = 6


@dataclass(slots=True)
class ForgetPlan:
    """What is to be removed: sessions, their states, pairs, days, files and archived pieces."""

    sessions: list[str] = field(default_factory=list)
    states: list[str] = field(default_factory=list)
    pairs: list[str] = field(default_factory=list)
    days: list[str] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)


@dataclass(slots=True)
class ForgetReport(Report):
    """What was forgotten, or would be with ``dry_run``."""

    sessions: list[str]
    #: Those that were not named and hold records of the named ones.
    repeating: list[str]
    dry_run: bool
    days: list[str]
    states: int
    pairs: int
    archived_files: int
    replies: int = 0
    exports: list[str] = field(default_factory=list)
    #: Repositories whose history holds them, and since which tag: a withdrawal reaches those.
    releases: dict[str, str] = field(default_factory=dict)
    #: Training runs of this lake: only removing their folders removes what they learned.
    runs: list[str] = field(default_factory=list)


def forget(
    lake: Lake,
    *,
    session: str = "",
    project: str = "",
    text: str = "",
    dry_run: bool = False,
    ledger: str | Path | None = None,
    progress: Progress | None = None,
) -> ForgetReport:
    """Remove sessions from a lake; with none named, finish what was interrupted."""
    if sum(map(bool, (session, project, text))) > 1:
        raise InputError("name one of --session, --project and --text")
    opened = existing_ledger(ledger) if ledger else None
    try:
        pending = _pending(lake)
        named: set[str] = set()
        if session:
            named = _by_id(lake, session)
        elif project:
            named = _by_project(lake, project)
        elif text:
            named = _by_text(lake, text, opened)
        elif pending is None:
            raise InputError("name what to forget: --session, --project or --text")
        also = _repeating(lake, named) if named else set()
        plan = _extended(lake, pending or ForgetPlan(), named | also)
        report = ForgetReport(
            sorted(plan.sessions),
            sorted(also),
            dry_run,
            plan.days,
            len(plan.states),
            len(plan.pairs),
            len(plan.files),
            exports=list(map(str, exports_of(lake, set(plan.sessions), set(plan.pairs)))),
            releases=releases_of(lake, plan.sessions),
            runs=_runs(lake),
        )
        if dry_run:
            report.replies = opened.erasable(plan.sessions) if opened else 0
            return report
        with lake.locked("night"):  # which holds states and writes them again as anchors
            lake.put_bytes(PLAN, json.dumps(asdict(plan), indent=1).encode())
            report.replies = _from_ledger(lake, opened, plan, first=pending is None)
            _report(progress, 1)
            _remove(lake, plan, progress)
            report.exports = from_exports(lake, set(plan.sessions), set(plan.pairs))
            lake.remove(PLAN)
        _report(progress, 6)
        return report
    finally:
        if opened is not None:
            opened.close()


def _remove(lake: Lake, plan: ForgetPlan, progress: Progress | None) -> None:
    """Remove everything in the lake except the ledger and the exports."""
    Forgotten(lake).add(plan.sessions)
    _report(progress, 2)
    from_archive(lake, set(plan.sessions), plan.pieces, plan.files)
    _report(progress, 3)
    left = [day for day in plan.days if day in lake.days("raw_files")]
    parse_days(lake, left)
    _drop_days(lake, [day for day in plan.days if day not in left])
    _report(progress, 4)
    from_tables(lake, set(plan.sessions), set(plan.states), set(plan.pairs))
    _remove_leftovers(lake)
    _report(progress, 5)


def _from_ledger(lake: Lake, ledger: Ledger | None, plan: ForgetPlan, *, first: bool) -> int:
    """Remove questions and answers; refused, before anything was removed, while a replay runs."""
    if ledger is None:
        return 0
    try:
        return ledger.erase(plan.sessions)
    except InputError:
        if first:
            lake.remove(PLAN)
        raise


def _report(progress: Progress | None, done: int) -> None:
    if progress is not None:
        progress("forget", done, _STEPS)


def _pending(lake: Lake) -> ForgetPlan | None:
    if not lake.exists(PLAN):
        return None
    try:
        return ForgetPlan(**json.loads(lake.get_bytes(PLAN)))
    except (ValueError, TypeError) as error:
        raise InputError(
            f"lake {lake.url}: {PLAN} is damaged; delete it and forget again"
        ) from error


def _extended(lake: Lake, plan: ForgetPlan, sessions: set[str]) -> ForgetPlan:
    """Return the plan with what the lake holds of further sessions added."""
    every = sessions | set(plan.sessions)
    manifest = lake.rows("raw_files")
    mine = [row for row in manifest if row["session_id"] in every]
    kept = {piece for row in manifest if row["session_id"] not in every for piece in _pieces(row)}
    pieces = {piece for row in mine for piece in _pieces(row)} | set(plan.pieces)
    unnamed = set(blobs(lake)) - kept - pieces
    pieces |= _unnamed_of(lake, unnamed, every)
    states = _ids(lake, ("states", "votes", "replies", "hints"), "state_id", every)
    tables = ("pairs", "normalized_pairs", "dataset_pairs")
    days = {row["day"] for row in mine} | _days(lake, every)
    return ForgetPlan(
        sessions=sorted(every),
        states=sorted(states | set(plan.states)),
        pairs=sorted(_ids(lake, tables, "pair_id", every) | set(plan.pairs)),
        days=sorted(days | set(plan.days)),
        pieces=sorted(pieces - kept),
        files=sorted({row["path"] for row in mine} | set(plan.files)),
    )


def _pieces(row: dict[str, Any]) -> list[str]:
    # The whole file may be archived too, from before it grew by pieces.
    return [*(row["pieces"] or ()), row["sha256"]]


def _ids(lake: Lake, tables: Sequence[str], column: str, sessions: set[str]) -> set[str]:
    return {
        row[column]
        for table in tables
        for row in lake.rows(table, columns=[column, "session_id"])
        if row["session_id"] in sessions
    }


def _days(lake: Lake, sessions: set[str]) -> set[str]:
    rows = lake.rows("sessions", columns=["session_id"])
    return {row["day"] for row in rows if row["session_id"] in sessions}


def _runs(lake: Lake) -> list[str]:
    folder = Path(lake.root) / "runs"
    here = set(folder.iterdir()) if lake.local and folder.is_dir() else set()
    # The nights' models may have their folders elsewhere.
    versions = lake.fs.glob(f"{lake.root}/models/versions/*.json")
    weights = (json.loads(lake.fs.cat_file(name))["weights"] for name in versions)
    return sorted(map(str, here | {Path(name).parent for name in weights if "/" in name}))


_WHOLE_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def _next(lake: Lake, sessions: Iterable[str]) -> list[str]:
    """Return the commands that apply a withdrawal to the repositories on the Hub."""
    repos = sorted(releases_of(lake, sessions)) or ["OWNER/NAME"]
    publish = [f"composer-pipeline publish --repo {repo}" for repo in repos]
    return ["composer-pipeline dataset", *publish]


Kind = Literal["session", "repository", "text"]


@dataclass(slots=True)
class WithdrawReport(Report):
    """What was withdrawn, or would be with ``dry_run``."""

    sessions: list[str]
    dry_run: bool
    at: str = ""
    tombstones: int = 0
    #: ``None`` if the lake held nothing any more.
    forgotten: ForgetReport | None = None
    next: list[str] = field(default_factory=list)


def withdraw(
    lake: Lake,
    *,
    session: str = "",
    repository: str = "",
    text: str = "",
    dry_run: bool = False,
    ledger: str | Path | None = None,
    progress: Progress | None = None,
) -> WithdrawReport:
    """Withdraw sessions for good; with none named, finish what was interrupted."""
    named = {"session": session, "repository": repository, "text": text}
    given: list[tuple[Kind, str]] = [(k, v) for k, v in named.items() if v]  # type: ignore[misc]
    if len(given) > 1:
        raise InputError("name one of --session, --repository and --text")
    if not given:
        return _finished(lake, dry_run, ledger, progress)
    kind, what = given[0]
    if kind == "session" and _WHOLE_ID.fullmatch(session) and session not in _known(lake):
        return _unknown(lake, session, dry_run, ledger, progress)
    run = partial(forget, lake, session=session, project=repository, text=text, ledger=ledger)
    plan = run(dry_run=True)
    report = WithdrawReport(plan.sessions, dry_run, forgotten=plan, next=_next(lake, plan.sessions))
    if dry_run:
        report.tombstones = len(withdrawals(lake))
        return report
    folders = _folders(lake, repository) if kind == "repository" else set[str]()
    made = add_withdrawal(lake, kind, what, plan.sessions, folders)
    try:
        report.forgotten = run(progress=progress)
    except InputError:
        if not lake.exists(PLAN):  # refused before anything was removed
            remove_withdrawal(lake, made)
        raise
    report.at, report.tombstones = made.at, len(withdrawals(lake))
    return report


def _finished(
    lake: Lake, dry_run: bool, ledger: str | Path | None, progress: Progress | None
) -> WithdrawReport:
    """Finish an interrupted one: its tombstone is there."""
    if not lake.exists(PLAN):
        raise InputError("name what to withdraw: --session, --repository or --text")
    done = forget(lake, dry_run=dry_run, ledger=ledger, progress=progress)
    report = WithdrawReport(done.sessions, dry_run, forgotten=done, next=_next(lake, done.sessions))
    report.tombstones = len(withdrawals(lake))
    return report


def _unknown(
    lake: Lake, session: str, dry_run: bool, ledger: str | Path | None, progress: Progress | None
) -> WithdrawReport:
    """Add a tombstone for a session that is not in the lake."""
    report = WithdrawReport([session], dry_run, next=_next(lake, [session]))
    if lake.exists(PLAN):
        report.forgotten = forget(lake, dry_run=dry_run, ledger=ledger, progress=progress)
    if not dry_run:
        report.at = add_withdrawal(lake, "session", session, [session]).at
    report.tombstones = len(withdrawals(lake))
    return report


def _folders(lake: Lake, glob: str) -> set[str]:
    sessions = _by_project(lake, glob)
    rows = lake.rows("sessions", columns=["session_id", "project"])
    return {row["project"] for row in rows if row["session_id"] in sessions and row["project"]}


def reparse(
    lake: Lake,
    *,
    days: Iterable[str] | None = None,
    dry_run: bool = False,
    ledger: str | Path | None = None,
    progress: Progress | None = None,
) -> ReparseReport:
    """Rewrite the traces and replies of days, and say what still holds their sessions as they were.

    With ``dry_run``, only the traces are written, and to a temporary folder.
    """
    wanted = lake.chosen_days("raw_files", days)
    before = {day: _stored(lake, day) for day in wanted if not lake.damaged_file(day)}
    changed: set[str] = set()
    with tempfile.TemporaryDirectory(prefix="reparse-") as folder:
        scratch = Lake(folder) if dry_run else None
        report = rewrite_days(lake, wanted, into=scratch, progress=progress)
        for day in filter(before.get, report.days):
            (old, kinds), (new, now) = before[day], _stored(scratch or lake, day)
            if gone := old.keys() - new.keys():
                report.changed[day] = {"messages": len(gone), **(now - kinds)}
                changed.update(*(old[key] for key in gone))
    pairs = _ids(lake, ("pairs", "normalized_pairs", "dataset_pairs"), "pair_id", changed)
    report.exports = list(map(str, exports_of(lake, changed, pairs)))
    report.releases = releases_of(lake, changed)
    if report.exports or report.releases:
        withdraw = [f"composer-pipeline withdraw --session {name}" for name in sorted(changed)]
        report.next = [*withdraw, *_next(lake, changed)]
    opened = existing_ledger(ledger) if ledger and not dry_run else None
    with opened or nullcontext():
        for part in [] if dry_run else lake.partitions("replies"):
            if days is None or part["day"] in wanted:
                report.replies += _replies_of(lake, opened, part["teacher"], part["day"])
    return report


_PLACEHOLDER = re.compile(r"\[(?:SECRET_)?([A-Z0-9_]+)_[0-9a-f]{4}\]")


def _stored(lake: Lake, day: str) -> tuple[dict[str, set[str]], Counter[str]]:
    """Return the sessions of a day's messages, by their hashes, and its placeholders by kind."""
    rows = lake.read("messages", days=[day], columns=["hash", "json", "n"]).to_pylist()
    sessions = sessions_of_messages(lake, day)
    kinds = Counter(kind for row in rows for kind in _PLACEHOLDER.findall(row["json"]))
    return {row["hash"]: sessions[row["n"]] for row in rows}, kinds


def _replies_of(lake: Lake, ledger: Ledger | None, teacher: str, day: str) -> int:
    """Rewrite a partition and return its number of rows."""
    before = lake.rows("replies", teacher=teacher, days=[day])
    known = {row["key"] for row in ledger.rows(teacher, day)} if ledger else set()
    own = [redacted_row(row) for row in before if row["request_hash"] not in known]
    if ledger is None:
        keys = ("teacher", "day")
        rows = [{name: value for name, value in row.items() if name not in keys} for row in own]
        lake.write("replies", rows, teacher=teacher, day=day)
        return len(rows)
    controls = {teacher: bool(before[0]["control"])} if before else None
    figures = write_replies(lake, ledger, [teacher], [day], own, controls)
    return figures.get(day, {}).get(teacher, {}).get("rows", 0)
