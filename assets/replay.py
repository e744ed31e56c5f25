"""Replay: every teacher answers every state, under one ceiling."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from assets.checks import budget_check, budget_results
from assets.failures import one_sentence
from assets.money import (
    COST_TAG,
    DayRecorder,
    budget_metadata,
    scope_of_run,
    tell_bill,
    tell_ceiling,
)
from assets.pages import OWNERS, TablePage, plots_of, records, table_metadata, tell_run, usd
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

#: Seconds between two reports of a run that goes on.
EVERY_S = 10.0


class FirstDay(Enum):
    """Which day of a run is bought first."""

    OLDEST = "oldest"
    NEWEST = "newest"


class ReplayConfig(dg.Config):
    """What a run may buy."""

    max_usd: Any = Field(
        default="",
        description=(
            "Ceiling in USD, 1.5 or '1.5', of this run and of what is started from it again, or"
            " of the whole backfill; empty takes COMPOSER_MAX_USD."
        ),
    )
    days_first: FirstDay = Field(
        default=FirstDay.OLDEST,
        description=(
            "Which day is bought first. A day is bought from all teachers before the next one"
            " begins, so a ceiling leaves whole days."
        ),
    )
    max_states: int = Field(
        default=0, description="Replay at most this many states of the days; 0 is all."
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
                + f") to {_which(teacher.ask_share)} of the day"
                + (", simulated by the loopback server." if teachers.endpoint.simulated else ".")
                + f"\n\n{plots_of('teacher_replies')}"
            ),
        )
        for teacher in teachers.teachers
    ]

    @dg.multi_asset(
        name="replay",
        specs=specs,
        check_specs=[budget_check(spec.key) for spec in specs],
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
        checked = [key.asset_key for key in context.selected_asset_check_keys]
        names = [key.path[-1] for key in sorted(context.selected_asset_keys)]
        if not names:  # the check alone was asked for
            yield from budget_results(store, teachers.ledger, checked, free=True)
            return
        try:
            report, recorder = _buy(context, config, store, teachers, names)
        except ComposerError:
            yield from budget_results(store, teachers.ledger, checked, free=True)
            raise
        free = not report.spent_usd + report.reserved_usd
        yield from budget_results(store, teachers.ledger, checked, free=free)
        if report.exhausted_scope:
            # An outcome, not a failure: what is whole is recorded, the rest stays to do.
            return
        missing = Counter(item["teacher"] for item in report.not_bought)
        for name in names:
            if not missing[name]:
                yield recorder.result(name)
        if why := _why(report, missing):
            # What was bought stays recorded; only the teachers that miss replies do not.
            listed = [dict(item) for item in report.not_bought[:20]]
            raise dg.Failure(
                description=why,
                metadata={
                    "spent_usd": float(report.spent_usd),
                    "ceiling_usd": float(report.ceiling_usd),
                    **({"not_bought": records(listed)} if listed else {}),
                },
                allow_retries=False,
            )

    return replay


def _buy(
    context: dg.AssetExecutionContext,
    config: ReplayConfig,
    store: Lake,
    teachers: TeachersResource,
    names: list[str],
) -> "tuple[ReplayReport, DayRecorder]":
    """Buy what the run is for; each day is recorded when it is whole."""
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
        return pages[name].of(day, _of_day(day_figures(store, name, day), life))

    keys = {name: teacher_key(name) for name in names}
    recorder = DayRecorder(context, keys, page_of)
    teacher_set = TeacherSet.load(teachers.file)
    first: DaysFirst = "newest" if config.days_first is FirstDay.NEWEST else "oldest"
    selector = selector_for(teacher_set, VoteDecision(), teachers=names, days_first=first)
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
    chosen = _of_selection(selector.report().to_dict()) if selector else {}
    tell_run(context, _of_run(report) | chosen)
    recorder.rest(days, report.missing)
    tell_bill(context, store, sorted(report.by_day_teacher))
    metadata = budget_metadata(store, teachers.ledger)
    context.log_event(dg.AssetMaterialization("budget", metadata=metadata))
    if report.exhausted_scope:
        at = report.stopped_day
        bought = {name: _in_words(day_figures(store, name, at)) for name in names}
        tell_ceiling(context, keys, at, report.missing.get(at, {}), bought, report.at_the_ceiling())
    return report, recorder


def _in_words(figures: Mapping[str, int | float]) -> str:
    """Return what was bought of a day; numbers would be drawn."""
    replies = sum(int(figures.get(name, 0)) for name in ("ok", "unusable", "unreadable", "refused"))
    return f"{replies} replies for ${usd(int(figures.get('cost_picodollars', 0))):.6f}"


def _which(share: float) -> str:
    return "every state" if share == 1 else f"a fixed sample ({share:.2%}) of the states"


def _why(report: "ReplayReport", missing: Counter[str]) -> str:
    """Return why the run failed, where it did: the cases in which the command line exits 1."""
    teachers = ", ".join(
        f"{name} ({count} replies; {report.by_teacher[name].stopped or 'see not_bought'})"
        for name, count in sorted(missing.items())
    )
    stopped = report.stopped()
    if missing and (report.replies or stopped):
        return f"Some teachers did not answer: {teachers}. What was bought is kept; run again."
    return str(stopped[0]) if stopped else report.problem()


def _progress(context: dg.AssetExecutionContext, names: list[str]) -> "OnProgress":
    """A callback that logs a line and observes each teacher's asset every ten seconds."""
    day = context.partition_keys[0] if len(context.partition_keys) == 1 else None
    next_at = EVERY_S

    def report(snapshot: "Snapshot") -> None:
        nonlocal next_at
        if snapshot.elapsed_s < next_at:
            return
        next_at = snapshot.elapsed_s + EVERY_S
        context.log.info(snapshot.line())
        # A run that is killed leaves the last amount that was known.
        spent = f"{snapshot.settled_usd:.6f}"
        context.instance.add_run_tags(context.run_id, {COST_TAG: spent})
        for name in names:
            context.log_event(
                dg.AssetObservation(
                    asset_key=teacher_key(name),
                    partition=day,
                    metadata=_of_moment(snapshot, name),
                )
            )

    return report


