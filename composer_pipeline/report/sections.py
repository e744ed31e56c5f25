"""The report's sections on the data: where pairs come from, who agreed, who answered, what failed.

Belongs here: words around numbers. Does not belong here: training (``report.training``), pairs
(``report.pairs``), and counting.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composer_pipeline.charts import bars, heatmap, intervals
from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.markdown import count, dollars, share
from composer_pipeline.preferences.rules import Separability
from composer_pipeline.preferences.vote_rows import AGENT, REASONS
from composer_pipeline.publishing.card import Facts
from composer_pipeline.report.html import Html, drawn, el, table
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.run import RESULT, finished
from composer_pipeline.training.runs import dataset_digest


@dataclass(frozen=True)
class Replies:
    """A teacher's replies on the days of the dataset. Latency in milliseconds, cost in USD."""

    teacher: str
    model: str
    family: str
    replies: int
    usable: int
    cost_usd: float
    p50_ms: float | None
    p95_ms: float | None
    tokens: float | None


def replies_by_teacher(lake: Lake, days: Iterable[str]) -> list[Replies]:
    """Return every teacher that answered on some days, by name."""
    rows = _ask(
        lake, "replies", days,
        "SELECT teacher, max(model), max(family), count(*), count(*) FILTER (status = 'ok'),"
        " coalesce(sum(cost_picodollars), 0)::DOUBLE / 1e12, quantile_disc(latency_ms, 0.5),"
        " quantile_disc(latency_ms, 0.95), quantile_disc(completion_tokens, 0.5)"
        " FROM replies WHERE {days} GROUP BY teacher ORDER BY teacher",
    )  # fmt: skip
    return [Replies(*row) for row in rows]


def errors(lake: Lake, days: Iterable[str]) -> list[tuple[str, int, int]]:
    """Return (kind, states whose action failed so, of these with a hint), the most first."""
    rows = _ask(
        lake, "states", days,
        "SELECT error_kind, count(*), count(hint) FROM states"
        " WHERE error_kind IS NOT NULL AND {days}"
        " GROUP BY error_kind ORDER BY 2 DESC, 1",
    )  # fmt: skip
    return [(str(kind), int(states), int(hints)) for kind, states, hints in rows]


def unusable(lake: Lake, days: Iterable[str]) -> list[tuple[str, str, int]]:
    """Return (teacher, status, replies) of replies that cannot vote."""
    rows = _ask(
        lake, "replies", days,
        "SELECT teacher, status, count(*) FROM replies"
        " WHERE status <> 'ok' AND {days}"
        " GROUP BY teacher, status ORDER BY teacher, 3 DESC, status",
    )  # fmt: skip
    return [(str(teacher), str(status), int(count)) for teacher, status, count in rows]


def _ask(lake: Lake, table: str, days: Iterable[str], sql: str) -> list[Any]:
    """Return the rows of a query whose ``{days}`` is the condition; none without table or days."""
    wanted = sorted(days)
    if not wanted or not lake.days(table):
        return []
    marks = ", ".join("?" * len(wanted))
    return list(lake.query(sql.format(days=f"day IN ({marks})"), wanted))


