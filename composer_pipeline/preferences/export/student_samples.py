"""Pairs against a model's own actions: ``student=sampled`` instead of the recorded agent.

Belongs here: voting on the states as if the model had been the agent there. Does not belong
here: the file of samples (``preferences.export.samples_file``), sampling (the trainer's
business) and writing (``preferences.export.write``).

Both sides of a recorded pair are off-policy for the model in training. With its own sample as
the rejected side, that side is on-policy. Levels, tier and weight are computed anew; what the
trace says became of the agent's action is not said of the sample.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec

from composer_pipeline.chat import Toolsets
from composer_pipeline.errors import InputError
from composer_pipeline.lake import Lake
from composer_pipeline.preferences.agreement import reason_of, vote
from composer_pipeline.preferences.export.samples_file import Sample
from composer_pipeline.preferences.pairs import cost_of_states, pair_row, prompt_of, usable_replies
from composer_pipeline.preferences.rules import PreferenceRules
from composer_pipeline.trace_states import load_states


def sampled_pairs(
    lake: Lake, samples: list[Sample], rules: PreferenceRules
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Return pairs whose rejected side is a sample, and the samples that gave none, by reason.

    Args:
        lake: reads ``states`` and ``replies``; buys nothing.
        samples: the sampled actions.
        rules: the preference recipe; a consensus under other ``terms`` makes no pair.

    Raises:
        InputError: a sample's state is not in the lake.
    """
    by_state: dict[str, list[Sample]] = {}
    for sample in samples:
        by_state.setdefault(sample.state_id, []).append(sample)
    known = dict(lake.query("SELECT state_id, day FROM states"))
    if unknown := sorted(set(by_state) - set(known)):
        raise InputError(f"lake {lake.url} has no state {unknown[0]!r}, which a sample names")
    accepted = rules.terms.accepted
    rows: list[dict[str, Any]] = []
    left: Counter[str] = Counter()
    for day in sorted({known[state_id] for state_id in by_state}):
        replies, cost = usable_replies(lake, day), cost_of_states(lake, day)
        states = list(load_states(lake, days=[day]))
        tools = Toolsets(lake, states)
        for state in states:
            for sample in by_state.get(state.state_id, ()):
                there = msgspec.structs.replace(
                    state,
                    action=sample.action,
                    followed_by_error=None,
                    followed_by_correction=None,
                    reverted=None,
                    tests_passed=None,
                )
                mine = replies.get(state.state_id, [])
                outcome = vote(there, mine)
                if not outcome.is_pair:
                    left[reason_of(outcome, len(mine))] += 1
                    continue
                if any((r.training_terms or "unknown") not in accepted for r in outcome.members):
                    left["terms"] += 1
                    continue
                row = pair_row(there, outcome, tools.of(state), cost.get(state.state_id, 0))
                row |= prompt_of(there, tools.of(state))
                row |= {
                    "pair_id": _id(row, sample),
                    "student": sample.student,
                    "rejected_model": sample.student,
                    "error_turn": False,
                    "day": day,
                }
                rows.append(row)
    # Two equal samples of a state give one pair.
    distinct = {row["pair_id"]: row for row in rows}
    if repeats := len(rows) - len(distinct):
        left["repeated_sample"] = repeats
    return sorted(distinct.values(), key=lambda row: row["pair_id"]), dict(sorted(left.items()))


def _id(row: Mapping[str, Any], sample: Sample) -> str:
    rejected = json.dumps(row["rejected"], ensure_ascii=False)
    text = f"{row['pair_id']}\n{sample.student}\n{rejected}"
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
