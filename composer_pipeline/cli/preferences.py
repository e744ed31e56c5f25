"""The commands pairs, pair, statistics, sufficiency, label and compare; the view of one pair."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from difflib import SequenceMatcher, unified_diff
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import Parameter
from rich.console import Console, Group
from rich.padding import Padding
from rich.text import Text

from composer_pipeline.cli.common import (
    NOTHING,
    Bar,
    DayFilter,
    JsonOption,
    LakeOption,
    LedgerOption,
    SessionFilter,
    Table,
    app,
    coloured,
    open_lake,
    show,
    usd,
)
from composer_pipeline.cli.traces import contested_sentence, show_chain
from composer_pipeline.errors import InputError
from composer_pipeline.files import json_objects, replace
from composer_pipeline.lake.store import Lake
from composer_pipeline.markdown import code
from composer_pipeline.money import to_usd
from composer_pipeline.settings import Settings
from composer_pipeline.states.previews import printable

if TYPE_CHECKING:
    from composer_pipeline.preferences.sufficiency import Proportion

#: Characters of a value, and of a line, that are shown.
_CUT, _ROW = 1200, 200
#: Arguments longer than this are shown as a diff of lines.
_LONG = 160

Facts = Mapping[str, Any]


@app.command
def pairs(
    *,
    rules: str = "",
    judge_max_usd: str = "",
    teachers: str = "",
    only: DayFilter = DayFilter(),  # noqa: B008  frozen
    ledger: LedgerOption = "",
    lake: LakeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Make hints from error turns, and pairs: teachers or a later fix against the agent.

    Args:
        rules: preference recipe (COMPOSER_PREFERENCES).
        judge_max_usd: ceiling in USD of the recipe's semantic_judge, in place of the recipe's.
        teachers: teacher file that has the semantic_judge (COMPOSER_TEACHERS).
    """
    from composer_pipeline.preferences.contamination import Benchmarks
    from composer_pipeline.preferences.hints import build_hints
    from composer_pipeline.preferences.judge import open_judge
    from composer_pipeline.preferences.pairs import build_pairs
    from composer_pipeline.preferences.rules import PreferenceRules

    store = open_lake(lake)
    settings = Settings.from_env()
    recipe = PreferenceRules.load(rules or settings.preferences)
    most = usd(judge_max_usd, "--judge-max-usd") if judge_max_usd else None
    if not store.days("states"):
        raise InputError(f"lake {store.url} has no states; run ingest first")
    days = only.days(store)
    Benchmarks.of_rules(recipe)  # a bad list stops before anything is written
    file = teachers or settings.teachers
    meaning = open_judge(store, recipe.semantic_judge, file, max_usd=most, ledger=ledger)
    with meaning as judge, Bar() as progress:
        hints = build_hints(store, days=days, progress=progress).hints
        report = build_pairs(store, days=days, rules=recipe, judge=judge, progress=progress)
        asked = {"judge": judge.figures()} if judge else {}
    show({**report.to_dict(), "hints": hints, **asked}, as_json, "pairs")


@app.command
def pair(any_id: str, /, *, lake: LakeOption = "", as_json: JsonOption = False) -> None:
    """Show a pair side by side with every teacher's reply, or why a state made none.

    Args:
        any_id: of a pair or a state; an unambiguous beginning is enough.
    """
    from composer_pipeline.preferences.explain import explain

    facts = explain(open_lake(lake), any_id)
    if as_json:
        show(facts, True, "")
    else:
        show_pair(Console(), facts)


