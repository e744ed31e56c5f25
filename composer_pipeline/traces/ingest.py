"""Harvest and parse in one call, with the counts of every file.

Belongs here: what ``composer-pipeline ingest`` does and reports. Does not belong
here: the two stages themselves.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import msgspec

from composer_pipeline.lake.provenance import table_stamp
from composer_pipeline.lake.store import Lake
from composer_pipeline.redaction.user_rules import redaction_version
from composer_pipeline.reports import Progress, Report
from composer_pipeline.settings import Settings
from composer_pipeline.traces.archive import Harvested, HarvestReport, harvest, open_archived
from composer_pipeline.traces.discover import STDIN, files_below
from composer_pipeline.traces.outcomes import Facts, total_of
from composer_pipeline.traces.parse import (
    Found,
    ParseReport,
    analyse,
    found_in,
    is_current,
    is_redacted,
    parse_days,
)
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
    tables = " ".join(table_stamp(lake, table) for table in _TABLES)
    return _hash(f"{PARSER_VERSION} {redaction_version()} {tables}")


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


@dataclass(slots=True)
class IngestReport(Report):
    """What an ingest found.

    ``by_file`` maps each main file's path, relative to its PATH, to the keys of the
    corpus' ``expected.json``; ``totals`` adds them up and has ``files``,
    ``subagent_files`` and ``unreadable_files`` besides. ``harvest`` and ``parse`` are the
    reports of the stages.

    ``distinct_states`` of the totals is what table ``states`` holds of these files, and so
    what ``plan`` and ``replay`` ask about: each API response once, subagents included, in
    files of their own or embedded. ``subagent_states`` are those of subagents among them.
    ``states`` is another number: the sum over main files, which counts a response again
    in every copy and leaves subagents out.
    """

    totals: dict[str, Any]
    by_file: dict[str, Facts]
    harvest: HarvestReport
    parse: ParseReport

    def to_dict(self) -> dict[str, Any]:
        """Return the totals, and ``by_file`` besides."""
        return {**self.totals, "by_file": self.by_file}


#: What each file holds, by SHA-256.
_Seen = dict[str, Found]


def ingest(
    lake: Lake,
    paths: Iterable[Path | str],
    *,
    days: Iterable[str] | None = None,
    exclude: Sequence[str] = (),
    progress: Progress | None = None,
) -> IngestReport:
    """Archive and parse session files.

    Days whose archived files this parser has already written are not written again. Days
    that other redaction rules wrote are redacted again from the archive, one after the other;
    an interrupted run goes on where it stopped.

    Args:
        lake: gets ``raw_files`` and the archive, ``messages``, ``chains``, ``states`` and
            ``sessions``.
        paths: JSONL files, or folders of them.
        days: only files of sessions of these days; all when ``None``.
        exclude: globs of files and folders that are never archived, besides
            ``COMPOSER_EXCLUDE``: the whole path, or the name of the file or of a folder.
        progress: called with ``harvest`` and ``parse`` after each file.

    Raises:
        InputError: as :func:`composer_pipeline.traces.archive.harvest`.
    """
    harvested, parsed, seen = _ingest(lake, paths, days, exclude, progress)
    for item in harvested.files:
        _ensure_counted(lake, item, seen)
    by_file = _by_file(harvested.files, seen)
    main = sum(not item.source.agent_id for item in harvested.files)
    totals: dict[str, Any] = {
        **_distinct_states(harvested.files, seen),
        "files": main,
        "subagent_files": len(harvested.files) - main,
        "unreadable_files": len(harvested.unreadable),
        "forgotten_files": harvested.forgotten_files,
        **total_of(by_file.values()),
    }
    return IngestReport(totals, by_file, harvested, parsed)


def ingest_changes(
    lake: Lake,
    paths: Sequence[Path | str],
    *,
    exclude: Sequence[str] = (),
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Archive and parse what is new, and say what that was and what the lake holds now.

    Where nothing changed since the last such call, only sizes and times are read.

    Args:
        lake: as for :func:`ingest`.
        paths: as for :func:`ingest`.
        exclude: as for :func:`ingest`.
        progress: as for :func:`ingest`.

    Returns:
        ``states`` is what the lake holds and ``plan`` and ``replay`` ask about, each response
        once; ``subagent_states`` of them are those of ``subagents``. ``new_files``,
        ``changed_files``, ``unchanged_files`` and ``unreadable_files`` are of ``paths``, and so
        is ``forgotten_files``, where a session was not taken because it was forgotten or withdrawn.

    Raises:
        InputError: as :func:`ingest`.
    """
    before = Before(lake, paths, exclude)
    if (said := before.said()) is not None:
        return said
    harvested, _, _ = _ingest(lake, paths, None, exclude, progress)
    held = _held(lake)
    counts = (harvested.new_files, harvested.grown_files, harvested.unchanged_files)
    unreadable = {"unreadable_files": len(harvested.unreadable)}
    if harvested.forgotten_files:
        unreadable["forgotten_files"] = harvested.forgotten_files
    changes = dict(zip(("new_files", "changed_files", "unchanged_files"), counts, strict=True))
    nothing = {"new_files": 0, "changed_files": 0, "unchanged_files": sum(counts)}
    before.keep({"lake": lake.url, **nothing, **unreadable, **held})
    return {"lake": lake.url, **changes, **unreadable, **held}


