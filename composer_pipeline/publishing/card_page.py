"""The YAML before the card: what the Hub and ``load_dataset`` read.

Belongs here: licence, size, configurations and their features. Does not belong here: prose.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from composer_pipeline.dataset.consent import Consent
from composer_pipeline.dataset.manifest import Build, dataset_info
from composer_pipeline.dataset.splits import SPLITS
from composer_pipeline.lake.store import Lake
from composer_pipeline.publishing import card, card_pictures
from composer_pipeline.publishing.card import (
    Facts,
    Source,
    citation,
    columns,
    configurations,
    consenting,
    length_classes,
    limits,
    making,
    models,
    privacy,
    quality,
    splits,
    versions,
)
from composer_pipeline.publishing.card_opening import TEMPLATE, contents, example, opening, training

_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))


def size_category(rows: int) -> str:
    """Return the Hub's size category of a number of rows."""
    return next((name for bound, name in _SIZES if rows < bound), "1M<n<10M")


def _path(build: Build, config: str, split: str) -> str:
    """Return the path of a split's file, or what all its files are called."""
    paths = [f.path for f in build.files if (f.config, f.split) == (config, split)]
    return paths[0] if len(paths) == 1 else f"data/{config}/{split}-*.parquet"


def front_matter(repo: str, build: Build, facts: Facts, licence: dict[str, str]) -> str:
    """Return the YAML with the lines around it.

    Args:
        repo: ``owner/name``.
        build: whose features and counts ``load_dataset`` compares with what it loads.
        facts: the numbers of the files.
        licence: ``license``, and where it is ``other`` its name and link.
    """
    tags = ["dpo", "preference", "agent-traces", "tool-use", "trl", "datasets", "composer-pipeline"]
    front: dict[str, Any] = {
        **licence,
        "language": ["en", "code"],
        "pretty_name": repo.split("/")[1],
        "size_categories": [size_category(facts.of("pairs"))],
        "task_categories": ["text-generation"],
        "tags": tags + (["simulated"] if facts.simulated else []),
        "configs": [
            {
                "config_name": config,
                **({"default": True} if config == "pairs" else {}),
                "data_files": [
                    {"split": split, "path": _path(build, config, split)}
                    for split in SPLITS
                    if facts.rows.get((config, split))
                ],
            }
            for config in configurations(facts)
        ],
        "dataset_info": dataset_info(build),
    }
    return "---\n" + yaml.safe_dump(front, sort_keys=False, allow_unicode=True) + "---"


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
    facts = facts or card.facts_of(files)
    statistics = card.statistics_of(lake)
    votes = card.votes_by_tool(lake)[:12]
    steps = card.funnel(facts, statistics)
    found: dict[str, bytes] = {"assets/funnel.png": _funnel(steps)}
    if votes:
        title = "Teachers, by the tool that the agent used (states on the right)"
        found["assets/agreement.png"] = card_pictures.shares(title, votes)
    if facts.lengths:
        lengths = dict(zip(length_classes(), facts.lengths, strict=True))
        title = "Tokens of prompt and tools of the pairs"
        found["assets/lengths.png"] = card_pictures.bars(title, lengths)
    if facts.teachers:
        rows = [
            (name, t.median_tokens, 1000 * t.cost_usd / t.answers)
            for name, t in sorted(facts.teachers.items())
        ]
        found["assets/teachers.png"] = card_pictures.teachers(rows)
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
        yield from privacy(card.placeholders(lake, facts.days))
        yield from consenting(consent, facts)
        yield from limits()
        yield from versions(build, facts)
        yield from citation(repo, build, facts)
        yield from columns(facts)

    found["README.md"] = ("\n\n".join(sections()) + "\n").encode()
    return found


def _funnel(steps: dict[str, int]) -> bytes:
    return card_pictures.bars("From sessions to pairs", steps, of=next(iter(steps)))
