"""What a replay would cost, before it costs anything.

Belongs here: estimates of the questions that are still open, and what other ways of asking
them would cost. Does not belong here: the model of prompt caches and votes
(``replay.plan.prompt_cache``), bounds (``replay.provider.bounds.worst_case``) and spending.
Planning sends no session, needs no key and writes nothing.
"""

import contextlib
import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import msgspec

from composer_pipeline.lake.store import Lake
from composer_pipeline.money import PICO, to_pico
from composer_pipeline.reports import Progress, Report
from composer_pipeline.teachers.catalogue import Catalogue, Prices, Pricing, Verdict, fetch
from composer_pipeline.teachers.ledger.ledger import Ledger, existing_ledger, ledger_target
from composer_pipeline.teachers.plan_model import (
    Agreement,
    Calibration,
    Measured,
    Outline,
    Reuse,
    SessionOutline,
    Tariff,
    add_reuse,
    asked_shares,
    empty_reuse,
    expected_cost,
    measure_agreement,
    measure_replies,
    reuse_along,
)
from composer_pipeline.teachers.questions import Questions, too_long
from composer_pipeline.teachers.request import worst_case
from composer_pipeline.teachers.selection import (
    CurtailedSelector,
    DaysFirst,
    Decide,
    Price,
    ask_order,
    choose,
    has_vote,
)
from composer_pipeline.teachers.teachers import Teacher, TeacherSet, sampled

#: What is left where everything that was recorded is as it was.
MESSAGES = "messages of the state"
#: What is left where the settings of the earlier call were not recorded.
UNRECORDED = "not recorded then: messages of the state, endpoint, max_tokens, max_price or others"

