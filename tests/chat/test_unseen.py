"""Messages that several prefixes share are looked at once, whatever the order of the states."""

from typing import Any

from composer_pipeline.states.state import TraceState, Unseen
from tests.fixtures.states import made_state

CHAIN = [{"role": "user", "content": str(n)} for n in range(9)]
#: Leaves the chain after its fourth message.
BRANCH = [*CHAIN[:4], {"role": "user", "content": "other"}]


def seen(*states: TraceState) -> list[int]:
    """How many messages each state is the first to have."""
    unseen = Unseen()
    return [len(unseen.of(state)) for state in states]


def prefix(messages: list[dict[str, Any]], chain: str = "chain") -> TraceState:
    return made_state(messages=messages, chain_id=chain)


def test_each_message_is_seen_once() -> None:
    grown = [prefix(CHAIN[:n]) for n in (2, 5, 5, 9)]
    assert seen(*grown) == [2, 3, 0, 4]
    assert seen(*grown[::-1]) == [9, 0, 0, 0]
    assert seen(prefix([]), prefix(CHAIN)) == [0, 9]


def test_another_branch_is_looked_at_under_any_name() -> None:
    longer = [*BRANCH, {"role": "user", "content": "more"}]
    assert seen(prefix(CHAIN[:5]), prefix(BRANCH, "branch")) == [5, 1]
    assert seen(prefix(CHAIN[:5]), prefix(BRANCH)) == [5, 1]
    assert seen(prefix(CHAIN[:5]), prefix(longer)) == [5, 2]
