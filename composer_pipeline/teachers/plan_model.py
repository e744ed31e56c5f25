"""What prompts cost when a provider caches their beginnings: expected tokens and votes.

A prompt is a row of pieces: the tools, then each message. A piece is read from the cache when
an earlier prompt of the session had the same pieces up to and including it. Whether a chain is
asked in order or longest first, each distinct piece is paid in full once. If every question is
asked with probability pi, independently, a piece that n earlier prompts share is in the cache
with probability 1 - (1 - pi)^n, so the expectation is exact, without sampling.

The vote of n families follows a model of two parameters. p = P(A = agent) and
q = P(A = B | A != agent) fix it: with probability w the agent's action is the one that
teachers tend to, each gives the tended-to action with probability a, and anything else is
unique. p = w a and q (1 - p) = (1 - w) a^2 give a = (p + sqrt(p^2 + 4 q (1 - p))) / 2.
"""

import hashlib
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date
from functools import cache, lru_cache, partial
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import orjson

from composer_pipeline.actions import Action
from composer_pipeline.chat.convert import Conversion, GrowingChain, offered_tools, wire_messages
from composer_pipeline.chat.tools import Toolset
from composer_pipeline.lake.store import Lake
from composer_pipeline.settings import recipes_dir
from composer_pipeline.teachers.catalogue import Prices, Pricing
from composer_pipeline.teachers.questions import BYTES_PER_TOKEN, Cutter, Questions
from composer_pipeline.teachers.request import serialise
from composer_pipeline.teachers.selection import (
    Cluster,
    Decide,
    clusters_of,
    has_vote,
    how_many,
    shown_of,
)
from composer_pipeline.teachers.teachers import Teacher

if TYPE_CHECKING:
    from composer_pipeline.states.state import TraceState

#: Agreement that is assumed where no replies were measured; a worked example, not a finding.
DEFAULT_P, DEFAULT_Q = 0.6, 0.5
#: Completion tokens that a reply is expected to take where none was measured.
EXPECTED_COMPLETION_TOKENS = 400
#: Fewest states from which an agreement is measured, and fewest disagreements for q.
MIN_STATES, MIN_DISAGREEMENTS = 30, 10
#: Most states whose replies are compared; comparing takes longer than planning.
MAX_STATES = 500
#: Replies of each teacher whose bodies are built again to measure bytes per token.
SAMPLED_REPLIES = 500


class LengthBand(msgspec.Struct):
    """Prompts of about one length. Each pair is (asked with probability pi, always asked).

    ``shared`` maps the same pair of counts of earlier prompts that have a piece to the bytes of
    such pieces.
    """

    states: list[int]
    bytes: list[int]
    shared: dict[tuple[int, int], list[int]]


class PrefixReuse:
    """Counts how much of each prompt an earlier prompt of its session had."""

    # ``edges`` are prompt lengths in bytes at which prices change; they separate the bands.

    def __init__(self, edges: Sequence[int] = (), minimum_bytes: int = 0) -> None:
        self.edges = tuple(edges)
        self.minimum_bytes = minimum_bytes
        self.bands = [LengthBand([0, 0], [0, 0], {}) for _ in range(len(edges) + 1)]

    def add_session(
        self, ends: Iterable[tuple[int, int]], parents: Sequence[int], reach: Sequence[int]
    ) -> None:
        """Add the prompts of one session, which are paths in a tree of pieces.

        ``ends`` are (last node of a prompt, 1 if it is always asked and 0 otherwise) in the order
        of asking; for the tree see :class:`SessionOutline`.
        """
        least = self.minimum_bytes
        weights = [
            0 if end < least else end - (reach[at] if at >= 0 and reach[at] >= least else 0)
            for at, end in zip(parents, reach, strict=True)
        ]
        asked = ([0] * len(reach), [0] * len(reach))  # earlier: with probability pi, and always

        def band_and_kind(end: tuple[int, int]) -> tuple[int, int]:
            return sum(reach[end[0]] > edge for edge in self.edges), end[1]

        # The prompts of a chain share nearly all of their pieces, so a run of prompts of one band
        # and kind is counted at once instead of piece by piece.
        for (number, kind), run in groupby(ends, band_and_kind):
            band, visits = self.bands[number], [0] * len(reach)
            for node, _ in run:
                visits[node] += 1
                band.states[kind] += 1
                band.bytes[kind] += reach[node]
            for node in range(len(reach) - 1, 0, -1):
                if parents[node] >= 0:
                    visits[parents[node]] += visits[node]
            _add_run(band, kind, visits, asked, weights)


