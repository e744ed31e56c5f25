"""The quality of the preference data, of a day or of the whole lake, as numbers in the lake.

Belongs here: collecting every statistic of a scope into one :class:`Quality`, and writing the
tables ``preference_statistics`` and ``near_duplicates``. Does not belong here: how a statistic
is computed (``agreement``, ``separability``, ``duplicates``) or drawn (``plots``).
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import quantiles
from typing import Any

from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences.actions.levels import Level
from composer_pipeline.preferences.quality.near_duplicates import (
    Shingles,
    near_duplicates,
    prompt_tail,
    shingles_of,
)
from composer_pipeline.preferences.quality.rater_agreement import (
    Measured,
    NoiseFloor,
    agreement_matrix,
    alpha_by_tool,
    noise_floor,
)
from composer_pipeline.preferences.quality.separability import Separation, separability
from composer_pipeline.preferences.rules import NearDuplicates, PreferenceRules
from composer_pipeline.reports import Progress, Report

#: The scope of statistics over every day of the lake.
ALL = "all"

Matrix = Mapping[tuple[str, str], Measured]


@dataclass(frozen=True)
class Quality:
    """The statistics of a scope.

    ``matrix`` is by level (``L1``, ``L2``), ``alpha`` by tool with ``""`` for all of them,
    ``funnel`` rows from states to the dataset in order, ``reasons`` states by what came of
    their vote, ``outcomes`` and ``tiers`` pairs, ``per_session`` (mean, largest) pairs of the
    sessions that have any, ``length_ratio`` the deciles 1, 5 and 9 of chosen to rejected.
    ``near`` are rows of the table ``near_duplicates``; ``contaminated`` counts flagged pairs,
    ``controls`` the states that each control answered: they are raters without a vote.
    """

    scope: str
    matrix: Mapping[str, Matrix]
    alpha: Mapping[str, Measured]
    noise: NoiseFloor
    separation: Separation
    funnel: Mapping[str, int]
    reasons: Mapping[str, int]
    outcomes: Mapping[str, int]
    tiers: Mapping[str, int]
    drops: Mapping[str, int]
    per_session: tuple[Measured, Measured]
    length_ratio: Mapping[str, Measured]
    contaminated: int
    pairs: int
    near: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    controls: Mapping[str, int] = field(default_factory=dict)

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of ``preference_statistics``, in a fixed order."""
        out: list[dict[str, Any]] = []

        def put(name: str, found: Measured, a: str = "", b: str = "", tool: str = "") -> None:
            out.append(
                {
                    "statistic": name,
                    "a": a,
                    "b": b,
                    "tool": tool,
                    "value": found.value,
                    "n": found.n,
                    "note": found.note,
                }
            )

        for label, matrix in self.matrix.items():
            for (a, b), found in matrix.items():
                put(f"agreement_{label}", found, a, b)
        for tool, found in self.alpha.items():
            put("krippendorff_alpha", found, tool=tool)
        put("teacher_disagreement", self.noise.teacher)
        put("resample_disagreement", self.noise.resample)
        put("excess_disagreement", self.noise.excess)
        put("excess_disagreement_error", self.noise.error)
        apart = self.separation
        put("separability_auc", Measured(apart.auc, apart.pairs, apart.note))
        put("separability_auc_error", Measured(apart.error, apart.pairs, apart.note))
        for name, weight in apart.weights.items():
            put("separability_weight", Measured(weight, apart.pairs), name)
        put("pairs_per_session_mean", self.per_session[0])
        put("pairs_per_session_max", self.per_session[1])
        for name, found in self.length_ratio.items():
            put("length_ratio", found, name)
        states = self.funnel.get("states", 0)
        for statistic, counts, of in (
            ("rows", self.funnel, states),
            ("states_by_reason", self.reasons, states),
            ("control_replies", self.controls, states),
            ("pairs_by_outcome", self.outcomes, self.pairs),
            ("pairs_by_tier", self.tiers, self.pairs),
            ("pairs_dropped", self.drops, self.funnel.get("candidates", 0)),
        ):
            for name, count in counts.items():
                put(statistic, Measured(count, of), name)
        put("contaminated_pairs", Measured(self.contaminated, self.pairs))
        put("near_duplicate_pairs", Measured(len(self.near), self.pairs))
        put(
            "near_duplicates_across_sessions",
            Measured(sum(not row["same_session"] for row in self.near), self.pairs),
        )
        return out


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
    votes = lake.rows("votes", days=days)
    pairs, prints = _pairs(lake, days, rules.near_duplicates)
    dropped = Counter(
        row["op"]
        for day in days
        for row in lake.rows("drops", days=[day], stage="pairs", columns=["op"])
    )
    reasons = Counter(row["reason"] for row in votes)
    funnel = {
        "states": lake.read("states", days=days, columns=["state_id"]).num_rows,
        "voted": sum(row["n_families"] >= 2 for row in votes),
        "consensus": sum(row["n_agree"] > 0 for row in votes),
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
        controls=_count(
            name
            for row in votes
            for name, control in zip(row["raters"], row["controls"], strict=True)
            if control
        ),
    )


@dataclass(frozen=True)
class StatisticsReport(Report):
    """The statistics of each scope that was measured: a day, or :data:`ALL`."""

    by_scope: dict[str, Quality]

    def to_dict(self) -> dict[str, Any]:
        """Return each scope's rows of ``preference_statistics``."""
        return {scope: quality.rows() for scope, quality in self.by_scope.items()}


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
        lake.write("preference_statistics", quality.rows(), scope=scope)
        lake.write("near_duplicates", [dict(row) for row in quality.near], scope=scope)
        if progress:
            progress("statistics", done, len(scopes))
    return StatisticsReport(found)


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
