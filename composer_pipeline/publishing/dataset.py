"""Build the training dataset: pairs, groups, hints and successes, split by group of sessions.

Belongs here: which rows enter the four ``dataset_*`` tables, and the checks on them.
Does not belong here: what a group is (``publishing.splits``), the vote
(``preferences.agreement.vote``), which actions of the agent worked (``publishing.successes``),
which sessions are left out (``publishing.selection``) and how a prefix becomes chat messages
(``chat.messages``).

Both splits of every table are always written, empty or not, so a rebuild leaves nothing
stale. The same lake gives the same bytes.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from composer_pipeline.chat import Toolsets, action_message, prompt_hash, to_chat
from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.lake import Lake
from composer_pipeline.preferences.agreement import Reply, Vote, vote
from composer_pipeline.preferences.hints import recoveries
from composer_pipeline.preferences.pairs import usable_replies
from composer_pipeline.preferences.rules import PreferenceRules
from composer_pipeline.publishing.selection import Selection
from composer_pipeline.publishing.splits import (
    SPLITS,
    VALIDATION,
    SessionKey,
    groups,
    overlaps,
    split_of,
)
from composer_pipeline.publishing.successes import at_most, own_successes
from composer_pipeline.publishing.terms import AGENT, Answer, Terms, agent_answer, told_of
from composer_pipeline.reports import Progress, Report
from composer_pipeline.trace_states import TraceState, load_states

STAGE = "dataset"
#: From this many groups on, an empty validation split is worth a warning.
WARN_GROUPS = 5

Row = dict[str, Any]


@dataclass(frozen=True)
class DatasetReport(Report):
    """What was built.

    ``rows`` and ``splits`` count pairs, ``groups`` the groups of sessions over all
    tables, ``hints``, ``grpo_groups`` and ``successes`` rows of the other three. ``drops`` counts
    rows of all tables left out here, by reason. ``overlaps`` counts values found in both splits, by
    kind; they are all 0, or the build had failed. ``warning`` is empty or one sentence.
    """

    rows: int
    splits: dict[str, int]
    groups: int
    by_tier: dict[str, int]
    hints: int
    grpo_groups: int
    drops: dict[str, int]
    overlaps: dict[str, int]
    warning: str = ""
    successes: int = 0


def build_dataset(
    lake: Lake,
    *,
    validation_share: float = 0.2,
    rules: PreferenceRules | None = None,
    progress: Progress | None = None,
) -> DatasetReport:
    """Write ``dataset_pairs``, ``dataset_groups``, ``dataset_hints`` and ``dataset_successes``.

    A group of sessions is in validation when a hash of its name falls below
    ``validation_share``, so a group never moves when data are added, and with few groups
    the share of rows can be far from it.

    Args:
        lake: reads ``normalized_pairs``, ``sessions``, ``states``, ``replies``, ``hints``;
            writes the four tables and ``drops`` (stage ``dataset``).
        validation_share: share of the groups in validation, in [0, 1).
        rules: the preference recipe, which says what is done about sessions on a benchmark's
            repository; what it drops is in none of the tables.
        progress: called after each day.

    Raises:
        InputError: the share is out of range, nothing was normalised yet, or a list of
            benchmarks is wrong.
        ComposerError: a group, session or prompt is in two splits.
    """
    if not 0 <= validation_share < 1:
        raise InputError(f"validation_share must be in [0, 1), not {validation_share}")
    if not lake.days("normalized_pairs"):
        raise InputError(f"lake {lake.url} has no normalized_pairs; run normalize first")
    rules = rules or PreferenceRules()
    selection, terms, day_of = Selection(lake, rules), Terms(lake, rules), dict[str, str]()
    pairs, drops = _pairs(lake, terms)
    day_of.update((row["state_id"], row["day"]) for row in pairs)
    recorded, hints, own = _from_states(lake, selection, terms, drops, day_of, progress)
    tables, left_out = selection.apply(
        {
            "dataset_pairs": pairs, "dataset_groups": recorded, "dataset_hints": hints,
            "dataset_successes": own,
        },
        day_of,
    )  # fmt: skip
    for day, ledger in left_out.items():
        drops.setdefault(day, []).extend(ledger)
    pairs, recorded, hints, own = tables.values()
    tables["dataset_successes"] = own = at_most(own, max(len(recorded), len(hints)))
    everything = [row for rows in tables.values() for row in rows]
    digests = {id(row): prompt_hash(row["prompt"]) for row in everything}
    group_of = groups(
        _session_keys(lake), ((row["session_id"], digests[id(row)]) for row in everything)
    )
    placed: dict[tuple[str, str], list[Row]] = {}
    for name, rows in tables.items():
        for row in rows:
            row["group_id"] = group_of[row["session_id"]]
            split = split_of(row["group_id"], validation_share)
            placed.setdefault((name, split), []).append(row)
    shared = overlaps(
        (
            split,
            {
                "group_id": row["group_id"],
                "session_id": row["session_id"],
                "prompt": digests[id(row)],
            },
        )
        for (_, split), rows in placed.items()
        for row in rows
    )
    for kind, count in shared.items():
        if count:
            raise ComposerError(f"dataset: {count} value(s) of {kind} are in both splits")
    for name in tables:
        for split in SPLITS:
            lake.write(name, placed.get((name, split), []), split=split)
    _write_drops(lake, drops)
    names = {row["group_id"] for row in everything}
    splits = {split: len(placed.get(("dataset_pairs", split), [])) for split in SPLITS}
    return DatasetReport(
        rows=len(pairs),
        splits=splits,
        groups=len(names),
        by_tier=dict(sorted(Counter(row["tier"] for row in pairs).items())),
        hints=len(hints),
        grpo_groups=len(recorded),
        drops=dict(sorted(Counter(drop["op"] for rows in drops.values() for drop in rows).items())),
        overlaps=shared or dict.fromkeys(("group_id", "session_id", "prompt"), 0),
        warning=_warning(splits, len(names), validation_share),
        successes=len(own),
    )


def _warning(splits: Mapping[str, int], names: int, share: float) -> str:
    if share and names >= WARN_GROUPS and not splits[VALIDATION]:
        return f"no pair is in validation, although there are {names} groups of sessions"
    return ""


def _pairs(lake: Lake, terms: Terms) -> tuple[list[Row], dict[str, list[Row]]]:
    """Return the pairs in order, and day to the ledger rows of those left out.

    Normalisation removes repeats inside a day; those across days are removed here. The
    earliest stays.
    """
    kept: list[Row] = []
    drops: dict[str, list[Row]] = {day: [] for day in lake.days("normalized_pairs")}
    first: dict[str, str] = {}
    for day, left_out in drops.items():
        before = len(kept)
        for row in sorted(
            lake.rows("normalized_pairs", days=[day]), key=lambda row: str(row["pair_id"])
        ):
            if row["chosen"] == row["rejected"]:
                left_out.append(_drop(row, "0:chosen_equals_rejected", "chosen", ""))
                continue
            key = json.dumps([row[n] for n in ("prompt", "tools", "chosen", "rejected")])
            earlier = first.setdefault(key, row["pair_id"])
            if earlier != row["pair_id"]:
                left_out.append(_drop(row, "1:duplicate", "pair", f"duplicate of {earlier}"))
                continue
            kept.append(row)
        allowed, refused = terms.of_pairs(day, kept[before:])
        kept[before:] = allowed
        left_out.extend(refused)
    return kept, drops


def _drop(row: Row, step: str, field: str, bound: str) -> Row:
    return {
        "pair_id": row["pair_id"],
        "state_id": row["state_id"],
        "step": step,
        "op": step.split(":")[1],
        "field": field,
        "stat": "",
        "value": "",
        "bound": bound,
    }


def _write_drops(lake: Lake, drops: Mapping[str, Sequence[Row]]) -> None:
    for day in sorted(set(drops) | set(lake.days("drops", stage=STAGE))):
        lake.write("drops", drops.get(day, ()), stage=STAGE, day=day)


def _from_states(
    lake: Lake,
    selection: Selection,
    terms: Terms,
    drops: dict[str, list[Row]],
    day_of: dict[str, str],
    progress: Progress | None,
) -> tuple[list[Row], list[Row], list[Row]]:
    """Return rows of ``dataset_groups``, ``dataset_hints`` and ``dataset_successes``.

    They are ordered by day and state id. Shows the states to the selection, notes their days, and
    adds answers whose terms do not allow training to ``drops``.
    """
    recorded: list[Row] = []
    hints: list[Row] = []
    own: list[Row] = []
    days = sorted(set(lake.days("replies")) | set(lake.days("hints")))
    for done, day in enumerate(days, start=1):
        if progress:
            progress("dataset", done, len(days))
        replies = usable_replies(lake, day)
        hint_of = {row["state_id"]: row for row in lake.rows("hints", days=[day])}
        if not replies and not hint_of:
            continue
        states = sorted(load_states(lake, days=[day]), key=lambda state: state.state_id)
        selection.look_at(states)
        day_of.update((state.state_id, day) for state in states)
        tools = Toolsets(lake, states)
        recovered = recoveries(states, {name: row["span_call"] for name, row in hint_of.items()})
        votes = {s.state_id: vote(s, replies[s.state_id]) for s in states if s.state_id in replies}
        decided = {name for name, outcome in votes.items() if outcome.winner_action}
        worked = {state.state_id for state in own_successes(states, decided)}
        for state in states:
            hint = hint_of.get(state.state_id)
            if state.state_id not in decided | worked and hint is None:
                continue
            talk = to_chat(state, tools=tools.of(state).tools)
            base = {
                "state_id": state.state_id,
                "session_id": state.session_id,
                "prompt": talk.messages,
                "tools": talk.tools,
            }
            if state.state_id in decided:
                outcome = votes[state.state_id]
                kept, refused = terms.of_group(state.state_id, replies[state.state_id], outcome)
                drops.setdefault(day, []).extend(refused)
                if kept:
                    recorded.append({**base, **_answers(state, kept, outcome)})
            if state.state_id in worked:
                own.append({**base, "model": state.model, "action": [action_message(state.action)]})
            if hint is not None:
                hints.append(
                    {
                        **base,
                        "model": state.model,
                        "action": [action_message(state.action)],
                        "hint": hint["text"],
                        "source": hint["source"],
                        "span_call": hint["span_call"],
                        "recovery": [action_message(recovered[state.state_id])]
                        if state.state_id in recovered
                        else None,
                    }
                )
    return recorded, hints, own


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


def _session_keys(lake: Lake) -> list[SessionKey]:
    columns = ["session_id", "group_id", "first_ts"]
    return [
        SessionKey(
            first_ts=row["first_ts"].timestamp() if row["first_ts"] else math.inf,
            session_id=row["session_id"],
            group_id=row["group_id"] or "",
        )
        for row in lake.rows("sessions", columns=columns)
    ]