def _add_run(
    band: LengthBand,
    kind: int,
    visits: Sequence[int],
    asked: tuple[list[int], list[int]],
    weights: Sequence[int],
) -> None:
    # Each of the ``visits[node]`` prompts that have a piece sees one more earlier prompt with it,
    # so the piece adds its bytes to as many neighbouring counts: a step up and a step down.
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
        shared = 0
        for begin, end in pairwise(sorted(line)):
            shared += line[begin]
            for count in range(begin, end) if shared else ():
                if count or other:  # otherwise nobody asked for it before
                    key = (other, count) if kind else (count, other)
                    band.shared.setdefault(key, [0, 0])[kind] += shared


class Tariff(msgspec.Struct, frozen=True):
    """What a teacher's tokens cost, and how many a question has."""

    pricing: Pricing
    bytes_per_token: float
    completion_tokens: float
    #: The provider reads repeated beginnings at ``input_cache_read``.
    caches: bool
    #: Bytes of a body that are neither tools nor messages.
    envelope_bytes: float = 0.0

    def usd(self, prices: Prices, tokens: float, hit: float, questions: float) -> float:
        """Return what so many questions cost of which ``hit`` prompt tokens are in the cache."""
        fresh = float(prices.of("input_cache_write" if self.caches else "prompt"))
        read = float(prices.of("input_cache_read"))
        each = self.completion_tokens * float(prices.of("completion"))
        each += float(prices.of("request"))
        return (tokens - hit) * fresh + hit * read + questions * each

    def uncached(self) -> "Tariff":
        """Return the tariff where nothing is read from a cache."""
        return msgspec.structs.replace(self, caches=False)

    def edges(self) -> tuple[int, ...]:
        """Return the prompt lengths in bytes at which this tariff changes."""
        tokens = {o.min_prompt_tokens for o in self.pricing.overrides if not o.windowed}
        return tuple(
            int(n * self.bytes_per_token - self.envelope_bytes) for n in sorted(tokens) if n > 0
        )


@cache
def typical_prices() -> tuple[date, dict[str, Prices]]:
    """Return a date and the shipped prices of models then, in USD per MILLION tokens."""
    shipped = msgspec.yaml.decode((recipes_dir() / "prices.yaml").read_bytes())
    return shipped["date"], msgspec.convert(shipped["models"], dict[str, Prices])


def expected_cost(
    reuse: PrefixReuse, tariff: Tariff, *, share: float = 1.0, cached: bool = True
) -> float:
    """Return the expected USD of asking every prompt with probability ``share``."""
    # A float, because bounds and bills never come from here. The edges must be the tariff's.
    total = 0.0
    tariff = tariff if cached else tariff.uncached()
    for number, band in enumerate(reuse.bands):
        low = reuse.edges[number - 1] + tariff.envelope_bytes if number else 0
        # An override holds for strictly more tokens, and the edge was rounded down.
        prices = tariff.pricing.at(int(low / tariff.bytes_per_token) + 2 if number else 0)
        for kind, asked in ((0, share), (1, 1.0)):
            states = band.states[kind]
            if not states:
                continue
            size = band.bytes[kind] + states * tariff.envelope_bytes
            hit = 0.0
            if tariff.caches:
                for (maybe, always), amounts in band.shared.items():
                    chance = 1.0 if always else 1.0 - (1.0 - share) ** maybe
                    hit += amounts[kind] * chance
            tokens, hit = size / tariff.bytes_per_token, hit / tariff.bytes_per_token
            total += asked * tariff.usd(prices, tokens, hit, states)
    return total