def runs_on(lake: Lake, run_root: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Return the finished runs that were trained on the dataset as it is, by name."""
    found = []
    for path in sorted(run_root.glob(f"*/{RESULT}")):
        try:
            result = finished(path.parent)
            recipe = TrainingRecipe.model_validate(result["recipe"])
        except (InputError, ValueError, KeyError):
            continue  # a run of another version, or half written: not one of this dataset
        if dataset_digest(lake, recipe) == result.get("dataset_sha"):
            found.append((path.parent, result))
    return found


#: The statistics of the whole lake by (statistic, a, b, tool), as the card reads them.
Statistics = Mapping[tuple[str, str, str, str], Mapping[str, Any]]

#: Teachers of a heatmap; more do not fit a page.
_MOST = 12
_NO_STATISTICS = "Nothing was measured on this version: run composer-pipeline statistics."


def section(name: str, title: str, *body: object) -> Html:
    """Return a section with an address."""
    return el("section", el("h2", title), *body, id=name)  # type: ignore[arg-type]


def absent(text: str) -> Html:
    """Return words in place of what is not there."""
    return el("div", text, _class="none")


def funnel(steps: Mapping[str, int], facts: Facts, statistics: Statistics) -> Html:
    """Return how many states and pairs are left after each step, and why the others went."""
    first = next(iter(steps.values()))
    rows = [[name, count(number), share(number, first)] for name, number in steps.items()]
    reasons = {a: int(row["value"]) for (name, a, _, _), row in statistics.items()
               if name == "states_by_reason" and row["value"]}  # fmt: skip
    why = [[said, count(reasons[name])] for name, said in REASONS.items() if name in reasons]
    dropped = [[stage, name, count(n)] for (stage, name), n in facts.dropped.most_common(8)]
    return section(
        "funnel",
        "From sessions to pairs",
        el("p", "A state is a moment at which the agent acted. Several model families are asked"
           " what they would do there; where they agree with each other and not with the agent, a"
           " pair is made.", _class="soft"),
        el("div", drawn(bars(steps, width=1030), "rows left after each step"),
           el("details", el("summary", "As a table"),
              table(["step", "left", "of the first"], rows)), _class="card"),
        el("div",
           el("div", el("h3", "What became of each state"),
              table(["outcome", "states"], why) if why else absent(_NO_STATISTICS), _class="card"),
           el("div", el("h3", "Rows that a rule left out"),
              table(["stage", "rule", "rows"], dropped) if dropped else el("p", "None."),
              _class="card"),
           _class="grid"),
    )  # fmt: skip


def agreement(votes: Sequence[tuple[str, int, int, int]], statistics: Statistics) -> Html:
    """Return who agrees with whom, and on what."""
    matrix = {(a, b): (row["value"] or 0.0, int(row["n"]))
              for (name, a, b, _), row in statistics.items() if name == "agreement_L2"}  # fmt: skip
    names = sorted({name for pair in matrix for name in pair}, key=lambda n: (n != AGENT, n))
    parts: list[Html] = []
    if matrix:
        cell = 74 if len(names) <= 8 else 60
        picture = drawn(heatmap(names[:_MOST], matrix, cell=cell), "agreement of each two")
        more = f" {len(names) - _MOST} more are not drawn." if len(names) > _MOST else ""
        parts.append(
            el("div", el("h3", "Who acts like whom"), picture,
               el("p", "Share of states on which two chose the same tool for the same target."
                  + more, _class="soft"), _class="card")
        )  # fmt: skip
    if votes:
        head = ["the agent's tool", "states", "with the agent", "against it", "neither"]
        rows = [
            [el("code", tool), count(voted), share(same, voted), share(pairs, voted),
             share(voted - same - pairs, voted)]
            for tool, voted, same, pairs in votes
        ]  # fmt: skip
        parts.append(
            el("div", el("h3", "What the teachers say of the agent, by tool"), table(head, rows),
               el("p", "States that two families or more answered. Against it is a pair.",
                  _class="soft"), _class="card")
        )  # fmt: skip
    body = el("div", parts, _class="grid") if parts else absent(_NO_STATISTICS)
    lines = [
        ("Krippendorff's alpha of the teachers", "krippendorff_alpha",
         "1 is full agreement, 0 is chance; below 0.667 not even tentative conclusions"),
        ("Noise floor", "resample_disagreement",
         "how often the agent's own family, asked again, does otherwise"),
        ("Excess disagreement", "excess_disagreement",
         "how much more often teachers differ from the agent than that"),
    ]  # fmt: skip
    rows = [[name, *_said(statistics, key), means] for name, key, means in lines]
    return section(
        "agreement", "Agreement", body,
        el("div", table(["statistic", "value", "measured on", "means"], rows), _class="card"),
    )  # fmt: skip


def _said(statistics: Statistics, key: str) -> tuple[str, str]:
    row = statistics.get((key, "", "", ""))
    if row is None or row["value"] is None:
        note = str(row["note"] or "") if row else ""
        return "not measured", note.removeprefix("not measured: ") or "-"
    return f"{row['value']:.3f}", count(int(row["n"]))


def teachers(found: Sequence[Replies], refused: Sequence[tuple[str, str, int]]) -> Html:
    """Return what each teacher cost, how long it took, and how often it could not vote."""
    if not found:
        return section("teachers", "Teachers", absent("No teacher has answered."))
    rows = [
        [el("b", r.teacher), el("code", r.model), r.family, count(r.replies),
         share(r.usable, r.replies), dollars(r.cost_usd),
         dollars(1000 * r.cost_usd / r.replies), _seconds(r.p50_ms), _seconds(r.p95_ms),
         "–" if r.tokens is None else count(int(r.tokens))]
        for r in found
    ]  # fmt: skip
    head = ["teacher", "model", "family", "replies", "usable", "cost", "1,000 replies", "median",
            "95 %", "tokens"]  # fmt: skip
    total = sum(r.cost_usd for r in found)
    cost = {r.teacher: round(r.cost_usd, 4) for r in found}
    slow = {r.teacher: round(r.p95_ms / 1000, 2) for r in found if r.p95_ms is not None}
    lost = [[el("b", teacher), status, count(n)] for teacher, status, n in refused]
    return section(
        "teachers",
        "Teachers: cost and latency",
        el("p", f"All replies on the days of this dataset, also those that cannot vote: billed"
           f" {dollars(total)} in all.", _class="soft"),
        el("div", table(head, rows), _class="card"),
        el("div",
           el("div", el("h3", "Cost, US dollars"), drawn(bars(cost, width=460), "cost by teacher"),
              _class="card"),
           el("div", el("h3", "One reply of twenty takes longer than, seconds"),
              drawn(bars(slow, width=460), "latency by teacher") if slow
              else absent("No latency was recorded."), _class="card"),
           _class="grid"),
        el("div", el("h3", "Replies that cannot vote"), table(["teacher", "why", "replies"], lost),
           _class="card") if lost else el("p", "Every reply can vote.", _class="soft"),
    )  # fmt: skip


def _seconds(milliseconds: float | None) -> str:
    return "–" if milliseconds is None else f"{milliseconds / 1000:.2f} s"


def failures(found: Sequence[tuple[str, int, int]]) -> Html:
    """Return how the agent's actions failed, and of how many the trace says why."""
    if not found:
        return section("errors", "How the agent failed", absent("No action of the agent failed."))
    rows = [[el("code", kind), count(n), count(hints)] for kind, n, hints in found]
    picture = bars({kind: n for kind, n, _ in found}, width=460)
    return section(
        "errors",
        "How the agent failed",
        el("p", "States whose action failed, by what the trace shows. Where it also says why, that"
           " is a hint to learn from.", _class="soft"),
        el("div", el("div", drawn(picture, "failed states by kind"), _class="card"),
           el("div", table(["kind", "states", "with a hint"], rows), _class="card"),
           _class="grid"),
    )  # fmt: skip


def separability(statistics: Statistics) -> Html:
    """Return how well style alone tells chosen from rejected."""
    name, bound = "Can style alone tell chosen from rejected?", Separability().max_auc
    row = statistics.get(("separability_auc", "", "", ""))
    if row is None or row["value"] is None:
        why = str(row["note"]).removeprefix("not measured: ") if row and row["note"] else ""
        said = f"Not measured: {why}." if why else _NO_STATISTICS
        return section("separability", name, absent(said))
    error = statistics.get(("separability_auc_error", "", "", ""), {}).get("value")
    weights = {a: row["value"] for (key, a, _, _), row in statistics.items()
               if key == "separability_weight" and row["value"]}  # fmt: skip
    most = sorted(weights.items(), key=lambda item: (-abs(item[1]), item[0]))[:10]
    high = row["value"] > bound
    verdict = (
        f"above the bound of {bound:g}: a model may learn whose hand wrote an action, not what was"
        " better" if high else f"within the bound of {bound:g}"
    )  # fmt: skip
    around = "" if error is None else f" ± {error:.3f}"
    return section(
        "separability",
        name,
        el("p", f"A classifier that sees only style, such as length and the order of keys, reaches"
           f" an AUC of {row['value']:.3f}{around} on {count(int(row['n']))} pairs; 0.5 is chance."
           f" That is {verdict}.", _class="note" if high else None),
        el("div", el("h3", "What gives the source away"),
           drawn(intervals({k: (v, None, None) for k, v in most}, width=620),
                 "weights of the features"),
           el("p", "Standardised coefficients: right of the line for chosen, left for rejected.",
              _class="soft"), _class="card") if most else "",
    )  # fmt: skip
