"""The list of versions at the card's end: this one, and those that the card before it named.

Belongs here: the lines and how they are carried on. Does not belong here: tags, which
``publishing.publish`` gives.
"""

import re
from collections.abc import Iterator

from composer_pipeline.markdown import count
from composer_pipeline.publishing.card.facts import Facts, configurations
from composer_pipeline.publishing.dataset import Build

BEGIN, END = "<!-- versions -->", "<!-- /versions -->"
_BUILD = re.compile(r"build `([0-9a-f]+)`")


def versions(build: Build, facts: Facts) -> Iterator[str]:
    """Yield the section, with this version alone; :func:`with_history` adds the others."""
    day = max(facts.days, default="no day").replace("-", ".")
    rows = ", ".join(f"{count(facts.of(config))} {config}" for config in configurations(facts))
    yield f"## Versions\n\n{BEGIN}\n* **{day}**, build `{build.id}`: {rows}\n{END}"


def with_history(new: str, old: str) -> str:
    """Return a new card with the versions that the old one names below its own.

    A build is named once, so the same data give the same card again.

    Args:
        new: the card of this publication.
        old: the card that the repository has, or an empty text.
    """
    own = _lines(new)
    known = {name for line in own for name in _BUILD.findall(line)}
    older = [line for line in _lines(old) if not known & set(_BUILD.findall(line))]
    head, _, rest = new.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n" + "\n".join([*own, *older]) + f"\n{END}{tail}" if own else new


def _lines(card: str) -> list[str]:
    _, _, rest = card.partition(BEGIN)
    inside, found, _ = rest.partition(END)
    return [line for line in inside.splitlines() if line.startswith("* ")] if found else []
