"""Commands on sessions and states: ingest, sessions, states, state, redact."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from composer_pipeline.cli.common import (
    Bar,
    DayFilter,
    JsonOption,
    LakeOption,
    SessionFilter,
    Table,
    app,
    err,
    open_lake,
    show,
)
from composer_pipeline.errors import InputError
from composer_pipeline.settings import Settings
from composer_pipeline.states.state import TraceState, block_text, blocks_of

if TYPE_CHECKING:
    from composer_pipeline.survival.judge import Judgement


@app.command
def ingest(
    paths: Sequence[str] = (),
    /,
    *,
    exclude: Sequence[str] = (),
    lake: LakeOption = "",
    per_file: Annotated[bool, Parameter(negative="")] = False,
    as_json: JsonOption = False,
) -> None:
    """Archive and parse session files or folders.

    `states` counts what the lake now holds and what `plan` and `replay` query: each response once,
    including those of subagents (`subagent_states`). Files that were read before are skipped.

    Args:
        paths: session files, or folders of them; COMPOSER_SESSIONS, or the folders of all agents
            on this machine, by default.
        exclude: glob of files or folders that are never archived (COMPOSER_EXCLUDE, separated by
            commas): their full path, or the name of a file or folder.
        per_file: count the contents of each file instead, whether it was read before or not.
    """
    from composer_pipeline.states.second_look import look_in_background
    from composer_pipeline.traces.discover import agents_here
    from composer_pipeline.traces.ingest import ingest as run
    from composer_pipeline.traces.ingest import ingest_changes

    if not paths:
        given = Settings.from_env().sessions
        here = {} if given else agents_here()
        for agent, folders in here.items():
            where = " and ".join(map(str, folders))
            err.print(f"{agent}: {where}", markup=False, highlight=False, soft_wrap=True)
        paths = [given] if given else [str(f) for folders in here.values() for f in folders]
    with Bar() as progress:
        store = open_lake(lake, new=True)
        if per_file:
            report = run(store, list(paths), exclude=exclude, progress=progress).to_dict()
        else:
            report = ingest_changes(store, list(paths), exclude=exclude, progress=progress)
    look_in_background(store)
    unreadable = report.get("unreadable", {}) if as_json else report.pop("unreadable", {})
    for name, why in unreadable.items():
        err.print(f"{name} was not read: {why}", markup=False, highlight=False, soft_wrap=True)
    show(report, as_json, "ingest")


@app.command
def states(
    *,
    only: SessionFilter = SessionFilter(),  # noqa: B008  frozen
    lake: LakeOption = "",
    as_json: JsonOption = False,
) -> None:
    """List states by day, in chronological order; with --json, one object per line."""
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
    """List sessions and subagents with their counts; with --json, one object per line."""
    store = open_lake(lake)
    days, wanted = only.days(store, "sessions"), only.sessions(store)
    every = store.select(
        """
        WITH hints AS (
          SELECT day, session_id, agent_id, count(hint) AS hints,
                 count(error_kind) AS error_turns FROM states GROUP BY ALL)
        SELECT s.day, s.session_id, s.agent_id, s.path, s.project, s.first_prompt, s.first_ts,
               s.last_ts, s.agent, s.models, s.versions, s.lines, s.bad_lines, s.responses,
               s.states, s.states_active_path, s.tool_calls, s.tool_errors, s.compactions,
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


#: The columns of a state that --json prints as they are.
_SHOWN = (
    "state_id", "session_id", "message_id", "fidelity", "on_active_path", "repaired", "error_kind",
    "verdict", "verdict_reason", "culprit_state_id", "culprit_by", "caused_error", "hint",
    "fate", "kept", "survival",
)  # fmt: skip


