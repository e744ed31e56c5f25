"""Which states of a run are in its log, what goes when, and reading any that can be made again.

Belongs here: the rounds whose whole state is written, removing what no reader can need, a committed
state for those who are no replica. Does not belong here: following a run (``replica``).

A whole state is written for the first round, every ``spec.snapshot_every`` rounds, and the last.
Before one is written, everything goes that only rounds up to the one before it need; so there are
two whole states and ``kept_rounds`` deltas of a slot at most. Who reads the removed ones meanwhile
finds them missing, and goes to a newer whole state, which is there. Commits stay for ever.
"""

from composer_pipeline.diloco.log import Commit, CorruptObject, OuterLog
from composer_pipeline.diloco.spec import DiLoCoSpec
from composer_pipeline.diloco.tensors.encoding import decode_delta, decode_state, state_sha
from composer_pipeline.diloco.tensors.fragments import fragment_of
from composer_pipeline.diloco.tensors.merging import merged_steps
from composer_pipeline.diloco.tensors.outer import OuterState, Tensors
from composer_pipeline.errors import InputError


def collect(log: OuterLog, spec: DiLoCoSpec, round_: int) -> None:
    """Remove what is not needed once the whole state after ``round_`` is written.

    Whoever is about to commit that round calls this; several may, at the same time. Nothing goes
    where the whole state before it is not there in its full size.

    Args:
        log: of the run.
        spec: says which states are whole, and whether anything may go.
        round_: not yet committed, and one whose whole state is to be written.
    """
    if spec.kept_rounds is None:
        return
    oldest = max(r for r in range(round_) if spec.is_snapshot(r))
    commit, states = log.commit(oldest), log.store.list("state")
    if commit is None or (commit.state_key, commit.state_size) not in {
        (entry.key, entry.size) for entry in states
    }:
        return
    for entry in states:
        r = int(entry.key.removeprefix("state/").partition("-")[0])
        # At the same round: the proposal of one who lost the race to commit it.
        if r < oldest or (r == oldest and entry.key != commit.state_key):
            log.store.delete(entry.key)
    for entry in log.store.list("rounds"):
        _, number, kind, *_ = entry.key.split("/")
        if kind == "delta" and int(number) <= oldest:
            log.store.delete(entry.key)


def read_state(url: str, run_id: str, round: int | None = None) -> tuple[Tensors, Commit]:  # noqa: A002
    """Return the parameters after a round, by name (fp32 on the CPU), and its commit.

    Args:
        url: folder or URL of the log.
        run_id: the run.
        round: None means the last committed round; 0 is the initial state.

    Raises:
        InputError: the run has no such commit, or what its state was made of was removed.
        CorruptObject: objects are not what their commits say.
    """
    log = OuterLog.open(url, run_id)
    wanted = log.last_round() if round is None else round
    commit = log.commit(wanted) if wanted >= 0 else None
    if commit is None:
        what = "no commit" if round is None else f"no commit for round {round}"
        raise InputError(f"run {run_id} in {url} has {what}")
    try:
        return _made_again(log, commit).theta, commit
    except CorruptObject:
        if round is None and log.last_round() > wanted:
            return read_state(url, run_id)  # a run that goes on has removed it meanwhile
        states = log.store.list("state")
        kept = [int(entry.key.removeprefix("state/").partition("-")[0]) for entry in states]
        if kept and wanted < min(kept):
            raise InputError(
                f"the state of round {wanted} of run {run_id} was removed: the log keeps rounds"
                f" from {min(kept)} on (diloco.kept_rounds)"
            ) from None
        raise


def _made_again(log: OuterLog, commit: Commit) -> OuterState:
    """Return the state after ``commit``: read, or rebuilt from an earlier one.

    Raises:
        CorruptObject: neither can be.
    """
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
        state = _next(log, state, step)
    return state


def _next(log: OuterLog, state: OuterState, commit: Commit) -> OuterState:
    spec = log.spec()
    if spec is None:
        raise CorruptObject(f"run {log.run_id} has no spec.json")
    if commit.included:
        parts = commit.included
        like = fragment_of(state.theta, spec.fragments, commit.fragment)
        deltas = [decode_delta(log.read(p.key, p.sha256, p.size), like, spec.codec) for p in parts]
        weights = [part.weight for part in parts]
        state = OuterState.of(merged_steps(state, deltas, weights, spec))
    if state_sha(state) != commit.state_sha:
        raise CorruptObject(f"the deltas of round {commit.round} don't add up to its state")
    return state
