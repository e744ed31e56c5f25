"""What the replies of earlier runs say about the next ones.

Belongs here: bytes a token and completion tokens of each teacher, and how often teachers
agree, measured on the lake's ``replies``. Does not belong here: the model that these figures
go into (``replay.plan.prompt_cache``).
"""

from collections.abc import Sequence
from functools import lru_cache, partial
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
