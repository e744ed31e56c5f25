"""The vote on a state: one reply a family, complete-linkage clusters, a winner and its tier."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from composer_pipeline.actions import Action
from composer_pipeline.preferences.actions.canonical import (
    CanonicalAction,
    Level,
    mutates,
    read_action,
)
from composer_pipeline.preferences.actions.levels import (
    ActionContext,
    KnownFiles,
    Semantic,
    compare_read,
    level,
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

#: Fewest families that make a winner.
QUORUM = 2


@dataclass(frozen=True)
class _ReadReply:
    """A reply with its canonical action."""

    reply: Reply
    read: CanonicalAction
    mutating: bool
    length: int  #: characters of the action as JSON


def _read_reply(reply: Reply, place: Place) -> _ReadReply:
    action = reply.action
    return _ReadReply(reply, read_action(action, place), mutates(action), len(action.to_json()))


def _order(item: _ReadReply) -> tuple[Any, ...]:
    """Return a sort key that makes the vote independent of the order of the replies."""
    reply = item.reply
    return (
        reply.family.lower(),
        reply.teacher,
        item.read.form,
        reply.action.to_json(),
        reply.cost_picodollars,
        reply.tokens,
        reply.model,
    )


def _one_per_family(
    items: Sequence[_ReadReply], context: ActionContext
) -> tuple[list[_ReadReply], list[_ReadReply]]:
    """Return one reply of each family, the closest to the family's others, and the rest."""
    families: dict[str, list[_ReadReply]] = {}
    for item in sorted(items, key=_order):
        families.setdefault(item.reply.family.lower(), []).append(item)
    voters: list[_ReadReply] = []
    rest: list[_ReadReply] = []
    for group in families.values():
        voter = group[0]
        if len(group) > 1:
            voter = min(
                group, key=lambda a: sum(compare_read(a.read, b.read, context).level for b in group)
            )
        voters.append(voter)
        rest.extend(item for item in group if item is not voter)
    return voters, rest


def _distances(voters: Sequence[_ReadReply], context: ActionContext) -> list[list[Level]]:
    """Return the level of each two voters, as a symmetric table."""
    grid = [[Level.L0] * len(voters) for _ in voters]
    for i, a in enumerate(voters):
        for j in range(i):
            grid[i][j] = grid[j][i] = compare_read(a.read, voters[j].read, context).level
    return grid