@app.command
def state(state_id: str, /, *, lake: LakeOption = "", as_json: JsonOption = False) -> None:
    """Show one state: what the agent saw, what it did, and what happened next.

    Args:
        state_id: as `states` lists it; an unambiguous prefix is enough.
    """
    from composer_pipeline.states.load import failure_chains, following, load_state

    store = open_lake(lake)
    found = load_state(store, state_id)
    results = following(store, found)
    chain = failure_chains(store, [found.state_id]).get(found.state_id, [])
    if not as_json:
        show_state(Console(), found, results, chain)
        return
    out = {
        **{name: getattr(found, name) for name in _SHOWN},
        "prefix": found.messages,
        "action": json.loads(found.action_json),
        "chain": chain,
        "next": results,
    }
    show(out, True, "")


@app.command
def outcomes(
    *,
    repositories: Path | None = None,
    only: DayFilter = DayFilter(),  # noqa: B008  frozen
    lake: LakeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Ask git what became of the agent's edits, and say which labels and teachers foretold it.

    Days are looked at again while they are young and a repository has changed; with --day, always.
    Nothing is written to a repository, and nothing is fetched.

    Args:
        repositories: YAML file whose `repositories` are folders to look in for sessions whose own
            folder is no repository, or no longer (COMPOSER_REPOSITORIES).
    """
    from composer_pipeline.survival.judge import judge_outcomes
    from composer_pipeline.survival.stage import (
        evaluate_outcomes,
        read_repositories,
        stale_outcomes,
    )

    store = open_lake(lake)
    if not store.days("states"):
        raise InputError(f"lake {store.url} has no states; run ingest first")
    named = read_repositories(repositories or Settings.from_env().repositories)
    days = only.days(store)
    with Bar() as progress:
        stale = stale_outcomes(store, repositories=named) if days is None else days
        report = evaluate_outcomes(store, days=stale, repositories=named, progress=progress)
    found = judge_outcomes(store, days=days)
    if as_json:
        show({"looked": report.to_dict(), **found.to_dict()}, True, "")
        return
    for problem in report.problems:
        err.print(problem, markup=False, highlight=False, soft_wrap=True)
    show_outcomes(Console(), found)


def show_outcomes(console: Console, found: "Judgement") -> None:
    """Print what became of the edits, and what foretold it."""
    fates = {**found.fates, **{f"unknown: {why}": n for why, n in found.unknown.items()}}
    if not fates:
        console.print(Text("No edit has lines that can be followed."))
        return
    console.print(Text("What became of the edits", style="bold"))
    table = Table("edits", "states")
    for name, number in fates.items():
        table.add_row(name, str(number))
    console.print(table)
    if not found.alive:
        return
    table = Table("after", "lines alive", "states", "sessions")
    for horizon, share in found.alive.items():
        table.add_row(
            _AFTER.get(horizon, horizon), str(share), str(share.states), str(share.sessions)
        )
    console.print(table)
    table = Table("sign", "AUC of gone", "gone with it", "gone without", "states with it")
    for name, sign in found.foretold().items():
        shares = (sign.auc, sign.with_it, sign.without_it)
        table.add_row(name, *map(str, shares), str(sign.with_it.states))
    console.print(table)
    if found.contested is not None:
        console.print(Text(contested_sentence(found)))
    line = "Gone: less than half of the lines are in the commit, whoever took them out."
    console.print(Text(line, style="dim"))


def contested_sentence(found: "Judgement") -> str:
    """Return how often git kept what the teachers agreed against."""
    return (
        "Where the teachers agreed against the agent, git kept the agent's edit whole in"
        f" {found.contested} of {found.contested.states if found.contested else 0} states."
    )


_AFTER = {
    "commit": "the commit", "1": "1 commit of the file", "5": "5 commits", "20": "20 commits",
    "7d": "7 days", "30d": "30 days", "today": "the last look",
}  # fmt: skip


@app.command
def redact(
    file: Path,
    /,
    *,
    review: Annotated[bool, Parameter(negative="")] = False,
    as_json: JsonOption = False,
) -> None:
    """Print what redaction would replace in a file, and why; changes nothing.

    Args:
        file: any text file; in a session (.jsonl) or .json file, the decoded strings are checked.
        review: print what would be left but scores just below the threshold, instead.
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
            "review": [asdict(item) for item in found.review],
        }
        sys.stdout.write(json.dumps(report, ensure_ascii=False) + "\n")
        return
    table = Table(*(("place", "score", "what", "evidence") if review else
                    ("place", "rule", "what", "becomes")))  # fmt: skip
    for r in () if review else found.replacements:
        table.add_row(r.place, r.rule, f"{r.shown} ({r.length})", r.new)
    for item in found.review if review else ():
        what = f"{item.shown} ({item.length})"
        table.add_row(item.place, f"{item.score:.1f}", what, ", ".join(item.evidence))
    console = Console()
    console.print(table, markup=False) if table.row_count else None
    counts = ", ".join(f"{kind} {count}" for kind, count in sorted(found.counts.items()))
    console.print(counts or "nothing would be replaced", markup=False)
    console.print(f"left for review (--review): {len(found.review)}", markup=False)


