"""Training while a change travels: what is merged and when, against a plain recomputation."""

import itertools
import threading
import time
from typing import Any

import pytest
import torch

from composer_pipeline.diloco.callback import DiLoCoCallback, trainable
from composer_pipeline.diloco.fragments import fragment_names, read_state
from composer_pipeline.diloco.log import OuterLog
from composer_pipeline.diloco.replica import Replica
from composer_pipeline.diloco.spec import DiLoCoSpec
from composer_pipeline.diloco.views import TRAVELS, WAITING, history, overview, timeline
from composer_pipeline.errors import ComposerError
from tests.diloco.toy_replica import Inner
from tests.diloco.trainee import Trainees, drive
from tests.fixtures.waiting import DEADLINE_S, wait_until

STEPS = 4


def spec(**fields: Any) -> DiLoCoSpec:
    """Return a spec of two replicas whose waits are long enough for a loaded machine."""
    return DiLoCoSpec.model_validate(
        {
            "replicas": 2, "rounds": 5, "inner_steps": STEPS, "join_timeout_s": DEADLINE_S,
            "grace_s": DEADLINE_S, "heartbeat_timeout_s": DEADLINE_S,
            "round_timeout_s": DEADLINE_S, **fields,
        }
    )  # fmt: skip


def run(callback: DiLoCoCallback, inner: Inner, made: list[int] | None = None) -> None:
    """Drive a callback as a Trainer does; each step is that of a place in the run."""
    places = [] if made is None else made
    drive(callback, inner, lambda: places.append(callback.position()))


def callback_of(folder: str, agreed: DiLoCoSpec, slot: int) -> DiLoCoCallback:
    return DiLoCoCallback(url=folder, run_id="run", slot=slot, spec=agreed)


