"""What a replay would cost, before it costs anything.

Belongs here: estimates of the questions that are still open, and what other ways of asking
them would cost. Does not belong here: the model of prompt caches and votes
(``replay.simulate``), bounds (``replay.wire.worst_case``) and spending. Planning sends no
session, needs no key and writes nothing.
"""

import os
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import msgspec

from composer_pipeline.lake.store import Lake
from composer_pipeline.replay.catalogue import Catalogue, Verdict, fetch
from composer_pipeline.replay.catalogue_records import Prices, Pricing
from composer_pipeline.replay.ledger import Ledger, existing_ledger, ledger_target
from composer_pipeline.replay.money import PICO, to_pico
from composer_pipeline.replay.plan_measure import (
    Agreement,
    Measured,
    measure_agreement,
    measure_replies,
)
from composer_pipeline.replay.questions import Questions
from composer_pipeline.replay.selection import (
    CurtailedSelector,
    Decide,
    Price,
    ask_order,
    audited,
    choose,
)
from composer_pipeline.replay.simulate import (
    BATCH_SHARE,
    Prompt,
    Reuse,
    Tariff,
    asked_shares,
    chain_beats_batch,
    expected_cost,
    pieces,
    reuse,
)
from composer_pipeline.replay.teachers import Teacher, TeacherSet

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
    expected to need. ``prices``: ``catalogue``, ``file`` (api openai), or
    ``caps`` of the teacher file. ``stop`` says why the catalogue rules the teacher out.
    """

    calls: int = 0
    cached: int = 0
    skipped: int = 0
    refused: int = 0
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
    batch_sessions: int = 0
    canonical_slug: str = ""
    terms: str = ""
    stop: str = ""
    warnings: list[str] = msgspec.field(default_factory=list)


class Plan(msgspec.Struct):
    """What would be asked. ``expected_usd`` is an estimate, ``worst_usd`` a bound.

    ``strategies`` compares ways of asking the same open questions: ``naive`` (every prompt in
    full), ``batch``, ``chain`` (sessions in order, so that beginnings are read from the
    prompt cache), ``chain_exact`` and ``chain_student`` (and curtailed voting), and
    ``selected``, which is what the teacher file asks for and ``expected_usd`` says. The
    bound is what the ledger would reserve if nothing ever came back.
    """

    states: int
    calls: int
    cached: int
    expected_usd: Decimal
    worst_usd: Decimal
    by_teacher: dict[str, TeacherPlan]
    strategies: dict[str, Strategy] = msgspec.field(default_factory=dict)
    agreement: Agreement = Agreement()
    selection: dict[str, Any] = msgspec.field(default_factory=dict)
    batch: str = ""
    catalogue: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values; USD amounts are numbers for display."""
        data: dict[str, Any] = msgspec.to_builtins(self)
        data["expected_usd"] = float(self.expected_usd)
        data["worst_usd"] = float(self.worst_usd)
        return data

    def to_json(self) -> str:
        """Return :meth:`to_dict` as one JSON object."""
        return msgspec.json.encode(self.to_dict()).decode()