def _held(lake: Lake) -> dict[str, int]:
    """Count what the lake holds."""
    agents = lake.read("states", columns=["agent_id"])["agent_id"]
    sessions = lake.read("sessions", columns=["session_id", "agent_id"])
    return {
        "states": len(agents),
        "subagent_states": len(agents) - agents.to_pylist().count(""),
        "sessions": len(set(sessions["session_id"].to_pylist())),
        "subagents": len(set(sessions["agent_id"].to_pylist()) - {""}),
        "days": len(lake.days("states")),
    }


def _ingest(
    lake: Lake,
    paths: Iterable[Path | str],
    days: Iterable[str] | None,
    exclude: Sequence[str],
    progress: Progress | None,
) -> tuple[HarvestReport, ParseReport, _Seen]:
    harvested = harvest(lake, paths, days=days, exclude=exclude, progress=progress)
    seen: _Seen = {}
    stale = {day for day in harvested.days if not is_current(lake, day)}
    if days is None:
        # Changed rules hold for all that is stored, not only for what was named now.
        stale |= {day for day in lake.days("sessions") if not is_redacted(lake, day)}
    parsed = parse_days(lake, sorted(stale), progress=progress, on_file=seen.__setitem__)
    return harvested, parsed, seen


def _distinct_states(files: list[Harvested], seen: _Seen) -> dict[str, int]:
    """Count the states as a day's table keeps them: once, as the agent's own where it has it."""
    own: set[tuple[str, str]] = set()
    below: set[tuple[str, str]] = set()
    for item in files:
        found = seen[item.row["sha256"]]
        own.update((item.day, key) for key in found.states)
        below.update((item.day, key) for key in found.subagent_states)
    return {"distinct_states": len(own | below), "subagent_states": len(below - own)}


def _ensure_counted(lake: Lake, item: Harvested, seen: _Seen) -> None:
    sha256 = item.row["sha256"]
    if sha256 in seen:
        return
    with open_archived(lake, item.row) as lines:
        graph, _, facts = analyse(lines, subagent=bool(item.row["agent_id"]))
    seen[sha256] = found_in(graph, facts, item.row["agent_id"])


def _by_file(files: list[Harvested], seen: _Seen) -> dict[str, Facts]:
    """Return the facts of main files; a subagent counts under its main file."""
    below: dict[str, set[str]] = {}
    for item in files:
        if item.source.agent_id and (parent := _main_of(item)):
            below.setdefault(parent, set()).update(seen[item.row["sha256"]].responses)
    out: dict[str, Facts] = {}
    for item in files:
        if not item.source.agent_id:
            name = item.source.shown
            if name in out:  # the same relative path below two PATHs
                name = str(item.source.file)
            facts = dict(seen[item.row["sha256"]].facts)
            facts["subagent_responses"] = len(below.get(str(item.source.file), ()))
            out[name] = facts
    return out


def _main_of(item: Harvested) -> str:
    parts = PurePosixPath(str(item.source.file)).parts
    if "subagents" not in parts:
        return ""
    at = len(parts) - 1 - parts[::-1].index("subagents")
    return str(PurePosixPath(*parts[:at])) + ".jsonl"


_Key = TypeVar("_Key", str, tuple[str, str])
Rows = list[dict[str, str | int]]


def day_audit(lake: Lake, day: str, redactions: Mapping[str, int]) -> dict[str, Rows]:
    """Return the audit tables of a day, each sorted, the most frequent first.

    Args:
        lake: the lake.
        day: ``YYYY-MM-DD``, parsed.
        redactions: replacements by kind; originals are nowhere.

    Returns:
        ``unknown_record_types`` (type, records), ``error_kinds`` (error_kind, source,
        states, hints) and ``redactions_by_kind`` (kind, replacements).
    """
    unknown: Counter[str] = Counter()
    for row in lake.rows("sessions", days=[day], columns=["unknown_types"]):
        unknown.update(json.loads(row["unknown_types"] or "{}"))
    states: Counter[tuple[str, str]] = Counter()
    hints: Counter[tuple[str, str]] = Counter()
    columns = ["error_kind", "hint_source", "hint"]
    for row in lake.rows("states", days=[day], columns=columns):
        if row["error_kind"] is not None:
            key = row["error_kind"], row["hint_source"] or ""
            states[key] += 1
            hints[key] += row["hint"] is not None
    return {
        "unknown_record_types": [{"type": t, "records": n} for t, n in _sorted(unknown)],
        "error_kinds": [
            {"error_kind": kind, "source": source, "states": n, "hints": hints[kind, source]}
            for (kind, source), n in _sorted(states)
        ],
        "redactions_by_kind": [
            {"kind": kind, "replacements": n} for kind, n in _sorted(Counter(redactions))
        ],
    }


def _sorted(counts: Counter[_Key]) -> list[tuple[_Key, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
