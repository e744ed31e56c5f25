"""One archived file to rows.

Belongs here: reading a file once, the subagents inside it. Does not belong here: what one
trajectory yields (``traces.states.extract``).
"""

import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from composer_pipeline.lake import Lake
from composer_pipeline.traces.archive import open_archived
from composer_pipeline.traces.graph import Redactor, Subagent, Trajectory
from composer_pipeline.traces.reading import LineStats, read_any
from composer_pipeline.traces.states import (
    Extracted,
    Facts,
    MessageStore,
    Rows,
    Source,
    extract,
    facts_of,
)

Row = dict[str, Any]

#: How ids of agents begin whose only call writes the summary of a compaction.
_COMPACTS = "acompact"


@dataclass(frozen=True, slots=True)
class Found:
    """What one file holds: its facts, and the message ids of responses and states.

    ``facts`` and ``responses`` are of the file's own trajectory. ``states`` are those of
    the agent, ``subagent_states`` those of subagents, embedded ones included: together
    they are what table ``states`` keeps of the file, where no other file has it better.
    """

    facts: Facts
    responses: set[str]
    states: set[str]
    subagent_states: set[str]


#: Called with the SHA-256 of a file and what it holds.
OnFile = Callable[[str, Found], None]


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


def found_in(trajectory: Trajectory, facts: Facts, agent_id: str) -> Found:
    """Say what a file holds, by its turn graph; ``agent_id`` is empty for a main file."""
    states: set[str] = set()
    below: set[str] = set()
    if not agent_id.startswith(_COMPACTS):
        (below if agent_id else states).update(trajectory.state_keys())
        for side in _embedded(trajectory).values():
            below |= side.trajectory.state_keys()
    return Found(facts, trajectory.response_keys(), states, below)


def _embedded(trajectory: Trajectory) -> dict[str, Subagent]:
    """Return the subagents of a file that are trajectories of their own, by agent id."""
    return {
        agent_id: side
        for agent_id, side in trajectory.sidechains.items()
        if not agent_id.startswith(_COMPACTS) and side.trajectory.nodes
    }


def is_trajectory(row: Row) -> bool:
    """Say whether a manifest row is parsed: ``agent-acompact-*`` is only a summary's call."""
    return not row["agent_id"].startswith(_COMPACTS)


def parse_file(
    lake: Lake,
    row: Row,
    store: MessageStore,
    states: Rows,
    redactor: Redactor,
    on_file: OnFile | None,
    agent_calls: dict[str, dict[str, str]],
) -> list[Extracted]:
    """Make the rows of one archived file and of the subagents that it embeds.

    Args:
        lake: the lake.
        row: the manifest's row.
        store: receives the distinct messages.
        states: receives the rows of the states.
        redactor: applied to all content.
        on_file: as :func:`composer_pipeline.traces.parse.days.parse_days`.
        agent_calls: by session, the calls that start subagents; those of main files are added.
    """
    with open_archived(lake, row) as lines:
        trajectory, stats, facts = analyse(lines, subagent=bool(row["agent_id"]), redactor=redactor)
    if on_file is not None:
        on_file(row["sha256"], found_in(trajectory, facts, row["agent_id"]))
    if not is_trajectory(row):
        return []
    source = Source(row["path"], row["session_id"], row["agent_id"], row["sha256"])
    if source.agent_id:  # main files are parsed before the subagents of their session
        call = agent_calls.get(source.session_id, {}).get(trajectory.first_prompt())
        source = replace(source, parent_call=call)
    elif calls := trajectory.agent_calls():
        agent_calls[source.session_id] = calls
    found = [extract(trajectory, stats, facts, source, store, states)]
    for agent_id, side in _embedded(trajectory).items():
        part = replace(source, agent_id=agent_id, embedded=True, parent_call=side.parent_call)
        graph, none = side.trajectory, LineStats()
        found.append(extract(graph, none, facts_of(graph, none), part, store, states))
    return found
