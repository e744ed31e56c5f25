"""The metadata of an asset's page: plots with a sentence each, a preview, the query, a table.

Dagster plots every numeric entry; more than eight hide those that matter, so all other numbers are
in one table.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar
from urllib.parse import urlencode

import dagster as dg

from composer_pipeline.lake.schema import TABLES
from composer_pipeline.lake.store import Lake
from composer_pipeline.markdown import fenced
from composer_pipeline.settings import Settings

#: The most plots of a page.
MOST = 8

ROWS, DAY_ROWS, CHANGE = "dagster/row_count", "dagster/partition_row_count", "rows_change"

_CHANGED = {CHANGE: "rows added or removed by this materialisation"}
_DAILY = {DAY_ROWS: "rows of the day", **_CHANGED}

#: Asset -> its plots: metadata key and sentence. ``teacher_replies`` is for each teacher.
PLOTS: Mapping[str, Mapping[str, str]] = {
    "raw_sessions": {
        **_DAILY,
        "bytes": "bytes of the day's session files before compression",
        "new_files": "files that were not archived before",
        "grown_files": "files that have grown",
    },
    "trace_states": {
        **_DAILY,
        "sessions": "sessions with a response on the day",
        "error_states": "states whose action failed",
        "hints": "error states whose trace says what was wrong",
        "redactions": "private texts that were replaced; the originals are not kept",
        "repaired_states": "states whose prefix has a gap that was bridged",
        "bad_lines": "lines that could not be read in full; many indicate a new file format",
    },
    "error_hints": {
        **_DAILY,
        "tool_error": "hints from a tool's error message",
        "exit_code": "hints from a command that failed",
        "user_rejection": "hints from a user who rejected a call and said what to do instead",
        "user_correction": "hints from a user who interrupted and said what to do instead",
        "soft_failure": "hints from an output that shows a failure which was not reported",
        "mean_leakage": "share of the failing call's words that its hint repeats",
    },
    "edit_outcomes": {
        **_DAILY,
        "kept": "edits whose lines were all committed and lasted 20 commits of the file or 7 days",
        "committed": "edits of which half or more was committed",
        "gone": "edits of which less than half was committed",
        "refined": "of which less than half was committed, and the session replaced the rest",
        "alive_commit": "mean share of an edit's lines in the commit",
        "alive_today": "mean share of an edit's lines alive at the last look",
    },
    "budget": {
        "spent_usd": "bills of all calls",
        "reserved_usd": "worst cases of the calls in flight",
        "unknown_usd": "worst cases of calls that may have been billed",
        "ceiling_usd": "global ceiling, if one is set",
    },
    "replay_plan": {
        "calls": "open calls, at most",
        "cached": "replies that were paid for before",
        "expected_usd": "expected cost of the open calls",
        "worst_usd": "amount that the ledger would reserve for them",
    },
    "teacher_replies": {
        **_DAILY,
        "cost_usd": "bills of the day's replies, whenever they were bought",
        "cost_life_usd": "all bills of this teacher up to this materialisation",
        "usable_share": "share of the replies that can vote",
        "latency_p50_ms": "median latency",
        "latency_p95_ms": "95th percentile of the latency",
        "cache_read_share": "share of the prompt tokens read from the provider's cache",
    },
    "preference_pairs": {
        **_DAILY,
        "cost_usd": "bills of all replies to the day's states",
        "tier_gold": "pairs whose teachers agree exactly and differ from the agent",
        "krippendorff_alpha": "agreement of the teachers; 1 is perfect, 0 is chance",
        "excess_disagreement": "disagreement of the teachers with the agent in excess of noise",
        "separability_auc": "how well style alone separates chosen from rejected; 0.5 is chance",
        "length_ratio_median": "median ratio of the lengths of chosen and rejected",
    },
    "normalized_pairs": {
        **_DAILY,
        "rows": "input pairs of the recipe",
        "dropped": "pairs that the recipe dropped",
    },
    "training_dataset": {
        ROWS: "rows of the table",
        **_CHANGED,
        "cost_usd": "bills of the replies to the dataset's states",
        "groups": "groups of sessions that stay in one split",
        "hints": "error turns with a hint",
        "grpo_groups": "states with recorded answers",
        "krippendorff_alpha": "agreement of the teachers; 1 is perfect, 0 is chance",
        "separability_auc": "how well style alone separates chosen from rejected; 0.5 is chance",
    },
    "trained_model": {
        "grpo_best_gain_last": "gain in log-probability of the best answers, last round",
        "sdpo_loss_last": "divergence from the model that sees the hint, last round",
        "dpo_loss_last": "loss on pairs, last round; 0.693 is no preference",
        "dpo_accuracy_last": "share of pairs whose chosen side is preferred, last round",
        "sft_loss_last": "loss on consensus actions, last round",
        "rounds_merged": "rounds with merged contributions",
        "tokens": "tokens that all replicas trained on",
        "peak_memory_mib": "memory of the largest replica",
    },
    "model_evaluation": {
        "states": "held-out states answered by both models",
        "sessions": "their sessions; intervals need ten",
        "hard_canonical_difference": "right actions where the agent was wrong, trained minus base",
        "hard_preference_difference": "preference for the right action there, trained minus base",
        "easy_canonical_difference": "right actions where all agree, trained minus base",
        "recovery_canonical_difference": "right actions after an error, trained minus base",
        "easy_kl_after": "KL divergence of the trained model from its base, nats per token",
    },
    "tonights_model": {
        "usd": "bills of the replies to tonight's new states",
        "new_states": "new states in training",
        "old_states": "states of earlier nights in training",
        "held_out_states": "new states that are only measured on",
        "new_difference": "right actions on held-out new states, tonight's model minus its parent",
        "worst_anchor_difference": "the same on the kind of anchors that lost most",
        "current_version": "version that is served after the night",
        "seconds": "duration of training and measuring",
    },
    "report": {"pairs": "pairs of the reported version"},
    "published_dataset": {
        ROWS: "rows of all configurations",
        "changed": "files that the commit changed",
    },
}

_Function = TypeVar("_Function", bound=Callable[..., Any])


def plots_of(asset: str) -> str:
    """Return the sentences about an asset's plots that follow its description."""
    lines = [f"- `{name.removeprefix('dagster/')}`: {text}." for name, text in PLOTS[asset].items()]
    return "\n".join(["Plots:", "", *lines])


