"""The figures of one plan as they come together: open questions, tariffs, strategies.

Belongs here: which questions are open, what is known of each teacher, and the cost of each
way of asking. Does not belong here: the report and its inputs (``replay.plan.plan``), the model of
prompt caches and votes (``replay.plan.prompt_cache``).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from composer_pipeline.money import PICO, to_pico
from composer_pipeline.replay.catalogue import Prices, Pricing, Verdict
from composer_pipeline.replay.ledger import Ledger
from composer_pipeline.replay.plan.changed_settings import explain
from composer_pipeline.replay.plan.history import Agreement, Measured
from composer_pipeline.replay.plan.prompt_cache import (
    Prompt,
    Reuse,
    Tariff,
    asked_shares,
    expected_cost,
    pieces,
    reuse,
)
from composer_pipeline.replay.questions import Questions
from composer_pipeline.replay.selection import Decide, Price, choose, has_vote
from composer_pipeline.replay.teachers import Teacher, sampled

#: The smallest prefix that most providers cache, in tokens; the loopback server has none.
CACHE_MINIMUM_TOKENS = 1024

#: Votes without a vote: every family votes, two that agree win.
_QUORUM = 2


class Strategy(msgspec.Struct, frozen=True):
    """One way of asking the open questions; ``share_of_naive`` is ``None`` at no cost."""

    usd: float
    share_of_naive: float | None
    calls: float


class TeacherPlan(msgspec.Struct):
    """One teacher in a plan.

    ``calls`` are the most that may be made, ``expected_calls`` those that the vote is
    expected to need. ``not_asked`` are the states outside the teacher's ``ask_share``.
    ``prices``: ``catalogue``, ``file`` (api openai), or ``caps`` of the teacher file. ``stop``
    says why the catalogue rules the teacher out. Of the ``calls``, ``answered_before`` have a
    paid reply to the same state under other settings; ``changed`` says what differs, at how
    many of them (:mod:`replay.plan.changed_settings`).
    """

    calls: int = 0
    cached: int = 0
    skipped: int = 0
    refused: int = 0
    not_asked: int = 0
    answered_before: int = 0
    changed: dict[str, int] = msgspec.field(default_factory=dict)
    control: bool = False
    expected_picodollars: int = 0
    worst_picodollars: int = 0
    prices: str = "caps"
    rank: int = 0
    expected_calls: float = 0.0
    asked_share: float = 1.0
    naive_usd: float = 0.0
    chain_usd: float = 0.0
    prompt_tokens: int = 0
    bytes_per_token: float = 0.0
    completion_tokens: float = 0.0
    measured_replies: int = 0
    caches_prompts: bool = False
    canonical_slug: str = ""
    terms: str = ""
    stop: str = ""
    warnings: list[str] = msgspec.field(default_factory=list)


class _Open(msgspec.Struct):
    """The open questions of one teacher: bytes of their bodies, worst cases, day and meta."""

    bodies: dict[str, int]
    amounts: dict[str, int]
    calls: dict[str, tuple[str, dict[str, Any]]]


class Work:
    """The figures of one plan as they come together."""

    def __init__(self, questions: Questions, measured: Measured) -> None:
        self.questions = questions
        self.measured = measured
        self.simulated = questions.teacher_set.endpoint.simulated
        self.by_teacher = {t.name: TeacherPlan(control=t.control) for t in questions.teachers}
        self.selected: dict[str, Any] = {}
        self._prompts: dict[str, Prompt] = {}
        self._open = {teacher.name: _Open({}, {}, {}) for teacher in questions.teachers}
        self._metas: dict[tuple[str, str, str], dict[str, Any]] = {}
        self._tariffs: dict[str, Tariff] = {}
        self._explicit: dict[str, bool] = {}

    def count(self, opened: Ledger | None) -> None:
        """Build every question once, and sort out which are open; close the ledger."""
        questions = self.questions
        chosen, ruled_out = choose(questions.states, questions.teacher_set.selection)
        self._chosen = {state.state_id for state in chosen}
        selection = questions.teacher_set.selection
        self._audited = {s.state_id for s in chosen if sampled(s.state_id, selection.audit_share)}
        skipped = [rule for state, rule in ruled_out.items() if state not in self._audited]
        self.selected = {
            "curtail": selection.curtail,
            "chosen": len(chosen),
            "skipped": {rule: skipped.count(rule) for rule in sorted(set(skipped))},
            "audited": len(self._audited),
        }
        seen: set[str] = set()
        if opened:
            questions.know(opened)
        try:
            for chain in questions.chains():
                for state in chain:
                    for teacher in questions.teachers:
                        self._count_one(state, teacher, opened, seen)
            if opened:
                self._explain(opened)
        finally:
            if opened:
                opened.close()

    def _explain(self, ledger: Ledger) -> None:
        """Say of each teacher why calls that it answered before are open."""
        for name, figures in self.by_teacher.items():
            calls = self._open[name].calls
            figures.answered_before, figures.changed = explain(
                ledger, name, ((calls[s][0], s, calls[s][1]) for s in calls if s in self._chosen)
            )
            calls.clear()

    def _count_one(
        self, state: Any, teacher: Teacher, ledger: Ledger | None, seen: set[str]
    ) -> None:
        figures = self.by_teacher[teacher.name]
        if not teacher.asks(state.state_id):
            figures.not_asked += 1
            return
        question = self.questions.build(state, teacher)
        known = ledger.replied(question.asked.keys) if ledger else ""
        if question.key in seen or known:
            self.measured.bodies[known or question.key] = len(question.body)
            figures.cached += 1
        elif question.refuse:
            figures.refused += 1
        elif question.skip:
            figures.skipped += 1
        else:
            seen.add(question.key)
            self._open[teacher.name].bodies[state.state_id] = len(question.body)
            self._open[teacher.name].amounts[state.state_id] = question.amount
            # One object for all that are alike; a plan may hold a million of them.
            meta = question.call.meta
            alike = (teacher.name, meta["toolset"], meta["converter_version"])
            meta = self._metas.setdefault(alike, meta)
            self._open[teacher.name].calls[state.state_id] = (question.call.day, meta)
            if state.state_id not in self._prompts:
                shape = pieces(question.body)
                self._prompts[state.state_id] = Prompt(state.state_id, state.session_id, *shape)
            if teacher.name not in self._explicit:
                ends = question.body[:2000] + question.body[-2000:]
                self._explicit[teacher.name] = b'"cache_control":' in ends

    def describe(
        self, teacher: Teacher, pricing: tuple[Pricing, str], verdict: Verdict | None
    ) -> None:
        """Fill in what is known about a teacher, and make its tariff."""
        figures = self.by_teacher[teacher.name]
        prices, figures.prices = pricing
        if verdict:
            figures.canonical_slug, figures.stop = verdict.canonical_slug, verdict.stop
            figures.terms, figures.warnings = verdict.distillable, list(verdict.warnings)
        calibration = self.measured.of(teacher)
        figures.bytes_per_token = round(calibration.bytes_per_token, 3)
        figures.completion_tokens = round(calibration.completion_tokens, 1)
        figures.measured_replies = calibration.replies
        implicit = verdict.record.caches_implicitly if verdict and verdict.record else None
        figures.caches_prompts = prices.base.input_cache_read is not None and (
            implicit is not False or self._explicit.get(teacher.name, False)
        )
        open_ = self._open[teacher.name]
        sizes = [sum(self._prompts[state].sizes) for state in open_.bodies]
        rest = sum(open_.bodies.values()) - sum(sizes)
        self._tariffs[teacher.name] = Tariff(
            prices,
            calibration.bytes_per_token,
            calibration.completion_tokens,
            figures.caches_prompts,
            rest / len(sizes) if sizes else 0.0,
        )

    def cost(
        self, asked: Sequence[Teacher], agreement: Agreement, decide: Decide | None
    ) -> dict[str, Strategy]:
        """Cost every strategy, and fill in each teacher's expected and worst cost."""
        curtail = self.questions.teacher_set.selection.curtail
        voting: dict[str, int] = {}
        for teacher in asked:
            if has_vote(teacher, decide):
                voting.setdefault(teacher.family, len(voting))
        spoken: set[str] = set()
        quorum = decide.quorum if decide else _QUORUM
        ways = {
            way: agreement.shares
            if way == curtail and agreement.shares
            else asked_shares(len(voting), way, p=agreement.p, q=agreement.q, quorum=quorum)
            for way in ("off", "exact", "student")
        }
        names = ("naive", "chain", "chain_exact", "chain_student", "selected")
        usd, calls = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)
        for rank, teacher in enumerate(asked, start=1):
            figures, tariff = self.by_teacher[teacher.name], self._tariffs[teacher.name]
            figures.rank = rank
            first = has_vote(teacher, decide) and teacher.family not in spoken
            if first:
                spoken.add(teacher.family)
            shares = {
                way: found[voting[teacher.family]] if first else 0.0 for way, found in ways.items()
            }
            shares["off"] = 1.0
            if teacher.control:  # asked on its whole share, however the vote goes
                shares = dict.fromkeys(ways, 1.0)
            everything = self._reuse(teacher, tariff, chosen=False)
            states = len(self._open[teacher.name].bodies)
            sure = len(self._audited & self._open[teacher.name].bodies.keys())
            figures.naive_usd = expected_cost(everything, tariff, cached=False)
            figures.chain_usd = expected_cost(everything, tariff)
            sums = {
                "naive": (figures.naive_usd, states),
                "chain": (figures.chain_usd, states),
                **{
                    f"chain_{way}": (
                        expected_cost(everything, tariff, share=shares[way]),
                        sure + (states - sure) * shares[way],
                    )
                    for way in ("exact", "student")
                },
            }
            selected = self._reuse(teacher, tariff, chosen=True)
            figures.asked_share = round(shares[curtail], 4)
            mine = self._open[teacher.name].amounts.keys() & self._chosen
            sure = len(mine & self._audited)
            figures.calls = len(mine)
            figures.expected_calls = round(sure + (len(mine) - sure) * shares[curtail], 1)
            figures.worst_picodollars = sum(self._open[teacher.name].amounts[s] for s in mine)
            figures.prompt_tokens = int(
                sum(self._open[teacher.name].bodies[s] for s in mine) / tariff.bytes_per_token
            )
            expected = expected_cost(selected, tariff, share=shares[curtail])
            figures.expected_picodollars = min(to_pico(str(expected)), figures.worst_picodollars)
            sums["selected"] = (figures.expected_picodollars / float(PICO), figures.expected_calls)
            for name, (cost, number) in sums.items():
                usd[name] += cost
                calls[name] += number
        naive = usd["naive"]
        return {
            name: Strategy(
                round(usd[name], 9), round(usd[name] / naive, 4) if naive else None,
                round(calls[name], 1),
            )
            for name in names
        }  # fmt: skip

    def _reuse(self, teacher: Teacher, tariff: Tariff, *, chosen: bool) -> Reuse:
        minimum = 0 if self.simulated else CACHE_MINIMUM_TOKENS * tariff.bytes_per_token
        return reuse(
            (
                self._prompts[state]
                for state in self._open[teacher.name].bodies
                if not chosen or state in self._chosen
            ),
            surely=self._audited,
            edges=tariff.edges(),
            minimum_bytes=int(minimum),
        )


def pricing_of(
    teacher: Teacher, verdict: Verdict | None, prices: Mapping[str, Price] | None, api: str
) -> tuple[Pricing, str]:
    """Return a teacher's prices and where they are from."""
    caps = (teacher.max_price.prompt / 1_000_000, teacher.max_price.completion / 1_000_000)
    if api == "openai":
        return Pricing(Prices(*caps)), "file"
    if verdict and verdict.record and not verdict.stop:
        return verdict.record.offered(caps), "catalogue"
    if prices is not None and teacher.model in prices:
        prompt, completion = prices[teacher.model]
        return Pricing(Prices(prompt, completion)), "catalogue"
    return Pricing(Prices(*caps)), "caps"
