"""Whose words are in the dataset: the teachers and the agent's models, with terms and cost.

Belongs here: tables of models. Does not belong here: which answers may be published
(``publishing.terms``).
"""

from collections.abc import Iterator

from composer_pipeline.markdown import code, count, dollars, image, table
from composer_pipeline.publishing.card.facts import NOT_RECORDED, Facts
from composer_pipeline.publishing.terms import UNKNOWN

#: Terms under which the author of a model allows training on its outputs.
_ALLOWED = frozenset({"enforced", "declared"})
_ACTIONS = {
    "pairs": "`rejected` of pairs",
    "groups": "candidates of groups",
    "hints": "`action` of hints",
    "successes": "`action` of successes",
}


def models(facts: Facts) -> Iterator[str]:
    """Yield the section on models."""
    yield "## Models and their terms"
    wins = {model: n for (model, _, _), n in facts.chosen.items()}
    teachers = sorted(facts.teachers.items())
    if teachers:
        yield "**Teachers** wrote `chosen`, the other candidates and `replies`."
        yield table(
            ["teacher", "model", "licence", "training terms", "answers", "pairs won"],
            [
                [name, code(t.model), t.license or NOT_RECORDED, code(t.terms or UNKNOWN),
                 count(t.answers), count(wins.get(t.model, 0))]
                for name, t in teachers
            ],
        )  # fmt: skip
    else:
        yield table(
            ["model in `chosen`", "licence", "training terms", "pairs won"],
            [
                [code(model), licence or NOT_RECORDED, code(terms or UNKNOWN), count(number)]
                for (model, licence, terms), number in sorted(facts.chosen.items())
            ],
        )
    terms = facts.pairs["training_terms"]
    if bad := {name: n for name, n in sorted(terms.items()) if name not in _ALLOWED}:
        counts = ", ".join(f"{count(n)} {code(name)}" for name, n in bad.items())
        yield (
            f"> **Training terms.** {count(sum(bad.values()))} of {count(terms.total())} pairs have"
            " a voter whose author is not known to allow training on its outputs:"
            f" {counts} (`training_terms`)."
        )
    yield (
        "`enforced`: only models whose author allows training on their outputs were asked."
        " `declared`: the catalogue says so, and nobody enforced it. Answers under other terms"
        " are in no configuration unless the recipe accepted them by name."
    )
    yield (
        "**The agent's own models** wrote `rejected`, `action`, one candidate of each group, and"
        " the assistant's turns in every prompt. Their authors' terms apply to those words:"
    )
    yield table(
        ["agent's model", *_ACTIONS.values()],
        [
            [code(model), *(count(found[config]) for config in _ACTIONS)]
            for model, found in sorted(facts.agents.items(), key=lambda i: (-i[1].total(), i[0]))
        ],
    )
    if teachers:
        yield "**Length and cost by teacher.**"
        yield image("assets/teachers.png", "Answers by teacher; the numbers are in the table below")
        yield table(
            ["teacher", "answers", "median tokens", "median seconds", "cost", "1,000 answers"],
            [
                [name, count(t.answers), f"{t.median_tokens:,.0f}", f"{t.median_latency_s:.2g}",
                 dollars(t.cost_usd), dollars(1000 * t.cost_usd / t.answers)]
                for name, t in teachers
            ],
        )  # fmt: skip
        total = sum(t.cost_usd for _, t in teachers)
        yield f"The answers in this dataset were billed {dollars(total)} in all."
