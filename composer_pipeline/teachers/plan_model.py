"""What prompts cost when a provider caches their beginnings: expected tokens, no money spent.

Belongs here: how much of each prompt an earlier one of its session already paid for, what
that makes of a teacher's bill, and how many teachers a curtailed vote asks. Does not belong
here: reading the lake (``replay.plan.plan``) and bounds (``replay.provider.bounds.worst_case``).

A prompt is a row of pieces: the tools, then each message. A piece is read from the cache
when an earlier prompt of the session had the same pieces up to and including it; whether the
chain is asked in order or longest first, each distinct piece is then paid in full once. When
every question is asked with probability pi, independently, a piece that n earlier prompts share
is in the cache with probability 1 - (1 - pi)^n; so the expectation is exact, without sampling.

The vote of n families follows a model of two parameters. p = P(A = agent) and
q = P(A = B | A != agent) fix it: with probability w the agent's action is the one that
teachers tend to, each gives the tended-to action with probability a, and anything else is
unique. p = w a and q (1 - p) = (1 - w) a^2 give a = (p + sqrt(p^2 + 4 q (1 - p))) / 2.
"""

import hashlib
import math
from array import array
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache, partial
from itertools import accumulate, groupby, pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import orjson

from composer_pipeline.actions import Action
from composer_pipeline.chat.convert import Conversion, GrowingChain, offered_tools, wire_messages
from composer_pipeline.chat.tools import Toolset
from composer_pipeline.lake.store import Lake
from composer_pipeline.teachers.catalogue import Prices, Pricing
from composer_pipeline.teachers.questions import BYTES_PER_TOKEN, Questions
from composer_pipeline.teachers.request import serialise
from composer_pipeline.teachers.selection import (
    Cluster,
    Decide,
    clusters_of,
    has_vote,
    how_many,
    spokesmen,
)
from composer_pipeline.teachers.teachers import Teacher

if TYPE_CHECKING:
    from composer_pipeline.states.state import TraceState

#: Agreement that is assumed where no replies were measured; a worked example, not a finding.
DEFAULT_P, DEFAULT_Q = 0.6, 0.5


class Prompt(msgspec.Struct, frozen=True):
    """One question's prompt: hashes of its growing prefixes, and the bytes of each piece."""

    state_id: str
    session_id: str
    prefixes: "array[int]"
    sizes: "array[int]"


class Band(msgspec.Struct):
    """Prompts of about one length. Each pair is (asked with probability pi, asked surely).

    ``held`` maps (earlier prompts that share a piece and are asked with pi, surely) to the
    bytes of such pieces.
    """

    states: list[int]
    bytes: list[int]
    held: dict[tuple[int, int], list[int]]


class Reuse(msgspec.Struct):
    """How prompts share their beginnings.

    ``bands`` are split at ``edges`` (bytes of a prompt; a longer one is in the next band).
    """

    edges: tuple[int, ...]
    bands: list[Band]


def pieces(body: bytes) -> tuple["array[int]", "array[int]"]:
    """Return the prefix hashes and sizes of a request's pieces: tools, then each message."""
    request = orjson.loads(body)
    parts = [request.get("tools") or [], *request["messages"]]
    prefixes, sizes, known = array("q"), array("i"), 0
    for part in parts:
        data = orjson.dumps(part)
        known = hash((known, data))
        prefixes.append(known)
        sizes.append(len(data))
    return prefixes, sizes


def reuse(
    prompts: Iterable[Prompt],
    *,
    surely: Collection[str] = (),
    edges: Sequence[int] = (),
    minimum_bytes: int = 0,
) -> Reuse:
    """Count what earlier prompts of the same session share.

    Args:
        prompts: in the order in which they are asked.
        surely: states that are asked whatever the vote says.
        edges: prompt lengths in bytes at which prices change.
        minimum_bytes: a shorter prefix is not cached.
    """
    found = empty_reuse(edges)
    sessions: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        sessions.setdefault(prompt.session_id, []).append(prompt)
    for mine in sessions.values():
        nodes: dict[int, int] = {}
        parents: list[int] = []
        reach: list[int] = []
        ends = []
        for prompt in mine:
            node = -1
            for prefix, end in zip(prompt.prefixes, accumulate(prompt.sizes), strict=True):
                if prefix not in nodes:
                    nodes[prefix] = len(reach)
                    parents.append(node)
                    reach.append(end)
                node = nodes[prefix]
            ends.append((node, int(prompt.state_id in surely)))
        reuse_along(found, ends, parents, reach, minimum_bytes)
    return found


