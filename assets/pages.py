"""What an asset's page shows: plots with a sentence each, a preview, the query, other numbers.

Dagster draws a plot of every numeric entry; more than eight hide those that matter, so all others
stand in one table.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any, TypeVar

import dagster as dg

from composer_pipeline.lake.schema import TABLES
from composer_pipeline.lake.store import Lake
from composer_pipeline.markdown import fenced

#: Plots of a page at most.
MOST = 8

ROWS, DAY_ROWS, CHANGE = "dagster/row_count", "dagster/partition_row_count", "rows_change"

_DAILY = {
    DAY_ROWS: "rows of the day",
    CHANGE: "rows more or fewer than before this materialisation",
}
_WHOLE = {
    ROWS: "rows of the table",
    CHANGE: "rows more or fewer than before this materialisation",
}

#: Asset to its plots: the metadata's key and a sentence. ``teacher_replies`` is each teacher's.
PLOTS: Mapping[str, Mapping[str, str]] = {
    "raw_sessions": {
        **_DAILY,
        "bytes": "bytes of the day's session files, before compression",
        "new_files": "files that no harvest had seen",
        "grown_files": "files that had become longer",
    },
    "trace_states": {
        **_DAILY,
        "sessions": "sessions with a response on the day",
        "error_states": "states whose action failed",
        "hints": "of these, those whose trace says why",
        "redactions": "private texts that were replaced; originals are nowhere",
        "repaired_states": "states whose prefix has a gap that was bridged",
        "bad_lines": "lines that could not be read in full; many mean a new file format",
    },
    "error_hints": {
        **_DAILY,
        "tool_error": "hints from a tool's error message",
        "exit_code": "hints from a command that failed",
        "user_rejection": "hints from a user who refused a call",
        "user_correction": "hints from a user who said what was wrong",
        "mean_leakage": "share of the failing call's words that its hint repeats",
    },
    "budget": {
        "spent_usd": "what all calls were billed",
        "reserved_usd": "worst cases of the calls under way",
        "unknown_usd": "worst cases of calls that may have been billed",
        "ceiling_usd": "ceiling of everything, where there is one",
    },
    "replay_plan": {
        "calls": "calls that are open, at most",
        "cached": "replies that are paid for",
        "expected_usd": "what the open calls are expected to cost",
        "worst_usd": "what the ledger would reserve for them",
    },
    "teacher_replies": {
        **_DAILY,
        "cost_usd": "what the day's replies were billed, whenever they were bought",
        "cost_life_usd": "what this teacher was billed up to this materialisation",
        "usable_share": "share of the replies that can vote",
        "latency_p50_ms": "half of the replies took longer",
        "latency_p95_ms": "one reply of twenty took longer",
        "cache_read_share": "share of the prompt tokens that the provider had in its cache",
    },
    "preference_pairs": {
        **_DAILY,
        "cost_usd": "what all replies to the day's states were billed",
        "tier_gold": "pairs whose teachers agree exactly and whose agent did something else",
        "krippendorff_alpha": "agreement of the teachers; 1 is full, 0 is chance",
        "excess_disagreement": "how much more often teachers differ from the agent than from noise",
        "separability_auc": "how well style alone tells chosen from rejected; 0.5 is not at all",
        "length_ratio_median": "characters of chosen for one of rejected",
    },
    "normalized_pairs": {
        **_DAILY,
        "rows": "pairs that the recipe was given",
        "dropped": "of these, those that it dropped",
    },
    "training_dataset": {
        **_WHOLE,
        "cost_usd": "what the replies to the dataset's states were billed",
        "groups": "groups of sessions that stay in one split",
        "hints": "error turns with a hint",
        "grpo_groups": "states with recorded answers",
        "krippendorff_alpha": "agreement of the teachers; 1 is full, 0 is chance",
        "separability_auc": "how well style alone tells chosen from rejected; 0.5 is not at all",
    },
    "trained_model": {
        "grpo_best_gain_last": "log-probability that the best answers gained, last round",
        "sdpo_loss_last": "divergence from the model that reads the hint, last round",
        "dpo_loss_last": "loss on pairs, last round; 0.693 is no preference",
        "dpo_accuracy_last": "share of pairs whose chosen side is preferred, last round",
        "sft_loss_last": "loss on consensus actions, last round",
        "rounds_merged": "rounds whose contributions were merged",
        "tokens": "tokens that all replicas trained on",
        "peak_memory_mib": "memory of the largest replica",
    },
    "model_evaluation": {
        "states": "held-out states that both models answered",
        "sessions": "sessions that these are of; intervals need ten",
        "hard_canonical_difference": "right actions where the agent was wrong, trained minus base",
        "hard_preference_difference": "preference for the right action there, trained minus base",
        "easy_canonical_difference": "right actions where all agree, trained minus base",
        "recovery_canonical_difference": "right actions behind an error, trained minus base",
        "easy_kl_after": "how far the trained model has moved from its base, nats a token",
    },
    "report": {"pairs": "pairs of the version that the report is of"},
    "published_dataset": {
        ROWS: "rows of all configurations",
        "changed": "files that the commit changed",
    },
}

_Function = TypeVar("_Function", bound=Callable[..., Any])


def plots_of(asset: str) -> str:
    """Return the sentences about an asset's plots, as they stand below its description."""
    lines = [f"- `{name.removeprefix('dagster/')}`: {said}." for name, said in PLOTS[asset].items()]
    return "\n".join(["Plots:", "", *lines])


