"""Who agrees with whom: one vote a model family, complete linkage, tiers.

Belongs here: the vote of the teachers' replies to one state, and its tier. Does not belong here:
clusters (``preferences.agreement.clusters``), levels (``preferences.actions.levels``), and the
tables (``preferences.agreement.vote_rows``, ``preferences.pairs.build``).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from composer_pipeline.actions import Action
from composer_pipeline.preferences.actions import Level, Semantic, level_of, mutates, read_action
from composer_pipeline.preferences.agreement.ballots import (
    action_length,
    ballot_of,
    ballot_order,
    one_a_family,
)
from composer_pipeline.preferences.agreement.clusters import complete_linkage, distances, medoid_of
from composer_pipeline.preferences.agreement.eligibility import Excluded, screen
from composer_pipeline.preferences.agreement.reply import Reply, is_control
from composer_pipeline.preferences.agreement.situations import situation_of
from composer_pipeline.trace_states import TraceState

__all__ = ["QUORUM", "Excluded", "Reply", "Vote", "tier_of", "vote"]

#: Fewest families that make a winner.
QUORUM = 2


@dataclass(frozen=True)
class Vote:
    """The outcome of a vote, also when it confirms the agent or nobody wins.

    ``winner_action`` is ``None`` without a winner; the levels are then none. ``tier`` is
    gold, silver, style or none. ``margin`` is (winner - runner-up) / families, ``entropy``
    that of the cluster sizes in bits.

    Every reply is in exactly one of ``voters`` (one a family), ``doubles`` (further replies
    of a family that has its vote), ``controls`` (bought as such, or of the agent's own
    family) and ``excluded`` (with a reason); ``n_usable`` counts all but the excluded.
    ``levels`` holds each pair of voters once, ``to_student`` the level of every voter and
    control with the agent.
    """

    winner_action: Action | None = None
    winner: Reply | None = None
    members: tuple[Reply, ...] = ()
    voters: tuple[Reply, ...] = ()
    n_usable: int = 0
    n_families: int = 0
    n_agree: int = 0
    winner_level: Level = Level.NONE
    student_level: Level = Level.NONE
    margin: float = 0.0
    entropy: float = 0.0
    tier: str = "none"
    mutating: bool = False
    agrees_with_student: bool = False
    clusters: tuple[tuple[str, ...], ...] = field(default=())
    doubles: tuple[Reply, ...] = ()
    controls: tuple[Reply, ...] = ()
    excluded: tuple[Excluded, ...] = ()
    levels: tuple[tuple[str, str, Level], ...] = ()
    to_student: tuple[tuple[str, Level], ...] = ()

    @property
    def is_pair(self) -> bool:
        """Whether the vote makes a preference pair."""
        return self.tier in ("gold", "silver")


def vote(
    state: TraceState,
    replies: Sequence[Reply],
    *,
    quorum: int = QUORUM,
    semantic: Semantic | None = None,
) -> Vote:
    """Let the teachers vote on a state.

    Families cluster by complete linkage: L1 where either action of a link is mutating, L2
    elsewhere. The winner has at least ``quorum`` families and more than every other
    cluster. Its spokesman is the medoid; ties go to the length closest to the agent's
    action, then to the shorter, then to the cheaper one. The result does not depend on the
    order of the replies.

    Args:
        state: the state.
        replies: usable replies. Those that were bought as controls or are of the agent's own
            family are controls, and those that are empty or in another language are excluded;
            neither votes.
        quorum: fewest families that make a winner.
        semantic: judge of meaning for level L3 (``levels.level``), asked about the agent's
            action and each vote: L3 joins no votes. Off by default.
    """
    situation = situation_of(state)
    kept, excluded = screen(state.messages, state.action, replies)
    own = state.model
    mine = {id(reply) for reply in kept if is_control(reply, own)}
    place = situation.place
    controls = [ballot_of(reply, place) for reply in kept if id(reply) in mine]
    voters, doubles = one_a_family(
        [ballot_of(reply, place) for reply in kept if id(reply) not in mine], situation
    )
    tally: dict[str, Any] = {
        "voters": tuple(ballot.reply for ballot in voters),
        "doubles": tuple(ballot.reply for ballot in doubles),
        "controls": tuple(ballot.reply for ballot in sorted(controls, key=ballot_order)),
        "excluded": tuple(sorted(excluded, key=lambda e: (e.family, e.teacher, e.kind))),
        "n_usable": len(kept),
        "n_families": len(voters),
    }
    if not voters and not controls:
        return Vote(**tally)
    student = read_action(state.action, place)
    near = [level_of(student, b.read, situation, semantic=semantic).level for b in voters]
    tally["to_student"] = tuple(
        [(b.reply.teacher, far) for b, far in zip(voters, near, strict=True)]
        + [
            (b.reply.teacher, level_of(student, b.read, situation).level)
            for b in sorted(controls, key=ballot_order)
        ]
    )
    if not voters:
        return Vote(**tally)
    distance = distances(voters, situation)
    clusters = complete_linkage([ballot.mutating for ballot in voters], distance)
    sizes = sorted((len(cluster) for cluster in clusters), reverse=True)
    runner_up = sizes[1] if len(sizes) > 1 else 0
    shares = [size / len(voters) for size in sizes]
    facts: dict[str, Any] = {
        **tally,
        "margin": (sizes[0] - runner_up) / len(voters),
        "entropy": -sum(share * math.log2(share) for share in shares) + 0.0,
        "clusters": tuple(tuple(voters[i].reply.teacher for i in cluster) for cluster in clusters),
        "levels": tuple(
            (voters[j].reply.teacher, voters[i].reply.teacher, distance[i][j])
            for i in range(len(voters))
            for j in range(i)
        ),
    }
    if sizes[0] < quorum or sizes[0] == runner_up:
        return Vote(**facts)
    winners = next(cluster for cluster in clusters if len(cluster) == sizes[0])
    medoid = voters[medoid_of(winners, voters, distance, action_length(state.action))]
    winner_level = max(distance[i][j] for i in winners for j in winners)
    student_level = min(near[i] for i in winners)
    mutating = mutates(state.action) or medoid.mutating
    return Vote(
        **facts,
        winner_action=medoid.reply.action,
        winner=medoid.reply,
        members=tuple(voters[i].reply for i in winners),
        n_agree=len(winners),
        winner_level=winner_level,
        student_level=student_level,
        tier=tier_of(winner_level, student_level, mutating=mutating),
        mutating=mutating,
        agrees_with_student=student_level <= (Level.L1 if mutating else Level.L2),
    )


def tier_of(winner_level: Level, student_level: Level, *, mutating: bool) -> str:
    """Return the tier of a pair.

    gold: the winners agree at L1 or finer and the agent is not within L2. silver: the
    winners agree at L2 and the agent shares not even the class, or the winners agree at L1
    and the agent is at L2 where L2 is not the same (a mutating action). style: the same
    for other actions, where L2 counts as agreement; no pair. none: everything else, also an
    agent that a semantic judge finds to mean the same (L3).
    """
    if student_level <= Level.L1 or student_level is Level.L3:
        return "none"
    if winner_level <= Level.L1:
        if student_level > Level.L2:
            return "gold"
        return "silver" if mutating else "style"
    if winner_level == Level.L2 and student_level > Level.L4:
        return "silver"
    return "none"
