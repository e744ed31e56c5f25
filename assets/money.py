"""Money in Dagster: ceilings, what was spent, and what a purchase will cost."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import dagster as dg
from dagster._core.definitions.source_asset import SYSTEM_METADATA_KEY_SOURCE_ASSET_OBSERVATION
from pydantic import Field

from assets.checks import AFFORDED, covered
from assets.failures import one_sentence
from assets.pages import OWNERS, explained, records, usd, view_link
from assets.partitions import DAYS, PAID, days_of
from assets.resources import LakeResource, TeachersResource, amount_of
from composer_pipeline.charts import lines, markdown_image
from composer_pipeline.lake.schema import SCHEMA_VERSION
from composer_pipeline.lake.store import Lake
from composer_pipeline.teachers.teachers import TeacherSet
from composer_pipeline.versions import CONVERTER_VERSION

if TYPE_CHECKING:
    from composer_pipeline.teachers.plan import ReplayPlan

BUDGET_KEY = dg.AssetKey("budget")


def budget_metadata(lake: Lake, ledger: str) -> dict[str, Any]:
    """Return every scope as a table, and the numbers with a plot."""
    from composer_pipeline.teachers.ledger.ledger import budget_report, ledger_target

    report = budget_report(ledger_target(lake, ledger or None))
    rows = [
        {name: "none" if value is None else value for name, value in row.items()}
        for row in report["scopes"]
        if not row["scope"].startswith("run:")  # it is in its backfill's, or its first run's
    ]
    total: dict[str, Any] = next((row for row in report["scopes"] if row["scope"] == "global"), {})
    ceiling = total.get("ceiling_usd")
    return {
        **{
            name: float(total.get(name) or 0)
            for name in ("spent_usd", "reserved_usd", "unknown_usd")
        },
        **({} if ceiling is None else {"ceiling_usd": float(ceiling)}),
        "ledger": report["ledger"],
        "look": view_link("money"),
        **({"scopes": records(rows)} if rows else {}),
        **({"quarantined": str(report["quarantined"])} if report["quarantined"] else {}),
    }


@dg.asset(group_name="replay", kinds={"python"}, owners=OWNERS, code_version=str(SCHEMA_VERSION))
@explained
@one_sentence
def budget(
    context: dg.AssetExecutionContext, lake: LakeResource, teachers: TeachersResource
) -> "dg.MaterializeResult[None]":
    """Each scope of the ledger: its ceiling, and what is spent, reserved and unknown, in USD.

    Unknown amounts may have been billed and count until that is known. Every purchase updates this
    page. The job `set_ceiling` changes a ceiling.
    """
    asked = context.instance.get_run_record_by_id(context.run_id)
    told = context.instance.get_latest_materialization_event(BUDGET_KEY)
    if told and asked and told.timestamp > asked.create_timestamp.timestamp():
        return without_event(BUDGET_KEY)  # a later page would hide the check of that purchase
    return dg.MaterializeResult(metadata=budget_metadata(lake.open(), teachers.ledger))


def write_budget(
    context: dg.OpExecutionContext | dg.AssetExecutionContext,
    lake: Lake,
    teachers: TeachersResource,
    sentence: str = "",
) -> None:
    """Update the page of ``budget`` and its check from another run."""
    metadata = budget_metadata(lake, teachers.ledger)
    context.log_event(dg.AssetMaterialization(BUDGET_KEY, metadata=metadata))
    found = covered(lake, teachers.file, AFFORDED, sentence)
    evaluation = dg.AssetCheckEvaluation(
        asset_key=BUDGET_KEY, check_name=AFFORDED.name, passed=found.passed,
        metadata=found.metadata, severity=found.severity, description=found.description,
    )  # fmt: skip
    context.log_event(evaluation)  # type: ignore[arg-type]  # its annotation lacks what it takes


class CeilingConfig(dg.Config):
    """A ceiling: its scope and its amount."""

    scope: str = Field(
        default="global",
        description=(
            "global, month:YYYY-MM, day:YYYY-MM-DD, teacher:NAME, partition:YYYY-MM-DD,"
            " backfill:ID, or root:RUN for a run and its re-executions."
        ),
    )
    usd: Any = Field(description="The ceiling in USD, 1.5 or '1.5'; 'none' removes it.")


#: The amounts in USD that the job ``choose_ceiling`` offers as partitions.
AMOUNTS = ("0.02", "0.05", "0.1", "0.2", "0.5", *map(str, (1, 2, 5, 10, 20, 50, 100, 200, 500)))
LIFTED = "no ceiling"


@dg.op
def write_ceiling(
    context: dg.OpExecutionContext,
    config: CeilingConfig,
    lake: LakeResource,
    teachers: TeachersResource,
) -> None:
    """Set a ceiling for all further calls; calls in flight are not affected."""
    from composer_pipeline.teachers.ledger.ledger import check_scope

    scope = check_scope(config.scope)
    lifted = str(config.usd).strip().lower() == "none"
    _write(context, lake, teachers, scope, None if lifted else amount_of(config.usd, "usd"))


@dg.op
def write_chosen_ceiling(
    context: dg.OpExecutionContext, lake: LakeResource, teachers: TeachersResource
) -> None:
    """Set the global ceiling to the amount of the partition."""
    if not context.has_partition_key:
        raise dg.Failure("choose an amount in the field Partition", allow_retries=False)
    amount = context.partition_key
    usd = None if amount == LIFTED else amount_of(amount.removesuffix(" USD"), "Partition")
    _write(context, lake, teachers, "global", usd)


def _write(
    context: dg.OpExecutionContext,
    lake: LakeResource,
    teachers: TeachersResource,
    scope: str,
    usd: Decimal | None,
) -> None:
    from composer_pipeline.teachers.ledger import operations
    from composer_pipeline.teachers.ledger.ledger import Ledger, ledger_target

    store = lake.open()
    with Ledger(ledger_target(store, teachers.ledger or None)) as opened:
        opened.do(operations.set_ceiling(scope, usd))
    context.log.info(f"The ceiling of {scope} is now {'none' if usd is None else f'{usd} USD'}.")
    write_budget(context, store, teachers)


@dg.job
def set_ceiling() -> None:
    """Set, raise or remove a ceiling of the ledger; costs nothing."""
    write_ceiling()


@dg.job(partitions_def=dg.StaticPartitionsDefinition([f"{usd} USD" for usd in AMOUNTS] + [LIFTED]))
def choose_ceiling() -> None:
    """Set the global ceiling by choosing an amount from a list; costs nothing."""
    write_chosen_ceiling()


PLAN_KEY = dg.AssetKey("replay_plan")


@dg.asset(
    group_name="replay",
    kinds={"python"},
    owners=OWNERS,
    partitions_def=DAYS,
    backfill_policy=PAID,
    deps=["trace_states"],
    code_version=CONVERTER_VERSION,
)
@explained
@one_sentence
def replay_plan(
    context: dg.AssetExecutionContext, lake: LakeResource, teachers: TeachersResource
) -> None:
    """What each teacher's replies to the day would cost; costs nothing and sends no session.

    Open calls, calls that were paid for before, the expected cost, the worst case, which the
    ledger would reserve, and what amounts would buy. After a purchase the bill is shown beside it.
    """
    from composer_pipeline.preferences.vote import VoteDecision
    from composer_pipeline.teachers.catalogue import fetch
    from composer_pipeline.teachers.plan import plan

    store, teacher_set = lake.open(), TeacherSet.load(teachers.file)
    catalogue = fetch(teacher_set, teacher_set.teachers)
    for day in days_of(context):
        found = plan(
            store, teacher_set, days=[day], ledger=teachers.ledger or None, catalogue=catalogue,
            decide=VoteDecision(),
        )  # fmt: skip
        context.add_asset_metadata(_page(store, day, found), partition_key=day)


def _page(store: Lake, day: str, found: "ReplayPlan") -> dict[str, Any]:
    rows = [
        {
            "teacher": name,
            "calls": part.calls,
            "cached": part.cached,
            "expected_usd": usd(part.expected_picodollars),
            "worst_usd": usd(part.worst_picodollars),
            "stop": part.stop or "no",
        }
        for name, part in found.by_teacher.items()
    ]
    return {
        "calls": found.calls,
        "cached": found.cached,
        "expected_usd": round(float(found.expected_usd), 6),
        "worst_usd": round(float(found.worst_usd), 6),
        "by_teacher": records(with_bill(store, day, rows)),
        "what_amounts_buy": dg.MetadataValue.md(_curve(found)),
    }


def _curve(found: "ReplayPlan") -> str:
    """Return expected pairs by amount, drawn and as a table."""
    points = [(0.0, 0.0), *((point.spent, point.pairs) for point in found.curve)]
    rows = [
        "| USD | states | sessions | pairs | 95 % | uncached USD |", "|---|---|---|---|---|---|",
        *(
            f"| {point.spent:.2f} | {point.states:,} | {point.sessions:,} | {point.pairs:,.0f} |"
            f" {point.low:,.0f} to {point.high:,.0f} | {point.uncached:.2f} |"
            for point in found.curve
        ),
    ]  # fmt: skip
    drawn = markdown_image(lines({"expected pairs": points}, x_unit="USD"), "pairs by USD")
    return "\n".join([drawn, "", *rows])


def with_bill(store: Lake, day: str, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of a plan with the bill of each teacher for the day."""
    from composer_pipeline.teachers.replies import day_figures

    found = []
    for row in rows:
        cost = day_figures(store, str(row["teacher"]), day).get("cost_picodollars")
        found.append({**row, "billed_usd": "nothing" if cost is None else f"{usd(int(cost)):.6f}"})
    return found