def trained(folder: str, agreed: DiLoCoSpec) -> list[Inner]:
    """Run all slots, as threads that take turns in a step: torch's generators are not shared."""
    inners = [Inner(slot) for slot in range(agreed.replicas)]
    threads = [
        threading.Thread(target=run, args=(callback_of(folder, agreed, slot), inner), daemon=True)
        for slot, inner in enumerate(inners)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    return inners


def expected(
    agreed: DiLoCoSpec, theta: dict[str, torch.Tensor], lr: float, momentum: float
) -> list[dict[str, torch.Tensor]]:
    """Return the states after each round, of a run in one thread that knows no log."""
    inners = [Inner(slot) for slot in range(agreed.replicas)]
    moments = {n: torch.zeros_like(p) for n, p in theta.items()}
    start = [dict(theta) for _ in inners]
    for inner in inners:
        inner.adopt(theta)
    parts = fragment_names(theta, agreed.fragments)
    states, travels = [], list[tuple[dict, list[dict]]]()
    for round_ in range(agreed.rounds):
        for step in range(STEPS):
            for inner in inners:
                inner.steps(round_ * STEPS + step, 1)
            if travels and step + 1 == agreed.overlap_steps:
                merged, sent = travels.pop()
                for inner, was, begins in zip(inners, sent, start, strict=True):
                    for name, new in merged.items():
                        own = inner.parameters()[name]
                        own.data = own.data + (new - was[name])
                        begins[name] = new
        last = round_ + 1 == agreed.rounds
        names = list(theta) if last or agreed.fragments == 1 else parts[round_ % agreed.fragments]
        local = [{n: i.parameters()[n].detach().clone() for n in names} for i in inners]
        for name in names:
            changes = [b[name] - own[name] for b, own in zip(start, local, strict=True)]
            mean = changes[0] * 0.5 + changes[1] * 0.5
            moments[name] = momentum * moments[name] + mean
            theta[name] = theta[name] - (mean + moments[name] * momentum) * lr
        states.append({n: t.clone() for n, t in theta.items()})
        travels = [({n: theta[n] for n in names}, local)]
    return states


@pytest.mark.parametrize("overlap", [1, 3, STEPS])
@pytest.mark.parametrize(
    ("fragments", "outer"), [(1, (1.0, 0.0)), (1, (0.4, 0.8)), (2, (0.4, 0.8))]
)
def test_states_are_those_of_a_recomputation_with_the_same_delay(
    tmp_path, overlap, fragments, outer
):
    lr, momentum = outer
    agreed = spec(fragments=fragments, overlap_steps=overlap, outer_lr=lr, outer_momentum=momentum)
    inners = trained(str(tmp_path), agreed)
    first, _ = read_state(str(tmp_path), "run", 0)
    for round_, state in enumerate(expected(agreed, first, lr, momentum), start=1):
        committed, commit = read_state(str(tmp_path), "run", round_)
        assert [part.slot for part in commit.included] == [0, 1]
        assert all(torch.equal(committed[name], tensor) for name, tensor in state.items())
    last, _ = read_state(str(tmp_path), "run")
    for inner in inners:
        assert all(torch.equal(p, last[n]) for n, p in trainable(inner.net).items())


def alone(tmp_path, agreed: DiLoCoSpec) -> tuple[threading.Thread, list[int], list[Exception]]:
    """Start slot 0 in a thread; return it, the places of the steps it makes, and its errors."""
    made: list[int] = []
    errors: list[Exception] = []

    def train() -> None:
        try:
            run(callback_of(str(tmp_path), agreed, 0), Inner(0), made)
        except ComposerError as error:
            errors.append(error)

    thread = threading.Thread(target=train, daemon=True)
    thread.start()
    return thread, made, errors


def joined(tmp_path, agreed: DiLoCoSpec, slot: int = 1) -> Replica:
    """Return a replica that has joined, and contributes when it is told to."""
    replica = Replica(OuterLog.open(str(tmp_path), "run"), agreed, slot)
    replica.join(Inner(slot).parameters())
    return replica


def change(replica: Replica) -> dict[str, torch.Tensor]:
    """Return a change of -1 at every parameter."""
    return {name: torch.ones_like(tensor) for name, tensor in replica.state.theta.items()}


def test_training_goes_on_for_so_many_steps_while_others_are_awaited(tmp_path):
    agreed = spec(overlap_steps=3, rounds=3)
    thread, made, _ = alone(tmp_path, agreed)
    other = joined(tmp_path, agreed)
    wait_until(lambda: len(made) == STEPS + 3, "it makes the steps of the overlap")
    time.sleep(0.2)
    assert made == [*range(STEPS + 3)], "and waits then"
    other.sync(change(other))
    wait_until(lambda: len(made) == 2 * STEPS + 3, "it goes on into the third round")
    other.sync(change(other))
    other.sync(change(other))
    thread.join(DEADLINE_S)
    assert made == [*range(3 * STEPS)]
    assert [c.slots for c in other.log.commits()[1:]] == [(0, 1)] * 3
    other.close()


def test_a_round_that_others_ended_is_left_and_what_was_trained_meanwhile_is_kept(tmp_path):
    """The upload of slot 0 takes longer than the grace: two rounds go by without it."""
    agreed = spec(overlap_steps=2, rounds=4)
    sending = threading.Event()
    put = OuterLog.put_delta

    def slow(log: OuterLog, round_: int, slot: int, data: Any) -> tuple[str, str]:
        if slot == 0 and round_ == 1:
            assert sending.wait(DEADLINE_S)
        return put(log, round_, slot, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OuterLog, "put_delta", slow)
        thread, made, errors = alone(tmp_path, agreed)
        other = joined(tmp_path, agreed)
        wait_until(lambda: len(made) == STEPS + 2, "it waits at the end of the overlap")
        patch.setattr(other, "_ready", lambda offers, first: True)  # without slot 0
        other.sync(change(other))
        other.sync(change(other))
        sending.set()
        patch.undo()
    wait_until(lambda: 0 in other.log.contributions(3)[0], "it contributes to the third round")
    other.sync(change(other))
    other.sync(change(other))
    thread.join(DEADLINE_S)
    assert not errors
    assert [c.slots for c in other.log.commits()[1:]] == [(1,), (1,), (0, 1), (0, 1)]
    # Two steps of the second round, then the third from its beginning.
    assert made == [*range(STEPS + 2), *range(2 * STEPS, 4 * STEPS)]
    # They are in its change of the third round, with those of that round.
    tokens = [p.tokens for c in other.log.commits()[3:] for p in c.included if p.slot == 0]
    assert tokens == [STEPS + 2, STEPS]
    other.close()


def test_an_error_of_the_sync_ends_the_training(tmp_path):
    agreed = spec(overlap_steps=STEPS, min_quorum=2, round_timeout_s=0.5)
    thread, _, errors = alone(tmp_path, agreed)
    other = joined(tmp_path, agreed)
    thread.join(DEADLINE_S)
    other.close()
    assert "got 1 contributions (min_quorum 2)" in str(errors[0])


def test_a_rejected_change_takes_what_was_trained_from_it_along(tmp_path, monkeypatch):
    """Slot 0's parameters are not finite in round 1: it starts over from the commit."""
    agreed = spec(overlap_steps=2, rounds=3)
    inner = Inner(0)
    callback = callback_of(str(tmp_path), agreed, 0)
    steps = inner.steps

    def spoiled(place: int, count: int) -> None:
        steps(place, count)
        if place == STEPS - 1:
            next(iter(inner.parameters().values())).data.fill_(float("nan"))

    monkeypatch.setattr(inner, "steps", spoiled)
    thread = threading.Thread(target=run, args=(callback, inner), daemon=True)
    thread.start()
    other = joined(tmp_path, agreed)
    for _ in range(3):
        other.sync(change(other))
    thread.join(DEADLINE_S)
    commits = other.log.commits()[1:]
    assert [c.slots for c in commits] == [(1,), (0, 1), (0, 1)]
    assert list(commits[0].why) == [0]
    other.close()


def test_more_steps_of_overlap_than_a_round_has_are_refused():
    with pytest.raises(ValueError, match="overlap_steps 5 exceeds inner_steps 4"):
        spec(overlap_steps=5)


def test_a_replica_killed_while_its_change_travels_is_merged_once_and_goes_on(tmp_path):
    """Real processes: killed right after it contributed, and before."""
    agreed = spec(rounds=5, inner_steps=20, overlap_steps=15, min_quorum=2, heartbeat_timeout_s=30)
    folder, log = str(tmp_path), OuterLog.open(str(tmp_path), "run")
    with Trainees(folder, agreed, (0.03, 0.03)) as replicas:
        wait_until(lambda: 1 in log.contributions(2)[0], "its change of round 2 travels")
        replicas.restart(1)
        wait_until(lambda: log.commit(2) and log.commit(3), "two more rounds are committed")
        replicas.restart(1)
        replicas.finish()
    commits = log.commits()
    assert [commit.slots for commit in commits[1:]] == [(0, 1)] * 5
    for before, commit in itertools.pairwise(commits):
        assert commit.base_sha == before.state_sha
        assert read_state(folder, "run", commit.round)[1] == commit, "its deltas add up to it"


def test_the_timeline_shows_what_travels_and_only_what_was_waited_for(tmp_path):
    """Slot 1 contributes half a second after slot 0, which has two steps to make meanwhile."""
    agreed = spec(overlap_steps=2, rounds=2)
    thread, made, _ = alone(tmp_path, agreed)
    other = joined(tmp_path, agreed)
    wait_until(lambda: len(made) == STEPS + 2, "it waits at the end of the overlap")
    time.sleep(0.5)
    other.sync(change(other))
    other.sync(change(other))
    thread.join(DEADLINE_S)
    run_ = history(other.log)
    of = {
        kind: [s for s in run_.spans if (s.slot, s.kind) == (0, kind)]
        for kind in (TRAVELS, WAITING)
    }
    ends = [mark.at for mark in run_.rounds]
    assert [span.end for span in of[TRAVELS]] == ends
    first, waited = of[TRAVELS][0], of[WAITING][0]
    assert waited.end == first.end
    assert 0.4 < waited.end - waited.start < first.end - first.start, "less by two steps"
    assert timeline(run_).count(f'class="{TRAVELS}"') == 4
    slot = overview(str(tmp_path), "run").slots[0]
    assert slot.wait_s == pytest.approx(sum(s.end - s.start for s in of[WAITING]), abs=0.11)
    other.close()
