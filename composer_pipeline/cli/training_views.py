"""An evaluation as a person reads it: one table, and what follows.

Belongs here: layout on a terminal of 100 columns or more. Does not belong here: the rows' texts
(``evaluation.report``).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from composer_pipeline.cli.common import Table
from composer_pipeline.diloco.views import RunOverview, SlotReport
from composer_pipeline.evaluation.report import HEAD


def show_evaluation(
    console: Console, rows: Sequence[Sequence[str]], report: Mapping[str, Any], where: str
) -> None:
    """Print an evaluation.

    Args:
        console: where.
        rows: as from ``evaluation.table``.
        report: the report as a dictionary.
        where: the folder that holds the whole of it.
    """
    grid = Table(title=f"evaluate: {report['split']}", title_justify="left")
    for name in HEAD:
        grid.add_column(name, justify="left" if name in HEAD[:2] else "right", overflow="fold")
    before = ""
    for row in rows:
        if before and row[0] != before:
            grid.add_section()
        cells = ["" if row[0] == before else row[0], *row[1:]]
        grid.add_row(*map(Text, cells))  # a bracket is no markup
        before = row[0]
    console.print(grid)
    counts = ", ".join(f"{count} {kind}" for kind, count in report["states"].items())
    console.print(Text(f"{counts}, of {report['sessions']} sessions"))
    if report["dropped"]:
        lost = ", ".join(f"{count} {reason}" for reason, count in report["dropped"].items())
        console.print(Text(f"left out: {lost}"))
    for sentence in report["worse"]:
        console.print(Text(f"worse than its base on {sentence}", style="bold red"))
    for sentence in report["unknown"]:
        console.print(Text(f"not known whether it is worse on {sentence}", style="yellow"))
    console.print(Text(f"report: {where}", style="dim"))


def show_replicas(console: Console, run: RunOverview) -> None:
    """Print what a run is doing, and who is missing."""
    title = f"run {run.run_id}: {run.done} of {run.rounds} rounds"
    heads = ("slot", "state", "machine", "starts", "seen", "merged", "left out", "steps")
    table = Table(*heads, "a step", "tokens", "sent", "waited", title=title, title_justify="left")
    for slot in run.slots:
        table.add_row(*_row(slot, run.done))
    console.print(table)
    say = [f"{run.tokens:,} tokens, {_size(run.stored_bytes)} in {run.url}"]
    if run.empty:
        say.append(f"rounds that merged nothing: {', '.join(map(str, run.empty))}")
    if run.missing:
        slots = ", ".join(map(str, run.missing))
        say.append(f"missing: {slots} (a round needs {run.min_quorum} of {len(run.slots)})")
    for line in say:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _row(slot: SlotReport, done: int) -> tuple[str, ...]:
    return (
        str(slot.slot),
        slot.state,
        slot.host or "-",
        str(slot.attempts),
        "-" if slot.seen_s is None else f"{slot.seen_s:,.0f} s ago",
        f"{slot.merged} of {done}",
        str(slot.rejected),
        f"{slot.steps:,}",
        "-" if slot.step_s is None else f"{slot.step_s:,.2f} s",
        f"{slot.tokens:,}",
        _size(slot.bytes_sent),
        f"{slot.wait_s:,.1f} s",
    )


def _size(count: int) -> str:
    return f"{count / 1e6:,.2f} MB"
