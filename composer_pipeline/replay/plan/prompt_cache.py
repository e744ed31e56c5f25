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

import math
from array import array
from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate, groupby, pairwise

import msgspec
import orjson

from composer_pipeline.replay.catalogue import Prices, Pricing
from composer_pipeline.replay.selection import Cluster, how_many

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
