"""A replay's progress on a terminal: one live table.

Belongs here: how a snapshot looks. Does not belong here: what is in it
(``replay.engine.report``) and when it is taken (``replay.engine.run``).
"""

from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live

from composer_pipeline.cli.views.table import Table

if TYPE_CHECKING:
    from composer_pipeline.replay.engine import Snapshot


#: Seconds between two lines of progress where there is no terminal.
LINE_S = 10.0


class LiveReplay:
    """Shows snapshots in place while it is entered; a line each ten seconds without a terminal.

    Args:
        console: where to draw; standard error, so that standard output stays the report.
    """

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._console = console
        self._shown = console.is_terminal
        self._told_s = 0.0

    def __enter__(self) -> "LiveReplay":
        if self._shown:
            self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._shown:
            self._live.__exit__(kind, error, trace)

    def __call__(self, snapshot: "Snapshot") -> None:
        """Show a snapshot."""
        if self._shown:
            self._live.update(table(snapshot), refresh=True)
        elif snapshot.elapsed_s - self._told_s >= LINE_S:
            self._told_s = snapshot.elapsed_s
            self._console.print(snapshot.line(), markup=False, highlight=False, soft_wrap=True)


def table(snapshot: "Snapshot") -> Table:
    """Return a snapshot as a table: money in the title, one row a teacher."""
    shown = Table(
        title=(
            f"{snapshot.phase}, {snapshot.elapsed_s:.0f} s: ${snapshot.settled_usd:.4f} settled,"
            f" ${snapshot.reserved_usd:.4f} reserved of ${snapshot.ceiling_usd:.2f}"
        ),
        title_justify="left",
    )
    for name in ("teacher", "done", "cached", "unknown", "in flight", "p50", "p95", "cache read"):
        shown.add_column(name, justify="left" if name == "teacher" else "right")
    for name, teacher in snapshot.by_teacher.items():
        state = "" if teacher.state == "ok" else f" ({teacher.state})"
        shown.add_row(
            name + state,
            f"{teacher.done}/{teacher.total}",
            str(teacher.cached),
            str(teacher.unknown),
            f"{teacher.in_flight}/{teacher.window}",
            _ms(teacher.latency_p50_ms),
            _ms(teacher.latency_p95_ms),
            "" if teacher.cache_read_share is None else f"{teacher.cache_read_share:.0%}",
        )
    return shown


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.0f} ms"
