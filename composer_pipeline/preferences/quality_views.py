"""Pictures and tables of the preference data's quality, as Markdown for Dagster's pages.

Belongs here: what is drawn from a
:class:`~composer_pipeline.preferences.quality.Quality`. Does not belong here: SVG itself
(``figures``) and the numbers (``statistics``).

Every picture has its numbers beside it in a table or in the text of its alt attribute, so that
nothing depends on seeing it. All of a day's together stay far below 48 KB.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from composer_pipeline.charts import bars, heatmap, lines, markdown_image
from composer_pipeline.preferences.quality import Measured, Quality
from composer_pipeline.preferences.rules import PreferenceRules
from composer_pipeline.preferences.style import Separation
from composer_pipeline.preferences.vote_rows import AGENT, REASONS

#: More raters than this do not fit a page.
MAX_RATERS = 12


def agreement_figure(quality: Quality, level: str = "L2") -> str:
    """Return Markdown with the heatmap of who agrees with whom, the agent first.

    Args:
        quality: the statistics.
        level: ``L1`` (equal effect) or ``L2`` (same tool on the same target).
    """
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
    picture = lines({"style": found.roc, "chance": ((0.0, 0.0), (1.0, 1.0))}, width=320, height=240)
    telling = sorted(found.weights.items(), key=lambda item: -abs(item[1]))[:5]
    features = ", ".join(f"{name} {weight:+.2f}" for name, weight in telling)
    return (
        markdown_image(picture, "separability: ROC of a classifier that sees only style")
        + f"\n\nAUC {found.auc:.3f} ± {found.error or 0:.3f} on {found.pairs} pairs of"
        f" {found.sessions} sessions; the bound is {bound:g}. Most telling (standardised"
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
    rows = sorted(quality.alpha.items(), key=lambda item: (-item[1].n, item[0]))
    return [
        {
            "tool": tool or "all tools",
            "alpha": None if found.value is None else round(found.value, 4),
            "states": found.n,
            "note": found.note,
        }
        for tool, found in rows
    ]


def agreement_table(quality: Quality) -> Table:
    """Return who agrees with whom, at both levels, as rows."""
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


Word = Literal["good", "look", "not measured"]

#: Krippendorff: below it not even tentative conclusions.
LEAST_ALPHA = 0.667
#: Standard errors that the excess over the noise floor must be away from 0.
SURE = 2.0
#: The largest session's share of the pairs, and of near-duplicates across sessions.
MOST_OF_ONE_SESSION, MOST_REPEATS = 0.1, 0.01
#: Median length of chosen to rejected.
LENGTHS = (2 / 3, 3 / 2)


@dataclass(frozen=True)
class Verdict:
    """A figure's name, what is to be thought of it, and why."""

    figure: str
    word: Word
    sentence: str


def verdicts(quality: Quality, rules: PreferenceRules) -> list[Verdict]:
    """Return what a person should know before training on this data, the votes first.

    Args:
        quality: the statistics of a scope.
        rules: the preference recipe, for the bound of separability.
    """
    return [
        _alpha(quality),
        _excess(quality),
        _separability(quality, rules),
        _lengths(quality),
        _sessions(quality),
        *_repeats(quality),
    ]


def _unmeasured(figure: str, why: str, remedy: str) -> Verdict:
    reason = why.removeprefix("not measured: ").removeprefix("not measured") or "no data"
    return Verdict(figure, "not measured", f"{reason.capitalize()}{remedy}.")


def _alpha(quality: Quality) -> Verdict:
    name, found = "teachers' agreement", quality.alpha.get("", Measured(None, 0))
    if found.value is None:
        return _unmeasured(name, found.note, "; ask at least two families of teachers")
    if found.value >= LEAST_ALPHA:
        return Verdict(name, "good", f"Krippendorff's alpha is {found.value:.2f}.")
    by_tool = {tool: m.value for tool, m in quality.alpha.items() if tool and m.n >= 10}
    known = {tool: value for tool, value in by_tool.items() if value is not None}
    worst = min(known, key=lambda tool: known[tool], default="")
    where = f"; they differ most on {worst} ({known[worst]:.2f})" if worst else ""
    return Verdict(
        name, "look",
        f"Krippendorff's alpha is {found.value:.2f}, below {LEAST_ALPHA}: teachers often do"
        f" different things{where}. Read pairs before you trust them.",
    )  # fmt: skip


def _excess(quality: Quality) -> Verdict:
    name, noise = "beyond the noise floor", quality.noise
    if noise.excess.value is None or noise.error.value is None:
        why = noise.excess.note or noise.error.note
        return _unmeasured(name, why, "; a teacher with control: true measures it")
    said = f"teachers differ from the agent {noise.excess.value:+.2f} more than it from itself"
    if noise.excess.value > SURE * noise.error.value:
        return Verdict(name, "good", f"{said.capitalize()} (± {noise.error.value:.2f}).")
    return Verdict(
        name, "look",
        f"{said.capitalize()} (± {noise.error.value:.2f}): no more than chance may explain. Ask the"
        " control about more states.",
    )  # fmt: skip


def _separability(quality: Quality, rules: PreferenceRules) -> Verdict:
    name, found, bound = "told apart by style", quality.separation, rules.separability.max_auc
    if found.auc is None:
        return _unmeasured(name, found.note, "; more pairs and sessions are needed")
    if found.auc <= bound:
        return Verdict(name, "good", f"Style alone gives AUC {found.auc:.2f}, at most {bound}.")
    first = max(found.weights, key=lambda feature: abs(found.weights[feature]), default="")
    return Verdict(
        name, "look",
        f"Style alone tells chosen from rejected (AUC {found.auc:.2f}, above {bound}), most of all"
        f" {first}: a model may learn that in place of the better action.",
    )  # fmt: skip


def _lengths(quality: Quality) -> Verdict:
    name, found = "lengths", quality.length_ratio.get("p50", Measured(None, 0))
    if found.value is None:
        return _unmeasured(name, found.note, "")
    said = f"the median chosen action has {found.value:.2f} of the rejected one's characters"
    low, high = LENGTHS
    if low <= found.value <= high:
        return Verdict(name, "good", f"{said.capitalize()}.")
    return Verdict(name, "look", f"{said.capitalize()}: a model may learn length.")


def _sessions(quality: Quality) -> Verdict:
    name, most = "spread over sessions", quality.per_session[1]
    if most.value is None or not quality.pairs:
        return _unmeasured(name, most.note, "")
    share = most.value / quality.pairs
    said = f"the session with most pairs has {most.value:.0f} of {quality.pairs} ({share:.0%})"
    if share <= MOST_OF_ONE_SESSION:
        return Verdict(name, "good", f"{said.capitalize()}.")
    return Verdict(
        name, "look",
        f"{said.capitalize()}; max_pairs_per_session of the preference recipe caps it.",
    )  # fmt: skip


def _repeats(quality: Quality) -> Iterator[Verdict]:
    if not quality.pairs:
        return
    across = sum(not row["same_session"] for row in quality.near)
    share = across / quality.pairs
    yield Verdict(
        "repeats",
        "good" if share <= MOST_REPEATS else "look",
        f"{across} near-duplicates across sessions among {quality.pairs} pairs ({share:.1%}).",
    )
    count = quality.contaminated
    yield Verdict(
        "benchmarks",
        "look" if count else "good",
        f"{count} of {quality.pairs} pairs are from sessions on a benchmark's repository.",
    )
