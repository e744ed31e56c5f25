"""Harvest and parse in one call, with the counts of every file."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from composer_pipeline.lake.provenance import table_stamp
from composer_pipeline.lake.store import Lake
from composer_pipeline.redaction.user_rules import redaction_version
from composer_pipeline.reports import Progress, Report
from composer_pipeline.settings import Settings
from composer_pipeline.traces.archive import HarvestedFile, HarvestReport, harvest, open_archived
from composer_pipeline.traces.discover import STDIN, files_below, main_file_of
from composer_pipeline.traces.outcomes import Facts, total_of
from composer_pipeline.traces.parse import (
    FileSummary,
    ParseReport,
    analyse,
    is_current,
    is_redacted,
    parse_days,
    summarise,
)
from composer_pipeline.versions import PARSER_VERSION


@dataclass(slots=True)
class IngestReport(Report):
    """What an ingest found.

    ``by_file`` maps each main file's path, relative to its PATH, to the keys of the
    corpus' ``expected.json``; ``totals`` adds them up and has ``files``, ``subagent_files``,
    ``unreadable_files`` and ``unreadable`` (each such file with the reason) besides.
    ``harvest`` and ``parse`` are the reports of the stages.

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
_Seen = dict[str, FileSummary]


def ingest(
    lake: Lake,
    paths: Iterable[Path | str] | Path | str,
    *,
    days: Iterable[str] | None = None,
    exclude: Sequence[str] = (),
    progress: Progress | None = None,
) -> IngestReport:
    """Archive and parse session files.

    Days whose archived files this parser has already written are not written again. Days that
    other redaction rules wrote are redacted again from the archive, one after the other; an
    interrupted run continues where it stopped.

    Args:
        lake: gets ``raw_files`` and the archive, ``messages``, ``chains``, ``states`` and
            ``sessions``.
        paths: JSONL files, or folders of them; one or several.
        days: only files of sessions of these days; all when ``None``.
        exclude: globs of files and folders that are never archived, besides
            ``COMPOSER_EXCLUDE``: the whole path, or the name of the file or of a folder.
        progress: called with ``harvest`` and ``parse`` after each file.

    Raises:
        InputError: as :func:`composer_pipeline.traces.archive.harvest`.
    """
    harvested, parsed, seen = _ingest(lake, paths, days, exclude, progress)
    for item in harvested.files:
        if (sha256 := item.row["sha256"]) not in seen:
            with open_archived(lake, item.row) as lines:
                graph, _, facts = analyse(lines, subagent=bool(item.row["agent_id"]))
            seen[sha256] = summarise(graph, facts, item.row["agent_id"])
    by_file = _by_file(harvested.files, seen)
    main = sum(not item.row["agent_id"] for item in harvested.files)
    totals: dict[str, Any] = {
        **_distinct_states(harvested.files, seen),
        "files": main,
        "subagent_files": len(harvested.files) - main,
        "unreadable_files": len(harvested.unreadable),
        "unreadable": harvested.unreadable,
        "forgotten_files": harvested.forgotten_files,
        **total_of(by_file.values()),
    }
    return IngestReport(totals, by_file, harvested, parsed)


def _ingest(
    lake: Lake,
    paths: Iterable[Path | str] | Path | str,
    days: Iterable[str] | None,
    exclude: Sequence[str],
    progress: Progress | None,
) -> tuple[HarvestReport, ParseReport, _Seen]:
    harvested = harvest(lake, paths, days=days, exclude=exclude, progress=progress)
    seen: _Seen = {}
    stale = {day for day in {file.day for file in harvested.files} if not is_current(lake, day)}
    if days is None:
        # Changed rules hold for all that is stored, not only for what was named now.
        stale |= {day for day in lake.days("sessions") if not is_redacted(lake, day)}
    parsed = parse_days(lake, sorted(stale), progress=progress, on_file=seen.__setitem__)
    return harvested, parsed, seen


def _distinct_states(files: list[HarvestedFile], seen: _Seen) -> dict[str, int]:
    """Count the states as a day's table keeps them: once, as the agent's own if it has it."""
    own: set[tuple[str, str]] = set()
    below: set[tuple[str, str]] = set()
    for item in files:
        found = seen[item.row["sha256"]]
        own.update((item.day, key) for key in found.states)
        below.update((item.day, key) for key in found.subagent_states)
    return {"distinct_states": len(own | below), "subagent_states": len(below - own)}


def _by_file(files: list[HarvestedFile], seen: _Seen) -> dict[str, Facts]:
    """Return the facts of main files; a subagent counts under its main file."""
    below: dict[str, set[str]] = {}
    for item in files:
        if item.row["agent_id"] and (parent := main_file_of(str(item.source.file))):
            below.setdefault(parent, set()).update(seen[item.row["sha256"]].responses)
    out: dict[str, Facts] = {}
    for item in files:
        if not item.row["agent_id"]:
            name = item.source.shown
            if name in out:  # the same relative path below two PATHs
                name = str(item.source.file)
            facts = dict(seen[item.row["sha256"]].facts)
            facts["subagent_responses"] = len(below.get(str(item.source.file), ()))
            out[name] = facts
    return out


