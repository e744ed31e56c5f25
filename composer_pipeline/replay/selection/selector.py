"""Which (state, teacher) to ask next, given the answers so far.

Belongs here: the protocol between the engine and a selector. Does not belong here: the
selectors themselves (value of information, curtailed voting), and asking
(``replay.engine.run``).

The engine asks in waves: a selector names a wave, the engine buys it, and calls the
selector again with what came back, until it returns nothing. Without a selector there is one
wave, of everything.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

from composer_pipeline.actions import Action
from composer_pipeline.replay.teachers import Teacher

if TYPE_CHECKING:
    from composer_pipeline.trace_states import TraceState

#: Which day is asked first, and to its end before the next one begins; empty: all together.
DaysFirst = Literal["", "oldest", "newest"]
#: ``state_id`` -> what the teachers that were asked about this state so far did:
#: ``{teacher name: its action}``. A teacher that was asked and gave nothing usable (an
#: unusable or refused reply, a state too long for it, no budget, an unknown outcome) is there
#: with ``None``; a teacher that was not asked yet is absent. Replies of earlier runs count as
#: soon as the pair is in a wave: naming such a pair costs nothing.
Answers = Callable[[str], Mapping[str, Action | None]]


class Selector(Protocol):
    """Chooses what to buy, wave by wave. One object serves one run."""

    def next_wave(
        self, states: Sequence["TraceState"], teachers: Sequence[Teacher], answers: Answers
    ) -> Sequence[tuple["TraceState", Teacher]]:
        """Return the pairs to ask next; an empty sequence ends the run.

        Args:
            states: every selected state of the run, the same in each call.
            teachers: every selected teacher, the same in each call.
            answers: what has come back; see :data:`Answers`.

        A pair that was in an earlier wave is passed over; a wave of nothing else ends the
        run, so a selector cannot keep it going for ever. So is a state outside a teacher's
        ``ask_share``. The engine chooses the order of calls within a wave.
        """
        ...


def by_day(states: Sequence["TraceState"], days_first: DaysFirst) -> list[list["TraceState"]]:
    """Return the states of each day, in the order of days; all in one list where it is empty."""
    if not days_first:
        return [list(states)]
    days: dict[str, list[TraceState]] = {}
    for state in states:
        days.setdefault(state.day, []).append(state)
    return [days[day] for day in sorted(days, reverse=days_first == "newest")]
