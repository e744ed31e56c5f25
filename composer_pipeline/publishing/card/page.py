"""The card and its pictures: README.md and ``assets/``, byte for byte the same each time.

Belongs here: the order of the sections. Does not belong here: a section's words. Nothing in a
card depends on the clock or the machine.
"""

from collections.abc import Iterator, Sequence

from composer_pipeline.lake import Lake
from composer_pipeline.publishing.card import facts as count
from composer_pipeline.publishing.card import pictures
from composer_pipeline.publishing.card.columns import columns
from composer_pipeline.publishing.card.facts import Facts, Source
from composer_pipeline.publishing.card.front import front_matter
from composer_pipeline.publishing.card.models import models
from composer_pipeline.publishing.card.opening import (
    TEMPLATE,
    contents,
    example,
    opening,
    training,
)
from composer_pipeline.publishing.card.quality import length_classes, quality
from composer_pipeline.publishing.card.terms import (
    citation,
    consenting,
    limits,
    making,
    privacy,
    splits,
)
from composer_pipeline.publishing.card.versions import versions
from composer_pipeline.publishing.consent import Consent
from composer_pipeline.publishing.dataset import Build

#: Where no consent names a licence.
NO_LICENCE = {"license": "other", "license_name": "not-stated", "license_link": "README.md"}


def card_files(
    lake: Lake,
    repo: str,
    build: Build,
    files: Sequence[Source],
    *,
    facts: Facts | None = None,
    consent: Consent | None = None,
) -> dict[str, bytes]:
    """Return the card, its pictures and the chat template by their paths in the repository.

    Args:
        lake: for ``preference_statistics``, ``votes`` and the kinds of placeholders.
        repo: ``owner/name``.
        build: the build whose files these are.
        files: the Parquet files of the publication, on this disk.
        facts: what :func:`~.facts.facts_of` says of the files, where that is known.
        consent: what the owner of the sessions attested, if anything.
    """
    facts = facts or count.facts_of(files)
    statistics = count.statistics_of(lake)
    votes = count.votes_by_tool(lake)[:12]
    steps = count.funnel(facts, statistics)
    found: dict[str, bytes] = {"assets/funnel.png": _funnel(steps)}
    if votes:
        title = "Teachers, by the tool that the agent used (states on the right)"
        found["assets/agreement.png"] = pictures.shares(title, votes)
    if facts.lengths:
        lengths = dict(zip(length_classes(), facts.lengths, strict=True))
        title = "Tokens of prompt and tools of the pairs"
        found["assets/lengths.png"] = pictures.bars(title, lengths)
    if facts.teachers:
        rows = [
            (name, t.median_tokens, 1000 * t.cost_usd / t.answers)
            for name, t in sorted(facts.teachers.items())
        ]
        found["assets/teachers.png"] = pictures.teachers(rows)
    if template := build.figures.get("chat_template"):
        found[TEMPLATE] = str(template).encode()

    def sections() -> Iterator[str]:
        yield front_matter(repo, build, facts, consent.card_fields if consent else NO_LICENCE)
        yield from opening(repo, facts)
        yield from training(repo, facts, str(build.figures.get("tokenizer") or ""))
        yield from example(files)
        yield from contents(facts)
        yield from quality(facts, steps, votes, statistics)
        yield from models(facts)
        yield from making(facts)
        yield from splits(build)
        yield from privacy(count.placeholders(lake, facts.days))
        yield from consenting(consent, facts)
        yield from limits()
        yield from versions(build, facts)
        yield from citation(repo, build, facts)
        yield from columns(facts)

    found["README.md"] = ("\n\n".join(sections()) + "\n").encode()
    return found


def _funnel(steps: dict[str, int]) -> bytes:
    return pictures.bars("From sessions to pairs", steps, of=next(iter(steps)))
