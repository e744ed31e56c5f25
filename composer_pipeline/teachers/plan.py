"""What a replay would cost, before it costs anything: the open questions, an estimate, a bound.

Planning sends no session, needs no API key and writes nothing.
"""

import contextlib
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache, partial
from typing import Any

import msgspec

from composer_pipeline.actions import Action
from composer_pipeline.lake.store import Lake
from composer_pipeline.money import PICO, to_pico
from composer_pipeline.reports import Progress, Report
from composer_pipeline.teachers.catalogue import Catalogue, CatalogueCheck, Prices, Pricing, fetch
from composer_pipeline.teachers.ledger.ledger import Ledger, existing_ledger, ledger_target
from composer_pipeline.teachers.plan_model import (
    Agreement,
    PrefixReuse,
    PromptOutline,
    ReplyTokens,
    SessionOutline,
    Tariff,
    answers_by_key,
    asked_shares,
    expected_cost,
    measure_agreement,
    measure_replies,
    typical_prices,
)
from composer_pipeline.teachers.questions import Questions, too_long
from composer_pipeline.teachers.request import worst_case
from composer_pipeline.teachers.selection import (
    QUORUM,
    CurtailedSelector,
    DaysFirst,
    Decide,
    Price,
    ask_order,
    asking,
    choose,
    has_vote,
    next_voters,
)
from composer_pipeline.teachers.teachers import Teacher, TeacherSet, sampled
from composer_pipeline.teachers.value import PairModel, features, model_of

#: What differs if every setting that was recorded is the same.
MESSAGES = "messages of the state"
#: What differs if the earlier call has no recorded settings, as in a rebuilt ledger.
UNRECORDED = "not recorded then: messages of the state, endpoint, max_tokens or others"
#: The smallest prefix that most providers cache, in tokens; the loopback server has no minimum.
CACHE_MINIMUM_TOKENS = 1024
#: Amounts in USD for which a plan says what they would buy, beside round ones below everything.
AMOUNTS = (5, 10, 20, 50, 100)


class Strategy(msgspec.Struct, frozen=True):
    """One way of asking the open questions; ``share_of_naive`` is ``None`` at no cost."""

    usd: float
    share_of_naive: float | None
    calls: float


class PlanPoint(msgspec.Struct, frozen=True):
    """What an amount is expected to buy, in the order in which a replay asks.

    ``usd`` is the amount, ``None`` for everything; ``spent`` is the expected cost of ``states``
    states of ``sessions`` sessions, ``uncached`` the same if nothing were read from a cache.
    ``pairs`` are expected, ``low`` and ``high`` a 95 % interval. ``kinds`` counts the states by
    feature (``teachers.value.WEIGHTS``); a state may have several, or none.
    """

    usd: float | None
    states: int
    sessions: int
    spent: float
    uncached: float
    pairs: float
    low: float
    high: float
    kinds: dict[str, int]


class TeacherPlan(msgspec.Struct):
    """One teacher in a plan.

    ``calls`` are the most that may be made, ``expected_calls`` those that the vote is expected
    to need. ``not_asked`` are the states outside the teacher's ``ask_share``, ``decided`` those
    whose vote needs no more replies. ``prices``: ``catalogue``, ``file`` (api openai), ``caps``
    of the teacher file, or ``typical``: those of ``recipes/prices.yaml`` up to the caps, where
    no catalogue was read. ``stop`` says why the catalogue rules the teacher out. Of the
    ``calls``, ``answered_before`` have a paid reply to the same state under other settings;
    ``changed`` says what differs, and at how many of them.
    """

    calls: int = 0
    cached: int = 0
    skipped: int = 0
    refused: int = 0
    not_asked: int = 0
    decided: int = 0
    answered_before: int = 0
    changed: dict[str, int] = msgspec.field(default_factory=dict)
    control: bool = False
    expected_picodollars: int = 0
    expected_uncached_picodollars: int = 0
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


