"""What asking about a state is worth: how likely it makes a pair, and what its vote costs.

The chance of a pair is a logistic model of what the trace shows (*features*). Its weights are the
hand-set ones where no vote is known, and move towards the lake's votes as these come: the maximum
of the posterior with a normal prior around the hand-set weights.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import orjson

from composer_pipeline.lake.store import Lake
from composer_pipeline.states.state import TraceState, blocks_of
from composer_pipeline.teachers.teachers import draw
from composer_pipeline.tool_names import EDITS, steps_of

#: Feature -> its hand-set weight, in log odds.
WEIGHTS: Mapping[str, float] = {
    "corrected": 2.0,
    "reverted": 2.0,
    "caused": 1.5,
    "failed": 1.5,
    "tests_failed": 1.5,
    "interrupted": 1.0,
    "repeated": 1.0,
    "edits": 0.5,
    "gone": 1.0,
    "kept": -0.5,
}
#: Log odds of a pair at a state without any feature: about one in eleven.
BASE = -2.3
#: Standard deviation of the prior of each weight. A pair or two do not move it far.
SPREAD = 1.0
#: Features that say that the action went wrong; no rule skips such a state.
TROUBLE = frozenset({"corrected", "reverted", "caused", "failed", "tests_failed", "interrupted"})

#: How far back a call counts as a repetition, in messages.
_REPEAT_WINDOW = 40
_STEPS = 50

Counts = dict[frozenset[str], tuple[int, int]]


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
        "edits": any(step.name in EDITS for step in steps_of(state.action.tool_calls)),
        "gone": state.fate == "gone",
        "kept": state.fate == "kept",
    }
    return frozenset(name for name, holds in found.items() if holds)


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


class PairModel(msgspec.Struct, frozen=True):
    """The chance of a pair, by features. ``votes`` are those that it was fitted on.

    ``weights`` and ``base`` are log odds; ``covariance`` is of the posterior, the base first, then
    the features in the order of :data:`WEIGHTS`.
    """

    base: float = BASE
    weights: Mapping[str, float] = msgspec.field(default_factory=lambda: WEIGHTS)
    covariance: tuple[tuple[float, ...], ...] = tuple(
        tuple(SPREAD**2 * (a == b) for b in range(len(WEIGHTS) + 1))
        for a in range(len(WEIGHTS) + 1)
    )
    votes: int = 0

    def chance(self, found: Iterable[str]) -> float:
        """Return the probability that asking about a state with these features makes a pair."""
        return 1 / (1 + math.exp(-self.base - sum(self.weights[name] for name in found)))

    def expect(self, states: Mapping[frozenset[str], int]) -> tuple[float, float, float]:
        """Return expected pairs among so many states by features, and a 95 % interval.

        The interval has the chance of each state and the uncertainty of the weights.
        """
        import numpy as np

        rows = np.array([_row(found) for found in states]).reshape(len(states), len(WEIGHTS) + 1)
        number = np.array(list(states.values()), dtype=float)
        chances = np.array([self.chance(found) for found in states])
        spread = number * chances * (1 - chances)
        slope = spread @ rows
        variance = spread.sum() + slope @ np.array(self.covariance) @ slope
        mean, half = float(number @ chances), 1.96 * float(variance) ** 0.5
        return mean, max(0.0, mean - half), min(float(number.sum()), mean + half)


def _row(found: frozenset[str]) -> list[float]:
    return [1.0, *(float(name in found) for name in WEIGHTS)]


def fit(votes: Mapping[frozenset[str], tuple[int, int]]) -> PairModel:
    """Return the model of some votes: features -> (states, pairs among them)."""
    import numpy as np

    prior = np.array([BASE, *WEIGHTS.values()])
    rows = np.array([_row(found) for found in votes]).reshape(len(votes), len(prior))
    number = np.array([n for n, _ in votes.values()], dtype=float)
    pairs = np.array([k for _, k in votes.values()], dtype=float)
    at = prior.copy()
    for _ in range(_STEPS):  # Newton; the posterior is concave, and the prior keeps it bounded
        chances = 1 / (1 + np.exp(-rows @ at))
        slope = rows.T @ (pairs - number * chances) - (at - prior) / SPREAD**2
        curve = (rows.T * (number * chances * (1 - chances))) @ rows
        curve += np.eye(len(prior)) / SPREAD**2
        step = np.linalg.solve(curve, slope)
        # A long step may overshoot where chances are near 0 or 1.
        at += step / max(1.0, float(np.abs(step).max()))
        if float(np.abs(step).max()) < 1e-10:
            break
    covariance: Any = np.linalg.inv(curve)
    return PairModel(
        float(at[0]),
        dict(zip(WEIGHTS, at[1:].tolist(), strict=True)),
        tuple(map(tuple, covariance.tolist())),
        int(number.sum()),
    )


def model_of(lake: Lake) -> PairModel:
    """Return the model of the lake's votes of at least two families; the prior without any."""
    counts = count_votes(lake.rows("votes", columns=["features", "reason", "n_families"]))
    return fit(counts) if counts else PairModel()


def count_votes(rows: Iterable[Mapping[str, Any]]) -> Counts:
    """Return features -> (states with a vote of two families, pairs among them)."""
    counts: Counts = {}
    for row in rows:
        if row["n_families"] >= 2:
            found = frozenset(WEIGHTS.keys() & set(row["features"] or ()))
            number, pairs = counts.get(found, (0, 0))
            counts[found] = (number + 1, pairs + (row["reason"] == "pair"))
    return counts


#: Groups of a calibration.
_GROUPS = 5


def calibration(rows: Sequence[Mapping[str, Any]]) -> list[tuple[float, float, int]]:
    """Return (predicted, observed share of pairs, states) of rows of ``votes``, in five groups.

    The rows are halved by session; each half is predicted by the weights fitted on the other.
    """
    halves = [
        count_votes(row for row in rows if draw(row["session_id"]) % 2 == half) for half in (0, 1)
    ]
    told = [
        (fit(other).chance(found), number, pairs)
        for half, other in (halves, halves[::-1])
        for found, (number, pairs) in half.items()
    ]
    told.sort()
    states = sum(number for _, number, _ in told)
    groups: list[list[float]] = [[0.0, 0, 0] for _ in range(_GROUPS)]
    before = 0
    for chance, number, pairs in told:
        group = groups[min(_GROUPS - 1, _GROUPS * (2 * before + number) // (2 * states))]
        for at, value in enumerate((chance * number, pairs, number)):
            group[at] += value
        before += number
    return [(total / n, pairs / n, int(n)) for total, pairs, n in groups if n]


def prompt_bytes(states: Iterable[TraceState]) -> dict[str, int]:
    """Return ``state_id`` -> the bytes of the messages of its prompt, as recorded."""
    chains: dict[str, list[TraceState]] = {}
    for state in states:
        chains.setdefault(state.chain_id, []).append(state)
    sizes: dict[str, int] = {}
    for chain in chains.values():
        total = done = 0
        for state in sorted(chain, key=lambda s: s.n_messages):
            for message in state.messages[done : state.n_messages]:
                total += len(orjson.dumps(message))
            done = state.n_messages
            sizes[state.state_id] = total
    return sizes
