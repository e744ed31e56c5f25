"""Commands: ingest, sessions, states, state."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from composer_pipeline.cli.common import (
    Bar,
    JsonOption,
    LakeOption,
    SessionFilter,
    Table,
    app,
    open_lake,
    show,
)
from composer_pipeline.errors import InputError


@app.command
def ingest(
    paths: Sequence[str],
    /,
    *,
    exclude: Sequence[str] = (),
    lake: LakeOption = "",
    per_file: Annotated[bool, Parameter(negative="")] = False,
    as_json: JsonOption = False,
) -> None:
    """Archive and parse session files or folders.

    `states` is what the lake holds now and what `plan` and `replay` ask about: each response once,
    those of subagents (`subagent_states`) included. What was read before is not read again.

    Args:
        paths: JSONL files, or folders of them.
        exclude: a glob of files or folders that are never archived (COMPOSER_EXCLUDE, parted by
            commas): their whole path, or the name of a file or folder.
        per_file: count what is in each file instead, read before or not.
    """
    from composer_pipeline.traces.ingest import ingest as run
    from composer_pipeline.traces.ingest import ingest_changes

    if not paths:
        raise InputError("ingest needs at least one PATH")
    with Bar() as progress:
        store = open_lake(lake, new=True)
        if per_file:
            report = run(store, list(paths), exclude=exclude, progress=progress).to_dict()
        else:
            report = ingest_changes(store, list(paths), exclude=exclude, progress=progress)
    show(report, as_json, "ingest")


@app.command
def states(
    *,
    only: SessionFilter = SessionFilter(),  # noqa: B008  frozen
    lake: LakeOption = "",
    as_json: JsonOption = False,
) -> None:
    """List states, day by day, in the order of time; with --json, one object a line."""
    from composer_pipeline.cli.states_views import STATE_HEAD, state_line
    from composer_pipeline.states.load import list_states

    store = open_lake(lake)
    found = list_states(store, days=only.days(store), sessions=only.sessions(store))
    for number, row in enumerate(found):
        if as_json:
            _lines([row])
            continue
        if not number:
            sys.stdout.write(STATE_HEAD + "\n")
        sys.stdout.write(state_line(row) + "\n")


def _iso(value: datetime) -> str:
    return value.isoformat()


def _lines(rows: Sequence[Mapping[str, Any]]) -> None:
    for row in rows:
        sys.stdout.write(json.dumps(row, ensure_ascii=False, default=_iso) + "\n")


@app.command
def sessions(
    *,
    only: SessionFilter = SessionFilter(),  # noqa: B008  frozen
    lake: LakeOption = "",
    as_json: JsonOption = False,
) -> None:
    """List sessions and subagents with their counts; with --json, one object a line."""
    from composer_pipeline.cli.states_views import session_table

    store = open_lake(lake)
    days, wanted = only.days(store, "sessions"), only.sessions(store)
    every = store.select(
        """
        WITH hints AS (
          SELECT day, session_id, agent_id, count(hint) AS hints,
                 count(error_kind) AS error_turns FROM states GROUP BY ALL)
        SELECT s.day, s.session_id, s.agent_id, s.path, s.project, s.first_prompt, s.first_ts,
               s.last_ts, s.models, s.versions, s.lines, s.bad_lines, s.responses, s.states,
               s.states_active_path, s.tool_calls, s.tool_errors, s.compactions,
               s.repaired_states,
               coalesce(h.error_turns, 0) AS error_turns, coalesce(h.hints, 0) AS hints
        FROM sessions s LEFT JOIN hints h USING (day, session_id, agent_id)
        ORDER BY s.day, s.first_ts, s.session_id, s.agent_id, s.path
        """
    )
    rows = [
        row
        for row in every
        if (days is None or row["day"] in days) and (wanted is None or row["session_id"] in wanted)
    ]
    if as_json:
        _lines(rows)
    else:
        Console().print(session_table(rows))


@app.command
def state(state_id: str, /, *, lake: LakeOption = "", as_json: JsonOption = False) -> None:
    """Show one state: what the agent saw, what it did, and what came of it.

    Args:
        state_id: as `states` lists it; an unambiguous beginning is enough.
    """
    from composer_pipeline.cli.states_views import show_state
    from composer_pipeline.states.load import following, load_state

    store = open_lake(lake)
    found = load_state(store, state_id)
    behind = following(store, found)
    if not as_json:
        show_state(Console(), found, behind)
        return
    out = {
        "state_id": found.state_id,
        "session_id": found.session_id,
        "message_id": found.message_id,
        "prefix": found.messages,
        "action": json.loads(found.action_json),
        "fidelity": found.fidelity,
        "on_active_path": found.on_active_path,
        "repaired": found.repaired,
        "error_kind": found.error_kind,
        "hint": found.hint,
        "next": behind,
    }
    show(out, True, "")


@app.command
def redact(file: Path, /, *, as_json: JsonOption = False) -> None:
    """Print what redaction would replace in a file, and why; nothing is changed.

    Args:
        file: any text; of a session (.jsonl) or a .json file, the decoded strings.
    """
    from composer_pipeline.redaction.redact import explain_file

    try:
        found = explain_file(file)
    except OSError as error:
        raise InputError(f"FILE {file}: {error.strerror}") from error
    if as_json:
        report = {
            "file": str(file),
            "counts": found.counts,
            "replacements": [asdict(r) for r in found.replacements],
        }
        sys.stdout.write(json.dumps(report, ensure_ascii=False) + "\n")
        return
    table = Table("place", "rule", "what", "becomes")
    for r in found.replacements:
        table.add_row(r.place, r.rule, f"{r.shown} ({r.length})", r.new)
    console = Console()
    console.print(table, markup=False) if found.replacements else None
    told = ", ".join(f"{kind} {count}" for kind, count in sorted(found.counts.items()))
    console.print(told or "nothing would be replaced", markup=False)
