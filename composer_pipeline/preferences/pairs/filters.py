"""Which candidate pairs become pairs: contamination, hindsight, and the cap per session.

Belongs here: the weight of a pair, and the reason for which one is dropped. Does not belong
here: the vote (``preferences.agreement.vote``) and the table (``preferences.pairs.build``).
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

from composer_pipeline.preferences.pairs.contamination import is_strong
from composer_pipeline.preferences.rules import Hindsight, PreferenceRules
from composer_pipeline.trace_states import TraceState

#: The stage of these drops in the lake's ledger.
STAGE = "pairs"

Row = dict[str, Any]


def hindsight(state: TraceState, weights: Hindsight) -> tuple[str, float, str]:
    """Return (outcome, weight, reason) of the agent's action at a state.

    The outcome is ``student_bad`` when a call failed, the user corrected it or it was
    undone; ``student_ok`` when the tests that it ran passed and none of these; else
    ``unknown``, with weight 1 and no reason.
    """
    for reason in ("followed_by_correction", "reverted", "followed_by_error"):
        if getattr(state, reason):
            return "student_bad", weights.student_bad, reason
    if state.tests_passed:
        return "student_ok", weights.student_ok, "tests_passed"
    return "unknown", 1.0, ""


def select(
    candidates: Sequence[Row], evidence: dict[str, list[str]], rules: PreferenceRules
) -> tuple[list[Row], list[Row]]:
    """Return (pairs kept, ledger rows of those dropped); together they are the candidates.

    Of a session with more pairs than the cap, gold stays before silver, then the heavier,
    then the wider margin, then a hash of the pair, so that a cap keeps no part of a session
    in particular.

    Args:
        candidates: rows of the table ``pairs``.
        evidence: session id to its evidence of contamination.
        rules: the recipe.
    """
    kept: list[Row] = []
    drops: list[Row] = []
    for row in candidates:
        found = evidence.get(row["session_id"], [])
        action = rules.contamination.evidence if is_strong(found) else rules.contamination.by_name
        if found and action == "drop":
            drops.append(drop(row, "0:contamination", "session", "evidence", "; ".join(found), ""))
        elif row["weight"] == 0:
            reason = row["weight_reason"]
            drops.append(drop(row, "1:hindsight", "outcome", row["outcome"], reason, "weight 0"))
        else:
            kept.append(row)
    cap = rules.max_pairs_per_session
    if cap is None:
        return kept, drops
    stays: list[Row] = []
    rank: Counter[str] = Counter()
    for row in sorted(kept, key=_precedence):
        rank[row["session_id"]] += 1
        if rank[row["session_id"]] <= cap:
            stays.append(row)
        else:
            number = str(rank[row["session_id"]])
            drops.append(drop(row, "2:session_cap", "session_id", "rank", number, f"<= {cap}"))
    return stays, drops


def drop(row: Row, step: str, field: str, stat: str, value: str, bound: str) -> Row:
    """Return a row of the table ``drops``.

    Args:
        row: has ``state_id``, and ``pair_id`` where it is a pair; another has its state for a name.
        step: ``NUMBER:OPERATOR``, with ``:TABLE`` behind it where several tables have the row.
        field: what was looked at.
        stat: its statistic.
        value: what it was.
        bound: what it broke.
    """
    return {
        "pair_id": row.get("pair_id") or row["state_id"],
        "state_id": row["state_id"],
        "step": step,
        "op": step.split(":")[1],
        "field": field,
        "stat": stat,
        "value": value,
        "bound": bound,
    }


def _precedence(row: Row) -> tuple[bool, float, float, str]:
    digest = hashlib.blake2b(str(row["pair_id"]).encode(), digest_size=8).hexdigest()
    return row["tier"] != "gold", -row["weight"], -row["margin"], digest
