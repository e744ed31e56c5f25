"""The quality of the preference data, of a day or of the whole lake, as numbers in the lake.

Belongs here: collecting every statistic of a scope, and writing the tables
``preference_statistics`` and ``near_duplicates``. Does not belong here: how a statistic is computed
(``rater_agreement``, ``separability``, ``near_duplicates``), its rows (``quality_rows``) and
pictures (``figures``).
"""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, compress
from statistics import quantiles
from typing import Any

import pyarrow as pa

from composer_pipeline.lake.provenance import build_id
from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences.actions.canonical import Level
from composer_pipeline.preferences.near_duplicates import (
    Shingles,
    near_duplicates,
    prompt_tail,
    shingles_of,
)
from composer_pipeline.preferences.rules import NearDuplicates, PreferenceRules
from composer_pipeline.preferences.style import Separation, separability
from composer_pipeline.preferences.vote_rows import level_of
from composer_pipeline.reports import Progress, Report

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Measured:
    """A number, what it was measured on, and why there is none where ``value`` is ``None``."""

    value: float | None
    n: int
    note: str = ""


def agreement_matrix(rows: Iterable[Row], bound: Level) -> dict[tuple[str, str], Measured]:
    """Return, for each two raters, the share of states at which they agree.

    Args:
        rows: rows of ``votes``.
        bound: the loosest level that counts, for example ``Level.L1``.

    Returns:
        (rater, rater) in alphabetical order, the agent among them, to the share of the
        states that both answered. Two raters that never met are left out.
    """
    agreed: Counter[tuple[str, str]] = Counter()
    met: Counter[tuple[str, str]] = Counter()
    for row in rows:
        raters = row["raters"]
        for i, j in combinations(range(len(raters)), 2):
            key = (min(raters[i], raters[j]), max(raters[i], raters[j]))
            met[key] += 1
            agreed[key] += level_of(row, i, j) <= bound
    return {key: Measured(agreed[key] / met[key], met[key]) for key in sorted(met)}


def nominal_alpha(units: Iterable[Sequence[str]]) -> Measured:
    """Return Krippendorff's alpha for nominal values.

    ``1 - D_o / D_e`` over the units with at least two values (Krippendorff, *Computing
    Krippendorff's Alpha-Reliability*, 2011, section C). Equal to the package
    ``krippendorff``, whose tables need units x values x values numbers: 2,000 states with
    1,000 different actions would take 16 GB there; this is linear in the values.

    Args:
        units: the values that each unit got; missing ones are left out.

    Returns:
        alpha, with ``n`` units that had two values or more. It is not defined where there
        is none, or where all values are equal.
    """
    totals: Counter[str] = Counter()
    disagreed = 0.0
    n_units = 0
    for unit in units:
        if len(unit) < 2:
            continue
        n_units += 1
        counts = Counter(unit)
        totals.update(counts)
        equal = sum(c * (c - 1) for c in counts.values())
        disagreed += (len(unit) * (len(unit) - 1) - equal) / (len(unit) - 1)
    n = totals.total()
    if not n:
        return Measured(None, 0, "not measured: no state with two voters")
    expected = (n * (n - 1) - sum(c * (c - 1) for c in totals.values())) / (n - 1)
    if expected == 0:
        return Measured(None, n_units, "not defined: every voter took the same action everywhere")
    return Measured(1 - disagreed / expected, n_units)


def alpha_by_tool(rows: Iterable[Row]) -> dict[str, Measured]:
    """Return Krippendorff's alpha of the voters' clusters, by the tool that the agent used.

    The value of a reply is its cluster, named by the cluster's action, so two voters of one
    cluster have equal values, and an action that is common at many states agrees by chance.

    Returns:
        tool to alpha; the key ``""`` is over all tools.
    """
    units: dict[str, list[list[str]]] = defaultdict(list)
    for row in rows:
        labels = [label for label in row["labels"] if label is not None]
        units[row["tool"]].append(labels)
        units[""].append(labels)
    return {tool: nominal_alpha(found) for tool, found in sorted(units.items())}


@dataclass(frozen=True)
class NoiseFloor:
    """How often teachers differ from the agent beyond the agent's own noise.

    ``teacher`` is P(teacher's action differs from the agent's), ``resample`` P(an action
    sampled again from the agent's own family differs), ``excess`` their difference, all over
    the audited states: those with a reply of a control. A control of another family is taken
    at its word: then ``resample`` is that family's disagreement. ``error`` is the standard error of
    the excess.
    """

    teacher: Measured
    resample: Measured
    excess: Measured
    error: Measured


