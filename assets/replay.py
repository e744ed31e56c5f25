"""Replay: every teacher answers every state, under one ceiling."""

from collections import Counter
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from assets.checks import purchase_checks, purchase_results
from assets.failures import one_sentence
from assets.money import (
    COST_TAG,
    NIGHT,
    DayRecorder,
    is_dry,
    observe_bill,
    scope_of_run,
    without_event,
    write_budget,
)
from assets.pages import OWNERS, TablePage, plots_of, record_run, records, table_metadata, usd
from assets.partitions import DAYS, PAID, days_of
from assets.resources import LakeResource, TeachersResource
from composer_pipeline.errors import ComposerError
from composer_pipeline.lake.store import Lake
from composer_pipeline.teachers.teachers import TeacherSet
from composer_pipeline.versions import CONVERTER_VERSION

if TYPE_CHECKING:
    from composer_pipeline.money import Pico
    from composer_pipeline.teachers.report import OnProgress, ReplayReport, Snapshot
    from composer_pipeline.teachers.selection import DaysFirst

#: Seconds between two progress reports of a run.
EVERY_S = 10.0


class FirstDay(Enum):
    """The day of a run that is bought first; with ``value`` none is."""

    OLDEST = "oldest"
    NEWEST = "newest"
    VALUE = "value"


class ReplayConfig(dg.Config):
    """What a run may buy, and in which order."""

    max_usd: Any = Field(
        default="",
        description=(
            "Ceiling in USD, 1.5 or '1.5', of this run and its re-executions, or of the whole"
            " backfill; COMPOSER_MAX_USD if empty."
        ),
    )
    days_first: FirstDay = Field(
        default=FirstDay.OLDEST,
        description=(
            "Which day is bought first. A day is bought from all teachers before the next one"
            " begins, so a run that reaches its ceiling leaves complete days. With value, states"
            " are bought by value per dollar over all days, as on the command line; a run that"
            " reaches its ceiling then leaves no day complete."
        ),
    )
    max_states: int = Field(
        default=0, description="Replay at most this many states of the days; 0 replays all."
    )


def teacher_key(name: str) -> dg.AssetKey:
    """Return the asset key of a teacher's replies."""
    return dg.AssetKey(["teacher_replies", name])


def build_replay(teachers: TeacherSet) -> dg.AssetsDefinition:
    """Return the multi-asset ``replay`` with one asset for each teacher of the file."""
    kind = "simulated" if teachers.endpoint.simulated else "openrouter"
    specs = [
        dg.AssetSpec(
            teacher_key(teacher.name),
            deps=[dg.AssetKey("trace_states"), dg.AssetKey("replay_plan")],
            group_name="replay",
            kinds={"python", "parquet", kind},
            owners=OWNERS,
            code_version=CONVERTER_VERSION,
            tags={"cost": "none" if teachers.endpoint.simulated else "paid"},
            metadata={
                **table_metadata("replies"),
                "model": teacher.model,
                "family": teacher.family,
                "control": teacher.control,
                "ask_share": teacher.ask_share,
            },
            description=(
                f"Replies of {teacher.model} ({teacher.family} family"
                + (", a control that never votes" if teacher.control else "")
                + f") to {_states_of(teacher.ask_share)} of the day"
                + (", simulated by the loopback server." if teachers.endpoint.simulated else ".")
                + f"\n\n{plots_of('teacher_replies')}"
            ),
        )
        for teacher in teachers.teachers
    ]

    @dg.multi_asset(
        name="replay",
        specs=specs,
        check_specs=[check for spec in specs for check in purchase_checks(spec.key)],
        can_subset=True,
        partitions_def=DAYS,
        backfill_policy=PAID,
    )
    @one_sentence
    def replay(
        context: dg.AssetExecutionContext,
        config: ReplayConfig,
        lake: LakeResource,
        teachers: TeachersResource,
    ) -> Iterator[dg.MaterializeResult[None] | dg.AssetCheckResult]:
        store = lake.open()
        results = partial(purchase_results, store, teachers, context.selected_asset_check_keys)
        names = [key.path[-1] for key in sorted(context.selected_asset_keys)]
        if not names:  # only checks were selected
            yield from results(free=True)
            return
        if is_dry(context):
            context.log.info("A dry night: nothing is bought; what costs nothing goes on.")
            yield from results(free=True)
            yield from map(without_event, map(teacher_key, names))
            return
        try:
            report = _buy(context, config, store, teachers, names)
        except ComposerError:
            yield from results(free=True)
            raise
        missing = Counter(item["teacher"] for item in report.not_bought)
        free = not report.spent_usd + report.reserved_usd
        yield from results(free=free, sentence=report.at_the_ceiling())
        if report.exhausted_scope:
            # An outcome, not a failure: complete days are materialised, the rest stays missing. A
            # night goes on with what was bought, or it would never train below its ceiling.
            if context.run.job_name != NIGHT:
                return
        elif not (missing and report.replies) and (why := _failure(report, missing)):
            rows = [dict(item) for item in report.not_bought[:20]]
            raise dg.Failure(
                description=why,
                metadata={
                    "spent_usd": float(report.spent_usd),
                    "ceiling_usd": float(report.ceiling_usd),
                    **({"not_bought": records(rows)} if rows else {}),
                },
                allow_retries=False,
            )
        # Where others answered, what follows is made from theirs: the check of a teacher that did
        # not is red, its days stay to do, and a tag of the run names it.
        yield from map(without_event, map(teacher_key, names))

    return replay


