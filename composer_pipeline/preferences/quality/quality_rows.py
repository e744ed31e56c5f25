"""The statistics of a scope, as values and as rows of ``preference_statistics``.

Does not belong here: computing them (``preferences.quality.statistics``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from composer_pipeline.preferences.quality.noise_floor import NoiseFloor
from composer_pipeline.preferences.quality.rater_agreement import Measured
from composer_pipeline.preferences.quality.separability import Separation
from composer_pipeline.reports import Report

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


@dataclass(frozen=True)
class StatisticsReport(Report):
    """The statistics of each scope that was measured: a day, or :data:`ALL`."""

    by_scope: dict[str, Quality]

    def to_dict(self) -> dict[str, Any]:
        """Return each scope's rows of ``preference_statistics``."""
        return {scope: quality.rows() for scope, quality in self.by_scope.items()}
