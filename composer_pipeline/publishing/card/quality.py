"""How good the data is: the funnel, agreement by tool, tiers, style, lengths.

Belongs here: numbers with what they mean. Does not belong here: computing statistics
(``preferences.quality``).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from composer_pipeline.markdown import code, count, image, share, table
from composer_pipeline.preferences.rules import PreferenceRules
from composer_pipeline.publishing.card.facts import LENGTHS, Facts

Statistics = Mapping[tuple[str, str, str, str], Mapping[str, Any]]

_TIERS = {
    "gold": "the teachers' actions have the same effect, and the agent's is not even similar",
    "silver": "the teachers agree less exactly, or the agent's action is similar and changes"
    " something else",
}
_OUTCOMES = {
    "student_bad": "the agent's action failed, was corrected or undone",
    "student_ok": "the tests that the agent's action ran passed",
    "unknown": "nothing",
}


def quality(
    facts: Facts,
    steps: Mapping[str, int],
    votes: Sequence[tuple[str, int, int, int]],
    statistics: Statistics,
) -> Iterator[str]:
    """Yield the sections on quality.

    Args:
        facts: the numbers of the files.
        steps: what is left after each step, in order.
        votes: (tool, states voted on, where teachers side with the agent, that are pairs).
        statistics: of the whole lake.
    """
    yield "## From sessions to pairs"
    first = next(iter(steps.values()))
    rows = [[name, count(number), share(number, first)] for name, number in steps.items()]
    yield table(["step", "left", "of the first"], rows)
    if dropped := facts.dropped.most_common(8):
        lines = [[stage, code(why), count(number)] for (stage, why), number in dropped]
        yield "What was left out is in `drops`, with its reason; the commonest are:"
        yield table(["stage", "reason", "rows"], lines)
    yield "## How good it is"
    yield from _by_tool(votes)
    yield from _tiers(facts)
    yield from _headlines(statistics)
    yield from _lengths(facts)


def _by_tool(votes: Sequence[tuple[str, int, int, int]]) -> Iterator[str]:
    if not votes:
        return
    yield "**Agreement by the agent's tool**, at states that two families or more answered."
    yield image("assets/agreement.png", "Agreement by tool; the numbers are in the table below")
    yield table(
        ["tool", "states", "with the agent", "against it: a pair", "neither"],
        [
            [
                code(tool),
                count(voted),
                share(same, voted),
                share(pairs, voted),
                share(voted - same - pairs, voted),
            ]
            for tool, voted, same, pairs in votes
        ],
    )


def _tiers(facts: Facts) -> Iterator[str]:
    tiers, total = facts.pairs["tier"], facts.of("pairs")
    yield "**What a pair rests on.**"
    yield table(
        ["`tier`", "pairs", "share", "means"],
        [
            [code(tier), count(tiers[tier]), share(tiers[tier], total), means]
            for tier, means in _TIERS.items()
        ],
    )
    yield table(
        ["`outcome`", "pairs", "what the trace says of the rejected action"],
        [
            [code(name), count(facts.pairs["outcome"][name]), means]
            for name, means in _OUTCOMES.items()
        ],
    )


def _headlines(statistics: Statistics) -> Iterator[str]:
    bound = PreferenceRules().separability.max_auc
    lines = [
        (
            "Krippendorff's alpha of the teachers' votes", "krippendorff_alpha",
            "1 is full agreement, 0 is chance; below 0.667 not even tentative conclusions",
        ),
        (
            "Separability", "separability_auc",
            f"AUC of a classifier that sees only style, such as length; 0.5 is chance, above"
            f" {bound:g} a model may learn the style",
        ),
        (
            "Noise floor", "resample_disagreement",
            "how often the agent's own family, asked again, does otherwise",
        ),
        (
            "Excess disagreement", "excess_disagreement",
            "how much more often teachers differ from the agent than that",
        ),
    ]  # fmt: skip
    if not statistics:
        return
    yield table(
        ["statistic", "value", "measured on", "means"],
        [[name, *_said(statistics.get((key, "", "", ""))), means] for name, key, means in lines],
    )


def _said(row: Mapping[str, Any] | None) -> tuple[str, str]:
    """Return a value and what it was measured on; one that could not be measured says why."""
    if row is None or row["value"] is None:
        note = str(row["note"] or "") if row else ""
        return note if note.startswith("not ") else f"not measured: {note or 'no data'}", "-"
    return f"{row['value']:.3f}", count(row["n"])


def _lengths(facts: Facts) -> Iterator[str]:
    if not facts.lengths:
        return
    yield "**Lengths.** Tokens of prompt and tools of the pairs:"
    yield image("assets/lengths.png", "Lengths of prompts; the numbers are in the table below")
    total, done, rows = sum(facts.lengths), 0, []
    for name, number in zip(length_classes(), facts.lengths, strict=True):
        done += number
        rows.append([name, count(number), share(done, total)])
    yield table(["tokens", "pairs", "fit so far"], rows)


def length_classes() -> list[str]:
    """Return the names of the classes of lengths, the last for all that are longer."""
    names = [f"to {count(bound)}" for bound in LENGTHS]
    return [*names, f"above {count(LENGTHS[-1])}"]