def noise_floor(rows: Iterable[Row]) -> NoiseFloor:
    """Measure the noise floor on the states that a control answered.

    Actions differ where the vote would not link them: beyond L1 if either changes
    something, beyond L2 elsewhere. Each state counts once, however many teachers it has.
    """
    teachers: list[float] = []
    controls: list[float] = []
    asked = 0
    for row in rows:
        differs: dict[bool, list[bool]] = {True: [], False: []}
        for at in range(1, len(row["raters"])):
            strict = row["mutates"][0] or row["mutates"][at]
            bound = Level.L1 if strict else Level.L2
            differs[row["controls"][at]].append(level_of(row, 0, at) > bound)
        asked += bool(differs[True])
        if differs[True] and differs[False]:
            teachers.append(_mean(differs[False]))
            controls.append(_mean(differs[True]))
    n = len(teachers)
    if not n:
        why = "no teacher answered a state that a control answered" if asked else ""
        missing = Measured(None, 0, f"not measured: {why or 'no control replies'}")
        return NoiseFloor(missing, missing, missing, missing)
    gaps = [a - b for a, b in zip(teachers, controls, strict=True)]
    excess = _mean(gaps)
    error = Measured(None, n, "not measured: one audited state")
    if n > 1:
        variance = sum((gap - excess) ** 2 for gap in gaps) / (n - 1)
        error = Measured(math.sqrt(variance / n), n)
    return NoiseFloor(
        Measured(_mean(teachers), n), Measured(_mean(controls), n), Measured(excess, n), error
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


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


@dataclass(frozen=True)
class Leak:
    """A row that is not accounted for: its stage, its id, and what is wrong with it."""

    stage: str
    row_id: str
    what: str


#: Stage to (rows that come in, rows that go out) as SQL of (id, where, day).
_STAGES: dict[str, tuple[str, str]] = {
    # Every archived file of a trajectory was parsed, and is there with its bytes of now.
    "files": (
        "SELECT DISTINCT day || ' ' || sha256 AS id, day FROM raw_files"
        " WHERE NOT starts_with(agent_id, 'acompact')",
        "SELECT DISTINCT day || ' ' || sha256 AS id, 'sessions' AS place, day, sha256 AS why"
        " FROM sessions",
    ),
    # Every error turn that tells something has a hint.
    "hints": (
        "SELECT state_id AS id, day FROM states WHERE trim(hint) <> ''"
        " AND coalesce(error_kind, '') NOT IN ('cancelled', 'sibling_cancelled', 'sibling')",
        "SELECT state_id AS id, 'hints' AS place, day, source AS why FROM hints",
    ),
    # Every state is in the table of votes, with a reason.
    "votes": (
        "SELECT state_id AS id, day FROM states",
        "SELECT state_id AS id, 'votes' AS place, day, reason AS why FROM votes",
    ),
    # Every vote for a pair is a pair, or dropped by a rule.
    "pairs": (
        "SELECT state_id AS id, day FROM votes WHERE reason = 'pair'",
        "SELECT state_id AS id, 'pairs' AS place, day, tier AS why FROM pairs UNION ALL"
        " SELECT state_id, 'drops', day, op FROM drops WHERE stage = 'pairs'",
    ),
    "normalize": (
        "SELECT pair_id AS id, day FROM pairs",
        "SELECT pair_id AS id, 'normalized_pairs' AS place, day, recipe AS why"
        " FROM normalized_pairs UNION ALL"
        " SELECT pair_id, 'drops', day, op FROM drops WHERE stage = 'normalize'",
    ),
    "dataset": (
        "SELECT pair_id AS id, day FROM normalized_pairs",
        "SELECT pair_id AS id, 'dataset_pairs' AS place, day, recipe AS why FROM dataset_pairs"
        " UNION ALL SELECT pair_id, 'drops', day, op FROM drops WHERE stage = 'dataset'"
        # Rows of the other tables are no pairs, and a pair without a window is a pair.
        " AND (NOT contains(step, ':dataset_') OR ends_with(step, ':dataset_pairs'))",
    ),
}


def leaks(lake: Lake, stage: str, days: Iterable[str] | None = None) -> list[Leak]:
    """Return the rows of a stage that are not accounted for, by id.

    Args:
        lake: the lake.
        stage: ``files`` (archived files to sessions), ``hints`` (error turns to hints), ``votes``
            (states to votes), ``pairs`` (votes to pairs), ``normalize`` (pairs to
            normalised pairs) or ``dataset`` (normalised pairs to the dataset).
        days: only these days; all when ``None``.

    A row leaks when it comes in and is nowhere after, is in two places, came in twice, has no
    reason, or goes out without having come in.
    """
    rows_in, rows_out = _STAGES[stage]
    wanted = None if days is None else sorted(set(days))
    only = "TRUE" if wanted is None else "list_contains(?, day)"
    sql = f"""
        WITH came AS (SELECT id, count(*) AS n FROM ({rows_in}) WHERE {only} GROUP BY id),
        went AS (
          SELECT id, count(*) AS n, string_agg(place, ' and ' ORDER BY place) AS places,
                 count(nullif(why, '')) AS reasons
          FROM ({rows_out}) WHERE {only} GROUP BY id)
        SELECT coalesce(came.id, went.id), CASE
          WHEN went.id IS NULL THEN 'is lost'
          WHEN came.id IS NULL THEN 'came from nowhere, and is in ' || places
          WHEN came.n > 1 THEN 'came in ' || came.n || ' times'
          WHEN went.n > 1 THEN 'is in ' || places
          ELSE 'has no reason' END
        FROM came FULL JOIN went ON came.id = went.id
        WHERE came.id IS NULL OR went.id IS NULL OR came.n > 1 OR went.n > 1 OR went.reasons < 1
        ORDER BY 1
    """
    parameters = [] if wanted is None else [wanted, wanted]
    return [Leak(stage, str(row_id), what) for row_id, what in lake.query(sql, parameters)]
