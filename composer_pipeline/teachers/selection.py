"""Whom to ask next: value per dollar, curtailed voting, and an estimate of what they miss.

The cheapest teacher is asked first. *Exact* curtailing stops when no answers of the families
still unasked could change the outcome of the k-of-n vote: a cluster that cannot be caught has
won, or every cluster that still can win agrees with the agent, or none can reach the quorum.
It is exact for an agreement that is transitive; levels of agreement are not quite, and the
audit sample measures that too. *Student* curtailing also stops when every answer so far
agrees with the agent. That is a heuristic: two later teachers might have agreed against it.

A share of the states, chosen by hash, is asked in full. Each stands for 1/share states, so the
pairs that curtailing and skipping missed are estimated without bias (Horvitz and Thompson).
"""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Literal, Protocol

import msgspec
import orjson

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.files import mapping_at
from composer_pipeline.reports import Report
from composer_pipeline.states.state import TraceState, blocks_of
from composer_pipeline.teachers.questions import BYTES_PER_TOKEN
from composer_pipeline.teachers.teachers import Selection, SkipRule, Teacher, draw, sampled
from composer_pipeline.teachers.value import TROUBLE, PairModel, features, prompt_bytes
from composer_pipeline.tool_names import TOOLS, steps_of, translate

_TODO_TOOLS = frozenset({"TodoWrite", "TaskCreate", "TaskUpdate"})
#: A text of at most so many characters that asks nothing is a confirmation.
_CONFIRMATION_CHARS = 200


def skips(states: Sequence[TraceState], rules: Iterable[SkipRule]) -> dict[str, SkipRule]:
    """Return ``state_id`` -> the rule that leaves the state out; never if its action went wrong.

    ``todo``: only to-do lists. ``named_read``: the first Read of a file that the user's last words
    name. ``confirmation``: a short text that asks nothing. ``near_duplicate``: equal action and
    equal last message, numbers and ids aside; the first of ``states`` is kept.
    """
    wanted = frozenset(rules)
    if not wanted:  # and no message of a large lake is read for it
        return {}
    found: dict[str, SkipRule] = {}
    seen: set[bytes] = set()
    for state in states:
        rule = _rule(state, wanted)
        if rule is None and "near_duplicate" in wanted:
            digest = _tail(state)
            rule = "near_duplicate" if digest in seen else None
            seen.add(digest)
        if rule is not None and not features(state) & TROUBLE:
            found[state.state_id] = rule
    return found


def _rule(state: TraceState, wanted: frozenset[SkipRule]) -> SkipRule | None:
    calls = state.action.tool_calls
    if not calls:
        text = state.action.text
        short = len(text) <= _CONFIRMATION_CHARS and "?" not in text
        return "confirmation" if "confirmation" in wanted and short else None
    if "todo" in wanted and all(TOOLS.get(call.name, call.name) in _TODO_TOOLS for call in calls):
        return "todo"
    if "named_read" in wanted and len(calls) == 1 and _reads_a_named_file(state, calls[0]):
        return "named_read"
    return None


def _reads_a_named_file(state: TraceState, call: ToolCall) -> bool:
    call = translate(call)[0]
    path = call.arguments.get("file_path")
    if call.name != "Read" or not isinstance(path, str) or not path:
        return False
    name = path.rsplit("/", 1)[-1]
    for message in reversed(state.messages):
        blocks = blocks_of(message)
        uses = (block for block in blocks if block.get("type") == "tool_use")
        before = (ToolCall(str(use.get("name")), dict(mapping_at(use, "input"))) for use in uses)
        if any(step.arguments.get("file_path") == path for step in steps_of(before)):
            return False
        texts = [str(b.get("text", "")) for b in blocks if b.get("type") == "text"]
        if message.get("role") == "user" and any(texts):
            return any(name in text for text in texts)
    return False


def _tail(state: TraceState) -> bytes:
    """Hash the action and the last message, so that equal situations collide."""
    calls = [(call.name, call.arguments) for call in state.action.tool_calls]
    last = [
        {k: v for k, v in block.items() if k not in ("id", "tool_use_id")}
        for message in state.messages[-1:]
        for block in blocks_of(message)
    ]
    text = orjson.dumps([state.action.text if not calls else "", calls, last])
    # Times, line numbers and process ids differ between situations that are the same.
    digits = bytes.maketrans(b"0123456789", b"0000000000")
    return hashlib.blake2b(text.translate(digits), digest_size=16).digest()