def empty_reuse(edges: Sequence[int]) -> Reuse:
    """Return what no prompts share."""
    return Reuse(tuple(edges), [Band([0, 0], [0, 0], {}) for _ in range(len(edges) + 1)])


def reuse_along(
    found: Reuse,
    ends: Iterable[tuple[int, int]],
    parents: Sequence[int],
    reach: Sequence[int],
    minimum_bytes: int,
) -> None:
    """Add the prompts of one session to what :func:`reuse` counts.

    Each prompt of a chain shares nearly all of its pieces, so they are not looked at for each
    prompt: prompts of one band and kind that are asked one after the other are counted at once,
    and a piece that ``v`` of them have adds its bytes to ``v`` neighbouring counts.

    Args:
        found: is added to.
        ends: (last node of a prompt in the tree of its session, 1 where it is asked surely and 0
            elsewhere), in the order in which they are asked.
        parents: node -> the node before it, which has a lower number; -1 at the root.
        reach: node -> bytes from the beginning of a prompt to the end of this piece.
        minimum_bytes: a shorter prefix is not cached.
    """
    weights = [
        0 if end < minimum_bytes
        else end - (reach[at] if at >= 0 and reach[at] >= minimum_bytes else 0)
        for at, end in zip(parents, reach, strict=True)
    ]  # fmt: skip
    asked = ([0] * len(reach), [0] * len(reach))  # before: with probability pi, and surely

    def alike(end: tuple[int, int]) -> tuple[int, int]:
        return sum(reach[end[0]] > edge for edge in found.edges), end[1]

    for (number, kind), group in groupby(ends, alike):
        band, visits = found.bands[number], [0] * len(reach)
        for node, _ in group:
            visits[node] += 1
            band.states[kind] += 1
            band.bytes[kind] += reach[node]
        for node in range(len(reach) - 1, 0, -1):
            if parents[node] >= 0:
                visits[parents[node]] += visits[node]
        _add_run(band, kind, visits, asked, weights)


def _add_run(
    band: Band,
    kind: int,
    visits: Sequence[int],
    asked: tuple[list[int], list[int]],
    weights: Sequence[int],
) -> None:
    """Add a run of prompts, ``visits`` of which have a node, to ``band.held`` and ``asked``."""
    steps: dict[int, dict[int, int]] = {}  # count of the other kind -> count of this one -> step
    mine, others = asked[kind], asked[1 - kind]
    for node, number in enumerate(visits):
        if number:
            begin = mine[node]
            mine[node] += number
            line = steps.setdefault(others[node], {})
            line[begin] = line.get(begin, 0) + weights[node]
            line[begin + number] = line.get(begin + number, 0) - weights[node]
    for other, line in steps.items():
        shared, counts = 0, sorted(line)
        for begin, end in pairwise(counts):
            shared += line[begin]
            for count in range(begin, end) if shared else ():
                if count or other:  # nobody asked for it before
                    key = (other, count) if kind else (count, other)
                    band.held.setdefault(key, [0, 0])[kind] += shared


def add_reuse(total: Reuse, part: Reuse) -> None:
    """Add what the prompts of a session share to what others do."""
    for band, more in zip(total.bands, part.bands, strict=True):
        for kind in (0, 1):
            band.states[kind] += more.states[kind]
            band.bytes[kind] += more.bytes[kind]
        for counts, sizes in more.held.items():
            held = band.held.setdefault(counts, [0, 0])
            held[0] += sizes[0]
            held[1] += sizes[1]


class Tariff(msgspec.Struct, frozen=True):
    """What a teacher's tokens cost, and how many a question has.

    ``caches``: the provider reads repeated beginnings at ``input_cache_read``.
    ``envelope_bytes``: bytes of a body that are neither tools nor messages.
    """

    pricing: Pricing
    bytes_per_token: float
    completion_tokens: float
    caches: bool
    envelope_bytes: float = 0.0

    def edges(self) -> tuple[int, ...]:
        """Return the prompt lengths in bytes at which this tariff changes."""
        tokens = {o.min_prompt_tokens for o in self.pricing.overrides if not o.windowed}
        return tuple(
            int(n * self.bytes_per_token - self.envelope_bytes) for n in sorted(tokens) if n > 0
        )


