"""Whom to ask next: curtailed voting, value of information, and an audit of what it misses.

Belongs here: when a vote is decided, the order of teachers and of sessions, the audit
sample, and the estimate of the pairs that were missed. Does not belong here: what makes two
actions the same and who wins (``preferences``, a layer above, which is handed in as
:class:`Decide`), and asking (``replay.engine.run``).

The cheapest teacher is asked first. *Exact* curtailing stops when no answers of the families
still unasked could change the outcome of the k-of-n vote: a cluster that cannot be caught has
won, or every cluster that still can win agrees with the agent, or none can reach the quorum.
It is exact for an agreement that is transitive; levels of agreement are not quite, and the
audit sample measures that too. *Student* curtailing also stops when every answer so far
agrees with the agent. That is a heuristic: two later teachers might have agreed against it.

A share of the states, chosen by hash, is asked in full. Each stands for 1/share states, so the
pairs that curtailing and skipping missed are estimated without bias (Horvitz and Thompson).
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from composer_pipeline.actions import Action
from composer_pipeline.replay.selection.features import features, value
from composer_pipeline.replay.selection.selector import Answers, DaysFirst, by_day
from composer_pipeline.replay.selection.stopping import (
    GROUPS,
    Decide,
    Price,
    ask_order,
    choose,
    clusters_of,
    how_many,
    pair_found,
    spokesmen,
)
from composer_pipeline.replay.teachers import Selection, SkipRule, Teacher, sampled

if TYPE_CHECKING:
    from composer_pipeline.trace_states import TraceState


class SelectionReport(msgspec.Struct):
    """What was left out, and what that may have missed.

    ``asked`` and ``full`` count (state, teacher) questions. ``missed_pairs`` estimates the
    pairs that asking in full would have found besides ``pairs``, ``missed_se`` is its
    standard error; both are ``None`` without an audit sample. ``missed_in_audit`` of
    ``audited`` states were missed.
    """

    states: int = 0
    chosen: int = 0
    skipped: dict[str, int] = msgspec.field(default_factory=dict)
    asked: int = 0
    full: int = 0
    pairs: int = 0
    audited: int = 0
    audit_share: float = 0.0
    missed_in_audit: int = 0
    missed_pairs: float | None = None
    missed_se: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found


class CurtailedSelector:
    """Asks in waves; a :class:`composer_pipeline.replay.selection.selector.Selector` for one run.

    Args:
        selection: the teacher file's section.
        decide: the vote.
        prices: teacher -> USD per token, for the order of teachers; see :func:`ask_order`.
        days_first: ``oldest`` or ``newest``: each day is asked to its end before the next one
            begins; days together when empty.
    """

    def __init__(
        self,
        selection: Selection,
        decide: Decide,
        *,
        prices: Mapping[str, Price] | None = None,
        days_first: DaysFirst = "",
    ) -> None:
        self.selection = selection
        self._days_first = days_first
        self.decide = decide
        self._prices = prices
        self._groups: list[list[TraceState]] | None = None
        self._teachers: list[Teacher] = []
        self._ruled_out: dict[str, SkipRule] = {}
        self._states = self._full = 0
        self._answers: Answers | None = None
        self._asked: set[tuple[str, str]] = set()
        self._closed: set[str] = set()

    def next_wave(
        self, states: Sequence["TraceState"], teachers: Sequence[Teacher], answers: Answers
    ) -> Sequence[tuple["TraceState", Teacher]]:
        """Return what to ask next; nothing once every vote is decided."""
        if self._groups is None:
            self._prepare(states, teachers)
        assert self._groups is not None
        self._answers = answers
        for group in self._groups:
            wave = [(state, teacher) for state in group for teacher in self._next(state, answers)]
            if wave:
                self._asked.update((state.state_id, teacher.name) for state, teacher in wave)
                return wave
        return []

    def report(self) -> SelectionReport:
        """Return the figures of the run; complete after the last wave."""
        groups = self._groups or []
        chosen = [state for group in groups for state in group]
        left_out: list[str] = [
            rule
            for state_id, rule in self._ruled_out.items()
            if not sampled(state_id, self.selection.audit_share)
        ]
        skipped = {rule: left_out.count(rule) for rule in sorted(set(left_out))}
        found = SelectionReport(
            states=self._states,
            chosen=len(chosen),
            skipped=skipped,
            asked=len(self._asked),
            full=self._full,
            audit_share=self.selection.audit_share,
        )
        if self._answers is None:
            return found
        share = self.selection.audit_share
        for state in chosen:
            known = self._answers(state.state_id)
            votes = clusters_of(state, self._teachers, known, self.decide)
            found.pairs += pair_found(votes, self.decide.quorum)
            if sampled(state.state_id, share) and self._was_asked_in_full(state, known):
                found.audited += 1
                if pair_found(votes, self.decide.quorum) and not self._would_find(state, known):
                    found.missed_in_audit += 1
        if found.audited:
            # Horvitz-Thompson with one inclusion probability; Poisson sampling variance.
            found.missed_pairs = found.missed_in_audit / share - found.missed_in_audit
            found.missed_se = math.sqrt(found.missed_in_audit * (1 - share)) / share
        return found

    # -- which states ------------------------------------------------------------

    def _prepare(self, states: Sequence["TraceState"], teachers: Sequence[Teacher]) -> None:
        known = {teacher.name: teacher for teacher in teachers}
        order = ask_order(teachers, self._prices)
        self._teachers = [known[name] for name in order]
        self._states = len(states)
        self._full = sum(t.asks(state.state_id) for state in states for t in teachers)
        chosen, self._ruled_out = choose(states, self.selection)
        worth = {state.state_id: value(features(state)) for state in chosen}
        self._groups = []
        for day in by_day(chosen, self._days_first):
            if self.selection.prioritise:
                self._groups += _prioritised(day, worth)
            else:
                self._groups.append(day)

    # -- which teachers ----------------------------------------------------------

    def _of(self, state: "TraceState") -> list[Teacher]:
        """Return the teachers whose share of the states holds this one, the cheapest first."""
        return [teacher for teacher in self._teachers if teacher.asks(state.state_id)]

    def _next(self, state: "TraceState", answers: Answers) -> list[Teacher]:
        if state.state_id in self._closed:
            return []
        open_ = [t for t in self._of(state) if (state.state_id, t.name) not in self._asked]
        curtail = self.selection.curtail
        if curtail == "off" or sampled(state.state_id, self.selection.audit_share):
            self._closed.add(state.state_id)
            return open_
        still_open = {teacher.name for teacher in open_}
        wanted = [
            teacher
            for teacher in self._wanted(state, answers(state.state_id))
            if teacher.name in still_open
        ]
        if not wanted:
            self._closed.add(state.state_id)
        # A control's answer decides nothing, so it need not wait for the vote.
        return wanted + [teacher for teacher in open_ if teacher.control]

    def _wanted(self, state: "TraceState", known: Mapping[str, Action | None]) -> list[Teacher]:
        """Return the teachers to ask after ``known``; nobody when the vote is decided."""
        waiting = spokesmen(self._of(state), known, self.decide)
        votes = clusters_of(state, self._teachers, known, self.decide)
        curtail = self.selection.curtail
        return waiting[: how_many(votes, len(waiting), self.decide.quorum, curtail)]

    # -- the audit ---------------------------------------------------------------

    def _was_asked_in_full(self, state: "TraceState", known: Mapping[str, Action | None]) -> bool:
        return all(teacher.name in known for teacher in self._of(state))

    def _would_find(self, state: "TraceState", known: Mapping[str, Action | None]) -> bool:
        """Say whether the pair would have been found without the audit."""
        if state.state_id in self._ruled_out:
            return False
        if self.selection.curtail == "off":
            return True
        shown: dict[str, Action | None] = {}
        while wanted := self._wanted(state, shown):
            shown |= {teacher.name: known[teacher.name] for teacher in wanted}
        return pair_found(
            clusters_of(state, self._teachers, shown, self.decide), self.decide.quorum
        )


def _prioritised(
    states: Sequence["TraceState"], worth: Mapping[str, float]
) -> list[list["TraceState"]]:
    """Return states in groups, those of the sessions that are worth most first."""
    # Whole sessions, not states: a session asked in pieces would lose its prompt cache.
    sessions: dict[str, list[TraceState]] = {}
    for state in states:
        sessions.setdefault(state.session_id, []).append(state)
    ranked = sorted(
        sessions.values(),
        key=lambda group: (-sum(worth[s.state_id] for s in group) / len(group),
                           group[0].session_id),
    )  # fmt: skip
    size = max(1, math.ceil(len(ranked) / GROUPS))
    return [
        [state for session in ranked[at : at + size] for state in session]
        for at in range(0, len(ranked), size)
    ]
