"""Frozen anchors: held-out states, by kind, that every model of the nights is measured on.

A kind grows with the validation sessions of accepted nights, in a fixed random order, until it is
full; then it stays until its oldest state is ``refresh_days`` old. ``own`` are actions of the agent
that worked, ``easy`` and ``recovery`` as in an evaluation, ``gains`` the held-out mistakes of
promoted nights. The reference of a state is the model with which it was frozen.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import date
from typing import Any

import msgspec

from composer_pipeline.chat.convert import action_message
from composer_pipeline.evaluation.select_states import action_of
from composer_pipeline.evaluation.states import EvaluationState
from composer_pipeline.lake.store import Lake
from composer_pipeline.nights.gates import Values
from composer_pipeline.nights.rules import Anchors
from composer_pipeline.states.state import draw

OWN, EASY, RECOVERY, GAINS = "own", "easy", "recovery", "gains"
#: The kinds that are drawn at the first night.
DRAWN = (OWN, EASY, RECOVERY)


class Anchor(msgspec.Struct, frozen=True):
    """A frozen state, the night that froze it, and the reference to compare with."""

    state: EvaluationState
    night: str
    version: int
    reference: float


def read_anchors(lake: Lake) -> dict[str, list[Anchor]]:
    """Return the anchors of each kind that has some."""
    return {
        part["anchors"]: [_anchor(row) for row in lake.rows("anchors", **part)]
        for part in lake.partitions("anchors")
    }


def references(anchors: Iterable[Anchor]) -> Values:
    """Return state id to (session id, reference)."""
    return {a.state.state_id: (a.state.session_id, a.reference) for a in anchors}


def own_successes(lake: Lake) -> list[EvaluationState]:
    """Return the validation states at which the agent acted and nothing speaks against it."""
    found = []
    for row in lake.iter_rows("dataset_successes", split="validation"):
        if (right := action_of(row["action"])) is not None:
            found.append(
                EvaluationState(
                    row["state_id"], row["session_id"], "easy", row["prompt"],
                    row["tools"] or [], right,
                )
            )  # fmt: skip
    return found


def is_stale(anchors: Iterable[Anchor], night: str, rules: Anchors) -> bool:
    """Return True if the oldest state of a kind is too old."""
    oldest = min((anchor.night for anchor in anchors), default=night)
    age = date.fromisoformat(night) - date.fromisoformat(oldest)
    return age.days >= rules.refresh_days


def drawn(
    states: Iterable[EvaluationState], rules: Anchors, held: Iterable[Anchor] = ()
) -> list[EvaluationState]:
    """Return states to fill a kind up, few of a session, in a fixed random order."""
    kept = [anchor.state for anchor in held]
    known = {state.state_id for state in kept}
    of_session = Counter(state.session_id for state in kept)
    chosen: list[EvaluationState] = []
    for state in sorted(states, key=lambda state: draw(state.state_id)):
        if state.state_id not in known and of_session[state.session_id] < rules.per_session:
            of_session[state.session_id] += 1
            chosen.append(state)
    return chosen[: max(0, rules.states - len(kept))]


def write_anchors(lake: Lake, kind: str, anchors: Iterable[Anchor]) -> None:
    """Replace the anchors of a kind."""
    rows = [_row(anchor) for anchor in sorted(anchors, key=lambda a: a.state.state_id)]
    lake.write("anchors", rows, anchors=kind)


def add_gains(lake: Lake, new: Iterable[Anchor], rules: Anchors) -> None:
    """Add held-out mistakes of a promoted night; beyond ``rules.states`` the oldest leave."""
    held = {a.state.state_id: a for a in read_anchors(lake).get(GAINS, [])}
    held |= {a.state.state_id: a for a in new if a.state.state_id not in held}
    kept = sorted(held.values(), key=lambda a: (a.night, draw(a.state.state_id)), reverse=True)
    write_anchors(lake, GAINS, kept[: rules.states])


def _row(anchor: Anchor) -> dict[str, Any]:
    state = anchor.state
    return {
        "state_id": state.state_id, "session_id": state.session_id, "kind": state.kind,
        "prompt": state.messages, "tools": state.tools, "right": [action_message(state.right)],
        "wrong": [action_message(state.wrong)] if state.wrong else None, "hint": state.hint,
        "cwd": state.cwd, "night": anchor.night, "version": anchor.version,
        "reference": anchor.reference,
    }  # fmt: skip


def _anchor(row: Mapping[str, Any]) -> Anchor:
    right = action_of(row["right"])
    assert right is not None
    state = EvaluationState(
        row["state_id"], row["session_id"], row["kind"], row["prompt"], row["tools"], right,
        action_of(row["wrong"]), row["hint"], row["cwd"] or "",
    )  # fmt: skip
    return Anchor(state, row["night"], row["version"], row["reference"])
