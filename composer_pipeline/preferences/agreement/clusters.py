"""Ballots that agree: their distances, complete linkage, and who speaks for a cluster.

Belongs here: distances and clusters. Does not belong here: ballots
(``preferences.agreement.ballots``) and what a vote makes of the clusters
(``preferences.agreement.vote``).
"""

from collections.abc import Sequence

from composer_pipeline.preferences.actions import (
    Level,
    Situation,
    level_of,
)
from composer_pipeline.preferences.agreement.ballots import Ballot


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
