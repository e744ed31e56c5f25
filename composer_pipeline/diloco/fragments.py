"""Which parameters make a fragment, how a round merges deltas, and states read from the log."""

import re
from collections.abc import Iterator, Mapping, Sequence

import torch

from composer_pipeline.diloco.codecs import Delta, decode_delta, decode_state, encode_state
from composer_pipeline.diloco.log import Commit, CorruptObject, OuterLog
from composer_pipeline.diloco.outer_optimizer import OuterState, Step, Tensors, outer_steps
from composer_pipeline.diloco.spec import DiLoCoSpec, Fragment
from composer_pipeline.errors import InputError

#: The beginning of a parameter's name up to the number of its layer.
_LAYER = re.compile(r"(?:.*?\.)??\d+(?=\.)")


def fragment_names(parameters: Mapping[str, torch.Tensor], count: int) -> list[list[str]]:
    """Return the names of each fragment's parameters, in their order; each name is in one.

    What belongs to one layer (or, outside of the layers, to one module) stays together. The
    largest go first, each to the fragment with the fewest elements so far; equal ones in the
    order of their numbers, so that neighbouring layers go to different fragments. With fewer units
    than fragments, each parameter is a unit.

    Raises:
        InputError: there are fewer parameters than fragments.
    """
    if len(parameters) < count:
        raise InputError(
            f"diloco.fragments is {count}, and the model has {len(parameters)} trained tensors:"
            " a fragment has one at least"
        )
    units: dict[str, list[str]] = {}
    for name in sorted(parameters):
        layer = _LAYER.match(name)
        units.setdefault(layer[0] if layer else name.rpartition(".")[0], []).append(name)
    if len(units) < count:
        units = {name: [name] for name in parameters}
    sizes = {unit: sum(parameters[n].numel() for n in names) for unit, names in units.items()}
    fragments: list[list[str]] = [[] for _ in range(count)]
    filled = [0] * count
    for unit in sorted(units, key=lambda unit: (-sizes[unit], _natural(unit))):
        # Also by the number of names: a tensor without elements fills nothing.
        least = min(range(count), key=lambda index: (filled[index], len(fragments[index])))
        fragments[least] += units[unit]
        filled[least] += sizes[unit]
    return [sorted(names) for names in fragments]


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key by the numbers in a name: layer 2 before layer 10."""
    return [(int(part) if part.isdecimal() else -1, part) for part in re.split(r"(\d+)", name)]


def fragment_of(parameters: Mapping[str, torch.Tensor], count: int, fragment: Fragment) -> Tensors:
    """Return the parameters of one of ``count`` fragments (0-based), or ``ALL`` of them."""
    if isinstance(fragment, int):
        return {name: parameters[name] for name in fragment_names(parameters, count)[fragment]}
    return dict(parameters)


def merged_steps(
    state: OuterState, deltas: Sequence[Delta], weights: Sequence[float], spec: DiLoCoSpec
) -> Iterator[Step]:
    """Merge a round into ``state``; yield each parameter after it, in the order of their names.

    Parameters of other fragments stay as they are, with their momentum. ``weights`` add up to 1,
    one for each of the included ``deltas``, in the order of the slots.
    """
    names = set(deltas[0])
    made = _merged(state.only(names), deltas, weights, spec)
    for name in sorted(state.theta):
        yield next(made) if name in names else state.step(name)


def _merged(
    state: OuterState, deltas: Sequence[Delta], weights: Sequence[float], spec: DiLoCoSpec
) -> Iterator[Step]:
    lr, momentum = spec.outer_step
    # A replica alone ends where it trained to, to the bit: θ − (θ − local) would round.
    if len(deltas) == 1 and deltas[0].whole and spec.takes_result_as_is:
        for name in sorted(state.theta):
            moved = deltas[0].squares(name)
            state.theta[name].copy_(deltas[0].parts[name])
            yield state.step(name)._replace(moved=moved)
        return
    yield from outer_steps(state, deltas, lr=lr, momentum=momentum, weights=weights)


def shares_of(tokens: Mapping[int, int], spec: DiLoCoSpec) -> dict[int, float]:
    """Return each slot's weight, adding up to 1; equal where no tokens were counted."""
    total = sum(tokens.values()) if spec.weights == "tokens" else 0
    return {slot: n / total if total else 1.0 / len(tokens) for slot, n in tokens.items()}