def plan(
    lake: Lake,
    teacher_set: TeacherSet,
    *,
    days: Sequence[str] | None = None,
    teachers: Sequence[str] | None = None,
    max_states: int | None = None,
    only_on_active_path: bool = False,
    ledger: str | os.PathLike[str] | None = None,
    prices: Mapping[str, Price] | None = None,
    catalogue: Catalogue | None = None,
    decide: Decide | None = None,
    agreement: tuple[float, float] | None = None,
) -> Plan:
    """Count the calls that a replay would make, and their cost.

    Args:
        lake: has the states, and the replies that calibrate the estimate.
        teacher_set: who would be asked.
        days: as for ``replay``.
        teachers: as for ``replay``.
        max_states: as for ``replay``.
        only_on_active_path: as for ``replay``.
        ledger: path or URL of the ledger; in the lake when ``None``. It is not created.
        prices: model -> USD per token of (prompt, completion), instead of a catalogue.
        catalogue: asked from the endpoint when both are ``None``, and the teacher file's
            caps where it cannot be asked.
        decide: the vote, to measure agreement on the lake's replies; the assumed agreement
            where ``None``.
        agreement: (p, q) to assume instead of measuring; see ``replay.simulate``.

    Raises:
        InputError: as for ``replay``, except for the key and the ceiling.
    """
    questions = Questions(
        lake,
        teacher_set,
        days=days,
        teachers=teachers,
        max_states=max_states,
        only_on_active_path=only_on_active_path,
    )
    if catalogue is None and prices is None:
        catalogue = fetch(teacher_set, questions.teachers)
    verdicts = catalogue.verdicts(questions.teachers) if catalogue else {}
    work = _Work(questions, measure_replies(lake, questions.days))
    work.count(existing_ledger(ledger_target(lake, ledger)))
    pricings = {
        teacher.name: _pricing(
            teacher, verdicts.get(teacher.name), prices, teacher_set.endpoint.api
        )
        for teacher in questions.teachers
    }
    for teacher in questions.teachers:
        work.describe(teacher, pricings[teacher.name], verdicts.get(teacher.name))
    order = ask_order(
        questions.teachers,
        {name: (p.base.of("prompt"), p.base.of("completion")) for name, (p, _) in pricings.items()},
    )
    asked = [t for name in order for t in questions.teachers if t.name == name]
    asked = [t for t in asked if not work.by_teacher[t.name].stop]
    if agreement is not None:
        found = Agreement(agreement[0], agreement[1], "given")
    elif decide is not None:
        found = measure_agreement(
            lake, questions.states, asked, decide, teacher_set.selection.curtail
        )
    else:
        found = Agreement()
    strategies = work.cost(asked, found, decide)
    parts = work.by_teacher.values()
    return Plan(
        states=len(questions.states),
        calls=sum(part.calls for part in parts),
        cached=sum(part.cached for part in parts),
        expected_usd=sum(part.expected_picodollars for part in parts) / PICO,
        worst_usd=sum(part.worst_picodollars for part in parts) / PICO,
        by_teacher=work.by_teacher,
        strategies=strategies,
        agreement=found,
        selection=work.selected,
        batch=_batch_terms(asked),
        catalogue=catalogue.sha256[:16] if catalogue else "",
    )


def catalogue_prices(teacher_set: TeacherSet) -> dict[str, Price]:
    """Ask the endpoint for its models' prices; empty where it cannot be reached."""
    found = fetch(teacher_set, endpoints=False)
    prices = {}
    for model, record in found.models.items() if found else ():
        base = record.pricing.base
        if base.prompt is not None and base.completion is not None:
            prices[model] = (base.prompt, base.completion)
    return prices


def selector_for(
    teacher_set: TeacherSet, decide: Decide, *, teachers: Sequence[str] | None = None
) -> CurtailedSelector | None:
    """Return the selector that a teacher file asks for; ``None`` where it asks for everything.

    It orders teachers as the plan does, by the catalogue's prices.

    Args:
        teacher_set: the teacher file.
        decide: the vote.
        teachers: names of teachers; all when ``None``.

    Raises:
        InputError: an unknown teacher.
    """
    if not teacher_set.selection.active:
        return None
    asked = teacher_set.select(None if teachers is None else list(teachers))
    catalogue = fetch(teacher_set, asked)
    verdicts = catalogue.verdicts(asked) if catalogue else {}
    pricings = {
        t.name: _pricing(t, verdicts.get(t.name), None, teacher_set.endpoint.api)[0].base
        for t in asked
    }
    return CurtailedSelector(
        teacher_set.selection,
        decide,
        prices={name: (p.of("prompt"), p.of("completion")) for name, p in pricings.items()},
    )


class _Open(msgspec.Struct):
    """The open questions of one teacher: bytes of their bodies, and their worst cases."""

    bodies: dict[str, int]
    amounts: dict[str, int]


