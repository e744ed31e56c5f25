"""One voice of each family: ballots, and which reply speaks for a family.

Belongs here: ballots and their order. Does not belong here: who may vote
(``preferences.agreement.eligibility``) and who agrees with whom
(``preferences.agreement.clusters``).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from composer_pipeline.actions import Action
from composer_pipeline.preferences.actions.canonical import (
    CanonicalAction,
    Level,
    mutates,
    read_action,
)
from composer_pipeline.preferences.actions.levels import (
    KnownFiles,
    Semantic,
    Situation,
    level,
    level_of,
)
from composer_pipeline.preferences.actions.shell_parse import Place
from composer_pipeline.preferences.eligibility import (
    STUDENT_FAMILIES,
    Excluded,
    Reply,
    is_control,
    screen,
)
from composer_pipeline.states.state import TraceState
from composer_pipeline.teachers.selection import Cluster


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


def situation_of(state: TraceState) -> Situation:
    """Return the place and the known files of a state.

    The home folder is taken from the working directory, which redaction keeps in shape.
    Files are rebuilt from the prefix when they are first asked for.
    """
    cwd = state.cwd or ""
    return Situation(Place(cwd, home_of(cwd)), KnownFiles(state.messages))


def home_of(cwd: str) -> str:
    """Return ``/home/NAME``, ``/Users/NAME`` or ``/root`` of a path, or an empty string."""
    parts = cwd.split("/")
    if len(parts) > 2 and parts[1] in ("home", "Users"):
        return "/".join(parts[:3])
    return "/root" if parts[:2] == ["", "root"] else ""


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


class VoteDecision:
    """The vote of :func:`composer_pipeline.preferences.vote.vote`, in clusters."""

    quorum = QUORUM

    def votes(self, family: str) -> bool:
        """Say whether a family votes; the agent's own does not."""
        return family.lower() not in STUDENT_FAMILIES

    def tally(self, state: TraceState, answers: Mapping[str, Action]) -> Sequence[Cluster]:
        """Return the clusters of ``{family: its usable action}``, the largest first."""
        replies = [Reply(family, family, family, action) for family, action in answers.items()]
        situation = situation_of(state)
        return [
            Cluster(
                len(families),
                agrees_with_student=any(
                    same_action(state.action, answers[family], situation) for family in families
                ),
            )
            for families in vote(state, replies).clusters
        ]


def same_action(a: Action, b: Action, situation: Situation) -> bool:
    """Say whether two actions count as one: L1 where either changes anything, L2 elsewhere."""
    bound = Level.L1 if mutates(a) or mutates(b) else Level.L2
    return level(a, b, situation).level <= bound
