"""The archive of some days to ``sessions``, ``messages``, ``chains`` and ``states``.

A day's partitions are a function of the manifest's rows of that day and of the parser:
parsing again writes the same bytes.
"""

import gc
import hashlib
import io
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import groupby
from operator import itemgetter
from typing import Any

import pyarrow as pa

from composer_pipeline.errors import InputError
from composer_pipeline.lake.parquet import numbers
from composer_pipeline.lake.place import check_days
from composer_pipeline.lake.store import Lake
from composer_pipeline.redaction.redact import json_redactor
from composer_pipeline.redaction.user_rules import redaction_version
from composer_pipeline.redaction.vault import HASHED, HashedValues, known_values
from composer_pipeline.reports import Progress, Report
from composer_pipeline.traces.archive import open_archived, redact_manifest, writer_lock
from composer_pipeline.traces.content_store import Redactor
from composer_pipeline.traces.messages import MessageStore
from composer_pipeline.traces.outcomes import Facts, facts_of
from composer_pipeline.traces.records import LineStats, blake
from composer_pipeline.traces.source import read_any
from composer_pipeline.traces.states import Extracted, Extractor, Rows, Source
from composer_pipeline.traces.trajectory import COMPACTS, Trajectory
from composer_pipeline.versions import PARSER_VERSION

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class FileSummary:
    """What one file holds."""

    facts: Facts  # of the file's own trajectory
    responses: set[str]  # message ids
    states: set[str]  # message ids of states of the agent itself
    subagent_states: set[str]  # of its subagents, embedded ones included


#: Called with the SHA-256 of a file and what it holds.
OnFile = Callable[[str, FileSummary], None]


def analyse(
    data: bytes | Iterable[bytes], *, subagent: bool = False, redactor: Redactor | None = None
) -> tuple[Trajectory, LineStats, Facts]:
    """Read one file, bytes or lines: its turn graph, its line counts and its facts."""
    stats = LineStats()
    lines = io.BytesIO(data) if isinstance(data, bytes) else data
    trajectory = Trajectory(read_any(lines, stats), subagent=subagent, redactor=redactor)
    trajectory.contents.add_names(known_values(trajectory.contents.found))
    return trajectory, stats, facts_of(trajectory, stats)


def summarise(trajectory: Trajectory, facts: Facts, agent_id: str) -> FileSummary:
    """Return what a file holds; ``agent_id`` is empty for a main file."""
    states: set[str] = set()
    below: set[str] = set()
    if not agent_id.startswith(COMPACTS):
        (below if agent_id else states).update(trajectory.state_keys())
        for side in trajectory.sidechains.values():
            below |= side.state_keys()
    return FileSummary(facts, trajectory.response_keys(), states, below)


def _is_trajectory(row: Row) -> bool:
    """Return False for ``agent-acompact-*``, which only writes a summary."""
    return not row["agent_id"].startswith(COMPACTS)


def _parse_session(
    lake: Lake,
    rows: list[Row],
    store: MessageStore,
    states: Rows,
    redactor: Redactor,
    hashed: HashedValues,
    on_file: OnFile | None,
) -> Iterator[list[Extracted]]:
    """Yield the rows of each archived file of a session; what one reveals, all of them hide."""
    read = []
    # One file for all: a session may have more subagents than a process may open files.
    alone = len(rows) == 1
    with nullcontext() if alone else tempfile.TemporaryFile(prefix="composer-pipeline-") as spilled:
        for row in rows:
            with open_archived(lake, row) as lines:
                found = analyse(lines, subagent=bool(row["agent_id"]), redactor=redactor)
            if spilled is not None:
                found[0].contents.spill(spilled)
            read.append(found)
        secret = {item for trajectory, _, _ in read for item in trajectory.contents.found}
        known = known_values(secret)
        hashed.add(secret)
        agent_calls: dict[str, str] = {}
        for row in rows:
            trajectory, stats, facts = read.pop(0)
            trajectory.contents.add_names(known)
            if on_file is not None:
                on_file(row["sha256"], summarise(trajectory, facts, row["agent_id"]))
            yield _extract(row, trajectory, stats, facts, store, states, agent_calls)


def _extract(
    row: Row,
    trajectory: Trajectory,
    stats: LineStats,
    facts: Facts,
    store: MessageStore,
    states: Rows,
    agent_calls: dict[str, str],
) -> list[Extracted]:
    """Make the rows of one file and of the subagents that it embeds."""
    if not _is_trajectory(row):
        return []
    source = Source(row["path"], row["session_id"], row["agent_id"], row["sha256"])
    if source.agent_id:  # main files are parsed before the subagents of their session
        call = trajectory.parent_call or agent_calls.get(trajectory.first_prompt())
        source = replace(source, parent_call=call)
    else:
        agent_calls.update(trajectory.agent_calls())
    found = [Extractor(trajectory, source, store).run(stats, facts, states)]
    for agent_id, side in trajectory.sidechains.items():
        part = replace(source, agent_id=agent_id, embedded=True, parent_call=side.parent_call)
        none = LineStats(agent=stats.agent)
        found.append(Extractor(side, part, store).run(none, facts_of(side, none), states))
    return found


