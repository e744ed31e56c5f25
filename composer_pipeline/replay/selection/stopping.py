"""When enough has been asked: clusters of answers, a quorum, and who is asked next.

Belongs here: rules that look at answers and prices. Does not belong here: asking
(``replay.engine``), and the vote itself, which is injected (:class:`Decide`).
"""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Protocol

import msgspec

from composer_pipeline.actions import Action
from composer_pipeline.replay.selection.features import features, skips, value
from composer_pipeline.replay.teachers import Selection, SkipRule, Teacher, sampled

if TYPE_CHECKING:
    from composer_pipeline.trace_states import TraceState


#: A typical question, in tokens, to order teachers by price: (prompt, completion).
TYPICAL_TOKENS = (20_000, 400)


#: Sessions are asked in so many groups, the most promising first.
GROUPS = 4


#: USD per token: (prompt, completion).
Price = tuple[Decimal, Decimal]


class Cluster(msgspec.Struct, frozen=True):
    """Families that gave the same answer, and whether it is also the agent's."""

    families: int
    agrees_with_student: bool = False


class Decide(Protocol):
    """The vote as the selection needs it; ``agreement.replay_vote`` has the real one."""

    @property
    def quorum(self) -> int:
        """Fewest families that make a winner."""

    def votes(self, family: str) -> bool:
        """Say whether a family votes; the agent's own does not. A control never does."""

    def tally(self, state: "TraceState", answers: Mapping[str, Action]) -> Sequence[Cluster]:
        """Return the clusters of ``{family: its usable action}``."""


def decided(clusters: Sequence[Cluster], remaining: int, quorum: int) -> bool:
    """Say whether ``remaining`` further votes can no longer change what comes out.

    What comes out is: a pair for one known cluster, or no pair. A winner has at least
    ``quorum`` families and more than every other cluster.

    Args:
        clusters: the votes so far.
        remaining: families that may still vote; each joins a cluster or starts one.
        quorum: fewest families of a winner.
    """
    sizes = [cluster.families for cluster in clusters]
    largest_other = [
        max((size for i, size in enumerate(sizes) if i != at), default=0)
        for at in range(len(sizes))
    ]
    for size, other in zip(sizes, largest_other, strict=True):
        if size >= quorum and size > other + remaining:
            return True  # nobody can catch it
    if remaining >= quorum and remaining > max(sizes, default=0):
        return False  # a cluster that does not exist yet may win
    return all(
        cluster.agrees_with_student
        or cluster.families + remaining < quorum
        or cluster.families + remaining <= other
        for cluster, other in zip(clusters, largest_other, strict=True)
    )


def least_needed(clusters: Sequence[Cluster], remaining: int, quorum: int) -> int:
    """Return the fewest further votes after which the vote can be decided; 0 if it is.

    So many are asked at once: asking them one after the other would save nothing.
    """
    for more in range(remaining + 1):
        left = remaining - more
        grown = [
            [
                msgspec.structs.replace(c, families=c.families + more) if i == at else c
                for i, c in enumerate(clusters)
            ]
            for at in range(len(clusters))
        ]
        fresh = [[*clusters, Cluster(more)], [*clusters, Cluster(more, True)]] if more else []
        alone = [[*clusters, *[Cluster(1)] * more]]
        if any(decided(case, left, quorum) for case in [*grown, *fresh, *alone]):
            return more
    return remaining


def pair_found(clusters: Sequence[Cluster], quorum: int) -> bool:
    """Say whether a full vote with these clusters goes to one that is against the agent."""
    ordered = sorted(clusters, key=lambda cluster: -cluster.families)
    if not ordered or ordered[0].families < quorum:
        return False
    if len(ordered) > 1 and ordered[1].families == ordered[0].families:
        return False
    return not ordered[0].agrees_with_student


def has_vote(teacher: Teacher, decide: Decide | None) -> bool:
    """Say whether a teacher's replies may vote: no control, and of a family that votes."""
    return not teacher.control and (decide is None or decide.votes(teacher.family))


def spokesmen(
    teachers: Sequence[Teacher], known: Mapping[str, Action | None], decide: Decide
) -> list[Teacher]:
    """Return one teacher for each family that may still vote, in the order given.

    A family whose teacher gave nothing usable speaks through its next teacher.

    Args:
        teachers: the cheapest first.
        known: teacher -> its action, ``None`` where it gave nothing usable.
        decide: the vote.
    """
    voters = [teacher for teacher in teachers if has_vote(teacher, decide)]
    spoken = {t.family for t in voters if known.get(t.name) is not None}
    found: dict[str, Teacher] = {}
    for teacher in voters:
        if teacher.family not in spoken and teacher.name not in known:
            found.setdefault(teacher.family, teacher)
    return list(found.values())


def clusters_of(
    state: "TraceState",
    teachers: Sequence[Teacher],
    known: Mapping[str, Action | None],
    decide: Decide,
) -> Sequence[Cluster]:
    """Return the votes of ``known``, one a family."""
    answers: dict[str, Action] = {}
    for teacher in teachers:
        action = known.get(teacher.name)
        if action is not None and has_vote(teacher, decide):
            answers.setdefault(teacher.family, action)
    return decide.tally(state, answers) if answers else []


def how_many(clusters: Sequence[Cluster], remaining: int, quorum: int, curtail: str) -> int:
    """Return how many further votes to ask for at once; 0 when asking is over.

    Args:
        clusters: the votes so far.
        remaining: families that may still vote.
        quorum: fewest families of a winner.
        curtail: ``exact`` or ``student``.
    """
    if decided(clusters, remaining, quorum):
        return 0
    if curtail == "student" and all(cluster.agrees_with_student for cluster in clusters):
        return 0 if clusters else 1
    return max(1, least_needed(clusters, remaining, quorum))


def ask_order(teachers: Sequence[Teacher], prices: Mapping[str, Price] | None = None) -> list[str]:
    """Return the teachers' names, the cheapest for a typical question first.

    Args:
        teachers: the teachers.
        prices: name -> USD per token; the caps of the file where a teacher is missing.
    """

    def cost(teacher: Teacher) -> Decimal:
        cap = teacher.max_price
        caps = (cap.prompt / 1_000_000, cap.completion / 1_000_000)
        prompt, completion = (prices or {}).get(teacher.name, caps)
        return TYPICAL_TOKENS[0] * prompt + TYPICAL_TOKENS[1] * completion

    return [t.name for t in sorted(teachers, key=lambda t: (cost(t), t.name))]


def choose(
    states: Sequence["TraceState"], selection: Selection
) -> tuple[list["TraceState"], dict[str, SkipRule]]:
    """Return the states to ask about, and the rule of each state that a rule leaves out.

    A state of the audit sample is asked about although a rule leaves it out.
    """
    in_time = sorted(states, key=lambda s: (ts.timestamp() if (ts := s.ts) else 0.0, s.state_id))
    ruled_out = skips(in_time, selection.skip)
    chosen = [
        state
        for state in states
        if state.state_id not in ruled_out or sampled(state.state_id, selection.audit_share)
    ]
    if selection.max_states is not None and selection.max_states < len(chosen):
        chosen.sort(key=lambda s: (-value(features(s)), s.state_id))
        chosen = chosen[: selection.max_states]
    return chosen, ruled_out