class ReplayPlan(msgspec.Struct, Report):
    """What would be asked. ``expected_usd`` is an estimate, ``worst_usd`` a bound.

    ``expected_uncached_usd`` is the estimate if no provider reads a prompt from its cache.
    ``strategies`` compares ways of asking the same open questions: ``naive`` (every prompt in
    full), ``chain`` (sessions in order, so that beginnings are read from the prompt cache),
    ``chain_exact`` and ``chain_student`` (with curtailed voting), and ``selected``, which is
    what the teacher file asks for and what ``expected_usd`` is. The bound is what the ledger
    would reserve if no reply ever arrived. ``curve`` says what those amounts would buy that do
    not buy everything, the smallest first, and everything last; ``votes`` are those on which the
    chance of a pair was fitted.
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
    curve: list[PlanPoint] = msgspec.field(default_factory=list)
    votes: int = 0
    expected_uncached_usd: Decimal = Decimal(0)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values; USD amounts are numbers for display."""
        names = ("expected_usd", "expected_uncached_usd", "worst_usd")
        return super().to_dict() | {name: float(getattr(self, name)) for name in names}


def plan(
    lake: Lake,
    teacher_set: TeacherSet | str | os.PathLike[str],
    *,
    days: Sequence[str] | None = None,
    sessions: Collection[str] | None = None,
    teachers: Sequence[str] | None = None,
    max_states: int | None = None,
    only_on_active_path: bool = False,
    ledger: str | os.PathLike[str] | None = None,
    catalogue: Catalogue | None = None,
    decide: Decide | None = None,
    agreement: tuple[float, float] | None = None,
    max_usd: Decimal | None = None,
    progress: Progress | None = None,
) -> ReplayPlan:
    """Count the calls that a replay would make, and their cost.

    Args:
        lake: has the states, and the replies that calibrate the estimate.
        teacher_set: the teachers that would be asked.
        days: as for ``replay``.
        sessions: as for ``replay``.
        teachers: as for ``replay``.
        max_states: as for ``replay``.
        only_on_active_path: as for ``replay``.
        ledger: path or URL of the ledger; in the lake if ``None``. It is not created.
        catalogue: fetched from the endpoint if ``None``; without one, the shipped typical
            prices count, or the price caps of the teacher file where it lists no such model.
        decide: the vote, to measure agreement on the lake's replies; if ``None``, an agreement
            is assumed.
        agreement: (p, q) to assume instead of measuring; see ``teachers.plan_model``.
        max_usd: an amount to have in ``curve`` beside :data:`AMOUNTS`.
        progress: called as ("plan", states done, all states) after each session.

    Raises:
        InputError: as for ``replay``, except for the key and the ceiling.
    """
    teacher_set = TeacherSet.of(teacher_set)
    questions = Questions(
        lake, teacher_set, days=days, sessions=sessions, teachers=teachers,
        max_states=max_states, only_on_active_path=only_on_active_path,
    )  # fmt: skip
    if catalogue is None:
        catalogue = fetch(teacher_set, questions.teachers)
    checks = catalogue.check_teachers(questions.teachers) if catalogue else {}
    replies = measure_replies(lake, questions.days)
    opened = existing_ledger(ledger_target(lake, ledger))
    with opened or contextlib.nullcontext():
        model = model_of(lake)
        counter = _Counter(lake, questions, opened, checks, replies, model, decide)
        selected = counter.count(progress)
    totals = _cheapest_first(counter.totals)
    if agreement is not None:
        agreed = Agreement(agreement[0], agreement[1], "given")
    elif decide is not None:
        curtail = teacher_set.selection.curtail
        asked = [one.teacher for one in totals]
        agreed = measure_agreement(lake, questions.states, asked, decide, curtail)
    else:
        agreed = Agreement()
    strategies = _cost(totals, teacher_set.selection.curtail, agreed, decide)
    by_teacher = {name: one.figures for name, one in counter.totals.items()}
    parts = by_teacher.values()
    return ReplayPlan(
        states=len(questions.states),
        calls=sum(part.calls for part in parts),
        cached=sum(part.cached for part in parts),
        expected_usd=sum(part.expected_picodollars for part in parts) / PICO,
        worst_usd=sum(part.worst_picodollars for part in parts) / PICO,
        by_teacher=by_teacher,
        strategies=strategies,
        agreement=agreed,
        selection=selected,
        catalogue=catalogue.sha256[:16] if catalogue else "",
        curve=counter.curve([float(max_usd)] if max_usd else []),
        votes=model.votes,
        expected_uncached_usd=sum(part.expected_uncached_picodollars for part in parts) / PICO,
    )