@app.command
def statistics(
    *,
    rules: str = "",
    verbose: Annotated[bool, Parameter(negative="")] = False,
    labels: Path | None = None,
    notes: Annotated[bool, Parameter(negative="")] = False,
    lake: LakeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Measure agreement, noise, separability and repeats over the whole lake, with verdicts.

    Args:
        rules: preference recipe (COMPOSER_PREFERENCES).
        verbose: print every figure, by tool and by pair of raters.
        labels: in place of all that, the verdicts on error turns beside those of this file, which
            `label` writes.
        notes: in place of all that, the mistakes that repeat in a working directory, as a section
            to copy into its CLAUDE.md.
    """
    if notes:
        _show_notes(open_lake(lake), as_json)
        return
    if labels is not None:
        _show_scores(open_lake(lake), labels, as_json)
        return
    from composer_pipeline.preferences.quality import ALL, verdicts, write_statistics
    from composer_pipeline.preferences.rules import PreferenceRules
    from composer_pipeline.survival.judge import judge_outcomes

    store = open_lake(lake)
    if not store.days("votes"):
        raise InputError(f"lake {store.url} has no votes; run pairs first")
    recipe = PreferenceRules.load(rules or Settings.from_env().preferences)
    with Bar() as progress:
        report = write_statistics(store, rules=recipe, progress=progress)
    quality = report.by_scope[ALL]
    rows, findings = quality.rows(), verdicts(quality, recipe)
    kept = judge_outcomes(store) if store.days("outcomes") else None
    if as_json:
        found = {"statistics": rows, "verdicts": [asdict(verdict) for verdict in findings]}
        show(found | ({"outcomes": kept.to_dict()} if kept else {}), True, "")
        return
    first = Table("figure", "verdict", "why", title="statistics", title_justify="left")
    for verdict in findings:
        first.add_row(verdict.figure, coloured(verdict.word), verdict.sentence)
    Console().print(first)
    if kept is not None and kept.contested is not None:
        Console().print(Text(f"{contested_sentence(kept)} Agreement is not correctness."))
    if not verbose:
        return
    table = Table("statistic", "of", "value", "n", keys=2)
    for row in rows:
        of = " ".join(row[name] for name in ("a", "b", "tool") if row[name])
        value = row["note"] if row["value"] is None else f"{row['value']:.4g}"
        table.add_row(row["statistic"], of, value, str(row["n"]))
    Console().print(table)


def _show_scores(lake: Lake, file: Path, as_json: bool) -> None:
    from composer_pipeline.preferences.labels import read_labels, rows_of, score

    found = score(lake, read_labels(file))
    if not found.accuracy.of:
        raise InputError(f"{file}: no state of lake {lake.url} is labelled there")
    show(found.to_dict() if as_json else dict(rows_of(found)), as_json, f"verdicts beside {file}")


def _show_notes(lake: Lake, as_json: bool) -> None:
    from composer_pipeline.preferences.hints import standing_notes

    found = standing_notes(lake)
    if as_json:
        show({"notes": [note.to_dict() for note in found]}, True, "")
        return
    for project, notes in groupby(found, key=lambda note: note.project):
        sys.stdout.write(f"## Mistakes that repeat in {code(project)}\n\n")
        for note in notes:
            instead = f"; {code(_cut(note.instead, _ROW))} worked" if note.instead else ""
            line = (
                f"- {code(note.message)}: {note.turns} times in {note.sessions} sessions,"
                f" for example {code(_cut(note.example, _ROW))}{instead}."
            )
            sys.stdout.write(printable(line) + "\n")


@app.command
def sufficiency(
    *,
    teachers: str = "",
    write: Path | None = None,
    only: SessionFilter = SessionFilter(),  # noqa: B008  frozen
    lake: LakeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Say how often the cheapest one or two teachers would have been enough; nobody is asked.

    Args:
        teachers: teacher file that `--write` starts from (COMPOSER_TEACHERS).
        write: new teacher file that asks accordingly.
    """
    from composer_pipeline.preferences.sufficiency import sufficiency as run
    from composer_pipeline.preferences.sufficiency import teacher_file
    from composer_pipeline.teachers.teachers import TeacherSet

    source = teachers or Settings.from_env().teachers
    base = TeacherSet.load(source) if teachers or write else None
    if write and (write.exists() or write.is_symlink()):
        raise InputError(f"{write}: exists and is not overwritten")
    store = open_lake(lake)
    with Bar() as progress:
        report = run(store, days=only.days(store), sessions=only.sessions(store), progress=progress)
    if write and base:
        replace(write, teacher_file(report, base, source))
    if as_json:
        show(report.to_dict() | ({"written": str(write)} if write else {}), True, "")
        return
    table = Table(
        "states", "n", "one", "two", "noise floor", "sufficient", "overpaid",
        title="sufficiency", title_justify="left",
    )  # fmt: skip
    for kind, found in {**report.by_kind, "all": report.total}.items():
        shares = [_percent(part) for part in (found.one, found.two, found.noise_floor)]
        amount = f"${to_usd(found.overpaid_picodollars)}"
        table.add_row(kind, str(found.states), *shares, found.sufficient, amount)
    console = Console()
    console.print(table)
    lines = [
        f"One is {report.cheapest[0]}, two are {' and '.join(report.cheapest)}; all are the"
        f" families {', '.join(report.families)}.",
        f"{report.states} states were asked in full, {report.left_out} others with replies are"
        " left out.",
        report.rule,
    ]
    if report.total.without_cost:
        lines.append(f"{report.total.without_cost} overpaid replies have no known cost.")
    for line in [*lines, *([f"Written: {write}"] if write else [])]:
        console.print(Text(line))


def _percent(found: "Proportion | None") -> str:
    return f"{found.share:.0%} ({found.low:.0%}-{found.high:.0%})" if found else NOTHING


@app.command
def label(
    file: Path,
    /,
    *,
    kind: str = "",
    only: DayFilter = DayFilter(),  # noqa: B008  frozen
    lake: LakeOption = "",
) -> None:
    """Say whose mistake each error turn was, one a screen; go on later where you stopped.

    Each key appends a line to FILE: 1 mistake, 2 revealed, 3 preexisting, 4 not_an_error,
    5 user_choice, 6 unclear; s skips, q ends. `statistics --labels FILE` compares.

    Args:
        file: JSONL file of labels.
        kind: error turns of this error_kind only.
    """
    from composer_pipeline.cli.traces import show_state
    from composer_pipeline.preferences.labels import VERDICTS, read_labels
    from composer_pipeline.states.load import following, load_states

    store, console = open_lake(lake), Console()
    done = {row["state_id"] for row in read_labels(file)} if file.is_file() else set()
    rows = store.rows("states", days=only.days(store), columns=["state_id", "error_kind"])
    errors = (row for row in rows if row["error_kind"])
    wanted = [row["state_id"] for row in errors if kind in ("", row["error_kind"])]
    left = [state_id for state_id in wanted if state_id not in done]
    if not left:
        console.print(f"all {len(wanted)} error turns are labelled")
        return
    keys = "  ".join(f"{n} {verdict}" for n, verdict in enumerate(VERDICTS, start=1))
    for state in load_states(store, state_ids=left):
        console.clear()
        # What was computed would lead the person.
        plain = msgspec.structs.replace(
            state, verdict=None, culprit_state_id=None, caused_error=None
        )
        show_state(console, plain, following(store, state))
        console.print(Text(f"{len(done)} of {len(wanted)} done   {keys}  s skip  q end", "bold"))
        key = _key()
        if key in ("q", ""):
            return
        if key.isdigit() and 1 <= int(key) <= len(VERDICTS):
            row = {"state_id": state.state_id, "verdict": VERDICTS[int(key) - 1]}
            with file.open("a", encoding="utf-8") as out:
                out.write(json.dumps(row) + "\n")
            done.add(state.state_id)


def _key() -> str:
    """Return one key of the terminal, or the first character of the next line of a pipe."""
    if not sys.stdin.isatty():
        return sys.stdin.readline()[:1]
    import termios
    import tty

    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    try:
        tty.setcbreak(number)
        return sys.stdin.read(1)
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)


