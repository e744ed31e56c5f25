"""Selecting evaluation states from a lake, by what teachers and later events show to be right.

Agreement of teachers is not correctness; in a lake it is the best evidence. A state that teachers
and later events judge differently is left out.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from composer_pipeline.actions import Action
from composer_pipeline.chat.convert import action_message, parse_reply_message, prompt_hash, to_chat
from composer_pipeline.chat.tools import Toolsets
from composer_pipeline.errors import InputError
from composer_pipeline.evaluation.judge import CANONICAL, same_action, situation_of_chat
from composer_pipeline.evaluation.states import KINDS, EvaluationState, Kind
from composer_pipeline.lake.schema import DATASETS
from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences.actions.canonical import Level, mutates
from composer_pipeline.preferences.actions.levels import level
from composer_pipeline.preferences.hints import succeeded
from composer_pipeline.states.load import load_states
from composer_pipeline.states.state import TraceState, draw

TRAIN, AGENT = "train", "agent"

_Row = Mapping[str, Any]


def select_states(
    lake: Lake, split: str = "validation", *, per_kind: int | None = None
) -> list[EvaluationState]:
    """Return the states of a split whose right action is known.

    ``hard_covered``: the consensus differs from the agent's action, and is right.
    ``hard_uncovered``: an error turn without consensus; the agent's later call that worked.
    ``easy``: the consensus has the effect of the agent's action, which did not fail. ``recovery``:
    the response after an error turn, if it did not fail and no consensus contradicts it.
    """
    groups = {row["state_id"]: row for row in lake.iter_rows("dataset_groups", split=split)}
    hints = {row["state_id"]: row for row in lake.iter_rows("dataset_hints", split=split)}
    facts = {row["state_id"]: row for row in _facts(lake, groups.keys() | hints.keys())}
    found: dict[str, EvaluationState] = {}
    for state_id in groups.keys() | hints.keys():
        cwd = facts.get(state_id, {}).get("cwd") or ""
        state = _judged(groups.get(state_id), hints.get(state_id), cwd)
        if state is not None:
            found[state_id] = state
    for state in _recoveries(lake, hints, facts):
        if found.get(state.state_id, state).kind != "hard_covered":
            found[state.state_id] = state
    if not found:
        raise InputError(
            f"lake {lake.url} has no state with split={split} whose right action is known; make"
            " the dataset with a validation share, from more sessions"
        )
    return limit_per_kind(found.values(), per_kind)


def limit_per_kind(
    states: Iterable[EvaluationState], per_kind: int | None
) -> list[EvaluationState]:
    """Return at most ``per_kind`` states of each kind (``None``: all), chosen by hash."""
    states = sorted(states, key=lambda state: state.state_id)
    if per_kind is None:
        return states
    kept: set[str] = set()
    for kind in KINDS:
        drawn = sorted(draw(state.state_id) for state in states if state.kind == kind)
        kept |= {name for _, name in drawn[:per_kind]}
    return [state for state in states if state.state_id in kept]


def training_content(lake: Lake) -> tuple[set[str], set[str]]:
    """Return the session ids and the prompt hashes of the training split."""
    sessions: set[str] = set()
    prompts: set[str] = set()
    for table in DATASETS:
        columns = ["session_id", "group_id", "state_id", "prompt"]
        for row in lake.iter_rows(table, columns=columns, split=TRAIN):
            sessions.add(_session(row))
            prompts.add(prompt_hash(row["prompt"]))
    return sessions, prompts


def _judged(group: _Row | None, hint: _Row | None, cwd: str) -> EvaluationState | None:
    # A hard or easy state, or ``None`` where the right action is unknown.
    row = group or hint
    assert row is not None
    if group is not None:
        right, own = action_of(group["consensus"]), _own(group)
        if right is None or own is None:
            return None
        found = level(right, own, situation_of_chat(group["prompt"], cwd)).level
        if found <= CANONICAL:  # not known to be right if it failed
            return None if hint is not None else _state(row, "easy", right, None, None, cwd)
        if found is Level.L2 and not mutates(right) and not mutates(own):
            return None  # agreement in a vote, but not the same effect
        return _state(row, "hard_covered", right, own, _text(hint), cwd)
    assert hint is not None
    right, own = action_of(hint["recovery"]), action_of(hint["action"])
    if right is None or own is None or same_action(right, own):
        return None
    return _state(row, "hard_uncovered", right, own, _text(hint), cwd)


def _recoveries(
    lake: Lake, hints: Mapping[str, _Row], facts: Mapping[str, _Row]
) -> Iterator[EvaluationState]:
    # The responses right after error turns where the agent's action worked.
    chains = {facts[name]["chain_id"] for name in hints if name in facts}
    days = sorted({facts[name]["day"] for name in hints if name in facts})
    for day in days:
        states = list(load_states(lake, days=[day]))
        tools = Toolsets(lake, states)
        for failed, state in _successors(states, chains):
            if failed.state_id not in hints or state.state_id in hints or not succeeded(state):
                continue
            right = action_of([action_message(state.action)])
            if right is not None:
                talk = to_chat(state, tools=tools.of(state).tools)
                yield EvaluationState(
                    state.state_id, _session(hints[failed.state_id]), "recovery", talk.messages,
                    talk.tools, right, cwd=state.cwd or "",
                )  # fmt: skip


def _successors(
    states: Iterable[TraceState], chains: set[str]
) -> Iterator[tuple[TraceState, TraceState]]:
    # Pairs of consecutive states of a path.
    paths: dict[str, list[TraceState]] = {}
    for state in states:
        if state.chain_id in chains:
            paths.setdefault(state.chain_id, []).append(state)
    for path in paths.values():
        yield from pairwise(sorted(path, key=lambda state: state.n_messages))


def _facts(lake: Lake, state_ids: Iterable[str]) -> list[dict[str, Any]]:
    # Rows of the states that the lake still has.
    wanted = set(state_ids)
    columns = ["state_id", "cwd", "chain_id"]
    return [row for row in lake.rows("states", columns=columns) if row["state_id"] in wanted]


def _state(
    row: _Row, kind: Kind, right: Action, wrong: Action | None, hint: str | None, cwd: str
) -> EvaluationState:
    return EvaluationState(
        row["state_id"], _session(row), kind, row["prompt"], row["tools"] or [], right, wrong,
        hint, cwd,
    )  # fmt: skip


def _session(row: _Row) -> str:
    # Rows without a session count as their own.
    return str(row["session_id"] or row["group_id"] or row["state_id"])


def _own(group: _Row) -> Action | None:
    # The agent's action among the candidates of a group.
    pairs = zip(group["sources"] or (), group["candidates"] or (), strict=True)
    return next((action_of([message]) for source, message in pairs if source == AGENT), None)


def action_of(messages: Any) -> Action | None:
    """Return the action of a stored list of one assistant message, or ``None`` without one."""
    try:
        return parse_reply_message(messages[0]) if messages else None
    except ValueError:
        return None  # empty, or arguments that are not an object


def _text(hint: _Row | None) -> str | None:
    return (hint["hint"] or None) if hint is not None else None
