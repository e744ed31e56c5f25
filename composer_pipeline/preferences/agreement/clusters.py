"""Families that agree: one voice each, complete linkage, and who speaks for a cluster.

Belongs here: ballots, their distances and clusters. Does not belong here: who may vote
(``preferences.agreement.eligibility``) and what a vote makes of the clusters
(``preferences.agreement.vote``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from composer_pipeline.actions import Action
from composer_pipeline.preferences.actions import (
    CanonicalAction,
    Level,
    Place,
    Situation,
    level_of,
    mutates,
    read_action,
)
from composer_pipeline.preferences.agreement.eligibility import Reply


@dataclass(frozen=True)
class Ballot:
    """A reply with its action read once, whether it mutates, and its length."""

    reply: Reply
    read: CanonicalAction
    mutating: bool
    length: int


def ballot_of(reply: Reply, place: Place) -> Ballot:
    """Return a reply as a ballot."""
    read = read_action(reply.action, place)
    return Ballot(reply, read, mutates(reply.action), action_length(reply.action))


def action_length(action: Action) -> int:
    """The length that a pair would show: characters of the action as JSON."""
    return len(action.to_json())


def ballot_order(ballot: Ballot) -> tuple[Any, ...]:
    """A total order of replies that does not depend on the order they came in."""
    reply = ballot.reply
    return (
        reply.family.lower(),
        reply.teacher,
        ballot.read.form,
        reply.action.to_json(),
        reply.cost_picodollars,
        reply.tokens,
        reply.model,
    )


def one_a_family(
    ballots: Sequence[Ballot], situation: Situation
) -> tuple[list[Ballot], list[Ballot]]:
    """Return one ballot for each family, the closest to the family's others, and the rest."""
    families: dict[str, list[Ballot]] = {}
    for ballot in sorted(ballots, key=ballot_order) if len(ballots) > 1 else ballots:
        families.setdefault(ballot.reply.family.lower(), []).append(ballot)
    voters: list[Ballot] = []
    doubles: list[Ballot] = []
    for group in families.values():
        spokesman = group[0]
        if len(group) > 1:
            spokesman = min(
                group, key=lambda b: sum(level_of(b.read, o.read, situation).level for o in group)
            )
        voters.append(spokesman)
        doubles.extend(ballot for ballot in group if ballot is not spokesman)
    return voters, doubles


def distances(voters: Sequence[Ballot], situation: Situation) -> list[list[Level]]:
    """Return the level of each two voters, as a symmetric table."""
    grid = [[Level.L0] * len(voters) for _ in voters]
    for i, a in enumerate(voters):
        for j in range(i):
            grid[i][j] = grid[j][i] = level_of(a.read, voters[j].read, situation).level
    return grid


def complete_linkage(
    changes: Sequence[bool], distance: Sequence[Sequence[Level]]
) -> list[list[int]]:
    """Merge the two closest clusters while every pair across them may be linked.

    Args:
        changes: for each voter, whether its action changes anything.
        distance: levels of all pairs of voters.
    """

    def linked(i: int, j: int) -> bool:
        return distance[i][j] <= (Level.L1 if changes[i] or changes[j] else Level.L2)

    clusters = [[i] for i in range(len(changes))]
    while True:
        best: tuple[int, int, int] | None = None
        for x in range(len(clusters)):
            for y in range(x):
                if all(linked(i, j) for i in clusters[x] for j in clusters[y]):
                    far = max(distance[i][j] for i in clusters[x] for j in clusters[y])
                    best = min(best, (far, y, x)) if best else (far, y, x)
        if best is None:
            return sorted(clusters, key=lambda cluster: (-len(cluster), cluster))
        _, y, x = best
        clusters[y] = sorted(clusters[y] + clusters[x])
        del clusters[x]


def medoid_of(
    cluster: Sequence[int],
    voters: Sequence[Ballot],
    distance: Sequence[Sequence[Level]],
    size: int,
) -> int:
    """Return who speaks for a cluster: the closest to its others, then to ``size``."""

    def key(i: int) -> tuple[int, int, int, int, str, str]:
        reply, length = voters[i].reply, voters[i].length
        far = sum(distance[i][j] for j in cluster)
        near = abs(length - size)
        return far, near, length, reply.cost_picodollars, reply.family, reply.teacher

    return min(cluster, key=key)
