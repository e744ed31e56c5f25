"""The outer step of what has travelled, as the spec has it.

Belongs here: which arithmetic a round's deltas go through. Does not belong here: the arithmetic
(``outer``), bytes (``encoding``) and which deltas are merged (``replica``).
"""

from collections.abc import Iterator, Mapping, Sequence

from composer_pipeline.diloco.spec import DiLoCoSpec
from composer_pipeline.diloco.tensors.codecs import Delta
from composer_pipeline.diloco.tensors.outer import OuterState, Step, outer_steps


def merged_steps(
    state: OuterState, deltas: Sequence[Delta], weights: Sequence[float], spec: DiLoCoSpec
) -> Iterator[Step]:
    """Yield the state after a round, parameter by parameter, in the order of their names.

    What no delta has stays as it is: parameters of other fragments, and their momentum.

    A replica alone whose parameters travelled themselves is where it trained to, to the bit:
    ``θ − (θ − local)`` would round. Otherwise :func:`outer_steps`.

    Args:
        state: that each delta is from; what was yielded may replace its own.
        deltas: of the included slots, in the order of the slots; at least one, all of the same
            parameters.
        weights: one for each, adding up to 1.
        spec: has the outer learning rate and momentum.
    """
    names = set(deltas[0])
    made = _merged(state.only(names), deltas, weights, spec)
    for name in sorted(state.theta):
        yield next(made) if name in names else state.step(name)


def _merged(
    state: OuterState, deltas: Sequence[Delta], weights: Sequence[float], spec: DiLoCoSpec
) -> Iterator[Step]:
    lr, momentum = spec.outer
    if len(deltas) == 1 and deltas[0].whole and spec.leaves_alone:
        for name in sorted(state.theta):
            yield Step(name, deltas[0].parts[name], state.momentum[name])
        return
    yield from outer_steps(state, deltas, lr=lr, momentum=momentum, weights=weights)


def shares_of(tokens: Mapping[int, int], spec: DiLoCoSpec) -> dict[int, float]:
    """Return the weight of each slot's change, adding up to 1.

    Args:
        tokens: slot to the trained tokens of its change.
        spec: has the rule; slots are equal under ``tokens`` too where nobody counted any.
    """
    total = sum(tokens.values()) if spec.weights == "tokens" else 0
    return {slot: n / total if total else 1.0 / len(tokens) for slot, n in tokens.items()}