@app.command
def compare(file: Path, /) -> None:
    """Print the level of agreement for each line {a, b, cwd, home, context} of a JSONL file.

    Args:
        file: JSONL file.
    """
    from composer_pipeline.preferences.vote_rows import compare as run

    if not file.is_file():
        raise InputError(f"{file}: no such file")
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: not UTF-8 text") from error
    for number, record in json_objects(file, text):
        try:
            found = run(record)
        except InputError as error:
            raise InputError(f"{file}:{number}: {error}") from error
        sys.stdout.write(json.dumps(found, ensure_ascii=False) + "\n")


def show_pair(console: Console, facts: Facts) -> None:
    """Print the facts of ``explain``, on a terminal of 80 columns or more."""
    title = f"pair {facts['pair_id']}" if facts["pair_id"] else f"state {facts['state_id']}"
    console.rule(Text(title))
    grid = Table.grid(padding=(0, 2))
    session = f"{facts['session_id']}, turn {facts['turn']}, {facts['day']}"
    about = {"state": facts["state_id"], "session": session, "project": facts["project"]}
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
    show_chain(console, facts["chain"], facts["state_id"])
    _show_sides(console, facts)
    _show_replies(console, facts["teachers"])


def _show_sides(console: Console, facts: Facts) -> None:
    agent, chosen = facts["agent"], facts["chosen"]
    if chosen is None:
        console.rule("the agent", style="dim")
        console.print(_side(agent, None, "red"))
        return
    rejects = facts["reason"] in ("pair", "fixup", "recovery", "hindsight")
    table = Table(expand=True, show_lines=False, padding=(0, 1))
    left = "rejected: the agent" if rejects else "the agent"
    table.add_column(Text(f"{left} ({agent['model'] or '?'})"), ratio=1, overflow="fold")
    own = {"fixup": "the agent, later", "recovery": "the agent, later", "hindsight": "as committed"}
    later = own.get(facts["reason"], "?")
    spokesman = next((t["teacher"] for t in facts["teachers"] if t.get("spokesman")), later)
    right = "chosen" if rejects else "the teachers"
    table.add_column(Text(f"{right}: {spokesman}"), ratio=1, overflow="fold")
    table.add_row(_side(agent, chosen, "red"), _side(chosen, agent, "green", follow=True))
    console.print(table)
    for number, call in enumerate(agent["tool_calls"]):
        twin = _twin(chosen, number, call["name"])
        for key, value in call["arguments"].items():
            before, after = _plain(value), _plain(twin.get(key, ""))
            if key in twin and before != after and max(len(before), len(after)) > _LONG:
                _show_diff(console, f"{call['name']}.{key}", before, after)


