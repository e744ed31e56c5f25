"""Who agrees with whom: one vote a model family, complete linkage, tiers.

Belongs here: comparing two actions given as JSON (:func:`compare`), and the vote of the
teachers' replies to one state (:func:`vote`). Does not belong here: the levels
(``preferences.levels``), and the tables (``preferences.pairs``).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.errors import InputError
from composer_pipeline.preferences import canonical as canon
from composer_pipeline.preferences.known import known_content
from composer_pipeline.preferences.levels import Level, Situation, level
from composer_pipeline.preferences.shell import Place

#: Families of the agent that wrote the traces; their replies are a control, never a vote.
STUDENT_FAMILIES = frozenset({"claude", "anthropic"})

#: Fewest families that make a winner.
QUORUM = 2


class StateLike(Protocol):
    """The fields of a trace state that a vote reads."""

    @property
    def action(self) -> Action: ...  # noqa: D102
    @property
    def messages(self) -> list[dict[str, Any]]: ...  # noqa: D102
    @property
    def cwd(self) -> str: ...  # noqa: D102


@dataclass(frozen=True)
class Reply:
    """A usable reply of a teacher."""

    teacher: str
    family: str
    model: str
    action: Action
    tokens: int = 0
    cost_picodollars: int = 0
    simulated: bool = False

    @staticmethod
    def from_row(row: Mapping[str, Any]) -> "Reply":
        """Read a row of the table ``replies`` whose status is ok."""
        return Reply(
            teacher=str(row["teacher"]),
            family=str(row["family"]),
            model=str(row["model"]),
            action=Action.from_json(row["action"]),
            tokens=int(row.get("completion_tokens") or 0),
            cost_picodollars=int(row.get("cost_picodollars") or 0),
            simulated=bool(row.get("simulated")),
        )


@dataclass(frozen=True)
class Vote:
    """The outcome of a vote, also when it confirms the agent or nobody wins.

    ``winner_action`` is ``None`` without a winner; the levels are then none. ``tier`` is
    gold, silver, style or none. ``margin`` is (winner - runner-up) / families, ``entropy``
    that of the cluster sizes in bits.
    """

    winner_action: Action | None = None
    winner: Reply | None = None
    members: tuple[Reply, ...] = ()
    voters: tuple[Reply, ...] = ()
    n_usable: int = 0
    n_families: int = 0
    n_agree: int = 0
    winner_level: Level = Level.NONE
    student_level: Level = Level.NONE
    margin: float = 0.0
    entropy: float = 0.0
    tier: str = "none"
    mutating: bool = False
    agrees_with_student: bool = False
    clusters: tuple[tuple[str, ...], ...] = field(default=())

    @property
    def is_pair(self) -> bool:
        """Whether the vote makes a preference pair."""
        return self.tier in ("gold", "silver")


def situation_of(state: StateLike) -> Situation:
    """Return the place and the known files of a state.

    The home folder is taken from the working directory, which redaction keeps in shape.
    """
    return Situation(
        Place(state.cwd or "", home_of(state.cwd or "")), known_content(state.messages)
    )


def home_of(cwd: str) -> str:
    """Return ``/home/NAME``, ``/Users/NAME`` or ``/root`` of a path, or an empty string."""
    parts = cwd.split("/")
    if len(parts) > 2 and parts[1] in ("home", "Users"):
        return "/".join(parts[:3])
    return "/root" if parts[:2] == ["", "root"] else ""


def vote(state: StateLike, replies: Sequence[Reply]) -> Vote:
    """Let the teachers vote on a state.

    Families cluster by complete linkage: L1 where either action of a link is mutating, L2
    elsewhere. The winner has at least :data:`QUORUM` families and more than every other
    cluster. Its spokesman is the medoid; ties go to the length closest to the agent's
    action, then to the cheapest, never to the longest. The result does not depend on the
    order of the replies.

    Args:
        state: a ``traces.load.TraceState`` or anything with its fields.
        replies: usable replies; those of :data:`STUDENT_FAMILIES` do not vote.
    """
    situation = situation_of(state)
    voters = _one_a_family(
        [reply for reply in replies if reply.family.lower() not in STUDENT_FAMILIES], situation
    )
    tally: dict[str, Any] = {
        "voters": tuple(voters),
        "n_usable": len(replies),
        "n_families": len(voters),
    }
    if not voters:
        return Vote(**tally)
    distance = _distances(voters, situation)
    clusters = _complete_linkage(voters, distance)
    sizes = sorted((len(cluster) for cluster in clusters), reverse=True)
    runner_up = sizes[1] if len(sizes) > 1 else 0
    shares = [size / len(voters) for size in sizes]
    facts: dict[str, Any] = {
        **tally,
        "margin": (sizes[0] - runner_up) / len(voters),
        "entropy": -sum(share * math.log2(share) for share in shares) + 0.0,
        "clusters": tuple(tuple(voters[i].teacher for i in cluster) for cluster in clusters),
    }
    if sizes[0] < QUORUM or sizes[0] == runner_up:
        return Vote(**facts)
    winners = next(cluster for cluster in clusters if len(cluster) == sizes[0])
    medoid = _medoid(winners, voters, distance, len(state.action.to_json()))
    members = tuple(voters[i] for i in winners)
    winner_level = max(distance[i][j] for i in winners for j in winners)
    student_level = min(level(state.action, m.action, situation).level for m in members)
    mutating = canon.mutates(state.action) or canon.mutates(voters[medoid].action)
    return Vote(
        **facts,
        winner_action=voters[medoid].action,
        winner=voters[medoid],
        members=members,
        n_agree=len(members),
        winner_level=winner_level,
        student_level=student_level,
        tier=tier_of(winner_level, student_level, mutating=mutating),
        mutating=mutating,
        agrees_with_student=student_level <= (Level.L1 if mutating else Level.L2),
    )


def tier_of(winner_level: Level, student_level: Level, *, mutating: bool) -> str:
    """Return the tier of a pair.

    gold: the winners agree at L1 or finer and the agent is not within L2. silver: the
    winners agree at L2 and the agent shares not even the class, or the winners agree at L1
    and the agent is at L2 where L2 is not the same (a mutating action). style: the same
    for other actions, where L2 counts as agreement; no pair. none: everything else.
    """
    if student_level <= Level.L1:
        return "none"
    if winner_level <= Level.L1:
        if student_level > Level.L2:
            return "gold"
        return "silver" if mutating else "style"
    if winner_level == Level.L2 and student_level > Level.L4:
        return "silver"
    return "none"


def compare(line: Mapping[str, Any]) -> dict[str, Any]:
    """Compare two actions given as JSON.

    Args:
        line: ``{a, b, cwd, home, context}``; ``a`` and ``b`` are ``{text, tool_calls:
            [{name, arguments}]}``, ``context`` maps absolute paths to known content.

    Returns:
        ``{level, mutating, why}``.

    Raises:
        InputError: a field is missing, unknown or of the wrong type.
    """
    if unknown := set(line) - {"a", "b", "cwd", "home", "context"}:
        raise InputError(f"compare: unknown field {sorted(unknown)[0]!r}")
    a, b = (_action(line, side) for side in ("a", "b"))
    for key in ("cwd", "home"):
        if not isinstance(line.get(key) or "", str):
            raise InputError(f"compare: field {key!r} must be text or null")
    context = line.get("context") or {}
    if not isinstance(context, Mapping) or not all(isinstance(v, str) for v in context.values()):
        raise InputError("compare: field 'context' must map paths to text, or be null")
    place = Place(line.get("cwd") or "", line.get("home") or "")
    verdict = level(a, b, Situation(place, context))
    return {
        "level": verdict.level.label,
        "mutating": canon.mutates(a) or canon.mutates(b),
        "why": verdict.why,
    }


def _action(line: Mapping[str, Any], side: str) -> Action:
    if side not in line:
        raise InputError(f"compare: field {side!r} is missing")
    try:
        action = msgspec.convert(line[side], _ActionIn)
    except msgspec.ValidationError as error:
        raise InputError(f"compare: field {side!r} is not an action: {error}") from error
    calls = tuple(ToolCall(c.name, c.arguments, c.id) for c in action.tool_calls or ())
    return Action(action.text or "", calls)


class _CallIn(msgspec.Struct):
    name: str
    arguments: dict[str, Any]
    id: str = ""


class _ActionIn(msgspec.Struct):
    text: str | None = ""
    tool_calls: list[_CallIn] | None = None


def _one_a_family(replies: Sequence[Reply], situation: Situation) -> list[Reply]:
    """Return one reply for each family: the one closest to the family's others."""
    families: dict[str, list[Reply]] = {}
    ordered = sorted(
        replies, key=lambda r: (r.family, r.teacher, canon.canonical(r.action, situation.place))
    )
    for reply in ordered:
        families.setdefault(reply.family, []).append(reply)
    return [
        min(group, key=lambda r: sum(level(r.action, o.action, situation).level for o in group))
        for _, group in sorted(families.items())
    ]


