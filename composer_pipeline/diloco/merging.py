"""The outer step of what has travelled, as the spec has it.

Belongs here: which arithmetic a round's deltas go through. Does not belong here: the arithmetic
(``outer``), bytes (``encoding``) and which deltas are merged (``replica``).
"""

from collections.abc import Iterator, Sequence

from composer_pipeline.diloco.codecs import Delta
from composer_pipeline.diloco.outer import OuterState, Step, outer_steps
from composer_pipeline.diloco.spec import DiLoCoSpec


def merged_steps(
    state: OuterState, deltas: Sequence[Delta], weights: Sequence[float], spec: DiLoCoSpec
) -> Iterator[Step]:
    """Yield the state after a round, parameter by parameter, in the order of their names.

    A replica alone whose parameters travelled themselves is where it trained to, to the bit:
    ``θ − (θ − local)`` would round. Otherwise :func:`outer_steps`.

    Args:
        state: that each delta is from; what was yielded may replace its own.
        deltas: of the included slots, in the order of the slots; at least one.
        weights: one for each, adding up to 1.
        spec: has the outer learning rate and momentum.
    """
    lr, momentum = spec.outer
    if len(deltas) == 1 and deltas[0].whole and spec.leaves_alone:
        for name in sorted(state.theta):
            yield Step(name, deltas[0].parts[name], state.momentum[name])
        return
    yield from outer_steps(state, deltas, lr=lr, momentum=momentum, weights=weights)