def observe_bill(context: dg.AssetExecutionContext, store: Lake, days: Sequence[str]) -> None:
    """Report the bill on the last plan of each day that has one."""
    for day in days:
        wanted = dg.AssetRecordsFilter(asset_key=PLAN_KEY, asset_partitions=[day])
        for record in context.instance.fetch_materializations(wanted, limit=1).records:
            plan = record.asset_materialization
            table = plan.metadata.get("by_teacher") if plan else None
            if isinstance(table, dg.TableMetadataValue):
                rows = with_bill(store, day, [row.data for row in table.records])
                context.log_event(
                    dg.AssetObservation(
                        asset_key=PLAN_KEY, partition=day, metadata={"plan_and_bill": records(rows)}
                    )
                )


#: (teacher, day) -> the metadata of a complete day.
PageOf = Callable[[str, str], Mapping[str, Any]]


class DayRecorder:
    """Materialises the partitions of one run as they become complete."""

    def __init__(
        self, context: dg.AssetExecutionContext, keys: Mapping[str, dg.AssetKey], page_of: PageOf
    ) -> None:
        self._context = context
        self._keys = keys
        self._page_of = page_of
        self._done: set[tuple[str, str]] = set()

    def day(self, day: str, missing: Mapping[str, int]) -> None:
        """Materialise a day, once, for each teacher that misses nothing of it."""
        for name, key in self._keys.items():
            if missing.get(name) or (name, day) in self._done:
                continue
            self._done.add((name, day))
            page = dict(self._page_of(name, day))
            self._context.log_event(dg.AssetMaterialization(key, partition=day, metadata=page))

    def rest(self, days: Iterable[str], missing: Mapping[str, Mapping[str, int]]) -> None:
        """Materialise the days without open questions, which no callback reports."""
        for day in days:
            self.day(day, missing.get(day, {}))


