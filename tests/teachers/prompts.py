"""Prompts as rows of pieces, to compare with what a plan counts of its trees."""

from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from composer_pipeline.teachers.plan_model import PrefixReuse


class Prompt(NamedTuple):
    """A prompt's pieces: what is in its prefix up to each of them, and their bytes."""

    state_id: str
    session_id: str
    prefixes: Sequence[int]
    sizes: Sequence[int]


def reuse(
    prompts: Iterable[Prompt],
    *,
    surely: Collection[str] = (),
    edges: Sequence[int] = (),
    minimum_bytes: int = 0,
) -> PrefixReuse:
    """Return what prompts in the order of asking share, each session as a tree."""
    found = PrefixReuse(edges, minimum_bytes)
    sessions: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        sessions.setdefault(prompt.session_id, []).append(prompt)
    for mine in sessions.values():
        nodes: dict[int, int] = {}
        parents: list[int] = []
        reach: list[int] = []
        ends = []
        for prompt in mine:
            node = -1
            for prefix, end in zip(prompt.prefixes, accumulate(prompt.sizes), strict=True):
                if prefix not in nodes:
                    nodes[prefix] = len(reach)
                    parents.append(node)
                    reach.append(end)
                node = nodes[prefix]
            ends.append((node, int(prompt.state_id in surely)))
        found.add_session(ends, parents, reach)
    return found