#: Which day is asked first, completely before the next one begins; empty: all days together.
DaysFirst = Literal["", "oldest", "newest"]
#: ``state_id`` -> what the teachers that were asked about this state so far did:
#: ``{teacher name: its action}``, ``None`` if it gave nothing usable (an unusable or refused
#: reply, a state too long for it, no budget, an unknown outcome). A teacher that was not asked
#: yet is absent. Replies of earlier runs count as soon as the pair is in a wave, at no cost.
KnownActions = Callable[[str], Mapping[str, Action | None]]
#: Whether the ceilings pay for what some teachers may cost at a state, beside the wave so far.
Fits = Callable[["TraceState", Sequence[Teacher]], bool]


class Selector(Protocol):
    """Chooses what to buy, wave by wave. One object serves one run."""

    def next_wave(
        self,
        states: Sequence["TraceState"],
        teachers: Sequence[Teacher],
        answers: KnownActions,
        fits: Fits,
    ) -> Sequence[tuple["TraceState", Teacher]]:
        """Return the pairs to ask next; an empty sequence ends the run.

        Args:
            states: every selected state of the run, the same in each call.
            teachers: every selected teacher, the same in each call.
            answers: what has come back; see :data:`KnownActions`.
            fits: see :data:`Fits`; a state that is begun without it may be left without a vote.

        Pairs of an earlier wave and states outside a teacher's ``ask_share`` are passed over; a
        wave of nothing else ends the run. The order of calls within a wave is not the selector's.
        """
        ...


def by_day(states: Sequence["TraceState"], days_first: DaysFirst) -> list[list["TraceState"]]:
    """Return the states of each day, in the order of days; all in one list if it is empty."""
    if not days_first:
        return [list(states)]
    days: dict[str, list[TraceState]] = {}
    for state in states:
        days.setdefault(state.day, []).append(state)
    return [days[day] for day in sorted(days, reverse=days_first == "newest")]


#: Without a vote, every family counts and so many that agree win.
QUORUM = 2
#: A typical question, in tokens, to order teachers by price: (prompt, completion).
TYPICAL_TOKENS = (20_000, 400)
#: Every so many states the next one is drawn by hash instead of chosen by value.
EXPLORE_EVERY = 10
#: What a vote of free teachers counts as, in USD, so that chances alone decide.
_NEXT_TO_NOTHING = 1e-12
#: USD per token: (prompt, completion).
Price = tuple[Decimal, Decimal]


class Cluster(msgspec.Struct, frozen=True):
    """Families that gave the same answer, and whether it is also the agent's."""

    families: int
    agrees_with_student: bool = False


class Decide(Protocol):
    """The vote as the selection needs it; ``preferences.vote`` implements it."""

    @property
    def quorum(self) -> int:
        """Fewest families that make a winner."""

    def votes(self, family: str) -> bool:
        """Return True if a family votes; the agent's own does not."""

    def tally(self, state: "TraceState", answers: Mapping[str, Action]) -> Sequence[Cluster]:
        """Return the clusters of ``{family: its usable action}``."""


def decided(clusters: Sequence[Cluster], remaining: int, quorum: int) -> bool:
    """Return True if ``remaining`` further votes can no longer change the outcome.

    The outcome is a pair for one known cluster, or no pair. A winner has at least ``quorum``
    families and more than every other cluster; a further family joins a cluster or starts one.
    """
    sizes = [cluster.families for cluster in clusters]
    largest_other = [
        max((size for i, size in enumerate(sizes) if i != at), default=0)
        for at in range(len(sizes))
    ]
    for size, other in zip(sizes, largest_other, strict=True):
        if size >= quorum and size > other + remaining:
            return True  # nobody can catch it
    if remaining >= quorum and remaining > max(sizes, default=0):
        return False  # a cluster that does not exist yet may win
    return all(
        cluster.agrees_with_student
        or cluster.families + remaining < quorum
        or cluster.families + remaining <= other
        for cluster, other in zip(clusters, largest_other, strict=True)
    )