def explained(function: _Function) -> _Function:
    """Add the sentences about its plots to an asset's docstring, which Dagster shows."""
    words = (function.__doc__ or "").strip()
    function.__doc__ = f"{words}\n\n{plots_of(function.__name__)}"
    return function


OWNERS = ["team:composer-pipeline"]


def column_schema(table: str) -> dg.TableSchema:
    """Return the table's columns as Dagster shows them."""
    spec = TABLES[table]
    return dg.TableSchema(
        columns=[
            dg.TableColumn(name=f.name, type=str(f.type), description=spec.description_of(f.name))
            for f in spec.schema
        ]
    )


def table_metadata(table: str) -> dict[str, Any]:
    """Return the definition metadata of an asset that writes ``table``."""
    return {"dagster/column_schema": column_schema(table), "table": table}


def usd(picodollars: int) -> float:
    """Return picodollars as USD for a plot; exact amounts stay integers in the lake."""
    return float(Decimal(picodollars) / 10**12)


def records(rows: Sequence[Mapping[str, str | int | float | bool | None]]) -> dg.TableMetadataValue:
    """Return dictionaries with equal keys as a metadata table."""
    return dg.MetadataValue.table([dg.TableRecord(dict(row)) for row in rows])


def run_dir_of(instance: dg.DagsterInstance, asset: str) -> str | None:
    """Return the ``run_dir`` that an asset last reported, or ``None``."""
    event = instance.get_latest_materialization_event(dg.AssetKey(asset))
    if event is None or event.asset_materialization is None:
        return None
    return str(event.asset_materialization.metadata["run_dir"].value)


def figures(asset: str, numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Return numbers as metadata: those that are drawn by name, all others in one table."""
    known = {
        name: value
        for name, value in numbers.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    drawn = {name: value for name, value in known.items() if name in PLOTS[asset]}
    rest = [{"number": name, "value": value} for name, value in known.items() if name not in drawn]
    return {**drawn, **({"other_numbers": records(rest)} if rest else {})}


class TablePage:
    """What the page of an asset says after a run, by partition."""

    def __init__(
        self, asset: str, table: str, lake: Lake, days: Iterable[str] = (), **keys: str
    ) -> None:
        self._asset, self._table, self._lake, self._keys = asset, table, lake, keys
        self._before = {day: self._rows(day) for day in days or ("",)}

    def of(self, day: str = "", numbers: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the metadata of a day, or of the whole table."""
        from composer_pipeline.states.previews import place_of, preview, query_of

        keys = self._keys_of(day)
        rows, before = self._rows(day), self._before.get(day)
        about: dict[str, Any] = {DAY_ROWS if day else ROWS: rows or 0}
        if rows is not None and before is not None:
            about[CHANGE] = rows - before
        found = {**about, **figures(self._asset, numbers or {})}
        if rows is None:
            return found
        found["path"] = dg.MetadataValue.path(place_of(self._lake, self._table, **keys))
        query = query_of(self._lake, self._table, **keys)
        found["query"] = dg.MetadataValue.md(fenced(query, "sql"))
        if shown := preview(self._lake, self._table, self._one(keys)):
            found["preview"] = dg.MetadataValue.md(shown)
        return found

    def _keys_of(self, day: str) -> dict[str, str]:
        return {**self._keys, **({"day": day} if day else {})}

    def _one(self, keys: dict[str, str]) -> dict[str, str]:
        """Return the keys of the partition that the preview is of: of a split table, train."""
        return keys or {"split": "train"}

    def _rows(self, day: str) -> int | None:
        from composer_pipeline.states.previews import row_count

        return row_count(self._lake, self._table, **self._keys_of(day))


#: For what ``nightly_harvest`` makes. A night without new sessions makes nothing, so a weekend is
#: no fault: a warning after four days, overdue after eight. Paid and unpartitioned assets have
#: none: they wait for their owner.
NIGHTLY = dg.FreshnessPolicy.time_window(
    warn_window=timedelta(days=4), fail_window=timedelta(days=8)
)


PREFIX = "composer/"


def tell_run(
    context: dg.AssetExecutionContext | dg.OpExecutionContext, numbers: Mapping[str, object]
) -> None:
    """Write numbers of a run into its tags and its log; what is ``None`` was not measured."""
    known = {name: f"{value:g}" if isinstance(value, float) else str(value)
             for name, value in numbers.items() if value is not None}  # fmt: skip
    context.log.info("; ".join(f"{name} {value}" for name, value in known.items()))
    if context.instance.has_run(context.run_id):
        tags = {f"{PREFIX}{name}": value for name, value in known.items() if value}
        context.instance.add_run_tags(context.run_id, tags)