def expected_cost(
    found: Reuse, tariff: Tariff, *, share: float = 1.0, cached: bool = True
) -> float:
    """Return the expected cost in USD of asking every prompt with probability ``share``.

    Args:
        found: of the teacher's open questions.
        tariff: its prices; ``found.edges`` must be its edges.
        share: probability of a question that is not asked surely.
        cached: whether prompts are chained, so that the cache is used.

    An estimate, so it is a float; bounds and bills never come from here.
    """
    total = 0.0
    for number, band in enumerate(found.bands):
        low = found.edges[number - 1] + tariff.envelope_bytes if number else 0
        # An override holds for strictly more tokens, and the edge was rounded down.
        prices = tariff.pricing.at(int(low / tariff.bytes_per_token) + 2 if number else 0)
        prompt, read, write, completion, request = _usd(prices)
        uses_cache = cached and tariff.caches
        for kind, asked in ((0, share), (1, 1.0)):
            states = band.states[kind]
            if not states:
                continue
            size = band.bytes[kind] + states * tariff.envelope_bytes
            hit = 0.0
            if uses_cache:
                for (maybe, surely), amounts in band.held.items():
                    chance = 1.0 if surely else 1.0 - (1.0 - share) ** maybe
                    hit += amounts[kind] * chance
            tokens, hit = size / tariff.bytes_per_token, hit / tariff.bytes_per_token
            fresh = (tokens - hit) * (write if uses_cache else prompt)
            each = tariff.completion_tokens * completion + request
            total += asked * (fresh + hit * read + states * each)
    return total


def _usd(prices: Prices) -> tuple[float, float, float, float, float]:
    keys = ("prompt", "input_cache_read", "input_cache_write", "completion", "request")
    found = [float(prices.of(key)) for key in keys]
    return found[0], found[1], found[2], found[3], found[4]


def asked_shares(
    families: int, curtail: str, *, p: float, q: float, quorum: int = 2
) -> list[float]:
    """Return the share of states for which the first, second, … family is asked.

    Args:
        families: families that vote, the cheapest first.
        curtail: ``off``, ``exact`` or ``student``.
        p: P(a teacher agrees with the agent).
        q: P(two teachers agree | the first does not agree with the agent).
        quorum: fewest families of a winner.

    Returns:
        One share a family; see the module for the model of agreement.
    """
    if curtail == "off":
        return [1.0] * families
    tends = min(1.0, (p + math.sqrt(p * p + 4 * q * (1 - p))) / 2)
    right = min(1.0, p / tends) if tends else 0.0
    shares = [0.0] * families

    def walk(chance: float, agent: bool, tended: int, unique: int) -> None:
        asked = tended + unique
        votes = [Cluster(tended, agent)] if tended else []
        votes += [Cluster(1)] * unique
        more = how_many(votes, families - asked, quorum, curtail)
        for at in range(asked, min(asked + more, families)):
            shares[at] += chance
        more = min(more, families - asked)
        for joins in range(more + 1) if more else ():
            weight = math.comb(more, joins) * tends**joins * (1 - tends) ** (more - joins)
            if weight:
                walk(chance * weight, agent, tended + joins, unique + more - joins)

    for chance, agent in ((right, True), (1 - right, False)):
        if chance:
            walk(chance, agent, 0, 0)
    return shares


#: Completion tokens that a reply is expected to take where none was measured.
EXPECTED_COMPLETION_TOKENS = 400
#: Fewest states from which an agreement is measured, and fewest disagreements for q.
MIN_STATES, MIN_DISAGREEMENTS = 30, 10
#: Most states whose replies are compared; comparing takes longer than planning.
MAX_STATES = 500
#: Replies of each teacher whose bodies are built again to measure bytes a token.
CALIBRATED = 500


class Calibration(msgspec.Struct, frozen=True):
    """A teacher's tokens; ``replies`` is how many were measured."""

    bytes_per_token: float = float(BYTES_PER_TOKEN)
    completion_tokens: float = float(EXPECTED_COMPLETION_TOKENS)
    replies: int = 0