def _buy(
    context: dg.AssetExecutionContext,
    config: ReplayConfig,
    store: Lake,
    teachers: TeachersResource,
    names: list[str],
) -> "ReplayReport":
    """Buy the replies of the run; each day is materialised when it is complete."""
    from composer_pipeline.preferences.vote import VoteDecision
    from composer_pipeline.teachers.plan import selector_for
    from composer_pipeline.teachers.replies import billed_teachers, day_figures
    from composer_pipeline.teachers.run import replay as buy

    days, ledger = days_of(context), teachers.ledger or None
    pages = {
        name: TablePage("teacher_replies", "replies", store, days, teacher=name) for name in names
    }

    def page_of(name: str, day: str) -> dict[str, Any]:
        life = billed_teachers(store, ledger).get(name)
        return pages[name].of(day, _day_numbers(day_figures(store, name, day), life))

    keys = {name: teacher_key(name) for name in names}
    recorder = DayRecorder(context, keys, page_of)
    teacher_set = TeacherSet.load(teachers.file)
    orders: dict[FirstDay, DaysFirst] = {FirstDay.NEWEST: "newest", FirstDay.VALUE: ""}
    first = orders.get(config.days_first, "oldest")
    selector = selector_for(store, teacher_set, VoteDecision(), teachers=names, days_first=first)
    report = buy(
        store,
        teacher_set,
        max_usd=teachers.ceiling(config.max_usd),
        days=days,
        teachers=names,
        run_id=context.run_id,
        ledger=ledger,
        max_states=config.max_states or None,
        on_progress=_progress(context, names),
        selector=selector,
        budget=scope_of_run(context),
        days_first=first,
        on_day=recorder.day,
    )
    # What the selection left out, with an estimate of the pairs that this missed.
    selection = {
        f"selection_{name}": value
        for name, value in (selector.report().to_dict() if selector else {}).items()
        if value is not None and not isinstance(value, dict)
    }
    record_run(context, _run_numbers(report) | selection)
    recorder.rest(days, report.missing)
    observe_bill(context, store, sorted(report.by_day_teacher))
    if sentence := report.at_the_ceiling():
        context.log.warning(sentence)
    write_budget(context, store, teachers, sentence)
    return report


def _states_of(share: float) -> str:
    return "every state" if share == 1 else f"a fixed sample ({share:.2%}) of the states"


def _failure(report: "ReplayReport", missing: Counter[str]) -> str:
    """Return why the run failed, or "": the cases in which the command line exits 1."""
    teachers = ", ".join(
        f"{name} ({count} replies; {report.by_teacher[name].stopped or 'see not_bought'})"
        for name, count in sorted(missing.items())
    )
    stopped = report.stopped()
    if missing and stopped:
        return f"Replies are missing: {teachers}. What was bought is kept; run again."
    return str(stopped[0]) if stopped else report.problem()


def _progress(context: dg.AssetExecutionContext, names: list[str]) -> "OnProgress":
    """Return a callback that logs a line and observes each teacher's asset every ten seconds."""
    day = context.partition_keys[0] if len(context.partition_keys) == 1 else None
    next_at = EVERY_S

    def report(snapshot: "Snapshot") -> None:
        nonlocal next_at
        if snapshot.elapsed_s < next_at:
            return
        next_at = snapshot.elapsed_s + EVERY_S
        context.log.info(snapshot.line())
        # A killed run leaves the last known amount.
        spent = f"{snapshot.settled_usd:.6f}"
        context.instance.add_run_tags(context.run_id, {COST_TAG: spent})
        for name in names:
            context.log_event(
                dg.AssetObservation(
                    asset_key=teacher_key(name),
                    partition=day,
                    metadata=_progress_of(snapshot, name),
                )
            )

    return report


def _progress_of(snapshot: "Snapshot", name: str) -> dict[str, str]:
    """Return a teacher's progress and the run's budget as text: numbers would be plotted."""
    teacher = snapshot.by_teacher[name]
    return {
        "state": teacher.state,
        "progress": f"{teacher.done} of {teacher.total}, {teacher.cached} from the cache,"
        f" {teacher.unknown} unknown",
        "money": f"settled ${snapshot.settled_usd:f}, reserved ${snapshot.reserved_usd:f},"
        f" ceiling ${snapshot.ceiling_usd:f}",
    }


def _day_numbers(figures: Mapping[str, int | float], life: "Pico | None") -> dict[str, Any]:
    """Return a day's figures with its cost and the teacher's total cost in USD."""
    found = dict(figures)
    cost = found.pop("cost_picodollars", None)
    return {
        **found,
        **({} if cost is None else {"cost_usd": usd(int(cost))}),
        **({} if life is None else {"cost_life_usd": usd(life)}),
    }


def _run_numbers(report: "ReplayReport") -> dict[str, Any]:
    """Return the numbers of the whole run, over all of its days."""
    figures = report.by_teacher.values()
    left = report.ceiling_usd - report.spent_usd - report.reserved_usd
    if report.left_usd is not None:  # a ceiling of another scope may bind
        left = min(left, report.left_usd)
    return {
        "calls": sum(found.calls for found in figures),
        "cached": sum(found.cached for found in figures),
        "unknown": sum(found.unknown for found in figures),
        "cost_usd": float(report.spent_usd),
        "budget_left_usd": float(left),
        "simulated": report.simulated or None,
        "sweep": report.sweep or None,
        "ceiling_reached": report.exhausted_scope or "no",
        "unanswered": "no" if report.exhausted_scope else ", ".join(sorted(report.why())) or "no",
    }
