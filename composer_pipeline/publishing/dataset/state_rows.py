"""Rows that states make: recorded groups, hints, and the agent's own successes.

Belongs here: what one session of a day gives. Does not belong here: pairs, which normalisation has
written, and which sessions are left out (``publishing.selection``).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from composer_pipeline.actions import Action
from composer_pipeline.chat import GrowingChain, Toolsets, action_message
from composer_pipeline.chat import offered_tools as offered
from composer_pipeline.preferences.agreement import Reply, Vote, vote
from composer_pipeline.preferences.hints import recoveries
from composer_pipeline.publishing.dataset.message_texts import MessageTexts
from composer_pipeline.publishing.successes import own_successes
from composer_pipeline.publishing.terms import AGENT, Answer, Terms, agent_answer, told_of
from composer_pipeline.trace_states import TraceState

Row = dict[str, Any]


def session_rows(
    states: Sequence[TraceState],
    tools: Toolsets,
    replies: Mapping[str, Sequence[Reply]],
    hint_of: Mapping[str, Row],
    terms: Terms,
    refused: list[Row],
) -> Iterator[tuple[str, Row]]:
    """Yield (table, row) of the states of a session and day; messages of prompts are JSON texts.

    Args:
        states: all states of the session on the day, whole.
        tools: of the day.
        replies: state id to its usable replies.
        hint_of: state id to its row of ``hints``.
        terms: say which answers may be trained on.
        refused: gets the ledger rows of the other answers.
    """
    recovered = recoveries(
        states, {s.state_id: hint_of[s.state_id]["span_call"] for s in states
                 if s.state_id in hint_of}
    )  # fmt: skip
    votes = {s.state_id: vote(s, replies[s.state_id]) for s in states if s.state_id in replies}
    decided = {name for name, outcome in votes.items() if outcome.winner_action}
    worked = {state.state_id for state in own_successes(states, decided)}
    chain_id, chain, texts = None, GrowingChain(), MessageTexts()
    offers = _Offers(tools)
    for state in sorted(states, key=lambda s: (s.chain_id, s.n_messages, s.state_id)):
        name = state.state_id
        if name not in decided | worked and name not in hint_of:
            continue
        if state.chain_id != chain_id:
            chain_id, chain, texts = state.chain_id, GrowingChain(), MessageTexts()
        base = {
            "state_id": name,
            "session_id": state.session_id,
            "prompt": texts.of(chain.at(state)[0]),
            "tools": offers.of(state),
        }
        if name in decided:
            kept, drops = terms.of_group(name, replies[name], votes[name])
            refused += drops
            if kept:
                yield "dataset_groups", {**base, **_answers(state, kept, votes[name])}
        own = {"model": state.model, "action": [action_message(state.action)]}
        if name in worked:
            yield "dataset_successes", {**base, **own}
        if name in hint_of:
            yield "dataset_hints", {**base, **own, **_hint(hint_of[name], recovered.get(name))}


class _Offers:
    """The tools of states as JSON texts, equal ones written once."""

    def __init__(self, tools: Toolsets) -> None:
        self._tools = tools
        self._kept: dict[int, tuple[Any, list[str]]] = {}

    def of(self, state: TraceState) -> list[str]:
        toolset = self._tools.of(state)
        if id(toolset) not in self._kept:
            self._kept[id(toolset)] = toolset, MessageTexts().of(offered(toolset.tools))
        return self._kept[id(toolset)][1]


def _hint(hint: Row, recovered: Action | None) -> Row:
    return {
        "hint": hint["text"],
        "source": hint["source"],
        "span_call": hint["span_call"],
        "recovery": [action_message(recovered)] if recovered is not None else None,
    }


def _answers(state: TraceState, replies: Sequence[Reply], outcome: Vote) -> Row:
    """Return what agent and teachers did at a state, and the consensus."""
    assert outcome.winner_action is not None
    return {
        "candidates": [
            action_message(state.action),
            *(action_message(reply.action) for reply in replies),
        ],
        "sources": [AGENT, *(reply.teacher for reply in replies)],
        **told_of([agent_answer(state.model), *map(Answer.of, replies)]),
        "simulated": any(reply.simulated for reply in replies),
        "consensus": [action_message(outcome.winner_action)],
    }
