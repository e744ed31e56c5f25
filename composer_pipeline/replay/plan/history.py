"""What the replies of earlier runs say about the next ones.

Belongs here: bytes a token and completion tokens of each teacher, and how often teachers
agree, measured on the lake's ``replies``. Does not belong here: the model that these figures
go into (``replay.plan.prompt_cache``).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from composer_pipeline.actions import Action
from composer_pipeline.lake import Lake
from composer_pipeline.replay.plan.prompt_cache import DEFAULT_P, DEFAULT_Q
from composer_pipeline.replay.questions import BYTES_PER_TOKEN
from composer_pipeline.replay.selection import Decide, clusters_of, has_vote, how_many, spokesmen
from composer_pipeline.replay.teachers import Teacher

if TYPE_CHECKING:
    from composer_pipeline.trace_states import TraceState

#: Completion tokens that a reply is expected to take where none was measured.
EXPECTED_COMPLETION_TOKENS = 400
#: Fewest states from which an agreement is measured, and fewest disagreements for q.
MIN_STATES, MIN_DISAGREEMENTS = 30, 10
#: Most states whose replies are compared; comparing takes longer than planning.
MAX_STATES = 500


class Calibration(msgspec.Struct, frozen=True):
    """A teacher's tokens; ``replies`` is how many were measured."""

    bytes_per_token: float = float(BYTES_PER_TOKEN)
    completion_tokens: float = float(EXPECTED_COMPLETION_TOKENS)
    replies: int = 0


class Measured(msgspec.Struct):
    """Replies in the lake: key -> (teacher, prompt tokens, completion tokens).

    ``bodies`` is filled in by the plan: key -> bytes of the body, which nobody stores.
    """

    replies: dict[str, tuple[str, int, int]]
    bodies: dict[str, int] = msgspec.field(default_factory=dict)

    def of(self, teacher: Teacher) -> Calibration:
        """Return a teacher's calibration; defaults where there is nothing to measure."""
        mine = [
            (key, prompt, completion)
            for key, (name, prompt, completion) in self.replies.items()
            if name == teacher.name
        ]
        size = sum(self.bodies[key] for key, _, _ in mine if key in self.bodies)
        tokens = sum(prompt for key, prompt, _ in mine if key in self.bodies)
        defaults = Calibration(
            completion_tokens=min(EXPECTED_COMPLETION_TOKENS, teacher.max_tokens)
        )
        return Calibration(
            size / tokens if tokens else defaults.bytes_per_token,
            sum(n for _, _, n in mine) / len(mine) if mine else defaults.completion_tokens,
            len(mine),
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
    if not days or not lake.partitions("replies"):
        return Measured({})
    table = lake.read(
        "replies", days=days,
        columns=["request_hash", "prompt_tokens", "completion_tokens"],
    )  # fmt: skip
    return Measured(
        {
            row["request_hash"]: (
                row["teacher"], row["prompt_tokens"], row["completion_tokens"] or 0,
            )
            for row in table.to_pylist()
            if row["prompt_tokens"]
        }
    )  # fmt: skip


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
    known = _answers(lake, {state.state_id for state in states}, teachers)
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
        mine = known.get(state.state_id, {})
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


def _answers(
    lake: Lake, states: set[str], teachers: Sequence[Teacher]
) -> dict[str, dict[str, Action | None]]:
    """Return state -> teacher -> usable action, or ``None`` for an unusable reply."""
    names = {teacher.name for teacher in teachers}
    if not lake.partitions("replies"):
        return {}
    table = lake.read("replies", columns=["state_id", "status", "action"])
    found: dict[str, dict[str, Action | None]] = {}
    for row in table.to_pylist():
        if row["state_id"] in states and row["teacher"] in names and row["status"] != "unknown":
            usable = Action.from_json(row["action"]) if row["status"] == "ok" else None
            found.setdefault(row["state_id"], {})[row["teacher"]] = usable
    return found
