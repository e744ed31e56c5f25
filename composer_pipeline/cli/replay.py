"""Commands that ask teachers: plan, replay."""

from collections.abc import Sequence

from rich.console import Console

from composer_pipeline.cli.common import (
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
    report = run(
        store,
        teacher_set,
        days=only.days(store),
        sessions=only.sessions(store),
        teachers=list(teacher) or None,
        max_states=at_least(0, max_states, "--max-states") or None,
        ledger=settings.ledger or None,
        decide=VoteDecision(),
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
    """
    from composer_pipeline.cli.views.progress import LiveReplay
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
    show(report.to_dict() | chosen, as_json, "replay")
    if report.exhausted_scope:
        raise BudgetExhausted(
            f"budget exhausted in scope {report.exhausted_scope}; {len(report.not_bought)} replies"
            " were not bought, run again with a higher --max-usd to buy them"
        )
    if stopped := report.stopped():
        for error in stopped[1:]:
            err.print(f"error: {error}", markup=False, highlight=False)
        raise stopped[0]
    if problem := report.problem():
        raise ComposerError(problem)