def _show_diff(console: Console, name: str, before: str, after: str) -> None:
    console.rule(Text(f"diff of {name}, agent to teachers"), style="dim")
    for line in unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=2):
        if not line.startswith(("---", "+++")):
            style = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")
            console.print(Text(_cut(line, _ROW), style=style))


def _side(action: Facts, other: Facts | None, colour: str, *, follow: bool = False) -> Group:
    """Return one column; ``follow`` puts its arguments in the other side's order."""
    parts: list[Any] = []
    calls: Sequence[Facts] = action["tool_calls"]
    if action["text"]:
        # Text beside calls is not part of a pair.
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


def _twin(other: Facts | None, number: int, name: str) -> Facts:
    """Return the arguments of the other side's call of the same tool, by position."""
    calls = other["tool_calls"][number : number + 1] if other else []
    return next((call["arguments"] for call in calls if call["name"] == name), {})


def _marked(text: str, against: str | None, colour: str) -> Text:
    """Return a value with the parts that the other side lacks in colour."""
    if against is None or len(text) > _CUT or len(against) > _CUT:
        return Text(_cut(text, _CUT), style=colour if against is None else "")
    out = Text()
    for op, start, end, _, _ in SequenceMatcher(None, text, against, autojunk=False).get_opcodes():
        out.append(text[start:end], style="" if op == "equal" else f"bold {colour}")
    return out


def _show_replies(console: Console, teachers: Sequence[Facts]) -> None:
    console.rule("every reply", style="dim")
    if not teachers:
        console.print(Text("no teacher was asked", style="dim"))
        return
    table = Table(expand=True, padding=(0, 1), show_lines=True)
    table.add_column("teacher", ratio=3, overflow="fold")
    table.add_column("says", ratio=6, overflow="fold")
    table.add_column("group", justify="right", no_wrap=True)
    table.add_column("to agent", ratio=3, overflow="fold")
    table.add_column("to winner", ratio=3, overflow="fold")
    for entry in teachers:
        author = Text(entry["teacher"], style="bold" if entry.get("wins") else "")
        marks = "".join(f", {name}" for name in ("control", "simulated") if entry[name])
        author.append(f"\n{entry['family']}{marks}\n${entry['cost_usd']}", style="dim")
        if not entry["usable"]:
            table.add_row(author, Text(f"{entry['status']}: {entry['detail']}", style="red"))
            continue
        group = str(entry["cluster"]) if entry["votes"] else "control" if entry["control"] else "-"
        group += "*" if entry["spokesman"] else ""
        levels = [_level(entry[key]) for key in ("level_to_agent", "level_to_winner")]
        table.add_row(author, Text(_lines(entry["action"])), group, *levels)
    console.print(table)
    legend = "group: cluster of families that agree, 1 the largest; * speaks for the winners;"
    console.print(Text(f"{legend} - another of its family votes", style="dim"))


def _level(found: Mapping[str, str] | None) -> Text:
    if found is None:
        return Text("no winner", style="dim")
    return Text(found["level"]) + Text(f"\n{found['why']}", style="dim")


def _lines(action: Facts) -> str:
    shown = [
        f"{call['name']} {_cut(_plain(call['arguments']), _ROW)}" for call in action["tool_calls"]
    ]
    return "\n".join(shown) or _cut(action["text"], _ROW)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]} ... ({len(text):,} characters)"
