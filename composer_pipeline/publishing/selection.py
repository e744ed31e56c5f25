"""Which sessions are in no table of the dataset: decided once, for every table and export.

Belongs here: the sessions that are left out because they were withdrawn, because nobody consented,
or because they work on a public benchmark, and the ledger rows of what that removes. Does not
belong here: what counts as evidence (``preferences.pairs``), repeats of pairs
(``publishing.dataset``), terms of single answers (``publishing.terms``).
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from composer_pipeline.lake import Lake
from composer_pipeline.lake.notes import Withdrawn
from composer_pipeline.preferences.pairs import Benchmarks, contaminated_sessions, drop, is_strong
from composer_pipeline.preferences.rules import PreferenceRules
from composer_pipeline.publishing.consent import Consent, project_of
from composer_pipeline.trace_states import TraceState

Row = dict[str, Any]


class Why(NamedTuple):
    """Why a session is left out: the operator of the ledger, what was looked at, what it said."""

    op: str
    stat: str
    value: str


class Barred:
    """Sessions that must not be published, whatever is in them: withdrawn, or without consent.

    Args:
        lake: has the tombstones and the sessions' repositories.
        consent: whose repositories alone may be published; every one where there is none.

    Raises:
        InputError: the list of tombstones is damaged.
    """

    def __init__(self, lake: Lake, consent: Consent | None = None) -> None:
        self._withdrawn, self._consent = Withdrawn(lake), consent
        self._project = project_of(lake) if consent or self._withdrawn.names_folders else {}

    def why_not(self, session_id: str) -> Why | None:
        """Return why a session must not be published."""
        project = self._project.get(session_id, "")
        if self._withdrawn.session(session_id) or self._withdrawn.folder(project):
            return Why("withdrawn", "tombstone", "withdrawn")
        if self._consent is not None and not self._consent.allows(project):
            return Why("consent", "repository", "not among the repositories of the consent file")
        return None

    def said(self, session_id: str) -> str:
        """Return why a session must not be published, as a text; empty where it may."""
        why = self.why_not(session_id)
        return why.value if why else ""


class Selection:
    """Gathers what is known of sessions, over all days, and says which are left out.

    Evidence of one day holds for the whole session. What the vote has recorded counts too, so
    that nothing is let in because a list of benchmarks became shorter since.

    Args:
        lake: reads the evidence in ``votes``.
        rules: the preference recipe; its ``contamination`` decides.
        consent: whose repositories alone may be published; every one where there is none.

    ``barred`` says which sessions must not be named at all.

    Raises:
        InputError: a list of benchmarks is wrong, or that of tombstones damaged.
    """

    def __init__(self, lake: Lake, rules: PreferenceRules, consent: Consent | None = None) -> None:
        self.barred = Barred(lake, consent)
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

    def why_not(self, session_id: str) -> Why | None:
        """Return why a session is left out; ``None`` where it stays."""
        if barred := self.barred.why_not(session_id):
            return barred
        found = sorted(self._evidence.get(session_id, ()))
        action = self._rules.evidence if is_strong(found) else self._rules.by_name
        if not found or action != "drop":
            return None
        return Why("contamination", "evidence", "; ".join(found))

    def drop(self, table: str, name: str, state_id: str, why: Why) -> Row:
        """Return the ledger row of a row that is left out.

        Args:
            table: its table.
            name: a pair's id; a row that is no pair has its state for a name, which has one row
                in each table.
            state_id: its state.
            why: of :meth:`why_not`.
        """
        named = {"pair_id": name, "state_id": state_id}
        return drop(named, f"2:{why.op}:{table}", "session", why.stat, why.value, "")
