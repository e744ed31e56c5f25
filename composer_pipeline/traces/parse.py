"""The archive of some days to ``sessions``, ``messages``, ``chains`` and ``states``.

Belongs here: reading archived files one after the other, dropping copies of states,
split groups, replacing partitions. Does not belong here: what one file yields
(``traces.states.extract``).

A day's partitions are a function of the manifest's rows of that day and of the
parser: parsing again writes the same bytes. Within a day a state (one API response,
known by ``message.id``) is kept once: from a main trajectory rather than a subagent's, from
a subagent's own file rather than one that embeds it, then from the longest history, then
where the record is no fork's copy, then from the smallest session id and path. All files
of a session, and the forks that repeat its first records, lie in one day, so state ids are
unique in the whole lake.

``sessions.group_id`` keeps related sessions in one split: it is the hash of the first
human prompt (casefolded, white space collapsed) of the session's earliest file. Files
of one session, its subagents, and sessions that resume or fork it begin with the same
prompt; so does the same task given twice. The id depends on no other session and thus
never changes when unrelated data arrive.
"""

import gc
import hashlib
import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from composer_pipeline.errors import InputError
from composer_pipeline.lake.columns import numbers
from composer_pipeline.lake.store import Lake
from composer_pipeline.redaction.text import redact_json
from composer_pipeline.redaction.user_rules import redaction_version
from composer_pipeline.reports import Progress, Report
from composer_pipeline.traces.archive.harvest import open_archived
from composer_pipeline.traces.graph.pool import Redactor
from composer_pipeline.traces.graph.turns import Trajectory
from composer_pipeline.traces.reading.records import LineStats
from composer_pipeline.traces.reading.sources import read_any
from composer_pipeline.traces.states.counts import Facts, facts_of
from composer_pipeline.traces.states.extract import (
    PARSER_VERSION,
    Extracted,
    Source,
    blake,
    extract,
)
from composer_pipeline.traces.states.messages import MessageStore
from composer_pipeline.traces.states.state_rows import Rows

OnFile = Callable[[str, Facts, set[str], set[str]], None]
Row = dict[str, Any]

#: Beyond this many characters two first prompts are not told apart.
_GROUP_PROMPT_CHARS = 2000
#: Objects that the garbage collector tracks, before it looks for cycles among the new ones.
_COLLECT_AFTER = 200_000
#: How ids of agents begin whose only call writes the summary of a compaction.
_COMPACTS = "acompact"
_DAY_TABLES = ("messages", "chains", "states", "sessions")


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
) -> ParseReport:
    """Replace the parsed partitions of some days from the archive.

    Files are read one at a time; of each only its rows and the day's distinct messages
    stay in memory. A day without archived files is left alone.

    Args:
        lake: the lake.
        days: days to parse; all harvested days when ``None``.
        progress: called with ``("parse", done, total)`` after each file.
        on_file: called with the SHA-256, the counts, and the message ids of the responses
            and of the states of each file.

    Raises:
        InputError: a day is not written ``YYYY-MM-DD``, or the archive lacks a blob.
    """
    have = lake.days("raw_files")
    wanted = have if days is None else sorted({_checked(day) for day in days})
    manifests: dict[str, list[Row]] = {day: [] for day in wanted if day in have}
    for row in lake.rows("raw_files", days=manifests):
        manifests[row["day"]].append(row)
    total = sum(map(len, manifests.values()))
    report = ParseReport()
    redactor = Redactor(redact_json)
    agent_calls: dict[str, dict[str, str]] = {}
    done = 0

    def parsed(row: Row, store: MessageStore, states: Rows) -> list[Extracted]:
        nonlocal done
        found = _parse_file(lake, row, store, states, redactor, on_file, agent_calls)
        done += 1
        if progress is not None:
            progress("parse", done, total)
        return found

    with _rare_collections():
        for day, rows in manifests.items():
            agent_calls.clear()
            writer = lake.writer("messages", day=day)
            try:
                store = MessageStore(writer.write)
                states = Rows()
                files: list[Extracted] = []
                for row in sorted(rows, key=_row_order):
                    files += parsed(row, store, states)
                store.flush()
                # A state comes after its chain and its messages.
                writer.commit()
            finally:
                writer.discard()
            report.days.append(day)
            report.by_day[day] = _write_day(lake, day, files, store, states)
            report.redactions.update(store.counts)
            report.redactions_by_day[day] = dict(store.counts)
    return report


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Let the garbage collector run rarely.

    A graph is freed by its reference counts. Looking for cycles among its objects again
    and again, while a file is read, takes one twentieth of the time and finds none.
    """
    before = gc.get_threshold()
    gc.set_threshold(_COLLECT_AFTER, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def analyse(
    data: bytes | Iterable[bytes], *, subagent: bool = False, redactor: Redactor | None = None
) -> tuple[Trajectory, LineStats, Facts]:
    """Read one file: its turn graph, its line counts and its facts.

    Args:
        data: its bytes, or the file split at newline bytes, newlines kept.
        subagent: as :class:`composer_pipeline.traces.graph.turns.Trajectory`.
        redactor: as there; required for a graph that is stored.
    """
    stats = LineStats()
    lines = io.BytesIO(data) if isinstance(data, bytes) else data
    trajectory = Trajectory(read_any(lines, stats), subagent=subagent, redactor=redactor)
    return trajectory, stats, facts_of(trajectory, stats)


def is_trajectory(row: Row) -> bool:
    """Say whether a manifest row is parsed: ``agent-acompact-*`` is only a summary's call."""
    return not row["agent_id"].startswith(_COMPACTS)