class Measured(msgspec.Struct):
    """Replies in the lake, added up by teacher; some of each teacher are kept.

    ``replies`` maps teacher -> [how many, their completion tokens], ``kept`` teacher -> key ->
    (state, prompt tokens). ``bodies`` is filled in by the plan: key -> bytes of the body, which
    nobody stores.
    """

    replies: dict[str, list[int]] = msgspec.field(default_factory=dict)
    kept: dict[str, dict[str, tuple[str, int]]] = msgspec.field(default_factory=dict)
    bodies: dict[str, int] = msgspec.field(default_factory=dict)

    def add(self, teacher: str, key: str, state: str, prompt: int, completion: int) -> None:
        """Add a reply."""
        sums = self.replies.setdefault(teacher, [0, 0])
        sums[0] += 1
        sums[1] += completion
        kept = self.kept.setdefault(teacher, {})
        kept[key] = (state, prompt)
        if len(kept) > 2 * CALIBRATED:  # keys are hashes, so the first of them are a fair sample
            for late in sorted(kept)[CALIBRATED:]:
                del kept[late]

    def sample(self) -> dict[str, list[str]]:
        """Return state -> teachers of the replies whose bodies have to be measured."""
        found: dict[str, list[str]] = {}
        for teacher, kept in self.kept.items():
            for key in sorted(kept)[:CALIBRATED]:
                found.setdefault(kept[key][0], []).append(teacher)
        return found

    def of(self, teacher: Teacher) -> Calibration:
        """Return a teacher's calibration; defaults where there is nothing to measure."""
        number, completion = self.replies.get(teacher.name, (0, 0))
        kept = self.kept.get(teacher.name, {})
        size = sum(self.bodies[key] for key in kept if key in self.bodies)
        tokens = sum(prompt for key, (_, prompt) in kept.items() if key in self.bodies)
        defaults = Calibration(
            completion_tokens=min(EXPECTED_COMPLETION_TOKENS, teacher.max_tokens)
        )
        return Calibration(
            size / tokens if tokens else defaults.bytes_per_token,
            completion / number if number else defaults.completion_tokens,
            number,
        )


class Agreement(msgspec.Struct, frozen=True):
    """How often teachers agree: see ``replay.plan.prompt_cache`` for p and q.

    ``source``: ``measured`` on ``states`` states, ``assumed``, or ``given``. ``shares`` are
    the measured shares of states that the first, second, … family is asked about under the
    file's curtailing; empty where the model gives them.
    """

    p: float = DEFAULT_P
    q: float = DEFAULT_Q
    source: str = "assumed"
    states: int = 0
    disagreements: int = 0
    shares: list[float] = []


def measure_replies(lake: Lake, days: Sequence[str]) -> Measured:
    """Read the tokens of the lake's replies to the states of some days.

    Replies that came from the response cache tell no tokens, and are left out.
    """
    measured = Measured()
    wanted = set(days)
    for part in lake.partitions("replies"):
        if part["day"] not in wanted:
            continue
        table = lake.read(
            "replies", days=[part["day"]], teacher=part["teacher"],
            columns=["request_hash", "state_id", "prompt_tokens", "completion_tokens"],
        )  # fmt: skip
        for row in table.to_pylist():
            if row["prompt_tokens"]:
                measured.add(
                    row["teacher"], row["request_hash"], row["state_id"],
                    row["prompt_tokens"], row["completion_tokens"] or 0,
                )  # fmt: skip
    return measured


def measure_agreement(
    lake: Lake,
    states: "Sequence[TraceState]",
    teachers: Sequence[Teacher],
    decide: Decide,
    curtail: str,
) -> Agreement:
    """Measure p and q, and what the file's curtailing would have asked, on the lake's replies.

    p is measured on states that the first two families both answered, q on those of them
    where the first does not agree with the agent; the shares on states that every family was
    asked about. Where curtailing chose which states these are, that biases nothing in p of
    the first family; q and the shares then rest on the audit sample. What was measured on
    fewer than :data:`MIN_STATES` states is assumed instead.

    Args:
        lake: has the replies.
        states: the states of the plan, with their prefixes.
        teachers: the cheapest first.
        decide: the vote.
        curtail: the file's rule.
    """
    names = {teacher.name for teacher in teachers}
    answers = lru_cache(8)(partial(_answers, lake, names)) if lake.partitions("replies") else None
    families: dict[str, str] = {}
    for teacher in teachers:
        if has_vote(teacher, decide):
            families.setdefault(teacher.family, teacher.name)
    firsts = list(families.values())
    agreed = compared = disagreed = matched = complete = 0
    asked = [0] * len(firsts)
    for state in states:
        if compared >= MAX_STATES:
            break
        mine = answers(state.day).get(state.state_id, {}) if answers else {}
        full = bool(firsts) and all(name in mine for name in firsts)
        both = len(firsts) > 1 and all(mine.get(name) for name in firsts[:2])
        if both:
            first, second = (
                clusters_of(state, teachers, {name: mine[name] for name in names}, decide)
                for names in (firsts[:1], firsts[:2])
            )
            compared += 1
            if first and first[0].agrees_with_student:
                agreed += 1
            else:
                disagreed += 1
                matched += len(second) == 1
        if full and curtail != "off":
            complete += 1
            for at in _asked_in(state, teachers, mine, decide, curtail, firsts):
                asked[at] += 1
    enough = compared >= MIN_STATES and disagreed >= MIN_DISAGREEMENTS
    return Agreement(
        round(agreed / compared, 4) if enough else DEFAULT_P,
        round(matched / disagreed, 4) if enough else DEFAULT_Q,
        "measured" if enough else "assumed",
        compared,
        disagreed,
        [round(n / complete, 4) for n in asked] if complete >= MIN_STATES else [],
    )


