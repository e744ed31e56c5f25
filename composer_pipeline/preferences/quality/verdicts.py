"""What the statistics mean for a person: good, look, or not measured, each in a sentence.

Belongs here: the bound and the sentence of each figure that decides something. Does not belong
here: computing figures (``preferences.quality.statistics``) and printing them.

The bounds are conventions or choices, not laws: alpha's is Krippendorff's for tentative
conclusions (2004, p. 241), separability's is the preference recipe's, the others are ours.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from composer_pipeline.preferences.quality.quality_rows import Quality
from composer_pipeline.preferences.quality.rater_agreement import Measured
from composer_pipeline.preferences.rules import PreferenceRules

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
