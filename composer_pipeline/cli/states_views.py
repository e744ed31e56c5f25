"""States and sessions as a person reads them, on a terminal."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from composer_pipeline.cli.common import Table
from composer_pipeline.states.state import TraceState, block_text, blocks_of

#: Messages of a prefix: the first and the last few in one line each, the very last in full.
HEAD, TAIL, OPEN = 3, 12, 2
_LINE, _BLOCK, _RESULT = 110, 600, 2000

#: Characters of an id that tables for people show.
SHORT_ID = 12


def show_state(console: Console, state: TraceState, following: Sequence[Mapping[str, Any]]) -> None:
    """Print a state: its prefix folded, its action, what happened next, its hint."""
    console.rule(f"state {state.state_id}")
    facts = {
        "session": state.session_id + (f" / agent {state.agent_id}" if state.agent_id else ""),
        "when": f"{state.ts or state.day} turn {state.turn}",
        "model": f"{state.model or '?'} (Claude Code {state.version or '?'})",
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
            shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            console.print(Padding(Text(f"{key}: {_cut_block(shown, _RESULT)}"), (0, 0, 0, 4)))
    console.rule("what happened next", style="dim")
    if not following:
        console.print(Text("nothing is recorded", style="dim"))
    for block in following:
        error = block.get("is_error") is True
        console.print(Text(_cut_block(block_text(block), _RESULT), style="red" if error else ""))
    if state.error_kind:
        console.rule(f"hint: {state.error_kind}", style="yellow")
        where = {None: "", -1: ", about the whole action"}.get(
            state.hint_call, f", about call {state.hint_call}"
        )
        console.print(Text(f"from {state.hint_source or 'nowhere'}{where}", style="dim"))
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
    """Return one state of ``list_states`` as a line: a lake may have a hundred thousand."""
    line = _STATE_LINE.format(
        row["state_id"][:SHORT_ID],
        # A subagent is named by its own id, as in the list of sessions.
        f"+ {row['agent_id']}"[:SHORT_ID] if row["agent_id"] else row["session_id"][:SHORT_ID],
        row["n_messages"],
        (row["error_kind"] or "")[:16],
        ", ".join(row["tools"]),
    )
    return "".join(char if char.isprintable() else "?" for char in line).rstrip()


def session_table(rows: Iterable[Mapping[str, Any]]) -> Table:
    """Return sessions as a table: one row for each trajectory."""
    # Without lines between the columns, 80 of them have room for the beginning of the prompt.
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, expand=True)
    widths = {"day": 10, "session": 9, "project": 11}
    counts = ("states", "calls", "errors", "hints", "compact")
    for name, width in widths.items():
        table.add_column(name, width=width, no_wrap=True, overflow="ellipsis")
    for name in counts:
        table.add_column(name, width=len(name), justify="right", no_wrap=True)
    table.add_column("first prompt", ratio=1, min_width=8, no_wrap=True, overflow="ellipsis")
    for row in rows:
        # A subagent stands below its session, under its own id.
        place = f"+ {row['agent_id']}" if row["agent_id"] else row["session_id"]
        table.add_row(
            row["day"],
            place[:9] if row["agent_id"] else place[:8],
            (row["project"] or "").rsplit("/", 1)[-1],
            *(str(row[name]) for name in ("states", "tool_calls", "tool_errors", "hints")),
            str(row["compactions"]),
            " ".join(row["first_prompt"].split())[:80],
        )
    return table
