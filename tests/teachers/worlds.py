"""A world for selectors: teachers' texts are the votes, and so many states fit a ceiling."""

from collections.abc import Mapping, Sequence

from composer_pipeline.actions import Action
from composer_pipeline.states.state import TraceState
from composer_pipeline.teachers.selection import Cluster, CurtailedSelector
from composer_pipeline.teachers.teachers import Selection, Teacher
from composer_pipeline.teachers.value import PairModel


class ByText:
    """A vote in which equal texts agree, the agent's own among them."""

    quorum = 2

    def votes(self, family: str) -> bool:
        """Return True, but for the agent's family."""
        return family != "claude"

    def tally(self, state: TraceState, answers: Mapping[str, Action]) -> Sequence[Cluster]:
        """Return the clusters of equal texts."""
        texts = [action.text for action in answers.values()]
        return [Cluster(texts.count(t), self.is_agents(state, t)) for t in dict.fromkeys(texts)]

    def is_agents(self, state: TraceState, text: str) -> bool:
        """Return True if the agent said it."""
        return text == state.action.text


class Truth(ByText):
    """The vote of a world in which every teacher says "other" where a pair is, else "same"."""

    def is_agents(self, state: TraceState, text: str) -> bool:
        """Return True if it is "same"."""
        return text == "same"


def asked_until(
    states: Sequence[TraceState],
    room: int,
    pairs: set[str],
    teachers: Sequence[Teacher],
    model: PairModel | None = None,
) -> tuple[CurtailedSelector, set[str]]:
    """Run a selector over a world where so many states fit; return it and those asked."""
    selection = Selection(curtail="exact", audit_share=0.0)
    selector = CurtailedSelector(selection, Truth(), model=model)
    known: dict[str, dict[str, Action | None]] = {s.state_id: {} for s in states}
    begun: set[str] = set()

    def fits(state: TraceState, _: Sequence[Teacher]) -> bool:
        if state.state_id not in begun and len(begun) >= room:
            return False
        begun.add(state.state_id)
        return True

    while wave := selector.next_wave(states, teachers, lambda state: known[state], fits):
        for state, who in wave:
            text = "other" if state.state_id in pairs else "same"
            known[state.state_id][who.name] = Action(text)
    return selector, begun