def complete_linkage(
    changes: Sequence[bool], distance: Sequence[Sequence[Level]]
) -> list[list[int]]:
    """Merge the two closest clusters while every pair across them may be linked.

    ``changes`` says of each voter whether its action changes anything, which limits links to L1.
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


def context_of(state: TraceState) -> ActionContext:
    """Return the place of a state, and the files that its prefix shows."""
    cwd = state.cwd or ""
    return ActionContext(Place(cwd, home_of(cwd)), KnownFiles(state.messages))


def home_of(cwd: str) -> str:
    """Return ``/home/NAME``, ``/Users/NAME`` or ``/root`` of a path, or an empty string."""
    parts = cwd.split("/")
    if len(parts) > 2 and parts[1] in ("home", "Users"):
        return "/".join(parts[:3])
    return "/root" if parts[:2] == ["", "root"] else ""


@dataclass(frozen=True)
class Vote:
    """The outcome of a vote, also if it confirms the agent or nobody wins.

    Every reply is in exactly one of ``voters``, ``same_family``, ``controls`` and ``excluded``;
    ``n_usable`` counts all but the excluded. Without a winner the levels are ``NONE``.
    """

    winner_action: Action | None = None
    winner: Reply | None = None
    members: tuple[Reply, ...] = ()  #: the replies of the winning cluster
    voters: tuple[Reply, ...] = ()  #: one a family
    n_usable: int = 0
    n_families: int = 0
    n_agree: int = 0
    winner_level: Level = Level.NONE
    student_level: Level = Level.NONE
    margin: float = 0.0  #: (winner - runner-up) / families
    entropy: float = 0.0  #: of the cluster sizes, in bits
    tier: str = "none"  #: gold, silver, style or none
    mutating: bool = False
    agrees_with_student: bool = False
    clusters: tuple[tuple[str, ...], ...] = ()  #: teachers of each, the largest first
    same_family: tuple[Reply, ...] = ()  #: further replies of a family that has its vote
    controls: tuple[Reply, ...] = ()  #: bought as controls, or of the agent's own family
    excluded: tuple[Excluded, ...] = ()
    levels: tuple[tuple[str, str, Level], ...] = ()  #: of each two voters
    to_student: tuple[tuple[str, Level], ...] = ()  #: of each voter and control with the agent

    @property
    def is_pair(self) -> bool:
        """Return True if the vote makes a preference pair."""
        return self.tier in ("gold", "silver")


def vote(
    state: TraceState,
    replies: Sequence[Reply],
    *,
    quorum: int = QUORUM,
    semantic: Semantic | None = None,
) -> Vote:
    """Cluster the families' replies and compare the winning cluster with the agent's action.

    Two actions are linked at L1 if either changes anything, at L2 otherwise. The winner has at
    least ``quorum`` families and more than every other cluster; its medoid speaks for it.
    ``semantic`` is asked about the agent's action and each vote: L3 joins no votes.
    """
    context = context_of(state)
    kept, excluded = screen(state.messages, state.action, replies)
    controls: list[_ReadReply] = []
    candidates: list[_ReadReply] = []
    for reply in kept:
        side = controls if is_control(reply, state.model) else candidates
        side.append(_read_reply(reply, context.place))
    controls.sort(key=_order)
    voters, rest = _one_per_family(candidates, context)
    outcome = Vote(
        voters=tuple(item.reply for item in voters),
        same_family=tuple(item.reply for item in rest),
        controls=tuple(item.reply for item in controls),
        excluded=tuple(sorted(excluded, key=lambda e: (e.reply.family, e.reply.teacher, e.kind))),
        n_usable=len(kept),
        n_families=len(voters),
    )
    if not voters and not controls:
        return outcome
    student = read_action(state.action, context.place)
    near = [compare_read(student, v.read, context, semantic=semantic).level for v in voters]
    near += [compare_read(student, c.read, context).level for c in controls]
    names = [item.reply.teacher for item in (*voters, *controls)]
    outcome = replace(outcome, to_student=tuple(zip(names, near, strict=True)))
    if not voters:
        return outcome
    distance = _distances(voters, context)
    clusters = complete_linkage([voter.mutating for voter in voters], distance)
    sizes = [*map(len, clusters), 0]
    shares = [len(cluster) / len(voters) for cluster in clusters]
    outcome = replace(
        outcome,
        margin=(sizes[0] - sizes[1]) / len(voters),
        entropy=-sum(share * math.log2(share) for share in shares) + 0.0,
        clusters=tuple(tuple(names[i] for i in cluster) for cluster in clusters),
        levels=tuple(
            (names[j], names[i], distance[i][j]) for i in range(len(voters)) for j in range(i)
        ),
    )
    if sizes[0] < quorum or sizes[0] == sizes[1]:
        return outcome
    winners, length = clusters[0], len(state.action.to_json())

    def medoid_order(i: int) -> tuple[int, int, int, int, str, str]:
        voter, reply = voters[i], voters[i].reply
        far = sum(distance[i][j] for j in winners)
        near_length = abs(voter.length - length)
        return (
            far, near_length, voter.length, reply.cost_picodollars, reply.family, reply.teacher,
        )  # fmt: skip

    medoid = voters[min(winners, key=medoid_order)]
    winner_level = max(distance[i][j] for i in winners for j in winners)
    student_level = min(near[i] for i in winners)
    mutating = mutates(state.action) or medoid.mutating
    return replace(
        outcome,
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
    """Return the tier of a pair: gold, silver, style or none.

    gold: the winners agree at L1 or finer and the agent is not within L2. silver: the winners
    agree at L2 and the agent shares not even the class, or at L1 and the agent is at L2 with a
    mutating action. style: the same for other actions, for which L2 is agreement.
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
    """The vote of :func:`vote` in clusters, for the selection of further questions."""

    quorum = QUORUM

    def votes(self, family: str) -> bool:
        """Return True if a family votes; the agent's own does not."""
        return family.lower() not in STUDENT_FAMILIES

    def tally(self, state: TraceState, answers: Mapping[str, Action]) -> Sequence[Cluster]:
        """Return the clusters of ``{family: its usable action}``, the largest first."""
        replies = [Reply(family, family, family, action) for family, action in answers.items()]
        context = context_of(state)
        return [
            Cluster(
                len(families),
                agrees_with_student=any(
                    same_action(state.action, answers[family], context) for family in families
                ),
            )
            for families in vote(state, replies).clusters
        ]


def same_action(a: Action, b: Action, context: ActionContext) -> bool:
    """Return True if two actions count as one: L1 if either changes anything, else L2."""
    bound = Level.L1 if mutates(a) or mutates(b) else Level.L2
    return level(a, b, context).level <= bound
