"""One voice of each family: ballots, and which reply speaks for a family.

Belongs here: ballots and their order. Does not belong here: who may vote
(``preferences.agreement.eligibility``) and who agrees with whom
(``preferences.agreement.clusters``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from composer_pipeline.actions import Action
from composer_pipeline.preferences.actions import (
    CanonicalAction,
    Place,
    Situation,
    level_of,
    mutates,
    read_action,
)
from composer_pipeline.preferences.agreement.reply import Reply


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