def selector_for(
    lake: Lake,
    teacher_set: TeacherSet,
    decide: Decide,
    *,
    teachers: Sequence[str] | None = None,
    days_first: DaysFirst = "",
) -> CurtailedSelector | None:
    """Return the selector of a teacher file; ``None`` if it asks for everything in time order."""
    if not (teacher_set.selection.active or teacher_set.selection.prioritise):
        return None
    asked = teacher_set.select(None if teachers is None else list(teachers))
    catalogue = fetch(teacher_set, asked)
    checks = catalogue.check_teachers(asked) if catalogue else {}
    prices = {
        teacher.name: (base.of("prompt"), base.of("completion"))
        for teacher in asked
        for base in [_pricing(teacher_set, teacher, checks.get(teacher.name))[0].base]
    }
    return CurtailedSelector(
        teacher_set.selection, decide, model=model_of(lake), prices=prices, days_first=days_first
    )


def _pricing(
    teacher_set: TeacherSet, teacher: Teacher, check: CatalogueCheck | None
) -> tuple[Pricing, str]:
    """Return a teacher's prices and where they are from."""
    caps = (teacher.max_price.prompt / 1_000_000, teacher.max_price.completion / 1_000_000)
    if teacher_set.endpoint_of(teacher).api == "openai":
        return Pricing(Prices(*caps)), "file"
    if check and check.record and not check.stop:
        return check.record.offered(caps), "catalogue"
    listed = typical_prices()[1].get(teacher.model)
    if listed and check is None and not teacher_set.endpoint.simulated:
        limits = {"prompt": caps[0], "completion": caps[1], "input_cache_read": caps[0]}
        known = {key: p for key in limits if (p := getattr(listed, key)) is not None}
        within = {key: min(p / 1_000_000, limits[key]) for key, p in known.items()}
        return Pricing(Prices(**within)), "typical"
    return Pricing(Prices(*caps)), "caps"


class _TeacherTotals:
    """The open questions of one teacher, added up; ``selected_*`` are those to be asked."""

    def __init__(
        self,
        teacher_set: TeacherSet,
        teacher: Teacher,
        check: CatalogueCheck | None,
        replies: ReplyTokens,
    ) -> None:
        self.teacher = teacher
        self.check = check
        self.replies = replies
        self.pricing, source = _pricing(teacher_set, teacher, check)
        self.figures = TeacherPlan(control=teacher.control, prices=source)
        if check:
            self.figures.canonical_slug, self.figures.stop = check.canonical_slug, check.stop
            self.figures.terms, self.figures.warnings = check.distillable, list(check.warnings)
        endpoint = teacher_set.endpoint_of(teacher)
        self.asks_for_cache = teacher.cache_control != "off" and endpoint.api != "openai"
        self.minimum_tokens = 0 if teacher_set.endpoint.simulated else CACHE_MINIMUM_TOKENS
        self.states = self.audited = 0
        self.envelope_bytes = 0  # of bodies, what is neither tools nor messages
        self.selected = self.selected_audited = self.selected_bytes = self.worst = 0
        self.everything: PrefixReuse | None = None
        self.selected_reuse: PrefixReuse | None = None
        #: (day, state, meta) of the open calls of the day that is being counted.
        self.calls: list[tuple[str, str, dict[str, Any]]] = []

    def tariff(self) -> Tariff:
        return Tariff(
            self.pricing,
            self.replies.bytes_per_token,
            self.replies.completion(self.teacher.max_tokens),
            self.figures.caches_prompts,
            self.envelope_bytes / self.states if self.states else 0.0,
        )

    @property
    def price(self) -> Price:
        return self.pricing.base.of("prompt"), self.pricing.base.of("completion")

    def cost(self, size: int, hit: int, *, audited: bool) -> tuple[float, float]:
        """Return the expected USD of one question, with and without cached reads."""
        tariff, share = self.tariff(), 1.0 if audited else self.figures.asked_share
        tokens = size / tariff.bytes_per_token
        read = hit / tariff.bytes_per_token if tariff.caches else 0.0
        prices = tariff.pricing.at(int(tokens))
        whole = tariff.uncached().usd(prices, tokens, 0.0, 1)
        return share * tariff.usd(prices, tokens, read, 1), share * whole

    def finish(self) -> None:
        """Fill in the figures that rest on the replies and on the count."""
        figures = self.figures
        figures.bytes_per_token = round(self.replies.bytes_per_token, 3)
        figures.completion_tokens = round(self.replies.completion(self.teacher.max_tokens), 1)
        figures.measured_replies = self.replies.replies
        record = self.check.record if self.check else None
        implicit = record.caches_implicitly if record else None
        explicit = self.asks_for_cache and self.states > 0
        figures.caches_prompts = self.pricing.base.input_cache_read is not None and (
            implicit is not False or explicit
        )