def least_needed(clusters: Sequence[Cluster], remaining: int, quorum: int) -> int:
    """Return the fewest further votes after which the vote can be decided; 0 if it is."""
    for more in range(remaining + 1):
        left = remaining - more
        grown = [
            [
                msgspec.structs.replace(c, families=c.families + more) if i == at else c
                for i, c in enumerate(clusters)
            ]
            for at in range(len(clusters))
        ]
        fresh = [[*clusters, Cluster(more)], [*clusters, Cluster(more, True)]] if more else []
        alone = [[*clusters, *[Cluster(1)] * more]]
        if any(decided(case, left, quorum) for case in [*grown, *fresh, *alone]):
            return more
    return remaining


def pair_found(clusters: Sequence[Cluster], quorum: int) -> bool:
    """Return True if a full vote with these clusters goes to one that is against the agent."""
    ordered = sorted(clusters, key=lambda cluster: -cluster.families)
    if not ordered or ordered[0].families < quorum:
        return False
    if len(ordered) > 1 and ordered[1].families == ordered[0].families:
        return False
    return not ordered[0].agrees_with_student


def has_vote(teacher: Teacher, decide: Decide | None) -> bool:
    """Return True if a teacher's replies may vote: no control, and of a family that votes."""
    return not teacher.control and (decide is None or decide.votes(teacher.family))


def remaining_voters(
    teachers: Sequence[Teacher], known: Mapping[str, Action | None], decide: Decide
) -> list[Teacher]:
    """Return one teacher for each family that may still vote, in the order given."""
    # A family whose teacher gave nothing usable votes by its next teacher.
    voters = [teacher for teacher in teachers if has_vote(teacher, decide)]
    spoken = {t.family for t in voters if known.get(t.name) is not None}
    found: dict[str, Teacher] = {}
    for teacher in voters:
        if teacher.family not in spoken and teacher.name not in known:
            found.setdefault(teacher.family, teacher)
    return list(found.values())


def clusters_of(
    state: "TraceState",
    teachers: Sequence[Teacher],
    known: Mapping[str, Action | None],
    decide: Decide,
) -> Sequence[Cluster]:
    """Return the votes of ``known``, one per family."""
    answers: dict[str, Action] = {}
    for teacher in teachers:
        action = known.get(teacher.name)
        if action is not None and has_vote(teacher, decide):
            answers.setdefault(teacher.family, action)
    return decide.tally(state, answers) if answers else []


def how_many(clusters: Sequence[Cluster], remaining: int, quorum: int, curtail: str) -> int:
    """Return how many further votes to ask for at once; 0 once enough is known."""
    if decided(clusters, remaining, quorum):
        return 0
    if curtail == "student" and all(cluster.agrees_with_student for cluster in clusters):
        return 0 if clusters else 1
    return max(1, least_needed(clusters, remaining, quorum))


def next_voters(
    state: "TraceState",
    teachers: Sequence[Teacher],
    known: Mapping[str, Action | None],
    decide: Decide,
    curtail: str,
) -> list[Teacher]:
    """Return the teachers to ask after ``known``, the cheapest first; none once it is decided."""
    waiting = remaining_voters([t for t in teachers if t.asks(state.state_id)], known, decide)
    votes = clusters_of(state, teachers, known, decide)
    return waiting[: how_many(votes, len(waiting), decide.quorum, curtail)]


def shown_of(
    state: "TraceState",
    teachers: Sequence[Teacher],
    known: Mapping[str, Action | None],
    decide: Decide,
    curtail: str,
) -> dict[str, Action | None] | None:
    """Return those of ``known`` that curtailing asks for; ``None`` if one that it asks is not."""
    shown: dict[str, Action | None] = {}
    while wanted := next_voters(state, teachers, shown, decide, curtail):
        if any(teacher.name not in known for teacher in wanted):
            return None
        shown |= {teacher.name: known[teacher.name] for teacher in wanted}
    return shown


def prices_of(
    teachers: Sequence[Teacher], prices: Mapping[str, Price] | None = None
) -> dict[str, Price]:
    """Return USD per token by teacher: the price given, else the file's caps."""
    caps = {t.name: (t.max_price.prompt / 1_000_000, t.max_price.completion / 1_000_000)
            for t in teachers}  # fmt: skip
    return {**caps, **(prices or {})}


def ask_order(teachers: Sequence[Teacher], prices: Mapping[str, Price] | None = None) -> list[str]:
    """Return the teachers' names, by the price of a typical question, else by the file's caps."""
    known = prices_of(teachers, prices)

    def cost(teacher: Teacher) -> Decimal:
        prompt, completion = known[teacher.name]
        return TYPICAL_TOKENS[0] * prompt + TYPICAL_TOKENS[1] * completion

    return [t.name for t in sorted(teachers, key=lambda t: (cost(t), t.name))]