# -- only what is new ---------------------------------------------------------------

#: Tables that an ingest writes.
_TABLES = ("raw_files", "messages", "chains", "states", "sessions")


class _CachedIngest(msgspec.Struct):
    """Hashes of what an ingest read and wrote, and its report."""

    files: str
    lake: str
    report: dict[str, Any]


class IngestCache:
    """The last report of an ingest of some paths, valid until a file or the lake changes.

    Sizes and times are taken before the ingest reads the files: a file that grows meanwhile
    differs at the next ingest.
    """

    def __init__(self, lake: Lake, paths: Sequence[Path | str], exclude: Sequence[str]) -> None:
        self._lake = lake
        globs = [*exclude, *Settings.from_env().excluded]
        given = "\0".join([*(str(Path(path).expanduser().absolute()) for path in paths), *globs])
        self._name = f"receipts/{_hash(given)}.json"
        self._files = "" if STDIN in map(str, paths) else _hash("\n".join(_stats(paths, lake)))

    def load(self) -> dict[str, Any] | None:
        """Return the cached report; ``None`` if there is none or something changed."""
        if not self._files or not self._lake.exists(self._name):
            return None
        try:
            found = msgspec.json.decode(self._lake.get_bytes(self._name), type=_CachedIngest)
        except msgspec.MsgspecError:  # only a shortcut: without it, everything is compared
            return None
        same = found.files == self._files and found.lake == _state_of(self._lake)
        return found.report if same else None

    def save(self, report: dict[str, Any]) -> None:
        """Remember the report of an ingest that has just ended."""
        if self._files:
            cached = _CachedIngest(self._files, _state_of(self._lake), report)
            self._lake.put_bytes(self._name, msgspec.json.encode(cached))


def _stats(paths: Sequence[Path | str], lake: Lake) -> Iterator[str]:
    for file, _, _ in files_below(paths, lake):
        for one in (file, file.with_name(f"{file.name}-wal")):  # SQLite writes beside its file
            if one.exists():
                about = one.stat()
                yield f"{one.absolute()}\0{about.st_size} {about.st_mtime_ns}"


def _state_of(lake: Lake) -> str:
    tables = " ".join(table_stamp(lake, table) for table in _TABLES)
    return _hash(f"{PARSER_VERSION} {redaction_version()} {tables}")


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def ingest_changes(
    lake: Lake,
    paths: Sequence[Path | str],
    *,
    exclude: Sequence[str] = (),
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Archive and parse what is new; return what that was and what the lake holds now.

    If nothing changed since the last such call, only sizes and times are read. The arguments
    are those of :func:`ingest`. ``states`` is what the lake holds and ``plan`` and ``replay``
    ask about, ``subagent_states`` those of ``subagents`` among them; ``codex sessions`` are those
    of ``sessions`` that are Codex's, and so on. ``new_files``,
    ``changed_files``, ``unchanged_files`` and ``unreadable_files`` are of ``paths``, and so are
    ``unreadable`` (each such file with the reason) and ``forgotten_files``, if there are any.
    """
    cache = IngestCache(lake, paths, exclude)
    if (report := cache.load()) is not None:
        return report
    harvested, _, _ = _ingest(lake, paths, None, exclude, progress)
    changes = {
        "new_files": harvested.new_files,
        "changed_files": harvested.grown_files,
        "unchanged_files": harvested.unchanged_files,
    }
    report = {"lake": lake.url, **changes, "unreadable_files": len(harvested.unreadable)}
    if harvested.unreadable:
        report["unreadable"] = harvested.unreadable
    if harvested.forgotten_files:
        report["forgotten_files"] = harvested.forgotten_files
    report.update(_held(lake))
    total = sum(changes.values())
    cache.save({**report, "new_files": 0, "changed_files": 0, "unchanged_files": total})
    return report


def _held(lake: Lake) -> dict[str, Any]:
    """Count what the lake holds."""
    subagents = lake.read("states", columns=["agent_id"])["agent_id"]
    rows = lake.rows("sessions", columns=["session_id", "agent_id", "agent"])
    agent_of = {row["session_id"]: row["agent"] for row in rows}
    return {
        "states": len(subagents),
        "subagent_states": len(subagents) - subagents.to_pylist().count(""),
        "sessions": len(agent_of),
        **{f"{name} sessions": count for name, count in _sorted(Counter(agent_of.values()))},
        "subagents": len({row["agent_id"] for row in rows} - {""}),
        "days": len(lake.days("states")),
    }


# -- the audit ----------------------------------------------------------------------

_Key = TypeVar("_Key", str, tuple[str, str])
Rows = list[dict[str, str | int]]


def day_audit(lake: Lake, day: str, redactions: Mapping[str, int]) -> dict[str, Rows]:
    """Return a day's audit tables, each sorted, the most frequent first.

    They are ``unknown_record_types`` (type, records), ``error_kinds`` (error_kind, source, states,
    hints) and, from the replacements by kind, ``redactions_by_kind`` (kind, replacements).
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
