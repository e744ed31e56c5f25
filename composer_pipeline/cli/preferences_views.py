"""An explanation as a person reads it: two columns, every teacher, the reason.

Belongs here: layout on a terminal of 80 columns or more. Does not belong here: facts
(``preferences.pairs.explain``).
"""

import json
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher, unified_diff
from typing import Any

from rich.console import Console, Group
from rich.padding import Padding
from rich.text import Text

from composer_pipeline.cli.common import Table

_CUT = 1200
_ROW = 200
#: Arguments longer than this are shown as a diff of lines.
_LONG = 160


def show_pair(console: Console, facts: Mapping[str, Any]) -> None:
    """Print :func:`composer_pipeline.preferences.explain.explain`'s facts."""
    title = f"pair {facts['pair_id']}" if facts["pair_id"] else f"state {facts['state_id']}"
    console.rule(Text(title))
    grid = Table.grid(padding=(0, 2))
    place = f"{facts['session_id']}, turn {facts['turn']}, {facts['day']}"
    about = {"state": facts["state_id"], "session": place, "project": facts["project"]}
    about["cost"] = f"${facts['cost_usd']} for {facts['n_replies']} replies"
    for name, value in about.items():
        grid.add_row(Text(name, style="dim"), Text(str(value)))
    console.print(grid)
    console.rule("why", style="dim")
    console.print(Text(facts["why"], style="bold"))
    if facts["reason"] == "pair":
        numbers = f"margin {facts['margin']:.2f}, entropy {facts['entropy']:.2f} bits"
        console.print(Text(f"{facts['rule']}; {numbers}", style="dim"))
    for stage, what in facts["fate"].items():
        console.print(Text(f"{stage}: {what}", style="dim"))
    if facts["hint"]:
        console.print(Text(f"the trace says ({facts['error_kind']}): {_cut(facts['hint'], _ROW)}"))
    _sides(console, facts)
    _teachers(console, facts["teachers"])


def _sides(console: Console, facts: Mapping[str, Any]) -> None:
    agent, chosen = facts["agent"], facts["chosen"]
    if chosen is None:
        console.rule("the agent", style="dim")
        console.print(_side(agent, None, "red"))
        return
    rejects = facts["reason"] == "pair"
    table = Table(expand=True, show_lines=False, padding=(0, 1))
    left = "rejected: the agent" if rejects else "the agent"
    table.add_column(Text(f"{left} ({agent['model'] or '?'})"), ratio=1, overflow="fold")
    spokesman = next((t["teacher"] for t in facts["teachers"] if t.get("spokesman")), "?")
    right = "chosen" if rejects else "the teachers"
    table.add_column(Text(f"{right}: {spokesman}"), ratio=1, overflow="fold")
    table.add_row(_side(agent, chosen, "red"), _side(chosen, agent, "green", follow=True))
    console.print(table)
    for name, before, after in _long_differences(agent, chosen):
        console.rule(Text(f"diff of {name}, agent to teachers"), style="dim")
        for line in unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=2):
            if not line.startswith(("---", "+++")):
                style = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")
                console.print(Text(_cut(line, _ROW), style=style))


def _side(
    action: Mapping[str, Any],
    other: Mapping[str, Any] | None,
    colour: str,
    *,
    follow: bool = False,
) -> Group:
    """Return one column; with ``follow`` its arguments stand in the other side's order."""
    parts: list[Any] = []
    calls: Sequence[Mapping[str, Any]] = action["tool_calls"]
    if action["text"]:
        # Text beside calls is no part of a pair.
        parts.append(Text(_cut(action["text"], _CUT), style="dim" if calls else ""))
    for number, call in enumerate(calls):
        parts.append(Text(call["name"], style="bold"))
        twin = _twin(other, number, call["name"])
        keys = list(call["arguments"])
        if follow:
            keys = [*(k for k in twin if k in keys), *(k for k in keys if k not in twin)]
        for key in keys:
            text = _plain(call["arguments"][key])
            against = _plain(twin[key]) if key in twin else None
            shown = Text.assemble((f"{key}: ", "dim"), _marked(text, against, colour))
            parts.append(Padding(shown, (0, 0, 0, 2)))
    return Group(*parts)


def _twin(other: Mapping[str, Any] | None, number: int, name: str) -> Mapping[str, Any]:
    """Return the arguments of the other side's call of the same tool, by position."""
    calls = other["tool_calls"] if other else []
    if number < len(calls) and calls[number]["name"] == name:
        found: Mapping[str, Any] = calls[number]["arguments"]
        return found
    return {}


def _marked(text: str, against: str | None, colour: str) -> Text:
    """Return a value with the parts that the other side lacks in colour."""
    if against is None or len(text) > _CUT or len(against) > _CUT:
        return Text(_cut(text, _CUT), style=colour if against is None else "")
    out = Text()
    for op, start, end, _, _ in SequenceMatcher(None, text, against, autojunk=False).get_opcodes():
        out.append(text[start:end], style="" if op == "equal" else f"bold {colour}")
    return out


def _long_differences(
    agent: Mapping[str, Any], chosen: Mapping[str, Any]
) -> list[tuple[str, str, str]]:
    found = []
    for number, call in enumerate(agent["tool_calls"]):
        twin = _twin(chosen, number, call["name"])
        for key, value in call["arguments"].items():
            before, after = _plain(value), _plain(twin.get(key, ""))
            if key in twin and before != after and max(len(before), len(after)) > _LONG:
                found.append((f"{call['name']}.{key}", before, after))
    return found


def _teachers(console: Console, teachers: Sequence[Mapping[str, Any]]) -> None:
    console.rule("every reply", style="dim")
    if not teachers:
        console.print(Text("no teacher was asked", style="dim"))
    table = Table(expand=True, padding=(0, 1), show_lines=True)
    table.add_column("teacher", ratio=3, overflow="fold")
    table.add_column("says", ratio=6, overflow="fold")
    table.add_column("group", justify="right", no_wrap=True)
    table.add_column("to agent", ratio=3, overflow="fold")
    table.add_column("to winner", ratio=3, overflow="fold")
    for entry in teachers:
        who = Text(entry["teacher"], style="bold" if entry.get("wins") else "")
        simulated = ", simulated" if entry["simulated"] else ""
        control = ", control" if entry["control"] else ""
        who.append(f"\n{entry['family']}{control}{simulated}\n${entry['cost_usd']}", style="dim")
        if not entry["usable"]:
            table.add_row(who, Text(f"{entry['status']}: {entry['detail']}", style="red"))
            continue
        group = str(entry["cluster"]) if entry["votes"] else "control" if entry["control"] else "-"
        group += "*" if entry["spokesman"] else ""
        levels = [_level(entry[key]) for key in ("level_to_agent", "level_to_winner")]
        table.add_row(who, Text(_line(entry["action"])), group, *levels)
    if teachers:
        console.print(table)
        legend = "group: cluster of families that agree, 1 the largest; * speaks for the winners;"
        console.print(Text(f"{legend} - another of its family votes", style="dim"))


def _level(verdict: Mapping[str, str] | None) -> Text:
    if verdict is None:
        return Text("no winner", style="dim")
    return Text(verdict["level"]) + Text(f"\n{verdict['why']}", style="dim")


def _line(action: Mapping[str, Any]) -> str:
    calls = action["tool_calls"]
    if not calls:
        return _cut(action["text"], _ROW)
    said = []
    for call in calls:
        shown = json.dumps(call["arguments"], ensure_ascii=False)
        said.append(f"{call['name']} {_cut(shown, _ROW)}")
    return "\n".join(said)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]} ... ({len(text):,} characters)"
