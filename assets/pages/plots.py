"""Which numbers of an asset are drawn over time, and what each of them says.

Belongs here: names and sentences. Does not belong here: numbers. Dagster draws a plot of every
numeric entry of a page; more than eight hide those that matter, so all other numbers stand in one
table (``pages.table_page``).
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

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
