"""Pictures and tables of the preference data's quality, as Markdown for Dagster's pages.

Belongs here: what is drawn from a
:class:`~composer_pipeline.preferences.quality.statistics.Quality`. Does not belong here: SVG itself
(``figures``) and the numbers (``statistics``).

Every picture has its numbers beside it in a table or in the text of its alt attribute, so that
nothing depends on seeing it. All of a day's together stay far below 48 KB.
"""

from composer_pipeline.figures import bars, heatmap, lines, markdown_image
from composer_pipeline.preferences.agreement import AGENT, REASONS
from composer_pipeline.preferences.quality.quality_rows import Quality
from composer_pipeline.preferences.quality.separability import Separation

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