def _cheapest_first(totals: Mapping[str, _TeacherTotals]) -> list[_TeacherTotals]:
    """Return those that the catalogue does not rule out."""
    going = [one for one in totals.values() if not one.figures.stop]
    prices = {one.teacher.name: one.price for one in going}
    return [totals[name] for name in ask_order([one.teacher for one in going], prices)]


class _Counter:
    """Counts every question once, session by session, and sorts out which are open."""

    def __init__(
        self,
        lake: Lake,
        questions: Questions,
        ledger: Ledger | None,
        checks: Mapping[str, CatalogueCheck],
        replies: Mapping[str, ReplyTokens],
        model: PairModel,
        decide: Decide | None,
    ) -> None:
        self.model, self.decide = model, decide
        self._answers = lru_cache(8)(partial(answers_by_key, lake))
        #: State -> (teacher, bytes of the body, of which a state that is asked earlier has these).
        self._bought: dict[str, list[tuple[_TeacherTotals, int, int]]] = {}
        self.questions = questions
        self.ledger = ledger
        teacher_set = questions.teacher_set
        self.totals = {
            teacher.name: _TeacherTotals(
                teacher_set,
                teacher,
                checks.get(teacher.name),
                replies.get(teacher.name, ReplyTokens()),
            )
            for teacher in questions.teachers
        }
        self._metas: dict[tuple[str, str, bool], dict[str, Any]] = {}
        self._seen: set[str] = set()
        #: OpenRouter's bodies name their session, so no other session has the same.
        self._same_in_sessions = any(
            teacher_set.endpoint_of(teacher).api == "openai" for teacher in questions.teachers
        )

    def count(self, progress: Progress | None = None) -> dict[str, Any]:
        """Count, and return what the teacher file selects."""
        questions, selection = self.questions, self.questions.teacher_set.selection
        chosen, ruled_out = choose(questions.states, selection, self.model)
        self._chosen = {state.state_id for state in chosen}
        self._found = {state.state_id: features(state) for state in chosen}
        self._order = self._asking(chosen)
        self._place = {state.state_id: at for at, state in enumerate(self._order)}
        self._audited = {s.state_id for s in chosen if sampled(s.state_id, selection.audit_share)}
        skipped = Counter(rule for state, rule in ruled_out.items() if state not in self._audited)
        self._measure_bodies()
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
        for totals in self.totals.values():
            totals.finish()
        return {
            "curtail": selection.curtail,
            "chosen": len(chosen),
            "skipped": dict(sorted(skipped.items())),
            "audited": len(self._audited),
        }

    def _asking(self, chosen: Sequence[Any]) -> Sequence[Any]:
        """Return the states in the order in which a replay would ask about them."""
        if not self.questions.teacher_set.selection.prioritise:
            return chosen
        asked = _cheapest_first(self.totals)
        chance = {state: self.model.chance(found) for state, found in self._found.items()}
        return asking(
            chosen,
            chance,
            [one.teacher for one in asked],
            self.decide,
            {one.teacher.name: one.price for one in asked},
            self.questions.teacher_set.selection.curtail,
        ).states

    def curve(self, amounts: Sequence[float]) -> list[PlanPoint]:
        """Return what amounts would buy, and what everything would; after the costs."""
        points: list[PlanPoint] = []
        kinds: Counter[frozenset[str]] = Counter()
        sessions: set[str] = set()
        costs = [
            [
                one.cost(size, hit, audited=state.state_id in self._audited)
                for one, size, hit in self._bought.get(state.state_id, ())
            ]
            for state in self._order
        ]
        total = sum(cached for questions in costs for cached, _ in questions)
        steps = (Decimal(n).scaleb(power) for power in range(-6, 6) for n in (1, 2, 5))
        round_ones = [float(step) for step in steps if total <= 20 * step]
        left = sorted({*AMOUNTS, *amounts, *round_ones})
        spent = uncached = 0.0

        def add(usd: float | None) -> None:
            pairs, low, high = self.model.expect(kinds)
            single = Counter[str]()
            for found, number in kinds.items():
                single.update(dict.fromkeys(found, number))
            amounts = (round(spent, 6), round(uncached, 6))
            figures = (round(pairs, 1), round(low, 1), round(high, 1))
            here = (kinds.total(), len(sessions))
            points.append(
                PlanPoint(
                    usd,
                    *here,
                    *amounts,
                    *figures,
                    dict(sorted(single.items(), key=lambda item: (-item[1], item[0]))),
                )
            )

        for state, questions in zip(self._order, costs, strict=True):
            cost = sum(cached for cached, _ in questions)
            while left and spent + cost > left[0]:
                add(left.pop(0))
            spent, uncached = spent + cost, uncached + sum(whole for _, whole in questions)
            if questions:
                kinds[self._found[state.state_id]] += 1
                sessions.add(state.session_id)
        add(None)
        return points

    def _measure_bodies(self) -> None:
        """Build the bodies of some replies: their tokens are known, their bytes are not kept."""
        sampled_states: dict[str, list[_TeacherTotals]] = {}
        for totals in self.totals.values():
            for state_id, _ in totals.replies.sample.values():
                sampled_states.setdefault(state_id, []).append(totals)
        for state in self.questions.states if sampled_states else ():
            for totals in sampled_states.get(state.state_id, ()):
                request = self.questions.request(state, totals.teacher)
                endpoint = self.questions.teacher_set.endpoint_of(totals.teacher)
                totals.replies.measure(request.key(endpoint.name), request.body)

    def _explain(self) -> None:
        """Say of each teacher why calls of a day that it answered before are open."""
        for name, totals in self.totals.items():
            calls, totals.calls = totals.calls, []
            if self.ledger and calls:
                again, changed = explain(self.ledger, name, calls)
                figures = totals.figures
                figures.answered_before += again
                both = Counter(figures.changed) + changed
                figures.changed = dict(sorted(both.items(), key=lambda item: (-item[1], item[0])))

    def _count_session(self, states: Sequence[Any]) -> None:
        if not self._same_in_sessions:
            self._seen.clear()
        session = SessionOutline(self.questions)
        asked = [asked for row in states for asked in self._asked_of(session, row.whole)]
        # One query for a session: one for each question takes longer than all the rest.
        replied = self.ledger.replied(key for *_, key in asked) if self.ledger else ()
        decided = self._decided(asked, replied)
        opened: dict[str, list[PromptOutline]] = {name: [] for name in self.totals}
        for outline, totals, key in asked:
            if key in self._seen or key in replied:
                totals.figures.cached += 1
            elif outline.state.state_id in decided and not totals.teacher.control:
                totals.figures.decided += 1
            elif self._count_open(session, outline, totals):
                self._seen.add(key)
                opened[totals.teacher.name].append(outline)
        for name, found in opened.items():
            if found:
                self._add_prompts(session, self.totals[name], found)

    def _asked_of(
        self, session: SessionOutline, state: Any
    ) -> Iterator[tuple[PromptOutline, _TeacherTotals, str]]:
        """Yield outline, teacher and key of each question about a state."""
        asking = [one for one in self.totals.values() if one.teacher.asks(state.state_id)]
        for totals in self.totals.values():
            totals.figures.not_asked += totals not in asking
        outlines = session.of(state, {one.teacher.window for one in asking}) if asking else {}
        for totals in asking:
            outline = outlines[totals.teacher.window]
            yield outline, totals, session.key(outline, totals.teacher)

    def _decided(
        self, asked: Sequence[tuple[PromptOutline, _TeacherTotals, str]], replied: Collection[str]
    ) -> set[str]:
        """Return the states whose vote is decided by what was bought."""
        curtail, decide = self.questions.teacher_set.selection.curtail, self.decide
        if curtail == "off" or decide is None or not replied:
            return set()
        known: dict[str, dict[str, Action | None]] = {}
        for outline, totals, key in asked:
            if key in replied:
                answer = self._answers(outline.state.day).get(key)
                known.setdefault(outline.state.state_id, {})[totals.teacher.name] = answer
        teachers = [one.teacher for one in _cheapest_first(self.totals)]
        return {
            state.state_id
            for state in {outline.state.state_id: outline.state for outline, *_ in asked}.values()
            if state.state_id in known
            and state.state_id not in self._audited
            and not next_voters(state, teachers, known[state.state_id], decide, curtail)
        }

    def _count_open(
        self, session: SessionOutline, outline: PromptOutline, totals: _TeacherTotals
    ) -> bool:
        """Count a question without a reply; return True if it is open."""
        teacher, figures = totals.teacher, totals.figures
        size = session.size(outline, teacher)
        if outline.empty or too_long(teacher, size):
            figures.skipped += 1
            return False
        if outline.has_action or self.questions.has_secret(outline.state):
            figures.refused += 1
            return False
        state_id = outline.state.state_id
        audited = state_id in self._audited
        totals.states += 1
        totals.audited += audited
        totals.envelope_bytes += size - session.reach[outline.node]
        if state_id in self._chosen:
            totals.selected += 1
            totals.selected_audited += audited
            totals.selected_bytes += size
            totals.worst += worst_case(teacher, size)
            alike = (teacher.name, outline.toolset.digest, outline.windowed)
            if alike not in self._metas:
                self._metas[alike] = self.questions.meta(
                    teacher, outline.toolset, windowed=outline.windowed
                )
            totals.calls.append((outline.state.day, state_id, self._metas[alike]))
        return True

    def _add_prompts(
        self, session: SessionOutline, totals: _TeacherTotals, outlines: Sequence[PromptOutline]
    ) -> None:
        """Add what a teacher's open prompts of a session share."""
        if totals.everything is None or totals.selected_reuse is None:
            edges = totals.tariff().edges()
            minimum = int(totals.minimum_tokens * totals.replies.bytes_per_token)
            totals.everything = PrefixReuse(edges, minimum)
            totals.selected_reuse = PrefixReuse(edges, minimum)
        ends = [(o.node, int(o.state.state_id in self._audited)) for o in outlines]
        totals.everything.add_session(ends, session.parents, session.reach)
        chosen = [
            end for end, o in zip(ends, outlines, strict=True) if o.state.state_id in self._chosen
        ]
        totals.selected_reuse.add_session(chosen, session.parents, session.reach)
        minimum, seen = totals.selected_reuse.minimum_bytes, {-1}
        wanted = [o for o in outlines if o.state.state_id in self._chosen]
        for outline in sorted(wanted, key=lambda o: self._place[o.state.state_id]):
            node = outline.node
            while node not in seen:
                seen.add(node)
                node = session.parents[node]
            hit = session.reach[node] if node >= 0 else 0
            self._bought.setdefault(outline.state.state_id, []).append(
                (totals, session.size(outline, totals.teacher), hit if hit >= minimum else 0)
            )