#: Messages of a prefix: the first and the last few in one line each, the last two in full.
HEAD, TAIL, OPEN = 3, 12, 2
_LINE, _BLOCK, _RESULT = 110, 600, 2000

#: Characters of an id that tables for people show.
SHORT_ID = 12


def show_state(
    console: Console,
    state: TraceState,
    following: Sequence[Mapping[str, Any]],
    chain: Sequence[Mapping[str, str]] = (),
) -> None:
    """Print a state: its prefix folded, its action, what happened next, its failure, its hint."""
    console.rule(f"state {state.state_id}")
    facts = {
        "session": state.session_id + (f" / agent {state.agent_id}" if state.agent_id else ""),
        "when": f"{state.ts or state.day} turn {state.turn}",
        "model": f"{state.model or '?'} ({state.agent} {state.version or '?'})",
        "where": state.cwd or state.project,
        "prefix": f"{len(state.messages)} messages, {state.fidelity}"
        + ("" if state.on_active_path else ", abandoned branch"),
    }
    grid = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        grid.add_row(Text(name, style="dim"), Text(value))
    console.print(grid)
    console.rule("what it saw", style="dim")
    if state.system:
        console.print(Text(f"system: {_cut(state.system, _LINE)}", style="dim"))
    if state.tools:
        console.print(Text(f"tools: {len(state.tools)} schemas", style="dim"))
    _prefix(console, state.messages)
    console.rule("what it did", style="bold")
    if state.action.text:
        console.print(Text(state.action.text))
    for number, call in enumerate(state.action.tool_calls):
        console.print(Text(f"[{number}] {call.name}", style="bold cyan"))
        for key, value in call.arguments.items():
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            console.print(Padding(Text(f"{key}: {_cut_block(text, _RESULT)}"), (0, 0, 0, 4)))
    console.rule("what happened next", style="dim")
    if not following:
        console.print(Text("nothing is recorded", style="dim"))
    for block in following:
        error = block.get("is_error") is True
        console.print(Text(_cut_block(block_text(block), _RESULT), style="red" if error else ""))
    show_chain(console, chain, state.state_id)
    if state.fate:
        console.rule(f"what became of its lines: {state.fate}", style="dim")
        line = f"{state.kept:.0%} in the commit, {state.survival:.0%} alive at the last look"
        console.print(Text(line))
    _show_mistake(console, state)


def show_chain(console: Console, chain: Sequence[Mapping[str, str]], state_id: str) -> None:
    """Print the chain edit, failure, fix, check that a state is part of."""
    if chain:
        console.rule("edit, failure, fix" if len(chain) > 2 else "edit, failure", style="yellow")
    for step in chain:
        here = " (this state)" if step["state_id"] == state_id else ""
        line = f"{step['step']:<8}{step['state_id'][:SHORT_ID]}{here}  {_cut(step['what'], _LINE)}"
        console.print(Text(line, style="red" if step["step"] == "failure" else ""))