#: Beyond this many characters two first prompts count as equal.
_GROUP_PROMPT_CHARS = 2000


def _session_rows(files: list[Extracted]) -> list[Row]:
    """Return the rows of ``sessions``, in the order of sessions, subagents and paths."""
    late = datetime.max.replace(tzinfo=UTC)
    prompts: dict[str, tuple[tuple[Any, ...], str]] = {}
    for file in files:
        session_id = file.source.session_id
        first = file.session["first_ts"] or late
        rank = (bool(file.source.agent_id), not file.first_prompt, first, file.source.path)
        if session_id not in prompts or rank < prompts[session_id][0]:
            prompts[session_id] = (rank, file.first_prompt)
    rows = [
        {**f.session, "group_id": _group_of(prompts[f.source.session_id][1], f.source.session_id)}
        for f in files
    ]
    return sorted(rows, key=lambda row: (row["session_id"], row["agent_id"], row["path"]))


def _group_of(first_prompt: str, session_id: str) -> str:
    """Return the split group of a session; its own id counts if it has no prompt."""
    normal = " ".join(first_prompt.casefold().split())[:_GROUP_PROMPT_CHARS]
    return blake("prompt", normal) if normal else blake("session", session_id)


def _write_day(
    lake: Lake, day: str, files: list[Extracted], store: MessageStore, found: Rows
) -> dict[str, int]:
    """Write all tables of a day but ``messages``; return the numbers of the report."""
    states = _distinct_states(files, found)
    used = set(states["chain_id"].to_pylist())
    chains: dict[str, list[int]] = {}
    for file in files:
        chains.update({key: numbers for key, numbers in file.chains.items() if key in used})
    rows = [
        {"chain_id": key, "messages": chains[key], "digest": _digest(store, chains[key])}
        for key in sorted(chains)
    ]
    sessions = _session_rows(files)
    lake.write("chains", rows, day=day)
    lake.write("states", states, day=day)
    # Sessions come last: their hashes say that all of the day is written (`is_current`).
    lake.write("sessions", sessions, day=day)
    return {
        "files": sum(not file.source.embedded for file in files),
        "sessions": len({row["session_id"] for row in sessions}),
        "states": len(states),
        "subagent_states": len(states) - states["agent_id"].to_pylist().count(""),
        "duplicate_states": sum(len(file.message_ids) for file in files) - len(states),
        "messages": len(store.hashes),
        "chains": len(chains),
        "error_states": len(states) - states["error_kind"].null_count,
        "hints": len(states) - states["hint"].null_count,
        "repaired_states": states["repaired"].to_pylist().count(True),
        "bad_lines": sum(row["bad_lines"] for row in sessions),
        "redactions": store.counts.total(),
    }


def _digest(store: MessageStore, numbers: list[int]) -> str:
    hashes = b"".join(store.hashes[number] for number in numbers)
    return hashlib.blake2b(hashes, digest_size=16).hexdigest()


def _distinct_states(files: list[Extracted], states: Rows) -> pa.Table:
    """Keep each API response once, in the order of sessions, files and turns."""
    best: dict[str, tuple[int, int]] = {}
    for number, file in enumerate(files):
        for at, message_id in enumerate(file.message_ids):
            known = best.setdefault(message_id, (number, at))
            if known[0] != number and _rank(file, at) < _rank(files[known[0]], known[1]):
                best[message_id] = (number, at)

    def order(number: int) -> tuple[str, str, str]:
        source = files[number].source
        return source.session_id, source.agent_id, source.path

    kept = [
        files[number].first_row + at
        for number in sorted(range(len(files)), key=order)
        for at, message_id in enumerate(files[number].message_ids)
        if best[message_id][0] == number
    ]
    table = states.table()
    return table if kept == list(range(len(table))) else table.take(numbers(kept, pa.int64()))


def _rank(file: Extracted, at: int) -> tuple[Any, ...]:
    """Return what decides between two copies of a state; the smaller one is kept."""
    return (
        bool(file.source.agent_id),
        file.source.embedded,
        -file.n_messages[at],
        file.message_ids[at] in file.copied,
        file.source.session_id,
        file.source.path,
    )


#: Objects that the garbage collector tracks, before it looks for cycles among the new ones.
_COLLECT_AFTER = 200_000


@dataclass(slots=True)
class ParseReport(Report):
    """What parsing wrote: numbers for each day, and redactions by kind."""

    days: list[str] = field(default_factory=list)
    by_day: dict[str, dict[str, int]] = field(default_factory=dict)
    redactions: Counter[str] = field(default_factory=Counter)
    redactions_by_day: dict[str, dict[str, int]] = field(default_factory=dict)

    def day(self, day: str) -> dict[str, int]:
        """Return the numbers of one day: files, sessions, states, messages, and more."""
        return dict(self.by_day.get(day, {}))

    @property
    def states(self) -> int:
        """States written, over all days."""
        return sum(counts["states"] for counts in self.by_day.values())


