"""Commands that ask teachers: plan, replay."""

import shlex
from collections.abc import Sequence
from decimal import ROUND_UP, Decimal
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.console import Console

from composer_pipeline.cli.common import (
    Bar,
    JsonOption,
    LakeOption,
    app,
    at_least,
    err,
    open_lake,
    show,
    usd,
)
from composer_pipeline.cli.filters import SessionFilter
from composer_pipeline.errors import BudgetExhausted, ComposerError
from composer_pipeline.settings import Settings

if TYPE_CHECKING:
    from composer_pipeline.replay.engine import ReplayReport


@app.command
def plan(
    *,
    teachers: str = "",
    teacher: Sequence[str] = (),
    only: SessionFilter = SessionFilter(),  # noqa: B008  frozen
    max_states: int = 0,
    lake: LakeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Say what a replay would cost, before it costs anything.

    Args:
        teachers: teacher file (COMPOSER_TEACHERS).
        teacher: only this teacher of the file; may be given again.
        max_states: at most this many states; 0 is all.
    """
    from composer_pipeline.cli.views.plan import plan_tables
    from composer_pipeline.preferences.agreement import VoteDecision
    from composer_pipeline.replay.plan import plan as run
    from composer_pipeline.replay.teachers import TeacherSet

    settings = Settings.from_env()
    teacher_set = TeacherSet.load(teachers or settings.teachers)
    store = open_lake(lake)
    with Bar() as progress:
        report = run(
            store,
            teacher_set,
            days=only.days(store),
            sessions=only.sessions(store),
            teachers=list(teacher) or None,
            max_states=at_least(0, max_states, "--max-states") or None,
            ledger=settings.ledger or None,
            decide=VoteDecision(),
            progress=progress,
        )
    if as_json:
        show(report.to_dict(), True, "plan")
        return
    for table in plan_tables(report):
        Console().print(table)


@app.command
def replay(
    *,
    teachers: str = "",
    max_usd: str = "",
    teacher: Sequence[str] = (),
    only: SessionFilter = SessionFilter(),  # noqa: B008  frozen
    max_states: int = 0,
    again: str = "",
    dry_run: bool = False,
    verbose: Annotated[bool, Parameter(negative="")] = False,
    lake: LakeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Buy the teachers' replies under a hard ceiling.

    Args:
        teachers: teacher file (COMPOSER_TEACHERS).
        max_usd: ceiling of this run in USD (COMPOSER_MAX_USD).
        teacher: only this teacher of the file; may be given again.
        max_states: at most this many states; 0 is all.
        again: unreadable asks again about replies that were paid for and cannot be read.
        dry_run: say what it would ask and cost, as `plan`; buy nothing.
        verbose: list every question without a reply, and every day.
    """
    from composer_pipeline.cli.views.progress import LiveReplay
    from composer_pipeline.cli.views.replay import replay_view
    from composer_pipeline.preferences.agreement import VoteDecision
    from composer_pipeline.replay.engine import replay as run
    from composer_pipeline.replay.plan import selector_for
    from composer_pipeline.replay.teachers import TeacherSet

    if dry_run:
        plan(teachers=teachers, teacher=teacher, only=only, max_states=max_states, lake=lake,
             as_json=as_json)  # fmt: skip
        return
    settings = Settings.from_env()
    ceiling = usd(max_usd or settings.max_usd, "--max-usd")
    teacher_set = TeacherSet.load(teachers or settings.teachers)
    selector = selector_for(teacher_set, VoteDecision())
    store = open_lake(lake)
    with LiveReplay(err) as live:
        report = run(
            store,
            teacher_set,
            max_usd=ceiling,
            days=only.days(store),
            sessions=only.sessions(store),
            teachers=list(teacher) or None,
            max_states=at_least(0, max_states, "--max-states") or None,
            ledger=settings.ledger or None,
            on_progress=live,
            selector=selector,
            again=again,
        )
    chosen = {"selection": selector.report().to_dict()} if selector else {}
    if as_json or verbose:
        show(report.to_dict() | chosen, as_json, "replay")
    else:
        options = [*only.typed(), *(f"--teacher {shlex.quote(name)}" for name in teacher)]
        options += [f"--max-states {max_states}"] if max_states else []
        for part in replay_view(report, _command(report, teachers, options)):
            Console().print(part)
    if report.exhausted_scope:
        raise BudgetExhausted(
            f"budget exhausted in scope {report.exhausted_scope}; {len(report.not_bought)} replies"
            " were not bought"
        )
    if stopped := report.stopped():
        for error in stopped[1:]:
            err.print(f"error: {error}", markup=False, highlight=False)
        raise stopped[0]
    if problem := report.problem():
        raise ComposerError(problem)


def _command(report: "ReplayReport", teachers: str, typed: Sequence[str]) -> str:
    """Return the command that goes on behind a ceiling."""
    more = max(report.ceiling_usd, 2 * (report.next_call_usd or Decimal(0)))
    more = more.quantize(Decimal("0.01"), ROUND_UP)
    options = [f"--teachers {shlex.quote(teachers)}"] if teachers else []
    options += typed
    if report.exhausted_scope.startswith("run:"):
        return " ".join(["composer-pipeline replay", f"--max-usd {more}", *options])
    return f"composer-pipeline budget set {report.exhausted_scope} USD, then replay again"
