"""An evaluation as people read it: rows of text, Markdown, and pictures.

Belongs here: words and pictures of numbers that are known. Does not belong here: computing them
(``evaluation.summary``) and the command line's own table (``cli.views``).
"""

from collections.abc import Iterable, Mapping, Sequence

from composer_pipeline.evaluation.measure import BASE
from composer_pipeline.evaluation.results import MEASURES, SHARES
from composer_pipeline.evaluation.summary import GROUPS, MIN_SESSIONS, Cell, Estimate
from composer_pipeline.evaluation.verdict import MEASURE, Verdict
from composer_pipeline.figures import bars, intervals

#: What the columns of :func:`table` say.
HEAD = ("states", "measure", "base", "trained", "difference, 95 % interval", "states (sessions)")
#: What each kind of states is.
MEANINGS = {
    "hard": "the agent was wrong: both kinds below together",
    "hard_covered": "the agent was wrong; teachers agreed on something else",
    "hard_uncovered": "the agent was wrong; no consensus says so, but what worked later",
    "easy": "the agent and the teachers agree",
    "recovery": "right behind an error; nothing speaks against what the agent did",
}


def table(cells: Iterable[Cell], arm: str) -> list[tuple[str, ...]]:
    """Return one row of text for each kind and measure, with the columns of :data:`HEAD`.

    A difference whose interval excludes 0 is marked with a star.

    Args:
        cells: as from ``summarise``.
        arm: the trained model.
    """
    by = {(cell.kind, cell.measure, cell.arm): cell for cell in cells}
    rows: list[tuple[str, ...]] = []
    for kind in GROUPS:
        for measure in MEASURES:
            mine = by.get((kind, measure, arm))
            if mine is None:
                continue
            base = by.get((kind, measure, BASE))
            value = mine.value
            rows.append(
                (kind, measure, number(base.value.mean, measure) if base else "",
                 number(value.mean, measure), _difference(mine, measure),
                 f"{value.states} ({value.sessions})")
            )  # fmt: skip
    return rows


def markdown(cells: Sequence[Cell], arm: str, found: Verdict, about: Mapping[str, object]) -> str:
    """Return the report.

    Args:
        cells: as from ``summarise``.
        arm: the trained model.
        found: what follows from them.
        about: facts that stand at its head, by name.
    """
    rows = table(cells, arm)
    parts = ["# Evaluation", "\n".join(f"- {name}: {value}" for name, value in about.items())]
    parts.append("\n\n".join(_said(found)))
    parts.append("![canonical match](actions.svg)\n\n![differences](differences.svg)")
    for kind in GROUPS:
        mine = [row[1:] for row in rows if row[0] == kind]
        if mine:
            parts.append(f"## {kind}\n\n{MEANINGS[kind].capitalize()}.\n\n{grid(HEAD[1:], mine)}")
    measures = [(name, said) for name, (said, _) in MEASURES.items()]
    parts.append("## Measures\n\n" + grid(("measure", "what it says"), measures))
    parts.append(
        "Intervals come from drawing whole sessions with replacement; a difference is paired: the"
        " same states of the same sessions for both models. A star marks a difference whose"
        " interval excludes 0; no other difference is claimed. Where there are fewer than"
        f" {MIN_SESSIONS} sessions there is no interval."
    )
    return "\n\n".join(parts) + "\n"


def pictures(cells: Sequence[Cell], arm: str) -> dict[str, str]:
    """Return file name to SVG: canonical matches of both models, and their differences."""
    shares: dict[str, float] = {}
    changes: dict[str, tuple[float, float | None, float | None]] = {}
    for cell in cells:
        if cell.measure == MEASURE and cell.arm in (BASE, arm):
            name = f"{cell.kind}, {'base' if cell.arm == BASE else 'trained'}"
            shares[name] = round(100 * cell.value.mean, 1)
        if cell.arm == arm and cell.measure in SHARES and cell.difference is not None:
            change = cell.difference
            changes[f"{cell.kind} {cell.measure}"] = (change.mean, change.low, change.high)
    return {"actions.svg": bars(shares, unit=" %"), "differences.svg": intervals(changes)}


def number(value: float, measure: str) -> str:
    """Return a number of a measure as text."""
    return f"{100 * value:.1f} %" if measure in SHARES else f"{value:.4f}"


def grid(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines).replace("||", r"\|\|")


def _difference(cell: Cell, measure: str) -> str:
    change = cell.difference
    if change is None:
        return ""
    return _signed(change, measure) + (" *" if cell.claimed else "")


def _signed(change: Estimate, measure: str) -> str:
    scale, unit, digits = (100, " points", 1) if measure in SHARES else (1, "", 4)
    mean = f"{scale * change.mean:+.{digits}f}{unit}"
    if change.low is None or change.high is None:
        return f"{mean} [no interval]"
    return f"{mean} [{scale * change.low:+.{digits}f}, {scale * change.high:+.{digits}f}]"


def _said(found: Verdict) -> list[str]:
    """Return the verdict in sentences."""
    out = [f"**Worse than its base.** {sentence}." for sentence in found.worse]
    out += [f"Not known whether it is worse than its base on {each}." for each in found.unknown]
    return out or ["Not surely worse than its base on easy or recovery states."]