def parse_days(
    lake: Lake,
    days: Iterable[str] | None = None,
    *,
    progress: Progress | None = None,
    on_file: OnFile | None = None,
    into: Lake | None = None,
) -> ParseReport:
    """Replace the parsed partitions of some days (all when ``None``) from the archive.

    Files are read one at a time; of each only its rows and the day's distinct messages stay in
    memory. A day without archived files is left alone. With ``into``, that lake is written.
    """
    wanted = None if days is None else check_days(days)
    report = ParseReport()
    if wanted == []:
        return report
    with writer_lock(lake, progress), _rare_collections():
        have = lake.days("raw_files")
        manifests: dict[str, list[Row]] = {
            day: [] for day in (have if wanted is None else wanted) if day in have
        }
        for row in lake.rows("raw_files", days=manifests):
            manifests[row["day"]].append(row)
        done, total = 0, sum(map(len, manifests.values()))
        hashed = HashedValues.of(lake)
        redactor, target = Redactor(json_redactor(), hashed), into or lake
        for day, rows in manifests.items():
            writer = target.writer("messages", day=day)
            try:
                store = MessageStore(writer.write)
                states = Rows()
                files: list[Extracted] = []
                rows.sort(key=itemgetter("session_id", "agent_id", "path"))
                for _, session in groupby(rows, key=itemgetter("session_id")):
                    for file in _parse_session(
                        lake, list(session), store, states, redactor, hashed, on_file
                    ):
                        files += file
                        done += 1
                        if progress is not None:
                            progress("parse", done, total)
                store.flush()
                writer.commit()  # a state comes after its chain and its messages
            finally:
                writer.discard()
            report.days.append(day)
            report.by_day[day] = _write_day(target, day, files, store, states)
            report.redactions.update(store.counts)
            report.redactions_by_day[day] = dict(store.counts)
        if hashed.changed and into is None:
            lake.put_bytes(HASHED, hashed.to_json())
    return report


@contextmanager
def _rare_collections() -> Iterator[None]:
    # A graph is freed by its reference counts. Looking for cycles among its objects again
    # and again, while a file is read, takes one twentieth of the time and finds none.
    before = gc.get_threshold()
    gc.set_threshold(_COLLECT_AFTER, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def is_current(lake: Lake, day: str) -> bool:
    """Return True if a day's partitions hold its archived files, as this parser writes them."""
    if lake.damaged_file(day) or not all(
        lake.partitions(table, day=day) for table in Lake.FROM_ARCHIVE
    ):
        return False
    archived = {row["sha256"] for row in lake.rows("raw_files", days=[day]) if _is_trajectory(row)}
    parsed = lake.read("sessions", days=[day], columns=["sha256"])["sha256"].to_pylist()
    parsers = lake.read("states", days=[day], columns=["parser_version"])["parser_version"]
    return (
        archived == set(parsed)
        and set(parsers.to_pylist()) <= {PARSER_VERSION}
        and is_redacted(lake, day)
    )


def is_redacted(lake: Lake, day: str) -> bool:
    """Return True if all rows of a parsed day were redacted by the current rules."""
    if lake.damaged_file(day):
        return False
    for table in ("sessions", "messages"):  # written last, written first
        versions = lake.read(table, days=[day], columns=["redaction_version"])
        if not set(versions["redaction_version"].to_pylist()) <= {redaction_version()}:
            return False
    return True


@dataclass(slots=True)
class ReparseReport(Report):
    """What was written again, and why days could not be (``failed``)."""

    days: list[str] = field(default_factory=list)
    states: int = 0
    redactions: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    replies: int = 0
    #: By day, the messages that are no longer as they were, and the placeholders that came.
    changed: dict[str, dict[str, int]] = field(default_factory=dict)
    #: Files, and repositories since a tag, that hold their sessions as they were; what ends that.
    exports: list[str] = field(default_factory=list)
    releases: dict[str, str] = field(default_factory=dict)
    next: list[str] = field(default_factory=list)


def rewrite_days(
    lake: Lake,
    days: Iterable[str] | None = None,
    *,
    into: Lake | None = None,
    progress: Progress | None = None,
) -> ReparseReport:
    """Rewrite the tables of days (all when ``None``) from the archive.

    A day whose archived bytes are damaged keeps what it has; the others are written. With
    ``into``, they are written to that lake.
    """
    have = lake.days("raw_files")
    wanted = have if days is None else check_days(days)
    if missing := [day for day in wanted if day not in have]:
        raise InputError(f"lake {lake.url} has no archived session of {', '.join(missing)}")
    report = ReparseReport()
    for done, day in enumerate(wanted, start=1):
        if into is None:
            with writer_lock(lake, progress):
                redact_manifest(lake, day)
        try:
            parsed = parse_days(lake, [day], into=into)
        except InputError as error:
            report.failed[day] = str(error)
        else:
            report.days.append(day)
            report.states += parsed.states
            report.redactions += parsed.redactions.total()
        if progress is not None:
            progress("reparse", done, len(wanted))
    return report