def is_current(lake: Lake, day: str) -> bool:
    """Say whether a day's partitions hold its archived files, as this parser writes them."""
    if not all(day in lake.days(table) for table in _DAY_TABLES):
        return False
    archived = {row["sha256"] for row in lake.rows("raw_files", days=[day]) if is_trajectory(row)}
    parsed = lake.read("sessions", days=[day], columns=["sha256"])["sha256"].to_pylist()
    parsers = lake.read("states", days=[day], columns=["parser_version"])["parser_version"]
    rules = lake.read("messages", days=[day], columns=["redaction_version"])["redaction_version"]
    return (
        archived == set(parsed)
        and set(parsers.to_pylist()) <= {PARSER_VERSION}
        and set(rules.to_pylist()) <= {redaction_version()}
    )


def _checked(day: str) -> str:
    try:
        datetime.strptime(day, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError as error:
        raise InputError(f"day {day!r} is not written YYYY-MM-DD") from error
    return day


def _parse_file(
    lake: Lake,
    row: Row,
    store: MessageStore,
    states: Rows,
    redactor: Redactor,
    on_file: OnFile | None,
    agent_calls: dict[str, dict[str, str]],
) -> list[Extracted]:
    with open_archived(lake, row) as lines:
        trajectory, stats, facts = analyse(lines, subagent=bool(row["agent_id"]), redactor=redactor)
    if on_file is not None:
        on_file(row["sha256"], facts, trajectory.response_keys(), trajectory.state_keys())
    if not is_trajectory(row):
        return []
    source = Source(row["path"], row["session_id"], row["agent_id"], row["sha256"])
    if source.agent_id:  # main files are parsed before the subagents of their session
        call = agent_calls.get(source.session_id, {}).get(trajectory.first_prompt())
        source = replace(source, parent_call=call)
    elif calls := trajectory.agent_calls():
        agent_calls[source.session_id] = calls
    found = [extract(trajectory, stats, facts, source, store, states)]
    for agent_id, side in trajectory.sidechains.items():
        if not agent_id.startswith(_COMPACTS) and side.trajectory.nodes:
            part = replace(source, agent_id=agent_id, embedded=True, parent_call=side.parent_call)
            graph, none = side.trajectory, LineStats()
            found.append(extract(graph, none, facts_of(graph, none), part, store, states))
    return found


def _write_day(
    lake: Lake, day: str, files: list[Extracted], store: MessageStore, found: Rows
) -> dict[str, int]:
    states = _distinct_states(files, found)
    used = set(states["chain_id"].to_pylist())
    chains: dict[str, list[int]] = {}
    for file in files:
        chains.update({key: numbers for key, numbers in file.chains.items() if key in used})
    rows = [
        {"chain_id": key, "messages": chains[key], "digest": _digest(store, chains[key])}
        for key in sorted(chains)
    ]
    sessions = _sessions(files)
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


def _row_order(row: Row) -> tuple[str, str, str]:
    """Return the order of a day's files, which is also that of its states."""
    return str(row["session_id"]), str(row["agent_id"]), str(row["path"])


def _distinct_states(files: list[Extracted], states: Rows) -> pa.Table:
    """Keep each API response once, in the order of sessions, files and turns."""
    best: dict[str, tuple[int, int]] = {}
    for number, file in enumerate(files):
        for at, message_id in enumerate(file.message_ids):
            known = best.setdefault(message_id, (number, at))
            if known[0] != number and _rank(file, at) < _rank(files[known[0]], known[1]):
                best[message_id] = (number, at)
    order = sorted(
        range(len(files)),
        key=lambda n: (files[n].source.session_id, files[n].source.agent_id, files[n].source.path),
    )
    kept = [
        files[number].first_row + at
        for number in order
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


def _sessions(files: list[Extracted]) -> list[Row]:
    late = datetime.max.replace(tzinfo=UTC)
    prompts: dict[str, tuple[tuple[Any, ...], str]] = {}
    for file in files:
        session_id = file.source.session_id
        first = file.session["first_ts"] or late
        rank = (bool(file.source.agent_id), not file.first_prompt, first, file.source.path)
        if session_id not in prompts or rank < prompts[session_id][0]:
            prompts[session_id] = (rank, file.first_prompt)
    rows = [
        {**f.session, "group_id": group_of(prompts[f.source.session_id][1], f.source.session_id)}
        for f in files
    ]
    return sorted(rows, key=lambda row: (row["session_id"], row["agent_id"], row["path"]))


def group_of(first_prompt: str, session_id: str) -> str:
    """Return the split group of a session; its own id counts where it has no prompt."""
    normal = " ".join(first_prompt.casefold().split())[:_GROUP_PROMPT_CHARS]
    return blake("prompt", normal) if normal else blake("session", session_id)