def _cost(
    asked: Sequence[_TeacherTotals], curtail: str, agreement: Agreement, decide: Decide | None
) -> dict[str, Strategy]:
    """Cost every strategy, and fill in each teacher's expected cost; the cheapest is first."""
    voting: dict[str, int] = {}  # family -> its place
    speakers: set[str] = set()
    for one in asked:
        if has_vote(one.teacher, decide) and one.teacher.family not in voting:
            voting[one.teacher.family] = len(voting)
            speakers.add(one.teacher.name)
    quorum = decide.quorum if decide else QUORUM
    family_shares = {
        way: agreement.shares
        if way == curtail and agreement.shares
        else asked_shares(len(voting), way, p=agreement.p, q=agreement.q, quorum=quorum)
        for way in ("exact", "student")
    }
    names = ("naive", "chain", "chain_exact", "chain_student", "selected")
    usd, calls = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)
    for rank, one in enumerate(asked, start=1):
        teacher, figures, tariff = one.teacher, one.figures, one.tariff()
        shares = {"off": 1.0}
        for way, found in family_shares.items():
            if teacher.control:  # asked on its whole share, however the vote goes
                shares[way] = 1.0
            else:
                shares[way] = found[voting[teacher.family]] if teacher.name in speakers else 0.0
        everything = one.everything or PrefixReuse()
        figures.rank = rank
        figures.naive_usd = expected_cost(everything, tariff, cached=False)
        figures.chain_usd = expected_cost(everything, tariff)
        figures.calls, figures.worst_picodollars = one.selected, one.worst
        figures.asked_share = round(shares[curtail], 4)
        more = (one.selected - one.selected_audited) * shares[curtail]
        figures.expected_calls = round(one.selected_audited + more, 1)
        figures.prompt_tokens = int(one.selected_bytes / tariff.bytes_per_token)
        reuse, share = one.selected_reuse or PrefixReuse(), shares[curtail]
        expected = expected_cost(reuse, tariff, share=share)
        uncached = expected_cost(reuse, tariff, share=share, cached=False)
        figures.expected_picodollars = min(to_pico(str(expected)), one.worst)
        figures.expected_uncached_picodollars = min(to_pico(str(uncached)), one.worst)
        sums = {
            "naive": (figures.naive_usd, one.states),
            "chain": (figures.chain_usd, one.states),
            "selected": (figures.expected_picodollars / float(PICO), figures.expected_calls),
        }
        for way in ("exact", "student"):
            sums[f"chain_{way}"] = (
                expected_cost(everything, tariff, share=shares[way]),
                one.audited + (one.states - one.audited) * shares[way],
            )
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


