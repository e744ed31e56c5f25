"""The quality of the preference data of a day or the whole lake: statistics, verdicts, figures.

Writes the tables ``preference_statistics`` and ``near_duplicates``.
"""

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations, compress
from statistics import quantiles
from typing import Any, Literal

import pyarrow as pa

from composer_pipeline.actions import chat_calls
from composer_pipeline.charts import bars, heatmap, lines, markdown_image
from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.lake.place import check_days
from composer_pipeline.lake.provenance import build_id
from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences.actions.canonical import Level
from composer_pipeline.preferences.near_duplicates import (
    Shingles,
    near_duplicates,
    prompt_tail,
    shingles_of,
)
from composer_pipeline.preferences.rules import NearDuplicates, PreferenceRules, Rules, rules_of
from composer_pipeline.preferences.style import Separation, separability
from composer_pipeline.preferences.vote_rows import AGENT, REASONS, level_of
from composer_pipeline.reports import Progress, Report
from composer_pipeline.teachers.value import calibration

#: The scope of statistics over every day of the lake.
ALL = "all"

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Measurement:
    """A number, its sample size, and why there is none if ``value`` is ``None``."""

    value: float | None
    n: int
    note: str = ""


Matrix = Mapping[tuple[str, str], Measurement]


def agreement_matrix(rows: Iterable[Row], bound: Level) -> dict[tuple[str, str], Measurement]:
    """Return, for each two raters in alphabetical order, the share of states they agree on.

    ``rows`` are of the table ``votes``; raters that never met are left out.
    """
    agreed: Counter[tuple[str, str]] = Counter()
    met: Counter[tuple[str, str]] = Counter()
    for row in rows:
        raters = row["raters"]
        for i, j in combinations(range(len(raters)), 2):
            key = (min(raters[i], raters[j]), max(raters[i], raters[j]))
            met[key] += 1
            agreed[key] += level_of(row, i, j) <= bound
    return {key: Measurement(agreed[key] / met[key], met[key]) for key in sorted(met)}


def nominal_alpha(units: Iterable[Sequence[str]]) -> Measurement:
    """Return Krippendorff's alpha for nominal values; ``units`` are the values that each one got.

    ``1 - D_o / D_e`` over the units with at least two values, which ``n`` counts (Krippendorff,
    *Computing Krippendorff's Alpha-Reliability*, 2011, section C).
    """
    # The package krippendorff needs units x values x values numbers: 16 GB for 2,000 states with
    # 1,000 different actions. This is linear in the values.
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
        return Measurement(None, 0, "not measured: no state with two voters")
    expected = (n * (n - 1) - sum(c * (c - 1) for c in totals.values())) / (n - 1)
    if expected == 0:
        note = "not defined: every voter took the same action everywhere"
        return Measurement(None, n_units, note)
    return Measurement(1 - disagreed / expected, n_units)


def _alpha_by_tool(rows: Iterable[Row]) -> dict[str, Measurement]:
    """Return alpha of the voters' clusters by the agent's tool; the key ``""`` is over all."""
    units: dict[str, list[list[str]]] = defaultdict(list)
    for row in rows:
        labels = [label for label in row["labels"] if label is not None]
        units[row["tool"]].append(labels)
        units[""].append(labels)
    return {tool: nominal_alpha(found) for tool, found in sorted(units.items())}


@dataclass(frozen=True)
class NoiseFloor:
    """How often teachers differ from the agent beyond the agent's own noise.

    Over the states with a reply of a control. A control of another family counts like one of the
    agent's: then ``resample`` is that family's disagreement.
    """

    teacher: Measurement  #: P(a teacher's action differs from the agent's)
    resample: Measurement  #: P(an action sampled again from the agent's family differs)
    excess: Measurement  #: teacher - resample
    error: Measurement  #: standard error of the excess