def without_event(key: dg.AssetKey) -> "dg.MaterializeResult[None]":
    """Return a result for which Dagster writes no event; what depends on the asset goes on."""
    metadata = {SYSTEM_METADATA_KEY_SOURCE_ASSET_OBSERVATION: True}
    return dg.MaterializeResult(asset_key=key, metadata=metadata)


#: The scope of a run; a re-executed run inherits the tag.
SCOPE_TAG = "composer/ceiling_scope"
#: What a run has spent, in USD; updated during the run and at its end.
COST_TAG = "composer/cost_usd"
#: The scope whose ceiling ended a run, if one did.
REACHED_TAG = "composer/ceiling_reached"
#: The teachers whose replies a run could not get, if there are any.
UNANSWERED_TAG = "composer/unanswered"

_BACKFILL, _ROOT_BACKFILL = "dagster/backfill", "dagster/root_backfill_id"
_ROOT_RUN = "dagster/root_run_id"

#: The tags of a run by its id; ``None`` where the run is gone.
TagsOf = Callable[[str], Mapping[str, str] | None]


def shared_scope(run_id: str, tags: Mapping[str, str], tags_of: TagsOf) -> str:
    """Return the scope that a run shares with its backfill or its re-executions."""
    if scope := _backfill(tags):
        return scope
    root = tags.get(_ROOT_RUN)
    if not root:
        return f"root:{run_id}"
    first = tags_of(root)
    if first is None:  # deleted: its successors inherited the tag
        return tags.get(SCOPE_TAG, f"root:{root}")
    return _backfill(first) or f"root:{root}"


def _backfill(tags: Mapping[str, str]) -> str:
    backfill = tags.get(_ROOT_BACKFILL) or tags.get(_BACKFILL)
    return f"backfill:{backfill}" if backfill else ""


#: The job of a night, and its last asset, whose config says whether the night is a dry one.
NIGHT, TONIGHT = "night", "tonights_model"


def is_dry(context: dg.AssetExecutionContext) -> bool:
    """Return True in the run of a dry night, in which nothing may be bought."""
    config: Any = context.run.run_config
    return bool(config.get("ops", {}).get(TONIGHT, {}).get("config", {}).get("dry_run"))


def scope_of_run(context: dg.AssetExecutionContext) -> str:
    """Return the scope of the current run, and tag the run with it for its re-executions."""
    instance, run = context.instance, context.run

    def tags_of(run_id: str) -> Mapping[str, str] | None:
        found = instance.get_run_by_id(run_id)
        return None if found is None else found.tags

    scope = shared_scope(run.run_id, run.tags, tags_of)
    # Replaces the tags inherited from the previous run.
    run_tags = {SCOPE_TAG: scope, COST_TAG: "not known yet", REACHED_TAG: "no"}
    instance.add_run_tags(run.run_id, run_tags)
    return scope
