"""The rows of a day's files to its partitions.

Belongs here: which of two copies of a state is kept, the order of writes. Does not belong
here: reading files (``traces.parse.files``).

Within a day a state (one API response, known by ``message.id``) is kept once: from a main
trajectory rather than a subagent's, from a subagent's own file rather than one that embeds
it, then from the longest history, then where the record is no fork's copy, then from the
smallest session id and path. All files of a session, and the forks that repeat its first
records, lie in one day, so state ids are unique in the whole lake.
"""

import hashlib
from typing import Any

import pyarrow as pa

from composer_pipeline.lake import Lake, numbers
from composer_pipeline.traces.parse.files import Row
from composer_pipeline.traces.parse.groups import session_rows
from composer_pipeline.traces.states import Extracted, MessageStore, Rows


def write_day(
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
    sessions = session_rows(files)
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


def row_order(row: Row) -> tuple[str, str, str]:
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
