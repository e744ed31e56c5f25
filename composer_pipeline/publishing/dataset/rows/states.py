"""Rows that states make: recorded groups, their consensus, hints, and the agent's own successes.

Belongs here: what one session of a day gives. Does not belong here: pairs, which normalisation has
written, and which sessions are left out (``publishing.selection``).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from composer_pipeline.actions import Action, action_text
from composer_pipeline.chat import GrowingChain, Toolsets, action_message
from composer_pipeline.chat import offered_tools as offered
from composer_pipeline.lake import SCHEMA_VERSION
from composer_pipeline.money import PICO
from composer_pipeline.preferences.agreement import Reply, Vote, vote
from composer_pipeline.preferences.hints import recoveries
from composer_pipeline.publishing.dataset.rows.message_texts import MessageTexts
from composer_pipeline.publishing.dataset.rows.reading import Lengths, task_of
from composer_pipeline.publishing.successes import own_successes
from composer_pipeline.publishing.terms import AGENT, Answer, Terms, agent_answer, told_of
from composer_pipeline.trace_states import TraceState

Row = dict[str, Any]


@dataclass(frozen=True)
class Asked:
    """What is known of a day's states beside the trace.

    ``replies`` has the usable replies by state, ``costs`` what all replies were billed in
    picodollars, ``hints`` rows of the table, ``terms`` say which answers may be trained on.
    """

    replies: Mapping[str, Sequence[Reply]]
    costs: Mapping[str, int]
    hints: Mapping[str, Row]
    terms: Terms


def session_rows(
    states: Sequence[TraceState],
    tools: Toolsets,
    asked: Asked,
    lengths: Lengths,
    refused: list[Row],
) -> Iterator[tuple[str, Row]]:
    """Yield (table, row) of the states of a session and day; messages of prompts are JSON texts.

    Args:
        states: all states of the session on the day, whole.
        tools: of the day.
        asked: what is known of them.
        lengths: counts tokens.
        refused: gets the ledger rows of answers that may not be trained on.
    """
    spans = {
        s.state_id: asked.hints[s.state_id]["span_call"]
        for s in states
        if s.state_id in asked.hints
    }
    recovered = recoveries(states, spans)
    votes = {s.state_id: vote(s, asked.replies[s.state_id]) for s in states
             if s.state_id in asked.replies}  # fmt: skip
    decided = {name for name, outcome in votes.items() if outcome.winner_action}
    worked = {state.state_id for state in own_successes(states, decided)}
    chain_id, chain, texts = None, GrowingChain(), MessageTexts()
    offers = _Offers(tools)
    for state in sorted(states, key=lambda s: (s.chain_id, s.n_messages, s.state_id)):
        name = state.state_id
        if name not in decided | worked and name not in spans:
            continue
        if state.chain_id != chain_id:
            chain_id, chain, texts = state.chain_id, GrowingChain(), MessageTexts()
        prompt, offered_here = texts.of(chain.at(state)[0]), offers.of(state)
        base = {
            "task": task_of(prompt),
            "prompt": prompt,
            "tools": offered_here,
            "prompt_tokens": lengths.of(prompt, offered_here),
            "day": state.day,
            "schema_version": SCHEMA_VERSION,
            "state_id": name,
            "session_id": state.session_id,
        }
        if name in decided:
            kept, drops = asked.terms.of_group(name, asked.replies[name], votes[name])
            refused += drops
            if kept:
                cost = {"cost_usd": float(asked.costs.get(name, 0) / PICO)}
                yield "dataset_groups", {**base, **cost, **_answers(state, kept, votes[name])}
                yield "dataset_sft", {**base, **cost, **_consensus(votes[name])}
        action = [action_message(state.action)]
        own = {"model": state.model, "action": action, "action_text": action_text(action)}
        if name in worked:
            yield "dataset_successes", {**base, **own}
        if name in spans:
            yield "dataset_hints", {**base, **own, **_hint(asked.hints[name], recovered.get(name))}


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
    consensus = [action_message(outcome.winner_action)]
    return {
        "candidates": [
            action_message(state.action),
            *(action_message(reply.action) for reply in replies),
        ],
        "sources": [AGENT, *(reply.teacher for reply in replies)],
        **told_of([agent_answer(state.model), *map(Answer.of, replies)]),
        "simulated": any(reply.simulated for reply in replies),
        "consensus": consensus,
        "consensus_text": action_text(consensus),
    }


def _consensus(outcome: Vote) -> Row:
    """Return the consensus as what a model shall say, and whose it is."""
    assert outcome.winner_action is not None
    completion = [action_message(outcome.winner_action)]
    return {
        "completion": completion,
        "completion_text": action_text(completion),
        **told_of(sorted({Answer.of(reply) for reply in outcome.members})),
        "agrees_with_agent": outcome.agrees_with_student,
        "simulated": any(reply.simulated for reply in outcome.voters),
    }
