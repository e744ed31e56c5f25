"""Which sessions are in no table of the dataset: decided once, for every table and export.

Belongs here: the sessions that are left out because they work on a public benchmark, and the
ledger rows of what that removes. Does not belong here: what counts as evidence
(``preferences.pairs``), repeats of pairs (``publishing.dataset``).
"""

from collections.abc import Iterable
from typing import Any

from composer_pipeline.lake import Lake
from composer_pipeline.preferences.pairs import Benchmarks, contaminated_sessions, is_strong
from composer_pipeline.preferences.rules import PreferenceRules
from composer_pipeline.trace_states import TraceState

Row = dict[str, Any]


class Selection:
    """Gathers what is known of sessions, over all days, and says which are left out.

    Evidence of one day holds for the whole session. What the vote has recorded counts too, so
    that nothing is let in because a list of benchmarks became shorter since.

    Args:
        lake: reads the evidence in ``votes``.
        rules: the preference recipe; its ``contamination`` decides.

    Raises:
        InputError: a list of benchmarks is wrong.
    """

    def __init__(self, lake: Lake, rules: PreferenceRules) -> None:
        self._rules = rules.contamination
        self._benchmarks = Benchmarks.of_rules(rules)
        self._evidence: dict[str, set[str]] = {}
        for row in lake.rows("votes", columns=["session_id", "contamination"]):
            if row["contamination"]:
                self._evidence.setdefault(row["session_id"], set()).update(row["contamination"])

    def look_at(self, states: Iterable[TraceState]) -> None:
        """Take in the states of a day, with their messages."""
        for session, found in contaminated_sessions(states, self._benchmarks).items():
            self._evidence.setdefault(session, set()).update(found)

    def why_not(self, session_id: str) -> str:
        """Return the evidence for which a session is left out; empty where it stays."""
        found = sorted(self._evidence.get(session_id, ()))
        action = self._rules.evidence if is_strong(found) else self._rules.by_name
        return "; ".join(found) if action == "drop" else ""

    def drop(self, table: str, name: str, state_id: str, why: str) -> Row:
        """Return the ledger row of a row that is left out.

        Args:
            table: its table.
            name: a pair's id; a row that is no pair has its state for a name, which has one row
                in each table.
            state_id: its state.
            why: the evidence.
        """
        return {
            "pair_id": name,
            "state_id": state_id,
            "step": f"2:contamination:{table}",
            "op": "contamination",
            "field": "session",
            "stat": "evidence",
            "value": why,
            "bound": "",
        }