def _distances(voters: Sequence[Reply], situation: Situation) -> list[list[Level]]:
    grid = [[Level.L0] * len(voters) for _ in voters]
    for i, a in enumerate(voters):
        for j in range(i):
            grid[i][j] = grid[j][i] = level(a.action, voters[j].action, situation).level
    return grid


def _complete_linkage(
    voters: Sequence[Reply], distance: Sequence[Sequence[Level]]
) -> list[list[int]]:
    """Merge the two closest clusters while every pair across them may be linked."""
    changes = [canon.mutates(reply.action) for reply in voters]

    def linked(i: int, j: int) -> bool:
        return distance[i][j] <= (Level.L1 if changes[i] or changes[j] else Level.L2)

    clusters = [[i] for i in range(len(voters))]
    while True:
        best: tuple[int, int, int] | None = None
        for x in range(len(clusters)):
            for y in range(x):
                if all(linked(i, j) for i in clusters[x] for j in clusters[y]):
                    far = max(distance[i][j] for i in clusters[x] for j in clusters[y])
                    best = min(best, (far, y, x)) if best else (far, y, x)
        if best is None:
            return sorted(clusters, key=lambda cluster: (-len(cluster), cluster))
        _, y, x = best
        clusters[y] = sorted(clusters[y] + clusters[x])
        del clusters[x]


def _medoid(
    cluster: Sequence[int], voters: Sequence[Reply], distance: Sequence[Sequence[Level]], size: int
) -> int:
    def key(i: int) -> tuple[int, int, int, str, str]:
        reply = voters[i]
        length = abs(len(reply.action.to_json()) - size)
        far = sum(distance[i][j] for j in cluster)
        return far, length, reply.cost_picodollars, reply.family, reply.teacher

    return min(cluster, key=key)