def _show_mistake(console: Console, state: "TraceState") -> None:
    """Print whose mistake it was, then the hint."""
    if state.error_kind:
        if state.verdict:
            console.rule(f"whose mistake: {state.verdict}", style="yellow")
            console.print(Text(f"{state.verdict_reason}: {state.verdict_evidence}", style="dim"))
        if state.culprit_state_id not in (None, state.state_id):
            how = f"found by {state.culprit_by}, confidence {state.culprit_confidence:.2f}"
            console.print(Text(f"caused by state {state.culprit_state_id}, {how}"))
        console.rule(f"hint: {state.error_kind}", style="yellow")
        target = {None: "", -1: ", about the whole action"}.get(
            state.hint_call, f", about call {state.hint_call}"
        )
        console.print(Text(f"from {state.hint_source or 'nowhere'}{target}", style="dim"))
        console.print(Text(_cut_block(state.hint or "(no words)", _RESULT)))


def _prefix(console: Console, messages: Sequence[Mapping[str, Any]]) -> None:
    hidden = range(HEAD, max(HEAD, len(messages) - TAIL - OPEN))
    for number, message in enumerate(messages):
        if number in hidden:
            if number == hidden.start:
                note = f"  ... {len(hidden)} messages folded; --json shows all"
                console.print(Text(note, style="dim"))
            continue
        blocks = blocks_of(message)
        label = Text(f"{number:4} {message['role']:<9} ", style="bold")
        if number < len(messages) - OPEN:
            line = " | ".join(" ".join(block_text(block).split()) for block in blocks)
            console.print(Text.assemble(label, _cut(line, _LINE)), soft_wrap=True)
            continue
        console.print(label)
        for block in blocks:
            console.print(Padding(Text(_cut_block(block_text(block), _BLOCK)), (0, 0, 0, 5)))


def _cut(text: str, limit: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[:limit] + "..."


def _cut_block(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    return f"{text[:limit]} ... ({len(text):,} characters)"


_STATE_LINE = "{:<12}  {:<12}  {:>8}  {:<10}  {}"
STATE_HEAD = _STATE_LINE.format("state", "session", "messages", "error", "tools")


def state_line(row: Mapping[str, Any]) -> str:
    """Return one row of ``list_states`` as a line."""
    line = _STATE_LINE.format(
        row["state_id"][:SHORT_ID],
        # A subagent has its own id, as in the list of sessions.
        f"+ {row['agent_id']}"[:SHORT_ID] if row["agent_id"] else row["session_id"][:SHORT_ID],
        row["n_messages"],
        (row["error_kind"] or "")[:16],
        ", ".join(row["tools"]),
    )
    return "".join(char if char.isprintable() else "?" for char in line).rstrip()


def session_table(rows: Iterable[Mapping[str, Any]]) -> Table:
    """Return sessions as a table, one row per trajectory."""
    # Without lines between them, the columns fit the start of the prompt into 80 characters.
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, expand=True)
    widths = {"day": 10, "agent": 8, "session": 9, "project": 11}
    counts = ("states", "calls", "errors", "hints", "compact")
    for name, width in widths.items():
        table.add_column(name, width=width, no_wrap=True, overflow="ellipsis")
    for name in counts:
        table.add_column(name, width=len(name), justify="right", no_wrap=True)
    table.add_column("first prompt", ratio=1, min_width=8, no_wrap=True, overflow="ellipsis")
    for row in rows:
        # A subagent is listed below its session, with its own id.
        label = f"+ {row['agent_id']}" if row["agent_id"] else row["session_id"]
        table.add_row(
            row["day"],
            "claude" if row["agent"] == "claude-code" else row["agent"],
            label[:9] if row["agent_id"] else label[:8],
            (row["project"] or "").rsplit("/", 1)[-1],
            *(str(row[name]) for name in ("states", "tool_calls", "tool_errors", "hints")),
            str(row["compactions"]),
            " ".join(row["first_prompt"].split())[:80],
        )
    return table