def asked_shares(
    families: int, curtail: str, *, p: float, q: float, quorum: int = 2
) -> list[float]:
    """Return the share of states for which the first, second, … voting family is asked."""
    if curtail == "off":
        return [1.0] * families
    tends = min(1.0, (p + math.sqrt(p * p + 4 * q * (1 - p))) / 2)
    right = min(1.0, p / tends) if tends else 0.0
    shares = [0.0] * families

    def walk(chance: float, agent: bool, tended: int, unique: int) -> None:
        asked = tended + unique
        votes = [Cluster(tended, agent)] if tended else []
        votes += [Cluster(1)] * unique
        more = min(how_many(votes, families - asked, quorum, curtail), families - asked)
        for at in range(asked, asked + more):
            shares[at] += chance
        for joins in range(more + 1) if more else ():
            weight = math.comb(more, joins) * tends**joins * (1 - tends) ** (more - joins)
            if weight:
                walk(chance * weight, agent, tended + joins, unique + more - joins)

    for chance, agent in ((right, True), (1 - right, False)):
        if chance:
            walk(chance, agent, 0, 0)
    return shares


class ReplyTokens(msgspec.Struct):
    """Tokens of one teacher's replies in the lake."""

    replies: int = 0
    completion_tokens: int = 0
    #: Key -> (state, prompt tokens) of some replies, whose bodies are built again and measured.
    sample: dict[str, tuple[str, int]] = {}
    measured_bytes: int = 0
    measured_tokens: int = 0

    def measure(self, key: str, body: bytes) -> None:
        """Count the body of a call if its reply is in the sample."""
        if key in self.sample:
            self.measured_bytes += len(body)
            self.measured_tokens += self.sample.pop(key)[1]

    @property
    def bytes_per_token(self) -> float:
        """Measured, or assumed where no body was."""
        if not self.measured_tokens:
            return float(BYTES_PER_TOKEN)
        return self.measured_bytes / self.measured_tokens

    def completion(self, most: int) -> float:
        """Return the completion tokens to expect; ``most`` is the teacher's ``max_tokens``."""
        if not self.replies:
            return min(EXPECTED_COMPLETION_TOKENS, most)
        return self.completion_tokens / self.replies


def measure_replies(lake: Lake, days: Sequence[str]) -> dict[str, ReplyTokens]:
    """Return the tokens of the lake's replies to the states of some days, by teacher."""
    found: dict[str, ReplyTokens] = {}
    wanted = set(days)
    for part in lake.partitions("replies"):
        if part["day"] not in wanted:
            continue
        table = lake.read(
            "replies", days=[part["day"]], teacher=part["teacher"],
            columns=["request_hash", "state_id", "prompt_tokens", "completion_tokens"],
        )  # fmt: skip
        # Replies that came from the response cache report no tokens.
        rows = [row for row in table.to_pylist() if row["prompt_tokens"]]
        tokens = found.setdefault(part["teacher"], ReplyTokens())
        tokens.replies += len(rows)
        tokens.completion_tokens += sum(row["completion_tokens"] or 0 for row in rows)
        sample = tokens.sample | {
            row["request_hash"]: (row["state_id"], row["prompt_tokens"]) for row in rows
        }
        # Keys are hashes, so the first of them are a fair sample.
        tokens.sample = dict(sorted(sample.items())[:SAMPLED_REPLIES])
    return found


