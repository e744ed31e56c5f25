"""States and replies of a day in, the ``pairs`` partition out.

Belongs here: the stage :func:`build_pairs`, its report, and how a vote becomes a row. Does
not belong here: the vote (``preferences.agree``) and chat messages (``replay.convert``).
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from composer_pipeline.actions import Action
from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences import canonical as canon
from composer_pipeline.preferences.agree import Reply, Vote, home_of, vote
from composer_pipeline.preferences.shell import Place
from composer_pipeline.replay.convert import action_message, to_chat
from composer_pipeline.replay.schemas import Toolset
from composer_pipeline.replay.toolsets import Toolsets
from composer_pipeline.traces.load import TraceState, load_states

SCHEMA_VERSION = 1
_REPLY_COLUMNS = [
    "state_id",
    "family",
    "model",
    "status",
    "action",
    "request_hash",
    "completion_tokens",
    "cost_picodollars",
    "simulated",
    "created_at",
]


@dataclass(frozen=True)
class PairsReport:
    """What a day gave.

    ``voted`` are the states with at least two families, ``consensus`` those with a winner,
    ``confirmed`` those whose winner agrees with the agent. The rates are per consensus and
    per voted state, 0.0 where there are none. ``by_tool`` counts pairs by the chosen tool.
    """

    day: str
    states: int = 0
    voted: int = 0
    consensus: int = 0
    confirmed: int = 0
    pairs: int = 0
    by_tier: dict[str, int] = field(default_factory=dict)
    by_tool: dict[str, int] = field(default_factory=dict)

    @property
    def agreement_rate(self) -> float:
        """Share of the voted states on which the teachers agree with each other."""
        return self.consensus / self.voted if self.voted else 0.0

    @property
    def confirmation_rate(self) -> float:
        """Share of the consensus states on which the teachers agree with the agent."""
        return self.confirmed / self.consensus if self.consensus else 0.0


def build_pairs(
    lake: Lake, day: str, *, progress: Callable[[str, int, int], None] | None = None
) -> PairsReport:
    """Vote on every state of a day and write the partition of ``pairs``.

    The same states and replies give the same bytes. A day without pairs gets an empty
    partition, so that a second run leaves nothing stale.

    Args:
        lake: the lake.
        day: ``YYYY-MM-DD``.
        progress: called as (label, done, total).

    Raises:
        InputError: the lake is not writable.
    """
    states = list(load_states(lake, days=[day]))
    replies = usable_replies(lake, day)
    cost = cost_of_states(lake, day)
    tools = Toolsets(lake, states)
    rows: list[dict[str, Any]] = []
    counts: Counter[str] = Counter()
    for done, state in enumerate(states, start=1):
        outcome = vote(state, replies.get(state.state_id, []))
        counts["voted"] += outcome.n_families >= 2
        counts["consensus"] += outcome.winner_action is not None
        counts["confirmed"] += outcome.agrees_with_student
        if outcome.is_pair:
            rows.append(pair_row(state, outcome, tools.of(state), cost.get(state.state_id, 0)))
        if progress:
            progress(f"pairs {day}", done, len(states))
    rows.sort(key=lambda row: str(row["pair_id"]))
    lake.write("pairs", rows, day=day)
    return PairsReport(
        day=day,
        states=len(states),
        voted=counts["voted"],
        consensus=counts["consensus"],
        confirmed=counts["confirmed"],
        pairs=len(rows),
        by_tier=_count(row["tier"] for row in rows),
        by_tool=_count(row["tool_chosen"] for row in rows),
    )


def usable_replies(lake: Lake, day: str) -> dict[str, list[Reply]]:
    """Return state id to its usable replies, the newest of each teacher, sorted by teacher."""
    newest: dict[tuple[str, str], dict[str, Any]] = {}
    for row in _replies(lake, day):
        if row["status"] != "ok" or row["action"] is None:
            continue
        key = (row["state_id"], row["teacher"])
        old = newest.get(key)
        if old is None or _age(row) > _age(old):
            newest[key] = row
    found: dict[str, list[Reply]] = {}
    for (state_id, _), row in sorted(newest.items()):
        found.setdefault(state_id, []).append(Reply.from_row(row))
    return found


def cost_of_states(lake: Lake, day: str) -> dict[str, int]:
    """Return state id to the billed cost of all its replies, usable or not, in picodollars."""
    cost: Counter[str] = Counter()
    for row in _replies(lake, day):
        cost[row["state_id"]] += row["cost_picodollars"] or 0
    return dict(cost)


def pair_row(state: TraceState, outcome: Vote, tools: Toolset, cost: int) -> dict[str, Any]:
    """Return the row of the table ``pairs`` for a vote that makes a pair."""
    chosen = outcome.winner_action
    if chosen is None:
        raise ValueError(f"state {state.state_id}: the vote has no winner")
    talk = to_chat(state, tools=tools.tools)
    place = Place(state.cwd, home_of(state.cwd))
    return {
        "pair_id": pair_id(state.state_id, chosen, place),
        "state_id": state.state_id,
        "session_id": state.session_id,
        "project": state.project,
        "prompt": talk.messages,
        "chosen": [action_message(chosen)],
        "rejected": [action_message(state.action)],
        "tools": talk.tools,
        "tier": outcome.tier,
        "n_teachers": outcome.n_usable,
        "n_agree": outcome.n_agree,
        "n_families": outcome.n_families,
        "winner_level": outcome.winner_level.label,
        "student_level": outcome.student_level.label,
        "agreement": outcome.n_agree / outcome.n_families,
        "chosen_models": sorted({reply.model for reply in outcome.members}),
        "chosen_families": sorted({reply.family for reply in outcome.members}),
        "rejected_model": state.model,
        "tool_chosen": first_tool(chosen),
        "tool_rejected": first_tool(state.action),
        "turn": state.turn,
        "error_turn": state.error_kind is not None,
        "mutating": outcome.mutating,
        "simulated": any(reply.simulated for reply in outcome.voters),
        "cost_picodollars": cost,
        "schema_version": SCHEMA_VERSION,
    }


def pair_id(state_id: str, chosen: Action, place: Place) -> str:
    """Return BLAKE2b-128 of the state and the canonical chosen action, hexadecimal."""
    text = f"{state_id}\n{canon.canonical(chosen, place)}"
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def first_tool(action: Action) -> str:
    """Return the name of the first tool of an action, or ``text``."""
    return action.tool_calls[0].name if action.tool_calls else "text"


def _replies(lake: Lake, day: str) -> list[dict[str, Any]]:
    return lake.rows("replies", days=[day], columns=_REPLY_COLUMNS)


def _age(row: Mapping[str, Any]) -> tuple[str, str]:
    return str(row["created_at"] or ""), str(row["request_hash"])


def _count(values: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(values).items()))
