"""A DiLoCo run as a table: a row a slot."""

from rich.console import Console

from composer_pipeline.cli.views.table import Table
from composer_pipeline.diloco.views.overview import RunOverview, SlotReport


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