class Agreement(msgspec.Struct, frozen=True):
    """How often teachers agree; for p and q see the module.

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


def measure_agreement(
    lake: Lake,
    states: "Sequence[TraceState]",
    teachers: Sequence[Teacher],
    decide: Decide,
    curtail: str,
) -> Agreement:
    """Measure p and q, and what the file's curtailing would have asked, on the lake's replies.

    p is measured on states that the first two families both answered (``teachers`` are the
    cheapest first), q on those of them where the first does not agree with the agent; the shares
    on states whose vote the known answers decide, in the order of asking, unless more than a
    twentieth are open. Too few states, and p and q are assumed.
    """
    names = {teacher.name for teacher in teachers}
    answers = lru_cache(8)(partial(_answers, lake, names)) if lake.partitions("replies") else None
    families: dict[str, str] = {}
    for teacher in teachers:
        if has_vote(teacher, decide):
            families.setdefault(teacher.family, teacher.name)
    firsts = list(families.values())
    agreed = compared = disagreed = matched = complete = open_ = 0
    asked = [0] * len(firsts)
    for state in states:
        if compared >= MAX_STATES:
            break
        known = answers(state.day).get(state.state_id, {}) if answers else {}
        if len(firsts) > 1 and all(known.get(name) for name in firsts[:2]):
            first, second = (
                clusters_of(state, teachers, {name: known[name] for name in names}, decide)
                for names in (firsts[:1], firsts[:2])
            )
            compared += 1
            if first and first[0].agrees_with_student:
                agreed += 1
            else:
                disagreed += 1
                matched += len(second) == 1
        if known and curtail != "off":
            shown = shown_of(state, teachers, known, decide, curtail)
            complete, open_ = complete + (shown is not None), open_ + (shown is None)
            for at, name in enumerate(firsts):
                asked[at] += name in (shown or ())
    enough = compared >= MIN_STATES and disagreed >= MIN_DISAGREEMENTS
    return Agreement(
        round(agreed / compared, 4) if enough else DEFAULT_P,
        round(matched / disagreed, 4) if enough else DEFAULT_Q,
        "measured" if enough else "assumed",
        compared,
        disagreed,
        # Where many votes are open, the decided ones are those that needed the fewest teachers.
        [round(n / complete, 4) for n in asked] if complete >= max(MIN_STATES, 20 * open_) else [],
    )


def answers_by_key(lake: Lake, day: str) -> dict[str, Action | None]:
    """Return key of a call -> its action, ``None`` for an unusable reply, of a day."""
    table = lake.read("replies", days=[day], columns=["request_hash", "status", "action"])
    return {row["request_hash"]: _usable(row) for row in table.to_pylist()}


def _answers(lake: Lake, names: set[str], day: str) -> dict[str, dict[str, Action | None]]:
    """Return state -> teacher -> its action, ``None`` for an unusable reply, of a day."""
    table = lake.read("replies", days=[day], columns=["state_id", "status", "action"])
    found: dict[str, dict[str, Action | None]] = {}
    for row in table.to_pylist():
        if row["teacher"] in names and row["status"] != "unknown":
            found.setdefault(row["state_id"], {})[row["teacher"]] = _usable(row)
    return found


def _usable(row: Mapping[str, Any]) -> Action | None:
    return Action.from_json(row["action"]) if row["status"] == "ok" else None


class PromptOutline(msgspec.Struct):
    """One state's prompt, not serialised as a whole."""

    state: "TraceState"
    toolset: Toolset
    #: Its last piece in the tree of the session.
    node: int
    #: JSON of the messages behind ``prefix``, which longer prompts of the chain have too.
    tail: bytes
    #: Bytes of the messages.
    size: int
    #: The messages hold the action itself and are not sent.
    has_action: bool
    prefix: "_ChainPrefix"
    #: Only a window of the prompt; without any message where not even a window fits.
    windowed: bool = False
    empty: bool = False


class _ChainPrefix:
    """The JSON of a chain's messages that no longer changes, with one set of tools."""

    def __init__(self, root: int) -> None:
        self.chain = GrowingChain()
        self.root = root
        self.restart(None)

    def restart(self, head: Any) -> None:
        # The chain has another system message.
        self.head = head
        self.node = self.root
        self.parts: list[bytes] = []
        self.size = 0  # commas included
        #: Teacher -> [hash over the beginning of its bodies, parts in it].
        self.hashes: dict[str, list[Any]] = {}


class BodyFrame(msgspec.Struct, frozen=True):
    """A teacher's body without its messages: its size, and what a key hashes around them."""

    size: int
    head: bytes
    tail: bytes


