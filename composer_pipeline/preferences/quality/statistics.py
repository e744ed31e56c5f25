"""The quality of the preference data, of a day or of the whole lake, as numbers in the lake.

Belongs here: collecting every statistic of a scope, and writing the tables
``preference_statistics`` and ``near_duplicates``. Does not belong here: how a statistic is computed
(``rater_agreement``, ``separability``, ``near_duplicates``), its rows (``quality_rows``) and
pictures (``figures``).
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress
from statistics import quantiles
from typing import Any

import pyarrow as pa

from composer_pipeline.lake import Lake, build_id
from composer_pipeline.preferences.actions import Level
from composer_pipeline.preferences.quality.near_duplicates import near_duplicates
from composer_pipeline.preferences.quality.noise_floor import noise_floor
from composer_pipeline.preferences.quality.quality_rows import ALL, Quality, StatisticsReport
from composer_pipeline.preferences.quality.rater_agreement import (
    Measured,
    agreement_matrix,
    alpha_by_tool,
)
from composer_pipeline.preferences.quality.separability import Separation, separability
from composer_pipeline.preferences.quality.shingles import Shingles, prompt_tail, shingles_of
from composer_pipeline.preferences.rules import NearDuplicates, PreferenceRules
from composer_pipeline.reports import Progress


def measure(lake: Lake, scope: str = ALL, *, rules: PreferenceRules | None = None) -> Quality:
    """Compute the statistics of a day, or of every day of the lake.

    Args:
        lake: reads ``states``, ``votes``, ``pairs``, ``normalized_pairs``, ``drops`` and, for
            :data:`ALL`, ``dataset_pairs``, whose separability is then measured.
        scope: ``YYYY-MM-DD`` or :data:`ALL`.
        rules: the preference recipe; its defaults when not given.
    """
    rules = rules or PreferenceRules()
    days = lake.days("votes") if scope == ALL else [scope]
    votes = _Votes(lake.read("votes", days=days, columns=_OF_VOTES))
    pairs, prints = _pairs(lake, days, rules.near_duplicates)
    dropped = Counter(
        row["op"]
        for day in days
        for row in lake.rows("drops", days=[day], stage="pairs", columns=["op"])
    )
    counted, reasons, controls = Counter[str](), Counter[str](), Counter[str]()
    for row in votes:
        reasons[row["reason"]] += 1
        counted["voted"] += row["n_families"] >= 2
        counted["consensus"] += row["n_agree"] > 0
        controls.update(compress(row["raters"], row["controls"]))
    funnel = {
        "states": lake.read("states", days=days, columns=["state_id"]).num_rows,
        "voted": counted["voted"],
        "consensus": counted["consensus"],
        "candidates": reasons["pair"],
        "pairs": len(pairs),
    }
    if scope == ALL:
        # A day's statistics are taken when its pairs are made, before these stages.
        normalised = lake.read("normalized_pairs", columns=["pair_id"])
        funnel["normalised"] = normalised.num_rows
        funnel["dataset"] = lake.read("dataset_pairs", columns=["pair_id"]).num_rows
    # Over the whole lake, what will be trained on counts, once it has been built.
    apart = (
        measured_on_dataset(lake, rules)
        if funnel.get("dataset")
        else separability(pairs, rules.separability)
    )
    return Quality(
        scope=scope,
        matrix={bound.label: agreement_matrix(votes, bound) for bound in (Level.L1, Level.L2)},
        alpha=alpha_by_tool(votes),
        noise=noise_floor(votes),
        separation=apart,
        funnel=funnel,
        reasons=dict(sorted(reasons.items())),
        outcomes=_count(row["outcome"] or "unknown" for row in pairs),
        tiers=_count(row["tier"] for row in pairs),
        drops=dict(sorted(dropped.items())),
        per_session=_per_session(pairs),
        length_ratio=_length_ratio(pairs),
        contaminated=sum(bool(row["contamination"]) for row in pairs),
        pairs=len(pairs),
        near=near_duplicates(prints, rules.near_duplicates),
        controls=dict(sorted(controls.items())),
    )


_OF_VOTES = [
    "reason", "n_families", "n_agree", "tool", "raters", "controls", "mutates", "labels", "levels",
]  # fmt: skip


class _Votes:
    """Rows of ``votes`` that are made from their columns each time they are walked.

    As dictionaries, those of a large lake take ten times the memory.
    """

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for some in self._table.to_batches(max_chunksize=1024):
            yield from some.to_pylist()


def write_statistics(
    lake: Lake,
    *,
    days: Iterable[str] | None = None,
    rules: PreferenceRules | None = None,
    progress: Progress | None = None,
) -> StatisticsReport:
    """Compute the statistics of some scopes and replace their partitions.

    Args:
        lake: as in :func:`measure`.
        days: each on its own (``YYYY-MM-DD``); the whole lake as one when ``None``.
        rules: the preference recipe; its defaults when not given.
        progress: called after each scope.

    Raises:
        StorageError: the lake is not writable.
    """
    scopes = [ALL] if days is None else sorted(set(days))
    found: dict[str, Quality] = {}
    for done, scope in enumerate(scopes, start=1):
        found[scope] = quality = measure(lake, scope, rules=rules)
        rows = [*quality.rows(), *(_of_build(lake) if scope == ALL else ())]
        lake.write("preference_statistics", rows, scope=scope)
        lake.write("near_duplicates", [dict(row) for row in quality.near], scope=scope)
        if progress:
            progress("statistics", done, len(scopes))
    return StatisticsReport(found)


def _of_build(lake: Lake) -> list[dict[str, Any]]:
    """Return the row that says which build of the dataset was measured, where there is one."""
    name = build_id(lake)
    row = {"statistic": "build", "a": name, "b": "", "tool": "", "n": 0, "note": "not a number"}
    return [row] if name else []


def measured_on_dataset(lake: Lake, rules: PreferenceRules) -> Separation:
    """Measure the separability of what will be trained on: every split of the dataset."""
    columns = ["session_id", "chosen", "rejected"]
    return separability(lake.rows("dataset_pairs", columns=columns), rules.separability)


_COLUMNS = [
    "pair_id", "session_id", "chosen", "rejected", "tier", "outcome", "length_ratio",
    "contamination",
]  # fmt: skip


def _pairs(
    lake: Lake, days: Iterable[str], rules: NearDuplicates
) -> tuple[list[dict[str, Any]], list[tuple[str, str, Shingles]]]:
    """Return the pairs without their prompts, and what is compared of each.

    One day's prompts are in memory at a time, and only the last messages are decoded.
    """
    rows: list[dict[str, Any]] = []
    prints: list[tuple[str, str, Shingles]] = []
    for day in days:
        found = lake.rows("pairs", days=[day], columns=_COLUMNS)
        prompts = lake.read("pairs", days=[day], columns=["prompt"]).column("prompt")
        for row, prompt in zip(found, prompts, strict=True):
            tail = prompt_tail(prompt.as_py() or [], rules.tail_chars)
            action = json.dumps(row["chosen"], ensure_ascii=False)
            prints.append((row["pair_id"], row["session_id"], shingles_of(tail, action)))
        rows += found
    return rows, prints


def _per_session(pairs: Sequence[Mapping[str, Any]]) -> tuple[Measured, Measured]:
    counts = Counter(row["session_id"] for row in pairs)
    if not counts:
        none = Measured(None, 0, "not measured: no pairs")
        return none, none
    mean = counts.total() / len(counts)
    return Measured(mean, len(counts)), Measured(max(counts.values()), len(counts))


def _length_ratio(pairs: Sequence[Mapping[str, Any]]) -> dict[str, Measured]:
    ratios = [row["length_ratio"] for row in pairs if row["length_ratio"] is not None]
    if len(ratios) < 2:
        why = Measured(None, len(ratios), "not measured: fewer than 2 pairs")
        return dict.fromkeys(("p10", "p50", "p90", "chosen_longer"), why)
    cuts = quantiles(ratios, n=10, method="inclusive")
    longer = sum(ratio > 1 for ratio in ratios) / len(ratios)
    values = {"p10": cuts[0], "p50": cuts[4], "p90": cuts[8], "chosen_longer": longer}
    return {name: Measured(value, len(ratios)) for name, value in values.items()}


def _count(values: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(values).items()))