def explained(function: _Function) -> _Function:
    """Append the sentences about its plots to an asset's docstring, which Dagster shows."""
    function.__doc__ = f"{inspect.getdoc(function) or ''}\n\n{plots_of(function.__name__)}"
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
    return round(picodollars / 10**12, 6)


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
    """Return numbers as metadata: those with a plot by name, all others in one table."""
    known = {
        name: value
        for name, value in numbers.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    plotted = {name: known[name] for name in known if name in PLOTS[asset]}
    rest = [{"number": name, "value": known[name]} for name in known if name not in plotted]
    return {**plotted, **({"other_numbers": records(rest)} if rest else {})}


class TablePage:
    """Builds the metadata of an asset's page after a run; remembers row counts from before it."""

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
        found: dict[str, Any] = {DAY_ROWS if day else ROWS: rows or 0}
        if rows is not None and before is not None:
            found[CHANGE] = rows - before
        found |= figures(self._asset, numbers or {})
        if rows is None:
            return found
        found["path"] = dg.MetadataValue.path(place_of(self._lake, self._table, **keys))
        query = query_of(self._lake, self._table, **keys)
        found["query"] = dg.MetadataValue.md(fenced(query, "sql"))
        found["look"] = view_link("states", **_SHOWN.get(self._table, {}), **keys)
        # Of a table with splits, the preview shows the split train.
        if rendered := preview(self._lake, self._table, keys or {"split": "train"}):
            found["preview"] = dg.MetadataValue.md(rendered)
        return found

    def _keys_of(self, day: str) -> dict[str, str]:
        return {**self._keys, **({"day": day} if day else {})}

    def _rows(self, day: str) -> int | None:
        from composer_pipeline.states.previews import row_count

        return row_count(self._lake, self._table, **self._keys_of(day))


#: Table -> the filter of the viewer that shows its rows.
_SHOWN = {"hints": {"made": "hint"}, "pairs": {"made": "pair"},
          "normalized_pairs": {"made": "pair"}, "dataset_pairs": {"made": "pair"}}  # fmt: skip


def view_url(page: str, **filters: str) -> str:
    """Return the URL of a page of ``composer-pipeline view``, where ``COMPOSER_VIEW_URL`` says."""
    asked = f"?{urlencode(filters)}" if filters else ""
    return f"{Settings.from_env().view_url}/view.html#/{page}{asked}"


def view_link(page: str, **filters: str) -> dg.UrlMetadataValue:
    """Return :func:`view_url` as the link of an asset's page."""
    return dg.MetadataValue.url(view_url(page, **filters))


#: For the assets of ``nightly_harvest``. A night without new sessions materialises nothing, so it
#: warns after four days only, and fails after eight. Paid and unpartitioned assets have no policy.
NIGHTLY = dg.FreshnessPolicy.time_window(
    warn_window=timedelta(days=4), fail_window=timedelta(days=8)
)


def record_run(
    context: dg.AssetExecutionContext | dg.OpExecutionContext, numbers: Mapping[str, object]
) -> None:
    """Write numbers of a run to its tags and its log; ``None`` was not measured."""
    known = {name: f"{value:g}" if isinstance(value, float) else str(value)
             for name, value in numbers.items() if value is not None}  # fmt: skip
    context.log.info("; ".join(f"{name} {value}" for name, value in known.items()))
    if context.instance.has_run(context.run_id):
        tags = {f"composer/{name}": value for name, value in known.items() if value}
        tags["composer/look"] = view_url("money")
        context.instance.add_run_tags(context.run_id, tags)