class _Work:
    """The figures of one plan as they come together."""

    def __init__(self, questions: Questions, measured: Measured) -> None:
        self.questions = questions
        self.measured = measured
        self.simulated = questions.teacher_set.endpoint.simulated
        self.by_teacher = {teacher.name: TeacherPlan() for teacher in questions.teachers}
        self.selected: dict[str, Any] = {}
        self._prompts: dict[str, Prompt] = {}
        self._open = {teacher.name: _Open({}, {}) for teacher in questions.teachers}
        self._tariffs: dict[str, Tariff] = {}
        self._explicit: dict[str, bool] = {}

    def count(self, opened: Ledger | None) -> None:
        """Build every question once, and sort out which are open; close the ledger."""
        questions = self.questions
        chosen, ruled_out = choose(questions.states, questions.teacher_set.selection)
        self._chosen = {state.state_id for state in chosen}
        selection = questions.teacher_set.selection
        self._audited = {s.state_id for s in chosen if audited(s.state_id, selection.audit_share)}
        skipped = [rule for state, rule in ruled_out.items() if state not in self._audited]
        self.selected = {
            "curtail": selection.curtail,
            "chosen": len(chosen),
            "skipped": {rule: skipped.count(rule) for rule in sorted(set(skipped))},
            "audited": len(self._audited),
        }
        seen: set[str] = set()
        try:
            for chain in questions.chains():
                for state in chain:
                    for teacher in questions.teachers:
                        self._count_one(state, teacher, opened, seen)
        finally:
            if opened:
                opened.close()

    def _count_one(
        self, state: Any, teacher: Teacher, ledger: Ledger | None, seen: set[str]
    ) -> None:
        figures = self.by_teacher[teacher.name]
        question = self.questions.build(state, teacher)
        if question.key in seen or (ledger and ledger.has_reply(question.key)):
            self.measured.bodies[question.key] = len(question.body)
            figures.cached += 1
        elif question.refuse:
            figures.refused += 1
        elif question.skip:
            figures.skipped += 1
        else:
            seen.add(question.key)
            self._open[teacher.name].bodies[state.state_id] = len(question.body)
            self._open[teacher.name].amounts[state.state_id] = question.amount
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
            if decide is None or decide.votes(teacher.family):
                voting.setdefault(teacher.family, len(voting))
        spoken: set[str] = set()
        quorum = decide.quorum if decide else _QUORUM
        ways = {
            way: agreement.shares
            if way == curtail and agreement.shares
            else asked_shares(len(voting), way, p=agreement.p, q=agreement.q, quorum=quorum)
            for way in ("off", "exact", "student")
        }
        names = ("naive", "batch", "chain", "chain_exact", "chain_student", "selected")
        usd, calls = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)
        for rank, teacher in enumerate(asked, start=1):
            figures, tariff = self.by_teacher[teacher.name], self._tariffs[teacher.name]
            figures.rank = rank
            first = teacher.family in voting and teacher.family not in spoken
            spoken.add(teacher.family)
            shares = {
                way: 1.0 if way == "off" else found[voting[teacher.family]] if first else 0.0
                for way, found in ways.items()
            }
            everything = self._reuse(teacher, tariff, chosen=False)
            states = len(self._open[teacher.name].bodies)
            sure = len(self._audited & self._open[teacher.name].bodies.keys())
            figures.naive_usd = expected_cost(everything, tariff, cached=False)
            figures.chain_usd = expected_cost(everything, tariff)
            sums = {
                "naive": (figures.naive_usd, states),
                "batch": (figures.naive_usd * float(BATCH_SHARE), states),
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
            figures.batch_sessions = sum(
                not chain_beats_batch(total, held, tariff.pricing.base)
                for total, held in everything.sessions.values()
            )
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


def _pricing(
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


def _batch_terms(teachers: Sequence[Teacher]) -> str:
    barred = [teacher.name for teacher in teachers if teacher.provider.zdr]
    if barred:
        return f"not possible with zdr: {', '.join(barred)}"
    return "possible; this program does not send batches"