def _asked_in(
    state: "TraceState",
    teachers: Sequence[Teacher],
    known: dict[str, Action | None],
    decide: Decide,
    curtail: str,
    firsts: Sequence[str],
) -> set[int]:
    """Return the positions of the families that curtailing would have asked."""
    shown: dict[str, Action | None] = {}
    mine = [teacher for teacher in teachers if teacher.asks(state.state_id)]
    while True:
        waiting = spokesmen(mine, shown, decide)
        votes = clusters_of(state, teachers, shown, decide)
        more = waiting[: how_many(votes, len(waiting), decide.quorum, curtail)]
        if not more:
            return {at for at, name in enumerate(firsts) if name in shown}
        shown |= {teacher.name: known.get(teacher.name) for teacher in more}


def _answers(lake: Lake, names: set[str], day: str) -> dict[str, dict[str, Action | None]]:
    """Return state -> teacher -> usable action, or ``None`` for an unusable reply, of a day."""
    table = lake.read("replies", days=[day], columns=["state_id", "status", "action"])
    found: dict[str, dict[str, Action | None]] = {}
    for row in table.to_pylist():
        if row["teacher"] in names and row["status"] != "unknown":
            usable = Action.from_json(row["action"]) if row["status"] == "ok" else None
            found.setdefault(row["state_id"], {})[row["teacher"]] = usable
    return found


class Outline(msgspec.Struct):
    """One state's prompt.

    ``node`` is its last piece in the tree of the session. Of the JSON of its messages the first
    ``settled`` are ``line.parts[:settled]``, which every longer prompt of the chain has too, and
    ``rest`` is what follows, commas included. ``size`` counts the bytes of both. ``has_action``:
    the prefix holds the action itself and is not sent.
    """

    state: "TraceState"
    toolset: Toolset
    node: int
    settled: int
    rest: bytes
    size: int
    has_action: bool
    line: "_Line"


class _Line:
    """One chain as it grows, with one set of tools: what no longer changes of its prompts."""

    def __init__(self, root: int) -> None:
        self.chain = GrowingChain()
        self.root = root
        self.restart(None)

    def restart(self, head: Any) -> None:
        """Begin again, with another system message."""
        self.head = head
        self.node = self.root
        self.parts: list[bytes] = []
        self.size = 0  # commas included
        self.hashes: dict[str, _Hashes] = {}
        self._last: tuple[int, int, bytes] = (0, 0, b"")

    def between(self, begin: int, end: int) -> bytes:
        """Return some parts with the commas before each; teachers ask for the same ones."""
        if self._last[:2] != (begin, end):
            self._last = begin, end, _joined(self.parts[begin:end], bool(begin))
        return self._last[2]


class _Hashes:
    """Hashes over the beginning of a chain's bodies for one teacher."""

    def __init__(self, shell: "Shell") -> None:
        self.running = [hashlib.sha256(head) for head, _ in shell.names]
        self.fed = 0


