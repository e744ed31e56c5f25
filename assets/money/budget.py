"""The ledger's ceilings in the UI: the asset ``budget``, and the job that sets one.

Belongs here: showing and setting. The numbers are ``replay.ledger``'s; what a purchase has
changed is told after each purchase (``assets.replay``), so nobody has to ask for it.
"""

from decimal import Decimal
from typing import Any

import dagster as dg
from pydantic import Field

from assets.failures import one_sentence
from assets.pages import OWNERS, explained, records
from assets.resources import LakeResource, TeachersResource, amount_of
from composer_pipeline.lake import SCHEMA_VERSION, Lake

KEY = dg.AssetKey("budget")


def budget_metadata(lake: Lake, ledger: str) -> dict[str, Any]:
    """Return every scope as a table, and the numbers that are drawn."""
    from composer_pipeline.replay.ledger import budget_report, ledger_target

    report = budget_report(ledger_target(lake, ledger or None))
    rows = [
        {name: "none" if value is None else value for name, value in row.items()}
        for row in report["scopes"]
    ]
    held = {row["scope"]: row for row in report["scopes"]}.get("global", {})
    drawn = {
        name: float(held.get(name) or 0) for name in ("spent_usd", "reserved_usd", "unknown_usd")
    }
    ceiling = held.get("ceiling_usd")
    return {
        **drawn,
        **({} if ceiling is None else {"ceiling_usd": float(ceiling)}),
        "ledger": report["ledger"],
        **({"scopes": records(rows)} if rows else {}),
        **({"quarantined": str(report["quarantined"])} if report["quarantined"] else {}),
    }


@dg.asset(group_name="replay", kinds={"python"}, owners=OWNERS, code_version=str(SCHEMA_VERSION))
@explained
@one_sentence
def budget(lake: LakeResource, teachers: TeachersResource) -> "dg.MaterializeResult[None]":
    """Each scope of the ledger: its ceiling, and what is spent, reserved and unknown, in USD.

    Unknown is what may have been billed; it counts until it is known. Every purchase writes this
    page again. The job `set_ceiling` changes a ceiling.
    """
    return dg.MaterializeResult(metadata=budget_metadata(lake.open(), teachers.ledger))


class CeilingConfig(dg.Config):
    """Which ceiling, and how high."""

    scope: str = Field(
        default="global",
        description=(
            "global, month:YYYY-MM, day:YYYY-MM-DD, teacher:NAME, partition:YYYY-MM-DD,"
            " backfill:ID, or root:RUN for a run and what was started from it again."
        ),
    )
    usd: Any = Field(description="The ceiling in USD, 1.5 or '1.5'; 'none' lifts it.")


#: What the job ``choose_ceiling`` offers, in USD: picked from a list, so nobody types YAML.
AMOUNTS = ("0.02", "0.05", "0.1", "0.2", "0.5", *map(str, (1, 2, 5, 10, 20, 50, 100, 200, 500)))
LIFTED = "no ceiling"


@dg.op
def write_ceiling(
    context: dg.OpExecutionContext,
    config: CeilingConfig,
    lake: LakeResource,
    teachers: TeachersResource,
) -> None:
    """Set a ceiling; the next call reads it, and calls in flight are not touched."""
    from composer_pipeline.replay.ledger import check_scope

    scope = check_scope(config.scope)
    lifted = str(config.usd).strip().lower() == "none"
    _write(context, lake, teachers, scope, None if lifted else amount_of(config.usd, "usd"))


@dg.op
def write_chosen_ceiling(
    context: dg.OpExecutionContext, lake: LakeResource, teachers: TeachersResource
) -> None:
    """Set the ceiling of everything to the amount that was chosen."""
    if not context.has_partition_key:
        raise dg.Failure("choose an amount in the field Partition first", allow_retries=False)
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
    from composer_pipeline.replay.ledger import ledger_target, open_ledger, rules

    store = lake.open()
    with open_ledger(ledger_target(store, teachers.ledger or None)) as books:
        books.do(rules.set_ceiling(scope, usd))
    context.log.info(f"The ceiling of {scope} is {'none' if usd is None else f'{usd} USD'} now.")
    told = budget_metadata(store, teachers.ledger)
    context.log_event(dg.AssetMaterialization(asset_key=KEY, metadata=told))


@dg.job(description="Set, raise or lift a ceiling of the ledger; it costs nothing.")
def set_ceiling() -> None:
    """Set a ceiling."""
    write_ceiling()


@dg.job(
    partitions_def=dg.StaticPartitionsDefinition([*(f"{usd} USD" for usd in AMOUNTS), LIFTED]),
    description="Set the ceiling of everything that is spent, by choosing an amount from a list.",
)
def choose_ceiling() -> None:
    """Set the ceiling of the scope ``global`` to the amount of the run's partition."""
    write_chosen_ceiling()
