"""The vote as the selection of questions needs it: clusters, and who is with the agent.

Belongs here: the bridge from the vote (``preferences.agreement.vote``) to
``replay.selection.stopping.Decide``. Does not belong here: the rules of the vote, and when to stop
asking (``replay.selection.curtailed``).
"""

from collections.abc import Mapping, Sequence

from composer_pipeline.actions import Action
from composer_pipeline.preferences.actions import Level, Situation, level, mutates
from composer_pipeline.preferences.agreement.lineage import STUDENT_FAMILIES
from composer_pipeline.preferences.agreement.situations import situation_of
from composer_pipeline.preferences.agreement.vote import QUORUM, Reply, vote
from composer_pipeline.replay.selection import Cluster
from composer_pipeline.trace_states import TraceState


class VoteDecision:
    """The vote of :func:`composer_pipeline.preferences.agreement.vote.vote`, in clusters."""

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