#: ``Call.meta`` that decides the body -> its name in a report, and whether values are shown.
_META = {
    "model": ("model", True),
    "converter_version": ("converter_version", True),
    "toolset": ("tools", False),
}


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what differs between two ``Call.meta`` of one state and teacher; never nothing.

    Args:
        before: of an earlier call, as the ledger recorded it.
        now: of the call that would be made.
    """
    found = []
    for field, (name, shown) in _META.items():
        old, new = before.get(field), now[field]
        if old is not None and old != new:
            found.append(f"{name} {old} -> {new}" if shown else name)
    settings = before.get("settings")
    if settings is None:
        return tuple(found) or (UNRECORDED,)
    for name in sorted(settings.keys() | now["settings"].keys()):
        old, new = settings.get(name), now["settings"].get(name)
        # Caps were recorded while they were part of the keys.
        if old != new and not name.startswith("max_price."):
            found.append(f"{name} {_word(old)} -> {_word(new)}")
    return tuple(found) or (MESSAGES,)


def explain(
    ledger: Ledger, teacher: str, opened: Iterable[tuple[str, str, Mapping[str, Any]]]
) -> tuple[int, dict[str, int]]:
    """Count the open questions that were paid for before under other settings, and say which.

    Where a state was answered more than once, the call with the fewest differences counts,
    and of these the latest.

    Args:
        ledger: has the earlier calls.
        teacher: name of the teacher.
        opened: (day, state_id, ``Call.meta``) of each open question.

    Returns:
        How many, and change -> at how many of them, the most frequent first.
    """
    days: dict[str, dict[str, Mapping[str, Any]]] = {}
    for day, state, meta in opened:
        days.setdefault(day, {})[state] = meta
    again, counted = 0, Counter[str]()
    for day, asked in days.items():
        nearest: dict[str, tuple[str, ...]] = {}
        for state, before in ledger.bought(teacher, day):
            if state in asked:
                found = changes(before, asked[state])
                if state not in nearest or _weight(found) <= _weight(nearest[state]):
                    nearest[state] = found
        again += len(nearest)
        for found in nearest.values():
            counted.update(found)
    return again, dict(sorted(counted.items(), key=lambda pair: (-pair[1], pair[0])))


def _weight(found: tuple[str, ...]) -> tuple[bool, int]:
    return found == (UNRECORDED,), len(found)


def _word(value: Any) -> str:
    return "unset" if value is None else str(value)


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
    """The open questions of one teacher, added up; ``mine`` are those that selection leaves.

    ``rest`` counts the bytes of bodies that are neither tools nor messages. ``calls`` are those
    of the day that is being counted: (day, state, meta).
    """

    states: int = 0
    audited: int = 0
    rest: int = 0
    mine: int = 0
    mine_audited: int = 0
    mine_bytes: int = 0
    worst: int = 0
    everything: Reuse | None = None
    selected: Reuse | None = None
    calls: list[tuple[str, str, dict[str, Any]]] = msgspec.field(default_factory=list)


class Work:
    """The figures of one plan as they come together.

    Args:
        questions: what would be asked.
        measured: tokens of the lake's replies.
        ledger: has what was bought; the caller closes it.
        pricings: teacher -> prices and where they are from.
        verdicts: teacher -> what the catalogue says.
    """

    def __init__(
        self,
        questions: Questions,
        measured: Measured,
        ledger: Ledger | None,
        pricings: Mapping[str, tuple[Pricing, str]],
        verdicts: Mapping[str, Verdict],
    ) -> None:
        self.questions = questions
        self.measured = measured
        self.ledger = ledger
        self.pricings = pricings
        self.verdicts = verdicts
        self.simulated = questions.teacher_set.endpoint.simulated
        self.by_teacher = {t.name: TeacherPlan(control=t.control) for t in questions.teachers}
        self.selected: dict[str, Any] = {}
        self._open = {teacher.name: _Open() for teacher in questions.teachers}
        self._metas: dict[tuple[str, str], dict[str, Any]] = {}
        self._seen: set[Any] = set()
        self._calibrations: dict[str, Calibration] = {}
        self._minimum: dict[str, int] = {}
        self._everywhere = any(
            questions.teacher_set.endpoint_of(t).api == "openai" for t in questions.teachers
        )

    def count(self, progress: Progress | None = None) -> None:
        """Outline every question once, session by session, and sort out which are open.

        Args:
            progress: called as ("plan", states done, all states).
        """
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
        if self.ledger:
            questions.know(self.ledger)
            self._calibrate(self.ledger)
        for teacher in questions.teachers:
            self._describe(teacher)
        done, day = 0, ""
        for states in questions.chains():
            if states[0].day != day:
                self._explain()
                day = states[0].day
            self._count_session(states)
            done += len(states)
            if progress:
                progress("plan", done, len(questions.states))
        self._explain()
        for teacher in questions.teachers:
            figures = self.by_teacher[teacher.name]
            figures.caches_prompts = self._caches(teacher)

    def _calibrate(self, ledger: Ledger) -> None:
        """Measure the bodies of some replies: their tokens are known, their bytes are not kept."""
        wanted = self.measured.sample()
        teachers = {teacher.name: teacher for teacher in self.questions.teachers}
        for state in self.questions.states:
            for name in wanted.get(state.state_id, ()):
                if name in teachers:
                    request, asked = self.questions.request(state, teachers[name])
                    there = ledger.replied(asked.keys)
                    for known in [key for key in asked.keys if key in there][:1]:
                        self.measured.bodies[known] = len(request.body)

    def _explain(self) -> None:
        """Say of each teacher why calls that it answered before are open."""
        for name, figures in self.by_teacher.items():
            calls, self._open[name].calls = self._open[name].calls, []
            if self.ledger and calls:
                again, changed = explain(self.ledger, name, calls)
                figures.answered_before += again
                both = Counter(figures.changed) + Counter(changed)
                figures.changed = dict(sorted(both.items(), key=lambda item: (-item[1], item[0])))

    def _count_session(self, states: Sequence[Any]) -> None:
        if not self._everywhere:  # a session's name is in its bodies: no other has the same
            self._seen.clear()
        session = SessionOutline(self.questions)
        asked: list[tuple[Outline, Teacher, tuple[str, ...]]] = []
        for row in states:
            outline, state = None, row.whole
            for teacher in self.questions.teachers:
                if not teacher.asks(state.state_id):
                    self.by_teacher[teacher.name].not_asked += 1
                    continue
                outline = outline or session.of(state)
                # Hashes grow with their chain, so they are taken in its order.
                named = self.ledger or self._everywhere
                keys = session.shell(outline, teacher).keys(outline, teacher.name) if named else ()
                asked.append((outline, teacher, keys))
        # One query for a session: one for each question takes longer than all the rest.
        there = (
            self.ledger.replied(key for *_, keys in asked for key in keys) if self.ledger else ()
        )
        opened: dict[str, list[Outline]] = {teacher.name: [] for teacher in self.questions.teachers}
        for outline, teacher, keys in asked:
            known = any(key in there for key in keys)
            if self._count_one(session, outline, teacher, keys, known):
                opened[teacher.name].append(outline)
        self._share(session, opened)

    def _count_one(
        self,
        session: SessionOutline,
        outline: Outline,
        teacher: Teacher,
        keys: Sequence[str],
        known: bool,
    ) -> bool:
        """Count one question; say whether it is open."""
        figures, open_ = self.by_teacher[teacher.name], self._open[teacher.name]
        size = session.shell(outline, teacher).size + outline.size
        name = keys[0] if keys else (teacher.name, outline.toolset.digest, outline.node)
        if name in self._seen or known:
            figures.cached += 1
            return False
        if too_long(teacher, size):
            figures.skipped += 1
            return False
        if outline.has_action or self.questions.has_secret(outline.state):
            figures.refused += 1
            return False
        self._seen.add(name)
        state_id = outline.state.state_id
        audited = state_id in self._audited
        open_.states += 1
        open_.audited += audited
        open_.rest += size - session.reach[outline.node]
        if state_id in self._chosen:
            open_.mine += 1
            open_.mine_audited += audited
            open_.mine_bytes += size
            open_.worst += worst_case(teacher, size)
            if self.ledger:
                alike = (teacher.name, outline.toolset.digest)
                if alike not in self._metas:
                    self._metas[alike] = self.questions.meta(teacher, outline.toolset)
                open_.calls.append((outline.state.day, state_id, self._metas[alike]))
        return True

    def _share(self, session: SessionOutline, opened: Mapping[str, Sequence[Outline]]) -> None:
        """Add what a session's open prompts share, for each teacher; once for those alike."""
        made: dict[Any, Reuse] = {}
        for name, outlines in opened.items():
            if not outlines:
                continue
            open_ = self._open[name]
            if open_.everything is None or open_.selected is None:
                each = open_.rest / open_.states
                edges = self._tariff(name, each).edges()
                open_.everything, open_.selected = empty_reuse(edges), empty_reuse(edges)
            for total, mine in (
                (open_.everything, outlines),
                (open_.selected, [o for o in outlines if o.state.state_id in self._chosen]),
            ):
                key = (total.edges, self._minimum[name], tuple(o.state.state_id for o in mine))
                if key not in made:
                    made[key] = empty_reuse(total.edges)
                    ends = ((o.node, int(o.state.state_id in self._audited)) for o in mine)
                    reuse_along(
                        made[key], ends, session.parents, session.reach, self._minimum[name]
                    )
                add_reuse(total, made[key])

    def _describe(self, teacher: Teacher) -> None:
        """Fill in what is known about a teacher before its questions are counted."""
        figures, verdict = self.by_teacher[teacher.name], self.verdicts.get(teacher.name)
        figures.prices = self.pricings[teacher.name][1]
        if verdict:
            figures.canonical_slug, figures.stop = verdict.canonical_slug, verdict.stop
            figures.terms, figures.warnings = verdict.distillable, list(verdict.warnings)
        calibration = self.measured.of(teacher)
        self._calibrations[teacher.name] = calibration
        figures.bytes_per_token = round(calibration.bytes_per_token, 3)
        figures.completion_tokens = round(calibration.completion_tokens, 1)
        figures.measured_replies = calibration.replies
        least = 0 if self.simulated else CACHE_MINIMUM_TOKENS * calibration.bytes_per_token
        self._minimum[teacher.name] = int(least)

    def _caches(self, teacher: Teacher) -> bool:
        """Say whether a teacher's provider reads repeated beginnings from a cache."""
        verdict = self.verdicts.get(teacher.name)
        implicit = verdict.record.caches_implicitly if verdict and verdict.record else None
        priced = self.pricings[teacher.name][0].base.input_cache_read is not None
        # Said in the body, and so by the teacher file alone.
        api = self.questions.teacher_set.endpoint_of(teacher).api
        explicit = teacher.cache_control != "off" and api != "openai"
        explicit = explicit and self._open[teacher.name].states > 0
        return priced and (implicit is not False or explicit)

    def _tariff(self, name: str, rest: float) -> Tariff:
        calibration = self._calibrations[name]
        return Tariff(
            self.pricings[name][0],
            calibration.bytes_per_token,
            calibration.completion_tokens,
            self.by_teacher[name].caches_prompts,
            rest,
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
            figures, open_ = self.by_teacher[teacher.name], self._open[teacher.name]
            tariff = self._tariff(teacher.name, open_.rest / open_.states if open_.states else 0.0)
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
            everything = open_.everything or empty_reuse(())
            states, sure = open_.states, open_.audited
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
            selected = open_.selected or empty_reuse(())
            figures.asked_share = round(shares[curtail], 4)
            mine, sure = open_.mine, open_.mine_audited
            figures.calls, figures.worst_picodollars = mine, open_.worst
            figures.expected_calls = round(sure + (mine - sure) * shares[curtail], 1)
            figures.prompt_tokens = int(open_.mine_bytes / tariff.bytes_per_token)
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


class Plan(msgspec.Struct, Report):
    """What would be asked. ``expected_usd`` is an estimate, ``worst_usd`` a bound.

    ``strategies`` compares ways of asking the same open questions: ``naive`` (every prompt in
    full), ``chain`` (sessions in order, so that beginnings are read from the
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
    catalogue: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values; USD amounts are numbers for display."""
        data = super().to_dict()
        data["expected_usd"] = float(self.expected_usd)
        data["worst_usd"] = float(self.worst_usd)
        return data


def plan(
    lake: Lake,
    teacher_set: TeacherSet,
    *,
    days: Sequence[str] | None = None,
    sessions: Collection[str] | None = None,
    teachers: Sequence[str] | None = None,
    max_states: int | None = None,
    only_on_active_path: bool = False,
    ledger: str | os.PathLike[str] | None = None,
    prices: Mapping[str, Price] | None = None,
    catalogue: Catalogue | None = None,
    decide: Decide | None = None,
    agreement: tuple[float, float] | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Count the calls that a replay would make, and their cost.

    Args:
        lake: has the states, and the replies that calibrate the estimate.
        teacher_set: who would be asked.
        days: as for ``replay``.
        sessions: as for ``replay``.
        teachers: as for ``replay``.
        max_states: as for ``replay``.
        only_on_active_path: as for ``replay``.
        ledger: path or URL of the ledger; in the lake when ``None``. It is not created.
        prices: model -> USD per token of (prompt, completion), instead of a catalogue.
        catalogue: asked from the endpoint when both are ``None``, and the teacher file's
            caps where it cannot be asked.
        decide: the vote, to measure agreement on the lake's replies; the assumed agreement
            where ``None``.
        agreement: (p, q) to assume instead of measuring; see ``replay.plan.prompt_cache``.
        progress: called as ("plan", states done, all states) after each session.

    Raises:
        InputError: as for ``replay``, except for the key and the ceiling.
    """
    questions = Questions(
        lake,
        teacher_set,
        days=days,
        sessions=sessions,
        teachers=teachers,
        max_states=max_states,
        only_on_active_path=only_on_active_path,
    )
    if catalogue is None and prices is None:
        catalogue = fetch(teacher_set, questions.teachers)
    at_the_router = teacher_set.at_the_router(questions.teachers)
    verdicts = catalogue.verdicts(at_the_router) if catalogue else {}
    pricings = {
        teacher.name: pricing_of(
            teacher, verdicts.get(teacher.name), prices, teacher_set.endpoint_of(teacher).api
        )
        for teacher in questions.teachers
    }
    opened = existing_ledger(ledger_target(lake, ledger))
    measured = measure_replies(lake, questions.days)
    with opened or contextlib.nullcontext():
        work = Work(questions, measured, opened, pricings, verdicts)
        work.count(progress)
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
        catalogue=catalogue.sha256[:16] if catalogue else "",
    )


def selector_for(
    teacher_set: TeacherSet,
    decide: Decide,
    *,
    teachers: Sequence[str] | None = None,
    days_first: DaysFirst = "",
) -> CurtailedSelector | None:
    """Return the selector that a teacher file asks for; ``None`` where it asks for everything.

    It orders teachers as the plan does, by the catalogue's prices.

    Args:
        teacher_set: the teacher file.
        decide: the vote.
        teachers: names of teachers; all when ``None``.
        days_first: which day is asked to its end first; as for ``replay``.

    Raises:
        InputError: an unknown teacher.
    """
    if not teacher_set.selection.active:
        return None
    asked = teacher_set.select(None if teachers is None else list(teachers))
    catalogue = fetch(teacher_set, asked)
    verdicts = catalogue.verdicts(teacher_set.at_the_router(asked)) if catalogue else {}
    pricings = {
        t.name: pricing_of(t, verdicts.get(t.name), None, teacher_set.endpoint_of(t).api)[0].base
        for t in asked
    }
    return CurtailedSelector(
        teacher_set.selection,
        decide,
        prices={name: (p.of("prompt"), p.of("completion")) for name, p in pricings.items()},
        days_first=days_first,
    )