def _of_moment(snapshot: "Snapshot", name: str) -> dict[str, str]:
    """How far a teacher and the run's budget are: in words, since numbers would be drawn."""
    teacher = snapshot.by_teacher[name]
    return {
        "state": teacher.state,
        "progress": f"{teacher.done} of {teacher.total}, {teacher.cached} from the cache,"
        f" {teacher.unknown} unknown",
        "money": f"settled ${snapshot.settled_usd:f}, reserved ${snapshot.reserved_usd:f},"
        f" ceiling ${snapshot.ceiling_usd:f}",
    }


def _of_day(figures: Mapping[str, int | float], life: "Pico | None") -> dict[str, Any]:
    """What the table says of a day, and what the teacher cost up to now."""
    found = dict(figures)
    cost = found.pop("cost_picodollars", None)
    return {
        **found,
        **({} if cost is None else {"cost_usd": usd(int(cost))}),
        **({} if life is None else {"cost_life_usd": usd(life)}),
    }


def _of_selection(figures: dict[str, Any]) -> dict[str, Any]:
    """What was left out, and the estimate of the pairs that this missed."""
    return {
        f"selection_{name}": value
        for name, value in figures.items()
        if value is not None and not isinstance(value, dict)
    }


def _of_run(report: "ReplayReport") -> dict[str, Any]:
    """What holds for the whole run, also when it covers several days: calls by teacher."""
    figures = report.by_teacher.items()
    left = report.ceiling_usd - report.spent_usd - report.reserved_usd
    if report.left_usd is not None:  # another ceiling than the run's may have refused
        left = min(left, report.left_usd)
    return {
        "calls": sum(found.calls for _, found in figures),
        "calls_by_teacher": json.dumps({name: found.calls for name, found in figures}),
        "cached": sum(found.cached for _, found in figures),
        "unknown": sum(found.unknown for _, found in figures),
        "cost_usd": float(report.spent_usd),
        "budget_left_usd": float(left),
        "simulated": report.simulated or None,
        "sweep": report.sweep or None,
        "ceiling_reached": report.exhausted_scope or "no",
    }