def choose(
    states: Sequence["TraceState"], selection: Selection, model: PairModel | None = None
) -> tuple[list["TraceState"], dict[str, SkipRule]]:
    """Return the states to ask about, and the rule of each state that a rule leaves out."""
    # A state of the audit sample is asked about although a rule leaves it out.
    in_time = sorted(states, key=lambda s: (ts.timestamp() if (ts := s.ts) else 0.0, s.state_id))
    ruled_out = skips(in_time, selection.skip)
    chosen = [
        state
        for state in states
        if state.state_id not in ruled_out or sampled(state.state_id, selection.audit_share)
    ]
    if selection.max_states is not None and selection.max_states < len(chosen):
        known = model or PairModel()
        chosen.sort(key=lambda s: (-known.chance(features(s)), s.state_id))
        chosen = chosen[: selection.max_states]
    return chosen, ruled_out


class Asking(msgspec.Struct, frozen=True):
    """States in the order of asking. ``rank`` is the place of each by value per dollar alone."""

    states: list["TraceState"]
    rank: dict[str, int]

    @staticmethod
    def by_value(
        states: Sequence["TraceState"], chance: Mapping[str, float], usd: Mapping[str, float]
    ) -> "Asking":
        """Order by chance of a pair per expected USD, with a share drawn by hash.

        The drawn states are a fair sample of those that value would not reach.
        """

        def worth(state: "TraceState") -> tuple[float, str]:
            cost = usd[state.state_id] or _NEXT_TO_NOTHING
            return -chance[state.state_id] / cost, state.state_id

        ranked = sorted(states, key=worth)
        valued, drawn = iter(ranked), iter(sorted(states, key=lambda s: draw(s.state_id)))
        order: dict[str, TraceState] = {}
        while len(order) < len(ranked):
            source = drawn if len(order) % EXPLORE_EVERY == EXPLORE_EVERY - 1 else valued
            state = next(state for state in source if state.state_id not in order)
            order[state.state_id] = state
        return Asking(list(order.values()), {s.state_id: at for at, s in enumerate(ranked)})


def vote_usd(
    size: int,
    teachers: Sequence[Teacher],
    decide: Decide | None,
    prices: Mapping[str, Price],
    curtail: str,
) -> float:
    """Return about what a vote costs at a prompt of so many bytes; ``teachers`` as they are asked.

    As many families answer as are needed if they agree, nothing is read from a cache.
    """
    families: dict[str, Teacher] = {}
    for teacher in teachers:
        if has_vote(teacher, decide):
            families.setdefault(teacher.family, teacher)
    usd, quorum, every = 0.0, decide.quorum if decide else QUORUM, len(families)
    asked = every if curtail == "off" else max(quorum, how_many([], every, quorum, curtail))
    for teacher in list(families.values())[:asked]:
        tokens = min(size / BYTES_PER_TOKEN, teacher.window or math.inf)
        prompt, completion = prices[teacher.name]
        usd += tokens * float(prompt) + TYPICAL_TOKENS[1] * float(completion)
    return usd


def asking(
    states: Sequence["TraceState"],
    chance: Mapping[str, float],
    teachers: Sequence[Teacher],
    decide: Decide | None,
    prices: Mapping[str, Price],
    curtail: str,
) -> Asking:
    """Return the order in which states are asked; ``chance`` is that of a pair, by state."""
    usd = {
        state: vote_usd(size, teachers, decide, prices, curtail)
        for state, size in prompt_bytes(states).items()
    }
    return Asking.by_value(states, chance, usd)


def left_pairs(found: int, sampled: int, rest: int) -> tuple[float, int, int]:
    """Return about how many of ``rest`` states would make a pair, and a 95 % interval.

    ``found`` of ``sampled`` states, drawn like the rest, made one: the predictive distribution of
    Jeffreys' prior, a beta-binomial (Gelman et al., Bayesian Data Analysis, section 2).
    """
    a, b = found + 0.5, sampled - found + 0.5

    def log(k: int) -> float:
        ways = math.lgamma(rest + 1) - math.lgamma(k + 1) - math.lgamma(rest - k + 1)
        ends = math.lgamma(k + a) + math.lgamma(rest - k + b) - math.lgamma(rest + a + b)
        return ways + ends + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)

    total, low, high = 0.0, 0, rest
    for k in range(rest + 1):
        total += math.exp(log(k))
        if total < 0.025:
            low = k + 1
        if total >= 0.975:
            high = k
            break
    return rest * a / (a + b), low, high