def noise_floor(rows: Iterable[Row]) -> NoiseFloor:
    """Measure the noise floor on the states that a control answered.

    Actions differ if the vote would not link them: beyond L1 if either changes something, else
    beyond L2. Each state counts once, however many teachers it has.
    """
    teachers: list[float] = []
    controls: list[float] = []
    any_control = False
    for row in rows:
        differs: dict[bool, list[bool]] = {True: [], False: []}
        for at in range(1, len(row["raters"])):
            bound = Level.L1 if row["mutates"][0] or row["mutates"][at] else Level.L2
            differs[row["controls"][at]].append(level_of(row, 0, at) > bound)
        any_control |= bool(differs[True])
        if differs[True] and differs[False]:
            teachers.append(_mean(differs[False]))
            controls.append(_mean(differs[True]))
    n = len(teachers)
    if not n:
        unmet = "no teacher answered a state that a control answered"
        why = unmet if any_control else "no control replies"
        missing = Measurement(None, 0, f"not measured: {why}")
        return NoiseFloor(missing, missing, missing, missing)
    gaps = [a - b for a, b in zip(teachers, controls, strict=True)]
    excess = _mean(gaps)
    error = Measurement(None, n, "not measured: one audited state")
    if n > 1:
        variance = sum((gap - excess) ** 2 for gap in gaps) / (n - 1)
        error = Measurement(math.sqrt(variance / n), n)
    return NoiseFloor(
        Measurement(_mean(teachers), n),
        Measurement(_mean(controls), n),
        Measurement(excess, n),
        error,
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


#: An action that was chosen in so many sessions fits nearly any state.
_ANYWHERE = 5


@dataclass(frozen=True)
class Sides:
    """What the sides of pairs are; all but ``distinct`` count pairs."""

    distinct: int = 0  #: different chosen actions
    anywhere: int = 0  #: whose chosen action was chosen in five or more sessions
    right_checks: int = 0  #: whose rejected action ran a test, linter or build and was no mistake
    one_project: int = 0  #: of the project with most


def sides_of(pairs: Sequence[Row]) -> Sides:
    """Count over rows of ``pairs``."""
    chosen = [_told(row["chosen"]) for row in pairs]
    sessions: dict[str, set[str]] = defaultdict(set)
    for row, action in zip(pairs, chosen, strict=True):
        sessions[action].add(row["session_id"])
    projects = Counter(row["project"] for row in pairs)
    return Sides(
        distinct=len(sessions),
        anywhere=sum(len(sessions[action]) >= _ANYWHERE for action in chosen),
        right_checks=sum(row["outcome"] != "student_bad" and _checks(row) for row in pairs),
        one_project=max(projects.values(), default=0),
    )


def _told(messages: Sequence[Row]) -> str:
    """Return what tells actions apart: calls without their descriptions, else the text."""
    calls: list[Any] = [
        (name, {**given, "description": ""}) for name, given in chat_calls(*messages)
    ]
    return json.dumps(calls or [message.get("content") for message in messages], sort_keys=True)


#: A command that runs tests, a linter, a type checker or a build.
_CHECK = re.compile(
    r"(?:^|[;&|(]\s*|\b(?:npx|run|exec|bunx?|pnpm|yarn|npm|uvx|python3?\s+-m|mix|rake)\s+)"
    r"(?:\w+=\S+\s+)*(?:pytest|tox|nox|mypy|pyright|ruff|flake8|pylint|tsc|eslint|biome|jest|vitest"
    r"|mocha|playwright|rspec|rubocop|phpunit|phpstan|ctest|cmake|make|ninja|javac|golangci-lint"
    r"|staticcheck|pre-commit|test|tests|lint|build|typecheck|check|unittest|xcodebuild|swift"
    r"|go\s+(?:test|vet|build)|cargo\s+(?:test|check|build|clippy)|dotnet\s+(?:test|build)"
    r"|\S*gradlew?\b|mvn)\b"
)


def _checks(row: Row) -> bool:
    return any(
        _CHECK.search(str(given.get("command", ""))) for _, given in chat_calls(*row["rejected"])
    )


@dataclass(frozen=True)
class Quality:
    """The statistics of a scope."""

    matrix: Mapping[str, Matrix]  #: by level, ``L1`` and ``L2``
    alpha: Mapping[str, Measurement]  #: by tool, ``""`` for all of them
    noise: NoiseFloor
    separation: Separation
    funnel: Mapping[str, int]  #: rows from states to the dataset, in order
    reasons: Mapping[str, int]  #: states by the outcome of their vote
    outcomes: Mapping[str, int]
    tiers: Mapping[str, int]
    agents: Mapping[str, int]  # pairs by whose session they are of
    drops: Mapping[str, int]
    per_session: tuple[Measurement, Measurement]  #: mean and largest, of sessions with pairs
    length_ratio: Mapping[str, Measurement]  #: deciles 1, 5 and 9 of chosen to rejected
    contaminated: int
    pairs: int
    near: Sequence[Mapping[str, Any]] = ()  #: rows of the table ``near_duplicates``
    controls: Mapping[str, int] = field(default_factory=dict)  #: states that each one answered
    sides: Sides = Sides()
    prompts: Mapping[str, Measurement] = field(default_factory=dict)  #: share of pairs, by prompt
    #: Predicted and observed share of pairs; see ``teachers.value.calibration``.
    chances: Mapping[str, Measurement] = field(default_factory=dict)

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of ``preference_statistics``, in a fixed order."""
        out: list[dict[str, Any]] = []

        def put(name: str, found: Measurement, a: str = "", b: str = "", tool: str = "") -> None:
            row = {"statistic": name, "a": a, "b": b, "tool": tool}
            out.append({**row, "value": found.value, "n": found.n, "note": found.note})

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
        put("separability_auc", Measurement(apart.auc, apart.pairs, apart.note))
        put("separability_auc_error", Measurement(apart.error, apart.pairs, apart.note))
        for name, weight in apart.weights.items():
            put("separability_weight", Measurement(weight, apart.pairs), name)
        put("pairs_per_session_mean", self.per_session[0])
        put("pairs_per_session_max", self.per_session[1])
        for statistic, measured in (
            ("length_ratio", self.length_ratio),
            ("pair_share_by_prompt", self.prompts),
            ("pair_chance", self.chances),
        ):
            for name, found in measured.items():
                put(statistic, found, name)
        states = self.funnel.get("states", 0)
        for statistic, counts, of in (
            ("rows", self.funnel, states),
            ("states_by_reason", self.reasons, states),
            ("control_replies", self.controls, states),
            ("pairs_by_outcome", self.outcomes, self.pairs),
            ("pairs_by_tier", self.tiers, self.pairs),
            ("pairs_by_agent", self.agents, self.pairs),
            ("pairs_dropped", self.drops, self.funnel.get("candidates", 0)),
            ("pairs_by_sides", asdict(self.sides), self.pairs),
        ):
            for name, count in counts.items():
                put(statistic, Measurement(count, of), name)
        put("contaminated_pairs", Measurement(self.contaminated, self.pairs))
        put("near_duplicate_pairs", Measurement(len(self.near), self.pairs))
        put("near_duplicates_across_sessions", Measurement(self.near_across, self.pairs))
        return out

    @property
    def near_across(self) -> int:
        """The number of pairs with a near-duplicate in another session."""
        return sum(not row["same_session"] for row in self.near)


@dataclass(frozen=True)
class StatisticsReport(Report):
    """The statistics of each scope that was measured: a day, or :data:`ALL`."""

    by_scope: dict[str, Quality]

    def to_dict(self) -> dict[str, Any]:
        """Return each scope's rows of ``preference_statistics``."""
        return {scope: quality.rows() for scope, quality in self.by_scope.items()}


_VOTE_COLUMNS = [
    "reason", "n_families", "n_agree", "tool", "raters", "controls", "mutates", "labels", "levels",
    "windowed",
]  # fmt: skip
_PAIR_COLUMNS = [
    "pair_id", "session_id", "project", "chosen", "rejected", "tier", "outcome", "length_ratio",
    "contamination",
]  # fmt: skip


class _Votes:
    """Rows of ``votes``, made again at each pass: as dictionaries they take 10x the memory."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self._table.to_batches(max_chunksize=1024):
            yield from batch.to_pylist()


def measure(lake: Lake, scope: str = ALL, *, rules: Rules = None, built: bool = True) -> Quality:
    """Compute the statistics of a day, or of every day of the lake.

    For :data:`ALL` the separability is that of ``dataset_pairs``, once the dataset has been built;
    that of the pairs without ``built``.
    """
    rules = rules_of(rules)
    days = lake.days("votes") if scope == ALL else [scope]
    votes = _Votes(lake.read("votes", days=days, columns=_VOTE_COLUMNS))
    pairs, prints = _pairs(lake, days, rules.near_duplicates)
    drops = (lake.rows("drops", days=[day], stage="pairs", columns=["op"]) for day in days)
    sessions = lake.rows("sessions", days=days, columns=["session_id", "agent"])
    agent_of = {row["session_id"]: row["agent"] for row in sessions}
    counted, reasons, controls = Counter[str](), Counter[str](), Counter[str]()
    by_prompt: dict[str, list[bool]] = {"full": [], "window": []}
    for row in votes:
        if row["n_families"] >= 2:
            by_prompt["window" if row["windowed"] else "full"].append(row["reason"] == "pair")
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
        # A day's statistics are computed with its pairs, before these stages.
        for name, table in (("normalised", "normalized_pairs"), ("dataset", "dataset_pairs")):
            funnel[name] = lake.read(table, columns=["pair_id"]).num_rows
    return Quality(
        matrix={bound.label: agreement_matrix(votes, bound) for bound in (Level.L1, Level.L2)},
        alpha=_alpha_by_tool(votes),
        noise=noise_floor(votes),
        separation=(
            measured_on_dataset(lake, rules)
            if built and funnel.get("dataset")
            else separability(pairs, rules.separability)
        ),
        funnel=funnel,
        reasons=dict(sorted(reasons.items())),
        outcomes=_count(row["outcome"] or "unknown" for row in pairs),
        tiers=_count(row["tier"] for row in pairs),
        agents=_count(agent_of.get(row["session_id"], "") for row in pairs),
        drops=_count(row["op"] for rows in drops for row in rows),
        per_session=_per_session(pairs),
        length_ratio=_length_ratio(pairs),
        contaminated=sum(bool(row["contamination"]) for row in pairs),
        pairs=len(pairs),
        near=near_duplicates(prints, rules.near_duplicates),
        controls=dict(sorted(controls.items())),
        sides=sides_of(pairs),
        prompts={name: Measurement(_mean(v), len(v)) for name, v in by_prompt.items() if v},
        chances=_chances(lake, days),
    )


def _chances(lake: Lake, days: Sequence[str]) -> dict[str, Measurement]:
    columns = ["session_id", "features", "reason", "n_families"]
    return {
        f"{kind} in fifth {at}": Measurement(value, states)
        for at, (told, seen, states) in enumerate(
            calibration(lake.rows("votes", days=days, columns=columns)), start=1
        )
        for kind, value in (("predicted", told), ("observed", seen))
    }


def write_statistics(
    lake: Lake,
    *,
    days: Iterable[str] | None = None,
    rules: Rules = None,
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
    scopes = [ALL] if days is None else check_days(days)
    by_scope: dict[str, Quality] = {}
    for done, scope in enumerate(scopes, start=1):
        by_scope[scope] = measure(lake, scope, rules=rules)
        _store(lake, scope, by_scope[scope], rules_of(rules))
        if progress:
            progress("statistics", done, len(scopes))
    return StatisticsReport(by_scope)


def read_statistics(lake: Lake, scope: str = ALL) -> list[dict[str, Any]]:
    """Return the stored statistics of a day, or of the whole lake, as rows.

    Each has ``statistic``, what it is of (``a``, ``b``, ``tool``), ``value``, ``n`` and ``note``.

    Raises:
        InputError: nothing was measured yet.
    """
    rows = lake.rows("preference_statistics", scope=scope)
    if not rows:
        raise InputError(f"lake {lake.url} has no statistics of {scope}; run statistics")
    return [row for row in rows if row["statistic"] not in ("build", "verdict")]


def write_of_dataset(lake: Lake, quality: Quality, rules: PreferenceRules) -> Quality:
    """Store what was measured before a build of the dataset as that build's; return it."""
    rows = lake.read("dataset_pairs", columns=["pair_id"]).num_rows
    found = replace(
        quality,
        separation=measured_on_dataset(lake, rules),
        funnel={**quality.funnel, "dataset": rows},
    )
    _store(lake, ALL, found, rules)
    return found


def _store(lake: Lake, scope: str, quality: Quality, rules: PreferenceRules) -> None:
    rows = quality.rows()
    rows += [
        {"statistic": "verdict", "a": verdict.figure, "b": verdict.word, "tool": "", "value": None,
         "n": quality.pairs, "note": verdict.sentence}
        for verdict in verdicts(quality, rules)
    ]  # fmt: skip
    if scope == ALL and (build := build_id(lake)):
        # The build of the dataset that was measured.
        note = {"a": build, "b": "", "tool": "", "n": 0, "note": "not a number"}
        rows.append({"statistic": "build", **note})
    lake.write("preference_statistics", rows, scope=scope)
    lake.write("near_duplicates", [dict(row) for row in quality.near], scope=scope)


def measured_on_dataset(lake: Lake, rules: PreferenceRules) -> Separation:
    """Measure the separability of every split of the dataset."""
    columns = ["session_id", "chosen", "rejected"]
    return separability(lake.rows("dataset_pairs", columns=columns), rules.separability)


def _pairs(
    lake: Lake, days: Iterable[str], rules: NearDuplicates
) -> tuple[list[dict[str, Any]], list[tuple[str, str, Shingles]]]:
    """Return the pairs without prompts, and (pair id, session id, shingles) of each.

    One day's prompts are in memory at a time, and only the last messages are decoded.
    """
    rows: list[dict[str, Any]] = []
    prints: list[tuple[str, str, Shingles]] = []
    for day in days:
        of_day = lake.rows("pairs", days=[day], columns=_PAIR_COLUMNS)
        prompts = lake.read("pairs", days=[day], columns=["prompt"]).column("prompt")
        for row, prompt in zip(of_day, prompts, strict=True):
            tail = prompt_tail(prompt.as_py() or [], rules.tail_chars)
            action = json.dumps(row["chosen"], ensure_ascii=False)
            prints.append((row["pair_id"], row["session_id"], shingles_of(tail, action)))
        rows += of_day
    return rows, prints


def _per_session(pairs: Sequence[Row]) -> tuple[Measurement, Measurement]:
    counts = Counter(row["session_id"] for row in pairs)
    if not counts:
        none = Measurement(None, 0, "not measured: no pairs")
        return none, none
    mean = counts.total() / len(counts)
    return Measurement(mean, len(counts)), Measurement(max(counts.values()), len(counts))


def _length_ratio(pairs: Sequence[Row]) -> dict[str, Measurement]:
    ratios = [row["length_ratio"] for row in pairs if row["length_ratio"] is not None]
    if len(ratios) < 2:
        why = Measurement(None, len(ratios), "not measured: fewer than 2 pairs")
        return dict.fromkeys(("p10", "p50", "p90", "chosen_longer"), why)
    cuts = quantiles(ratios, n=10, method="inclusive")
    longer = sum(ratio > 1 for ratio in ratios) / len(ratios)
    values = {"p10": cuts[0], "p50": cuts[4], "p90": cuts[8], "chosen_longer": longer}
    return {name: Measurement(value, len(ratios)) for name, value in values.items()}


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
    # Every archived file of a trajectory was parsed, with its current bytes.
    "files": (
        "SELECT DISTINCT day || ' ' || sha256 AS id, day FROM raw_files"
        " WHERE NOT starts_with(agent_id, 'acompact')",
        "SELECT DISTINCT day || ' ' || sha256 AS id, 'sessions' AS place, day, sha256 AS why"
        " FROM sessions",
    ),
    # Every action that an error turn blames has a hint.
    "hints": (
        "SELECT DISTINCT id, day FROM (SELECT culprit_state_id AS id, lesson, day FROM states"
        " UNION ALL SELECT error ->> 'culprit_state_id', error ->> 'lesson', day"
        " FROM (SELECT unnest(more_failures)::JSON AS error, day FROM states))"
        " WHERE trim(lesson) <> '' AND id <> ''",
        "SELECT state_id AS id, 'hints' AS place, day, source AS why FROM hints",
    ),
    # Every state is in the table of votes, with a reason.
    "votes": (
        "SELECT state_id AS id, day FROM states",
        "SELECT state_id AS id, 'votes' AS place, day, reason AS why FROM votes",
    ),
    # Every vote for a pair is a pair, or dropped by a rule. The agent against itself has no vote.
    "pairs": (
        "SELECT state_id AS id, day FROM votes WHERE reason = 'pair'",
        "SELECT state_id AS id, 'pairs' AS place, day, tier AS why FROM pairs"
        " WHERE coalesce(source, 'teachers') = 'teachers' UNION ALL"
        " SELECT state_id, 'drops', day, op FROM drops WHERE stage = 'pairs'"
        " AND NOT (ends_with(step, ':fixup') OR ends_with(step, ':recovery')"
        " OR ends_with(step, ':hindsight'))",
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
    """Return the rows of a stage of :data:`_STAGES` that are not accounted for, by id.

    A row leaks if it comes in and is nowhere after, is in two places, came in twice, has no
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


#: More raters than this do not fit a page.
MAX_RATERS = 12


def agreement_figure(quality: Quality, level: str = "L2") -> str:
    """Return Markdown with the heatmap of agreement at ``L1`` or ``L2``, the agent first."""
    matrix = quality.matrix[level]
    names = sorted({name for pair in matrix for name in pair}, key=lambda n: (n != AGENT, n))
    if not names:
        return "Nothing to compare: no state has a usable reply."
    cells = {key: (found.value or 0.0, found.n) for key, found in matrix.items()}
    note = f"\n\n{len(names) - MAX_RATERS} more are not drawn." if len(names) > MAX_RATERS else ""
    alt = f"agreement heatmap: share of states on which two agree at {level} or finer"
    return markdown_image(heatmap(names[:MAX_RATERS], cells), alt) + note


def funnel_figure(quality: Quality) -> str:
    """Return Markdown with the rows that are left after each stage."""
    return markdown_image(bars(quality.funnel), "funnel: rows from states to the dataset")


def separability_figure(found: Separation, bound: float) -> str:
    """Return Markdown with the ROC curve of chosen against rejected, or why there is none."""
    if found.auc is None:
        return f"Separability was {found.note}."
    picture = lines(
        {"style": found.roc, "chance": ((0.0, 0.0), (1.0, 1.0))},
        unit="of the chosen",
        x_unit="of the rejected",
    )
    strongest = sorted(found.weights.items(), key=lambda item: -abs(item[1]))[:5]
    features = ", ".join(f"{name} {weight:+.2f}" for name, weight in strongest)
    return (
        markdown_image(picture, "separability: ROC of a classifier that sees only style")
        + f"\n\nAUC {found.auc:.3f} ± {found.error or 0:.3f} on {found.pairs} pairs of"
        f" {found.sessions} sessions; the bound is {bound:g}. Strongest features (standardized"
        f" coefficients, positive for chosen): {features}."
    )


Table = list[dict[str, str | int | float | bool | None]]


def reason_table(quality: Quality) -> Table:
    """Return how many states became a pair, or not and why, in words."""
    return [
        {"reason": reason, "states": quality.reasons[reason], "meaning": meaning}
        for reason, meaning in REASONS.items()
        if reason in quality.reasons
    ]


def alpha_table(quality: Quality) -> Table:
    """Return Krippendorff's alpha by tool, the most states first."""
    return [
        {
            "tool": tool or "all tools",
            "alpha": None if found.value is None else round(found.value, 4),
            "states": found.n,
            "note": found.note,
        }
        for tool, found in sorted(quality.alpha.items(), key=lambda item: (-item[1].n, item[0]))
    ]


def agreement_table(quality: Quality) -> Table:
    """Return the agreement of each two raters at both levels."""
    strict = quality.matrix["L1"]
    return [
        {
            "a": a,
            "b": b,
            "at_L1": round(strict[a, b].value or 0.0, 4),
            "at_L2": round(found.value or 0.0, 4),
            "states": found.n,
        }
        for (a, b), found in quality.matrix["L2"].items()
    ]


#: Krippendorff: below it not even tentative conclusions.
_LEAST_ALPHA = 0.667
#: Standard errors that the excess over the noise floor must be away from 0.
_SURE = 2.0
#: The largest session's share of the pairs, and of near-duplicates across sessions.
_MOST_OF_ONE_SESSION, _MOST_REPEATS = 0.1, 0.01
#: Median length of chosen to rejected.
_LENGTHS = (2 / 3, 3 / 2)
#: Beyond these the pairs are refused; by length from so many on.
_MOST_AUC, _FAR, _FEW = 0.9, (1 / 4, 4), 50


@dataclass(frozen=True)
class QualityVerdict:
    """A figure's name, its verdict, and a sentence that says why."""

    figure: str
    word: Literal["good", "look", "refused", "not measured"]
    sentence: str
    gate: str = ""  #: its name in ``accept`` of the preference recipe, if a dataset can be refused


def verdicts(quality: Quality, rules: PreferenceRules) -> list[QualityVerdict]:
    """Return what a person should know before training on this data, the votes first."""
    figures = [
        _alpha(quality),
        _excess(quality),
        _separability(quality, rules.separability.max_auc),
        _lengths(quality),
        _sessions(quality),
    ]
    if quality.pairs >= rules.separability.min_pairs:
        figures += _of_sides(quality.sides, quality.pairs)
    if pairs := quality.pairs:
        across, count = quality.near_across, quality.contaminated
        share = across / pairs
        sentence = f"{across} near-duplicates across sessions among {pairs} pairs ({share:.1%})."
        figures.append(_judged("repeats", share <= _MOST_REPEATS, sentence))
        sentence = f"{count} of {pairs} pairs are from sessions on a benchmark's repository."
        figures.append(_judged("benchmarks", not count, sentence))
    return figures


def check_gates(quality: Quality, rules: PreferenceRules) -> dict[str, str]:
    """Refuse pairs that no model should be trained on; return what the recipe lets through.

    Raises:
        ComposerError: a verdict is ``refused`` and its gate is not in ``accept`` of the recipe.
    """
    refused = [verdict for verdict in verdicts(quality, rules) if verdict.word == "refused"]
    stopped = [verdict for verdict in refused if verdict.gate not in rules.accept]
    if stopped:
        names = ", ".join(verdict.gate for verdict in stopped)
        raise ComposerError(
            "the pairs are refused: "
            + " ".join(f"{verdict.gate}: {verdict.sentence}" for verdict in stopped)
            + f" Look at some with composer-pipeline pair; accept: [{names}] in the preference"
            " recipe lets them through, and card and report say so."
        )
    return {verdict.gate: verdict.sentence for verdict in refused}


def _judged(
    figure: str, good: bool, sentence: str, gate: str = "", *, refused: bool = False
) -> QualityVerdict:
    return QualityVerdict(
        figure, "refused" if refused else "good" if good else "look", sentence, gate
    )


#: Shares of the pairs from which on they are refused; of one project only a look.
_LEAST_DISTINCT, _MOST_ANYWHERE, _MOST_CHECKS, _MOST_OF_ONE_PROJECT = 0.2, 1 / 3, 1 / 3, 0.9


def _of_sides(sides: Sides, pairs: int) -> Iterator[QualityVerdict]:
    for figure, gate, count, least, most, what in (
        ("variety", "variety", sides.distinct, _LEAST_DISTINCT, 1.0, "different chosen actions in"),
        ("fits anywhere", "anywhere", sides.anywhere, 0.0, _MOST_ANYWHERE,
         f"chosen actions that were chosen in {_ANYWHERE} or more sessions, in"),
        ("right checks", "checks", sides.right_checks, 0.0, _MOST_CHECKS,
         "rejected actions that ran a test, linter or build and were no mistake, in"),
    ):  # fmt: skip
        share = count / pairs
        good = least <= share <= most
        sentence = f"{count} {what} {pairs} pairs ({share:.1%})"
        bound = f"at least {least:.0%}" if least else f"at most {most:.0%}"
        told = "." if good else f", and {bound} is right."
        yield _judged(figure, good, sentence + told, gate, refused=not good)
    share = sides.one_project / pairs
    sentence = f"{sides.one_project} of {pairs} pairs are of one project ({share:.0%})."
    yield _judged("one project", share <= _MOST_OF_ONE_PROJECT, sentence)


def _unmeasured(figure: str, why: str, remedy: str = "") -> QualityVerdict:
    reason = why.removeprefix("not measured: ").removeprefix("not measured") or "no data"
    return QualityVerdict(figure, "not measured", f"{reason.capitalize()}{remedy}.")


def _alpha(quality: Quality) -> QualityVerdict:
    name, found = "teachers' agreement", quality.alpha.get("", Measurement(None, 0))
    if found.value is None:
        return _unmeasured(name, found.note, "; ask at least two families of teachers")
    value = f"Krippendorff's alpha is {found.value:.2f}"
    if found.value >= _LEAST_ALPHA:
        return _judged(name, True, f"{value}.")
    by_tool = {tool: m.value for tool, m in quality.alpha.items() if tool and m.n >= 10}
    known = {tool: value for tool, value in by_tool.items() if value is not None}
    worst = min(known, key=lambda tool: known[tool], default="")
    where = f"; they differ most on {worst} ({known[worst]:.2f})" if worst else ""
    return _judged(
        name, False,
        f"{value}, below {_LEAST_ALPHA}: teachers often do different things{where}. Read pairs"
        " before you trust them.",
    )  # fmt: skip


def _excess(quality: Quality) -> QualityVerdict:
    name, excess, error = "beyond the noise floor", quality.noise.excess, quality.noise.error
    if excess.value is None or error.value is None:
        remedy = "; a teacher with control: true measures it"
        return _unmeasured(name, excess.note or error.note, remedy)
    sentence = (
        f"Teachers differ from the agent {excess.value:+.2f} more than it from itself"
        f" (± {error.value:.2f})"
    )
    if excess.value > _SURE * error.value:
        return _judged(name, True, f"{sentence}.")
    hint = "no more than chance may explain. Ask the control about more states."
    return _judged(name, False, f"{sentence}: {hint}")


def _separability(quality: Quality, bound: float) -> QualityVerdict:
    name, found = "told apart by style", quality.separation
    if found.auc is None:
        return _unmeasured(name, found.note, "; more pairs and sessions are needed")
    if found.auc <= bound:
        return _judged(name, True, f"Style alone gives AUC {found.auc:.2f}, at most {bound}.")
    first = max(found.weights, key=lambda feature: abs(found.weights[feature]), default="")
    return _judged(
        name, False,
        f"Style alone tells chosen from rejected (AUC {found.auc:.2f}, above {bound}), most of all"
        f" {first}: a model may learn that in place of the better action.",
        "style", refused=found.auc > _MOST_AUC,
    )  # fmt: skip


def _lengths(quality: Quality) -> QualityVerdict:
    name, found = "lengths", quality.length_ratio.get("p50", Measurement(None, 0))
    if found.value is None:
        return _unmeasured(name, found.note)
    sentence = f"The median chosen action has {found.value:.2f} of the rejected one's characters"
    good = _LENGTHS[0] <= found.value <= _LENGTHS[1]
    told = sentence + ("." if good else ": a model may learn length.")
    refused = found.n >= _FEW and not _FAR[0] <= found.value <= _FAR[1]
    return _judged(name, good, told, "lengths", refused=refused)


def _sessions(quality: Quality) -> QualityVerdict:
    name, most = "spread over sessions", quality.per_session[1]
    if most.value is None or not quality.pairs:
        return _unmeasured(name, most.note)
    share = most.value / quality.pairs
    sentence = f"The session with most pairs has {most.value:.0f} of {quality.pairs} ({share:.0%})"
    good = share <= _MOST_OF_ONE_SESSION
    remedy = "; max_pairs_per_session of the preference recipe caps it."
    return _judged(name, good, sentence + ("." if good else remedy))