def collect(log: OuterLog, spec: DiLoCoSpec, round_: int) -> None:
    """Remove what is not needed once the state after ``round_``, not yet committed, is written."""
    if spec.kept_rounds is None:
        return
    # Several replicas may do this at once. Nothing goes unless the older whole state is complete.
    oldest = max(r for r in range(round_) if spec.is_snapshot(r))
    commit, states = log.commit(oldest), log.store.list("state")
    if commit is None or (commit.state_key, commit.state_size) not in {
        (entry.key, entry.size) for entry in states
    }:
        return
    for entry in states:
        r = int(entry.key.removeprefix("state/").partition("-")[0])
        # At the same round: a proposal that lost the race to be committed.
        if r < oldest or (r == oldest and entry.key != commit.state_key):
            log.store.delete(entry.key)
    for entry in log.store.list("rounds"):
        _, number, kind, *_ = entry.key.split("/")
        if kind == "delta" and int(number) <= oldest:
            log.store.delete(entry.key)


def read_state(url: str, run_id: str, round: int | None = None) -> tuple[Tensors, Commit]:  # noqa: A002
    """Return the parameters after a round, by name (fp32 on the CPU), and its commit.

    By default of the last committed round; 0 is the initial state.

    Raises:
        InputError: the run has no such commit, or its objects were removed.
        CorruptObject: objects are not what their commits say.
    """
    log = OuterLog.open(url, run_id)
    wanted = log.last_round() if round is None else round
    commit = log.commit(wanted) if wanted >= 0 else None
    if commit is None:
        what = "no commit" if round is None else f"no commit for round {round}"
        raise InputError(f"run {run_id} in {url} has {what}")
    try:
        return _rebuilt_state(log, commit).theta, commit
    except CorruptObject:
        if round is None and log.last_round() > wanted:
            return read_state(url, run_id)  # an active run has removed it meanwhile
        states = log.store.list("state")
        kept = [int(entry.key.removeprefix("state/").partition("-")[0]) for entry in states]
        if kept and wanted < min(kept):
            raise InputError(
                f"the state of round {wanted} of run {run_id} was removed: the log keeps rounds"
                f" from {min(kept)} on (diloco.kept_rounds)"
            ) from None
        raise


def _rebuilt_state(log: OuterLog, commit: Commit) -> OuterState:
    """Return the state after ``commit``: read, or rebuilt from an earlier one."""
    later: list[Commit] = []
    at: Commit | None = commit
    reason = f"round {commit.round} has no state"
    while at is not None:
        if at.state_key:
            try:
                state = decode_state(log.read(at.state_key, at.state_sha, at.state_size))
                break
            except CorruptObject as error:
                reason = str(error)
        later.append(at)
        at = log.commit(at.round - 1) if at.round else None
    else:
        raise CorruptObject(reason)
    for step in reversed(later):
        _merge(log, state, step)
    return state


def _merge(log: OuterLog, state: OuterState, commit: Commit) -> None:
    spec = log.spec()
    if spec is None:
        raise CorruptObject(f"run {log.run_id} has no spec.json")
    steps = None
    if commit.included:
        parts = commit.included
        like = fragment_of(state.theta, spec.fragments, commit.fragment)
        deltas = [decode_delta(log.read(p.key, p.sha256, p.size), like, spec.codec) for p in parts]
        weights = [part.weight for part in parts]
        steps = merged_steps(state, deltas, weights, spec)
    if encode_state(state, steps).sha256 != commit.state_sha:
        raise CorruptObject(f"the deltas of round {commit.round} don't add up to its state")