class SelectionReport(msgspec.Struct, Report):
    """What was asked and left out, and what that may have missed.

    ``asked`` and ``full`` count (state, teacher) questions. Of the ``chosen`` states, ``by_value``
    and ``drawn`` were asked about, ``left`` were not; ``left_pairs`` estimates the pairs among
    these, with a 95 % interval, and is ``None`` where none was drawn. ``missed_pairs`` estimates
    the pairs that asking in full would have found at the states asked by value, besides ``pairs``;
    ``missed_se`` is its standard error; both are ``None`` without an audit sample.
    ``missed_in_audit`` of ``audited`` states were missed.
    """

    states: int = 0
    chosen: int = 0
    skipped: dict[str, int] = msgspec.field(default_factory=dict)
    asked: int = 0
    full: int = 0
    pairs: int = 0
    by_value: int = 0
    drawn: int = 0
    left: int = 0
    left_pairs: float | None = None
    left_low: int | None = None
    left_high: int | None = None
    audited: int = 0
    audit_share: float = 0.0
    missed_in_audit: int = 0
    missed_pairs: float | None = None
    missed_se: float | None = None


class CurtailedSelector:
    """The :class:`Selector` of a teacher file; ``prices`` are as for :func:`ask_order`."""

    def __init__(
        self,
        selection: Selection,
        decide: Decide,
        *,
        model: PairModel | None = None,
        prices: Mapping[str, Price] | None = None,
        days_first: DaysFirst = "",
    ) -> None:
        self.selection = selection
        self.model = model or PairModel()
        self._days_first = days_first
        self.decide = decide
        self._prices = prices
        self._groups: list[list[TraceState]] | None = None
        #: Place of each state by value; empty where days or no value decide the order.
        self._rank: dict[str, int] = {}
        self._teachers: list[Teacher] = []
        self._ruled_out: dict[str, SkipRule] = {}
        self._states = self._full = 0
        self._answers: KnownActions | None = None
        self._asked: set[tuple[str, str]] = set()
        self._closed: set[str] = set()
        #: States for which there was room, until there was none for any.
        self._begun: set[str] = set()
        self._full_up = False

    def next_wave(
        self,
        states: Sequence["TraceState"],
        teachers: Sequence[Teacher],
        answers: KnownActions,
        fits: Fits,
    ) -> Sequence[tuple["TraceState", Teacher]]:
        """Return what to ask next; nothing once every vote is decided.

        What was begun is finished before anything else is begun: a reply without a second one
        beside it can never vote.
        """
        if self._groups is None:
            self._prepare(states, teachers)
        assert self._groups is not None
        self._answers = answers
        for group in self._groups:
            begun = [state for state in group if answers(state.state_id)]
            wave = [(state, teacher) for state in begun for teacher in self._next(state, answers)]
            short = False
            for state in () if wave else group:
                wanted = self._next(state, answers)
                if not wanted or fits(state, self._for_a_vote(state, wanted)):
                    wave += [(state, teacher) for teacher in wanted]
                    if not self._full_up:
                        self._begun.add(state.state_id)
                    continue
                self._closed.discard(state.state_id)
                short = True
                if wave:
                    break
            self._full_up = self._full_up or (short and not wave)
            if wave or (short and self._days_first):
                self._asked.update((state.state_id, teacher.name) for state, teacher in wave)
                return wave
        return []

    def report(self) -> SelectionReport:
        """Return the figures of the run; complete after the last wave."""
        groups = self._groups or []
        chosen = [state for group in groups for state in group]
        share = self.selection.audit_share
        skipped = Counter(
            rule for state_id, rule in self._ruled_out.items() if not sampled(state_id, share)
        )
        found = SelectionReport(
            states=self._states,
            chosen=len(chosen),
            skipped=dict(sorted(skipped.items())),
            asked=len(self._asked),
            full=self._full,
            audit_share=share,
        )
        if self._answers is None:
            return found
        pairs: set[str] = set()
        for state in chosen:
            known = self._answers(state.state_id)
            votes = clusters_of(state, self._teachers, known, self.decide)
            if pair_found(votes, self.decide.quorum):
                pairs.add(state.state_id)
        drawn = self._drawn()
        found.pairs, found.drawn = len(pairs), len(drawn)
        found.by_value = len(self._begun) - len(drawn)
        found.left = len(chosen) - len(self._begun)
        if drawn:
            found.left_pairs, found.left_low, found.left_high = left_pairs(
                len(drawn & pairs), len(drawn), found.left
            )
        by_value = self._begun - drawn
        for state in chosen:
            known = self._answers(state.state_id)
            in_full = all(teacher.name in known for teacher in self._of(state))
            if in_full and sampled(state.state_id, share) and state.state_id in by_value:
                found.audited += 1
                if state.state_id in pairs and not self._would_find(state, known):
                    found.missed_in_audit += 1
        if found.audited:
            # Horvitz-Thompson with one inclusion probability; Poisson sampling variance.
            found.missed_pairs = found.missed_in_audit / share - found.missed_in_audit
            found.missed_se = math.sqrt(found.missed_in_audit * (1 - share)) / share
        return found

    def _drawn(self) -> set[str]:
        """Return the states that were asked because they were drawn: value had not reached them."""
        if not self._rank or len(self._begun) == len(self._rank):
            return set()
        order = [state.state_id for state in (self._groups or [[]])[0]]
        valued = [
            self._rank[state]
            for at, state in enumerate(order)
            if state in self._begun and at % EXPLORE_EVERY != EXPLORE_EVERY - 1
        ]
        return {state for state in self._begun if self._rank[state] > max(valued, default=-1)}

    def _prepare(self, states: Sequence["TraceState"], teachers: Sequence[Teacher]) -> None:
        known = {teacher.name: teacher for teacher in teachers}
        order = ask_order(teachers, self._prices)
        self._teachers = [known[name] for name in order]
        self._states = len(states)
        self._full = sum(t.asks(state.state_id) for state in states for t in teachers)
        chosen, self._ruled_out = choose(states, self.selection, self.model)
        self._groups = by_day(chosen, self._days_first)
        if self.selection.prioritise:
            ordered = [self._by_value(group) for group in self._groups]
            self._groups = [asking.states for asking in ordered]
            self._rank = {} if self._days_first else ordered[0].rank

    def _by_value(self, states: list["TraceState"]) -> Asking:
        chance = {state.state_id: self.model.chance(features(state)) for state in states}
        prices = prices_of(self._teachers, self._prices)
        return asking(
            states, chance, self._teachers, self.decide, prices, self.selection.curtail
        )  # fmt: skip

    def _of(self, state: "TraceState") -> list[Teacher]:
        """Return the teachers whose share of the states has this one, the cheapest first."""
        return [teacher for teacher in self._teachers if teacher.asks(state.state_id)]

    def _next(self, state: "TraceState", answers: KnownActions) -> list[Teacher]:
        if state.state_id in self._closed:
            return []
        known = answers(state.state_id)  # of a lost call that was recovered, too
        open_ = [
            t
            for t in self._of(state)
            if (state.state_id, t.name) not in self._asked and t.name not in known
        ]
        curtail = self.selection.curtail
        if curtail == "off" or sampled(state.state_id, self.selection.audit_share):
            self._closed.add(state.state_id)
            return open_
        wanted = [t for t in self._wanted(state, known) if t in open_]
        if not wanted:
            self._closed.add(state.state_id)
        # A control's answer decides nothing, so it need not wait for the vote.
        return wanted + [teacher for teacher in open_ if teacher.control]

    def _for_a_vote(self, state: "TraceState", wanted: list[Teacher]) -> list[Teacher]:
        """Return the teachers that are wanted first, and those that a vote needs besides."""
        voters = remaining_voters(self._of(state), {}, self.decide)[: self.decide.quorum]
        return [*wanted, *(teacher for teacher in voters if teacher not in wanted)]

    def _wanted(self, state: "TraceState", known: Mapping[str, Action | None]) -> list[Teacher]:
        return next_voters(state, self._teachers, known, self.decide, self.selection.curtail)

    def _would_find(self, state: "TraceState", known: Mapping[str, Action | None]) -> bool:
        """Return True if the pair would have been found without the audit."""
        if state.state_id in self._ruled_out:
            return False
        if self.selection.curtail == "off":
            return True
        shown = shown_of(state, self._teachers, known, self.decide, self.selection.curtail)
        votes = clusters_of(state, self._teachers, shown or {}, self.decide)
        return pair_found(votes, self.decide.quorum)
