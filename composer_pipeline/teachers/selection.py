"""Whom to ask next: curtailed voting, value of information, and an audit of what it misses.

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
from composer_pipeline.teachers.teachers import Selection, SkipRule, Teacher, sampled

#: Feature -> what it adds to a state's value.
WEIGHTS: Mapping[str, float] = {
    "corrected": 4.0,
    "reverted": 4.0,
    "caused": 3.0,
    "failed": 3.0,
    "tests_failed": 3.0,
    "interrupted": 2.0,
    "repeated": 2.0,
    "edits": 1.0,
}
#: Features that say that the action went wrong; no rule skips such a state.
TROUBLE = frozenset({"corrected", "reverted", "caused", "failed", "tests_failed", "interrupted"})

_TODO_TOOLS = frozenset({"TodoWrite", "TaskCreate", "TaskUpdate"})
_EDIT_TOOLS = frozenset({"Edit", "MultiEdit", "Write", "NotebookEdit"})
#: A text of at most so many characters that asks nothing is a confirmation.
_CONFIRMATION_CHARS = 200
#: How far back a call counts as a repetition, in messages.
_REPEAT_WINDOW = 40


def features(state: TraceState) -> frozenset[str]:
    """Return the names of a state's features; see :data:`WEIGHTS`."""
    kind = state.error_kind or ""
    # What failed for another reason, such as a test that shows an earlier edit's fault, is fine.
    own = state.verdict in (None, "mistake", "user_choice")
    found = {
        "corrected": bool(state.followed_by_correction)
        or kind in ("user_rejection", "user_correction"),
        "reverted": bool(state.reverted),
        "caused": state.caused_error not in (None, state.state_id),
        "failed": own and (bool(state.followed_by_error) or bool(kind)),
        "tests_failed": own and (state.tests_passed is False or kind == "failing_tests"),
        "interrupted": bool(state.interrupted),
        "repeated": _repeats(state),
        "edits": any(call.name in _EDIT_TOOLS for call in state.action.tool_calls),
    }
    return frozenset(name for name, holds in found.items() if holds)


def value(found: Iterable[str]) -> float:
    """Return what asking about a state with these features is worth; higher is earlier."""
    return sum(WEIGHTS[name] for name in found)


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
    if "todo" in wanted and all(call.name in _TODO_TOOLS for call in calls):
        return "todo"
    if "named_read" in wanted and len(calls) == 1 and _reads_a_named_file(state, calls[0]):
        return "named_read"
    return None


def _reads_a_named_file(state: TraceState, call: ToolCall) -> bool:
    path = call.arguments.get("file_path")
    if call.name != "Read" or not isinstance(path, str) or not path:
        return False
    name = path.rsplit("/", 1)[-1]
    for message in reversed(state.messages):
        blocks = blocks_of(message)
        uses = (block for block in blocks if block.get("type") == "tool_use")
        if any(mapping_at(use, "input").get("file_path") == path for use in uses):
            return False
        texts = [str(b.get("text", "")) for b in blocks if b.get("type") == "text"]
        if message.get("role") == "user" and any(texts):
            return any(name in text for text in texts)
    return False


def _repeats(state: TraceState) -> bool:
    """Return True if a call was made before, with equal arguments."""
    mine = {(call.name, orjson.dumps(call.arguments)) for call in state.action.tool_calls}
    if not mine:
        return False
    names = {name for name, _ in mine}
    for message in state.messages[-_REPEAT_WINDOW:]:
        for block in blocks_of(message):
            if block.get("type") != "tool_use" or block.get("name") not in names:
                continue
            if (block["name"], orjson.dumps(block.get("input"))) in mine:
                return True
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


#: A typical question, in tokens, to order teachers by price: (prompt, completion).
TYPICAL_TOKENS = (20_000, 400)
#: Number of groups in which sessions are asked, the most promising first.
GROUPS = 4
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


def ask_order(teachers: Sequence[Teacher], prices: Mapping[str, Price] | None = None) -> list[str]:
    """Return the teachers' names, by the price of a typical question, else by the file's caps."""

    def cost(teacher: Teacher) -> Decimal:
        cap = teacher.max_price
        caps = (cap.prompt / 1_000_000, cap.completion / 1_000_000)
        prompt, completion = (prices or {}).get(teacher.name, caps)
        return TYPICAL_TOKENS[0] * prompt + TYPICAL_TOKENS[1] * completion

    return [t.name for t in sorted(teachers, key=lambda t: (cost(t), t.name))]


def choose(
    states: Sequence["TraceState"], selection: Selection
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
        chosen.sort(key=lambda s: (-value(features(s)), s.state_id))
        chosen = chosen[: selection.max_states]
    return chosen, ruled_out


class SelectionReport(msgspec.Struct, Report):
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


class CurtailedSelector:
    """The :class:`Selector` of a teacher file; ``prices`` are as for :func:`ask_order`."""

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
        self._answers: KnownActions | None = None
        self._asked: set[tuple[str, str]] = set()
        self._closed: set[str] = set()

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
                    continue
                self._closed.discard(state.state_id)
                short = True
                if wave:
                    break
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
        for state in chosen:
            known = self._answers(state.state_id)
            votes = clusters_of(state, self._teachers, known, self.decide)
            found.pairs += pair_found(votes, self.decide.quorum)
            in_full = all(teacher.name in known for teacher in self._of(state))
            if in_full and sampled(state.state_id, share):
                found.audited += 1
                if pair_found(votes, self.decide.quorum) and not self._would_find(state, known):
                    found.missed_in_audit += 1
        if found.audited:
            # Horvitz-Thompson with one inclusion probability; Poisson sampling variance.
            found.missed_pairs = found.missed_in_audit / share - found.missed_in_audit
            found.missed_se = math.sqrt(found.missed_in_audit * (1 - share)) / share
        return found

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

    def _of(self, state: "TraceState") -> list[Teacher]:
        """Return the teachers whose share of the states has this one, the cheapest first."""
        return [teacher for teacher in self._teachers if teacher.asks(state.state_id)]

    def _next(self, state: "TraceState", answers: KnownActions) -> list[Teacher]:
        if state.state_id in self._closed:
            return []
        open_ = [t for t in self._of(state) if (state.state_id, t.name) not in self._asked]
        curtail = self.selection.curtail
        if curtail == "off" or sampled(state.state_id, self.selection.audit_share):
            self._closed.add(state.state_id)
            return open_
        wanted = [t for t in self._wanted(state, answers(state.state_id)) if t in open_]
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
