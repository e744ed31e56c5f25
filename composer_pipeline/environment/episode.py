"""One episode: calls in, recorded results out, until the trace is left or ends.

Belongs here: what a call earns, and what is said of it. Does not belong here: which turns a trace
has (``environment.turns``), HTTP, and the parts of the reward (``training.rewards``).

Nothing is run. A call that is not on the trace has no observation, because nobody recorded one:
this is step-wise imitation, not exploration.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.chat import action_message
from composer_pipeline.environment.turns import EQUAL, MATCH, Turn
from composer_pipeline.preferences.actions import Level, level
from composer_pipeline.training.rewards import action_match

#: A call that is only like the recorded one earns at most this share of what a match earns.
PARTIAL = 0.5
DIVERGED = "The trace diverged: no result of this call was recorded. The episode is over."
AGREED = "Teachers agreed on this call; what it returns was not recorded. The episode is over."
ALIKE = "As good as the recorded call, whose result is of that call alone. The episode is over."
OVER = "The episode is over. Do not call any more tools."


class Outcome(msgspec.Struct, frozen=True):
    """What came of one call.

    ``result`` is the recorded result, and ``None`` where the call did not match; ``text`` says
    what happened where there is no result.
    """

    reward: float
    done: bool
    result: str | None = None
    text: str = ""


class Episode:
    """Follows the turns of one trace.

    Each turn is worth the same, the rewards of all steps sum to at most 1, and repeating the trace
    earns 1. The parallel calls of a turn are taken one by one, in any order. A call of equal
    canonical form (L0) is answered; one of equal effect (L1) earns as much, but ends the episode.

    Args:
        turns: at least one.
    """

    def __init__(self, turns: Sequence[Turn]) -> None:
        self._turns = turns
        self._at = 0
        self._open = list(range(len(turns[0].wanted)))
        self.steps = 0
        self.total = 0.0
        self.done = False

    @property
    def turn(self) -> int:
        """Index of the turn that is being taken."""
        return self._at

    def step(self, name: str, arguments: Mapping[str, Any]) -> Outcome:
        """Take one call. Once the episode is over, nothing is earned or shown.

        Args:
            name: the tool, by its name on the wire.
            arguments: of the call.
        """
        if self.done:
            return Outcome(0.0, True, text=OVER)
        self.steps += 1
        outcome = self._graded(ToolCall(name, dict(arguments)))
        self.total += outcome.reward
        self.done = outcome.done
        return outcome

    def _graded(self, call: ToolCall) -> Outcome:
        turn = self._turns[self._at]
        worth = 1 / len(self._turns)
        if turn.results:
            worth /= len(turn.wanted)
        levels = {number: _level(call, turn, number) for number in self._open}
        best = min(levels, key=lambda number: levels[number])
        if levels[best] > EQUAL:
            like = max(_likeness(call, turn.wanted[number]) for number in self._open)
            return Outcome(worth * PARTIAL * like, True, text=DIVERGED)
        if not turn.results:
            return Outcome(worth, True, text=AGREED)
        if levels[best] > MATCH:
            return Outcome(worth, True, text=ALIKE)
        self._open.remove(best)
        if not self._open:
            self._at += 1
            if self._at < len(self._turns):
                self._open = list(range(len(self._turns[self._at].wanted)))
        return Outcome(worth, not self._open, turn.results[best])


def _level(call: ToolCall, turn: Turn, number: int) -> Level:
    """Return how close a call is to one that is wanted."""
    wanted = Action("", (turn.wanted[number],))
    return level(Action("", (call,)), wanted, turn.situation).level


def _likeness(call: ToolCall, wanted: ToolCall) -> float:
    sides = (action_message(Action("", (side,))) for side in (call, wanted))
    return action_match(*sides)
