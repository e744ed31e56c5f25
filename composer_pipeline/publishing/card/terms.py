"""How it was made, splits, privacy, consent, limits, citation: what a careful reader asks.

Belongs here: the card's prose, with the numbers that it rests on. Does not belong here: gates
(``publishing.gates``), which check what is said here.
"""

from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from composer_pipeline.markdown import code, count, fenced, table
from composer_pipeline.publishing.card.facts import NOT_RECORDED, Facts
from composer_pipeline.publishing.consent import Consent
from composer_pipeline.publishing.dataset import Build
from composer_pipeline.redaction import REDACTION_VERSION


def making(facts: Facts) -> Iterator[str]:
    """Yield how pairs were made, and the recipe."""
    yield "## How pairs were made"
    yield (
        "1. Sessions are parsed into states: what the agent saw, and what it did next.\n"
        "2. Text is redacted before it is stored, and before a teacher sees it.\n"
        "3. Teachers of different model families answer each state. Answers that do the same"
        " thing, by a graded comparison of tool calls, form a cluster; a family has one vote.\n"
        "4. The largest cluster with at least two families is the consensus. The agent's own"
        " action is no vote.\n"
        "5. A data-juicer recipe filters the pairs. Repeats of (prompt, chosen, rejected) are"
        " removed."
    )
    yield (
        "Actions are rendered alone: a response with tool calls has no text, so a pair compares"
        " what was done and not how it was announced."
    )
    recipes = facts.pairs["recipe"]
    yield table(
        ["`recipe` of data-juicer", "pairs"],
        [[code(name), count(number)] for name, number in sorted(recipes.items())],
    )


def splits(build: Build) -> Iterator[str]:
    """Yield what validation means."""
    yield "## Splits"
    kept = float(build.figures.get("validation_share") or 0)
    found: Mapping[str, Any] = build.figures.get("split") or {}
    groups = (
        f" {count(found['groups'])} groups from {count(found['repositories'])} repositories;"
        if found
        else ""
    )
    yield (
        f"Rows are split by {found.get('by', 'session')}, a group at a time:{groups} {kept:.0%} of"
        " the groups were meant for validation. Sessions that continue each other, share records or"
        " a first prompt, or have an identical state prompt are one group; a group is in one split"
        " only. Before publishing it was checked that no group, session or prompt is in both."
    )
    if found.get("by") == "session":
        yield (
            "With fewer than five repositories, one can be on both sides: validation then says how"
            " a model does on further sessions of the same work, not on other code."
        )
    if found.get("validation_rows"):
        yield table(
            ["of the pairs in validation", "share"],
            [
                ["have a repository that is in train too", f"{found['repository_in_train']:.1%}"],
                [
                    "hold a message of 120 characters or more that stands word for word in train",
                    f"{found['verbatim_in_train']:.1%}",
                ],
            ],
        )


def privacy(found: Mapping[str, int]) -> Iterator[str]:
    """Yield what redaction did.

    Args:
        found: placeholders in the messages, by kind.
    """
    yield "## Privacy"
    yield (
        f"Redaction rules (version {REDACTION_VERSION}) replace keys and tokens of known shapes,"
        " values assigned to telling names, passwords in URLs and commands, e-mail addresses,"
        " host names, accounts and names of people in structured places by stable placeholders,"
        " and home folders and user names by `user`. Everything in this repository, this card"
        " included, was scanned again with the same rules before it left, and nothing was found."
    )
    if found:
        rows = [[code(kind), count(number)] for kind, number in found.items()]
        yield "Placeholders in the distinct messages of the days that the rows are of:"
        yield table(["kind", "placeholders"], rows)
    else:
        yield "The messages of the days that the rows are of hold no placeholder."
    yield (
        "Not covered: names of people in prose, postal and IP addresses, telephone numbers, and"
        " secrets without a known shape or a telling name."
    )


def consenting(consent: Consent | None, facts: Facts) -> Iterator[str]:
    """Yield whose sessions these are, under which licence, and whom to ask for a withdrawal.

    Args:
        consent: what the owner of the sessions attested; ``None`` for a release without it.
        facts: the numbers of the files, for the agent's models.
    """
    yield "## Licence, consent, contact"
    if consent is None:
        yield (
            "No consent file came with this release, so it names no licence: the sessions belong"
            " to those who wrote them, and the terms of the models above apply to their words."
            " Do not pass it on."
        )
        return
    name = consent.license_name or consent.license
    licence = f"[{name}]({consent.license_link})" if consent.license_link else code(name)
    yield (
        f"{consent.attested_by} attests that the sessions of the repositories in this dataset may"
        f" be published under {licence}. The terms of the models above apply to their words."
    )
    if consent.agent_models:
        named = ", ".join(code(model) for model in sorted(consent.agent_models))
        yield f"That prompts and rejected actions repeat words of {named} was acknowledged by name."
    if silent := sorted(set(facts.agents) - set(consent.agent_models) - {NOT_RECORDED}):
        yield f"Not acknowledged: {', '.join(map(code, silent))}."
    yield (
        f"To have a session taken out, ask: {consent.contact}. A withdrawn session leaves every"
        " later version, and the earlier ones are removed."
    )


def limits() -> Iterator[str]:
    """Yield what the data cannot do."""
    yield "## Limits"
    yield (
        "* Agreement is not correctness: teachers can share a mistake.\n"
        "* Nothing was executed to check an action; what the trace says of one is about the"
        " agent's, not about the teachers'.\n"
        "* Session files rarely hold the system prompt and the tool schemas. Where they did not,"
        " neutral ones stand for them: prompts are then close to what the agent saw, not equal.\n"
        "* Thinking is left out on both sides."
    )


def citation(repo: str, build: Build, facts: Facts) -> Iterator[str]:
    """Yield what to cite, and the program and build that made this.

    Args:
        repo: ``owner/name``.
        build: the build of the dataset.
        facts: the numbers of the files.
    """
    key = repo.replace("/", "-").lower()
    year = max(facts.days, default="")[:4]
    entry = "\n".join(
        [
            f"@misc{{{key},",
            f"  title = {{{repo}: preference pairs for coding agents}},",
            f"  author = {{{repo.split('/')[0]}}},",
            *([f"  year = {{{year}}},"] if year else []),
            f"  howpublished = {{\\url{{https://huggingface.co/datasets/{repo}}}}},",
            f"  note = {{build {build.id}}},",
            "}",
        ]
    )
    yield f"## Citation\n\n{fenced(entry, 'bibtex')}"
    yield (
        f"Made by composer-pipeline {_version()}, build `{build.id}`: the same sessions, answers"
        " and recipes give the same files, byte for byte."
    )


def _version() -> str:
    try:
        return version("composer-pipeline")
    except PackageNotFoundError:
        return "from a checkout"