class Shell:
    """A body for a teacher without its messages.

    Args:
        questions: the questions.
        teacher: who is asked.
        session_id: of the state.
        tools: in the form in which they are offered.
    """

    def __init__(
        self, questions: Questions, teacher: Teacher, session_id: str, tools: list[dict[str, Any]]
    ) -> None:
        endpoint = questions.teacher_set.endpoint_of(teacher)
        empty = Conversion([], tools, {}, {}, "")
        request = serialise(teacher, empty, session_id, api=endpoint.api)
        self.size = len(request.body)
        #: For each name of a call: what its hash covers before and behind the messages.
        self.names = request.halves(endpoint.name, questions.caps_of(teacher))

    def keys(self, outline: Outline, teacher: str) -> tuple[str, ...]:
        """Return ``Asked.keys`` of the question about a state."""
        hashes = outline.line.hashes.get(teacher)
        if hashes is None or len(hashes.running) != len(self.names):
            hashes = outline.line.hashes[teacher] = _Hashes(self)
        if hashes.fed < outline.settled:
            more = outline.line.between(hashes.fed, outline.settled)
            for running in hashes.running:
                running.update(more)
            hashes.fed = outline.settled
        found = []
        for running, (_, tail) in zip(hashes.running, self.names, strict=True):
            ending = running.copy()
            ending.update(outline.rest)
            ending.update(tail)
            found.append(ending.hexdigest())
        return tuple(found)


class SessionOutline:
    """The tree of one session's prompts.

    Args:
        questions: the questions.
        api: of the teachers; how the tools look depends on nothing else.
    """

    def __init__(self, questions: Questions) -> None:
        self._questions = questions
        self._nodes: dict[tuple[int, bytes], int] = {}
        #: Bytes of the pieces from the root to a node, the node included; and the node before it.
        self.reach: list[int] = []
        self.parents: list[int] = []
        self._lines: dict[tuple[str, str], _Line] = {}
        self._parts: dict[int, tuple[dict[str, Any], bytes]] = {}
        self._offered: dict[str, list[dict[str, Any]]] = {}
        self._shells: dict[tuple[str, str], Shell] = {}

    def of(self, state: "TraceState") -> Outline:
        """Return one state's outline; best in the order in which a chain grows."""
        toolset = self._questions.toolset(state)
        key = (state.chain_id, toolset.digest)
        line = self._lines.get(key)
        if line is None:
            root = self._node(-1, orjson.dumps(self._tools(toolset)))
            line = self._lines[key] = _Line(root)
        messages, has_action = line.chain.at(state)
        if line.head is not messages[0]:
            line.restart(messages[0])
        settled = max(line.chain.settled, len(line.parts))
        line.node, parts = self._pieces(line.node, messages[len(line.parts) : settled])
        line.size += sum(map(len, parts)) + len(parts) - (not line.parts)
        line.parts += parts
        node, rest = self._pieces(line.node, messages[settled:])
        more = _joined(rest, bool(line.parts))
        size = line.size + len(more)
        return Outline(state, toolset, node, len(line.parts), more, size, has_action, line)

    def shell(self, outline: Outline, teacher: Teacher) -> Shell:
        """Return the teacher's body around a prompt of this session."""
        key = (teacher.name, outline.toolset.digest)
        if key not in self._shells:
            tools = self._tools(outline.toolset)
            made = Shell(self._questions, teacher, outline.state.session_id, tools)
            self._shells[key] = made
        return self._shells[key]

    def _tools(self, toolset: Toolset) -> list[dict[str, Any]]:
        if toolset.digest not in self._offered:
            self._offered[toolset.digest] = offered_tools(toolset.tools)
        return self._offered[toolset.digest]

    def _pieces(self, at: int, messages: Sequence[dict[str, Any]]) -> tuple[int, list[bytes]]:
        """Follow messages down the tree; return the last node and the JSON of each."""
        parts = []
        for message in messages:
            known = self._parts.get(id(message))
            if known is None:  # the message is kept, so that no other gets its address
                known = message, orjson.dumps(wire_messages([message])[0])
                self._parts[id(message)] = known
            at = self._node(at, known[1])
            parts.append(known[1])
        return at, parts

    def _node(self, parent: int, data: bytes) -> int:
        key = (parent, data)
        found = self._nodes.get(key)
        if found is None:
            found = self._nodes[key] = len(self._nodes)
            self.parents.append(parent)
            self.reach.append((self.reach[parent] if parent >= 0 else 0) + len(data))
        return found


def _joined(parts: Sequence[bytes], goes_on: bool) -> bytes:
    return (b"," if goes_on and parts else b"") + b",".join(parts)