class SessionOutline:
    """The prompts of one session as a tree of pieces, with each question's size and key."""

    # Serialising and hashing each body as a whole would be quadratic in the session's length.

    def __init__(self, questions: Questions) -> None:
        self._questions = questions
        self._cutter = Cutter()
        self._nodes: dict[tuple[int, bytes], int] = {}
        #: Node -> bytes of the pieces from the root to its end, and the node before it.
        self.reach: list[int] = []
        self.parents: list[int] = []
        self._prefixes: dict[tuple[str, str], _ChainPrefix] = {}
        self._parts: dict[int, tuple[dict[str, Any], bytes]] = {}
        self._offered: dict[str, list[dict[str, Any]]] = {}
        self._frames: dict[tuple[str, str], BodyFrame] = {}

    def of(
        self, state: "TraceState", windows: Collection[int | None] = (None,)
    ) -> dict[int | None, PromptOutline]:
        """Return one state's outline by window; call it in the order in which a chain grows."""
        toolset = self._questions.toolset(state)
        key = (state.chain_id, toolset.digest)
        prefix = self._prefixes.get(key)
        if prefix is None:
            root = self._node(-1, orjson.dumps(self._tools(toolset)))
            prefix = self._prefixes[key] = _ChainPrefix(root)
        messages, has_action = prefix.chain.at(state)
        if prefix.head is not messages[0]:
            prefix.restart(messages[0])
        settled = max(prefix.chain.settled, len(prefix.parts))
        prefix.node, parts = self._pieces(prefix.node, messages[len(prefix.parts) : settled])
        prefix.size += sum(map(len, parts)) + len(parts) - (not prefix.parts)
        prefix.parts += parts
        node, rest = self._pieces(prefix.node, messages[settled:])
        tail = (b"," if prefix.parts and rest else b"") + b",".join(rest)
        size = prefix.size + len(tail)
        whole = PromptOutline(state, toolset, node, tail, size, has_action, prefix)
        return {
            window: whole if window is None else self._cut(whole, messages, window)
            for window in windows
        }

    def _cut(
        self, whole: PromptOutline, messages: Sequence[dict[str, Any]], window: int
    ) -> PromptOutline:
        """Return the outline of a prompt's window."""
        root = whole.prefix.root
        room = window * BYTES_PER_TOKEN - self.reach[root]
        if whole.size + 2 <= room:  # with its brackets
            return whole
        node, parts = root, []
        for message in wire_messages(self._cutter.cut(messages, room) or ()):
            parts.append(orjson.dumps(message))
            node = self._node(node, parts[-1])
        tail = b",".join(parts)
        alone = _ChainPrefix(root)
        return PromptOutline(
            whole.state, whole.toolset, node, tail, len(tail), whole.has_action, alone,
            windowed=True, empty=not parts,
        )  # fmt: skip

    def size(self, outline: PromptOutline, teacher: Teacher) -> int:
        """Return the bytes of the teacher's body."""
        return self._frame(outline, teacher).size + outline.size

    def key(self, outline: PromptOutline, teacher: Teacher) -> str:
        """Return the key of the question; before the chain's next outline is made."""
        frame, prefix = self._frame(outline, teacher), outline.prefix
        known = prefix.hashes.get(teacher.name)
        if known is None:
            known = prefix.hashes[teacher.name] = [hashlib.sha256(frame.head), 0]
        running, fed = known
        if fed < len(prefix.parts):
            running.update((b"," if fed else b"") + b",".join(prefix.parts[fed:]))
            known[1] = len(prefix.parts)
        whole = running.copy()
        whole.update(outline.tail + frame.tail)
        return str(whole.hexdigest())

    def _frame(self, outline: PromptOutline, teacher: Teacher) -> BodyFrame:
        key = (teacher.name, outline.toolset.digest)
        if key not in self._frames:
            endpoint = self._questions.teacher_set.endpoint_of(teacher)
            empty = Conversion([], self._tools(outline.toolset), {}, {}, "")
            request = serialise(teacher, empty, outline.state.session_id, api=endpoint.api)
            head, tail = request.around_messages(endpoint.name)
            self._frames[key] = BodyFrame(len(request.body), head, tail)
        return self._frames[key]

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
        key = (parent, hashlib.blake2b(data, digest_size=16).digest())
        found = self._nodes.get(key)
        if found is None:
            found = self._nodes[key] = len(self._nodes)
            self.parents.append(parent)
            self.reach.append((self.reach[parent] if parent >= 0 else 0) + len(data))
        return found