#: Field of ``Call.meta`` that decides the body -> its name in a report, and whether its values
#: are shown.
_META = {
    "model": ("model", True),
    "converter_version": ("converter_version", True),
    "toolset": ("tools", False),
}


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what differs between two ``Call.meta`` of one state and teacher; never empty."""
    found = []
    for field, (name, shown) in _META.items():
        old, new = before.get(field), now[field]
        if old is not None and old != new:
            found.append(f"{name} {old} -> {new}" if shown else name)
    settings = before.get("settings")
    if settings is None:
        return tuple(found) or (UNRECORDED,)
    for name in sorted(settings.keys() | now["settings"].keys()):
        old, new = settings.get(name, "unset"), now["settings"].get(name, "unset")
        if old != new:
            found.append(f"{name} {old} -> {new}")
    return tuple(found) or (MESSAGES,)


def explain(
    ledger: Ledger, teacher: str, opened: Iterable[tuple[str, str, Mapping[str, Any]]]
) -> tuple[int, Counter[str]]:
    """Count the open (day, state, ``Call.meta``) that were paid for before, and what changed."""
    # Of several answers to a state, the one with the fewest differences counts, then the latest.
    days: dict[str, dict[str, Mapping[str, Any]]] = {}
    for day, state, meta in opened:
        days.setdefault(day, {})[state] = meta
    again, counted = 0, Counter[str]()
    for day, asked in days.items():
        nearest: dict[str, tuple[str, ...]] = {}
        for state, before in ledger.bought(teacher, day):
            if state in asked:
                found = changes(before, asked[state])
                if state not in nearest or _distance(found) <= _distance(nearest[state]):
                    nearest[state] = found
        again += len(nearest)
        for found in nearest.values():
            counted.update(found)
    return again, counted


def _distance(found: tuple[str, ...]) -> tuple[bool, int]:
    return found == (UNRECORDED,), len(found)
