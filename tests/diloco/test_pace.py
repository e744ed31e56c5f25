"""Rounds of equal time: a slow replica makes fewer steps, and nobody waits for it."""

import itertools
import threading
from pathlib import Path

import pytest
import torch
from transformers import TrainerCallback

from composer_pipeline.diloco.callback import DiLoCoCallback, trainable
from composer_pipeline.diloco.checkpoint import read
from composer_pipeline.diloco.fragments import read_state
from composer_pipeline.diloco.log import Commit, Included, OuterLog
from composer_pipeline.diloco.replica import Replica
from composer_pipeline.diloco.rounds import Pace, Stopwatch, Work
from composer_pipeline.diloco.spec import DiLoCoSpec
from composer_pipeline.diloco.views import overview
from tests.diloco.test_callback import SPEC, Net, trainer
from tests.diloco.trainee import Trainees, kept_in
from tests.fixtures.waiting import DEADLINE_S, wait_until

SIZES = {"rounds": 9, "inner_steps": 100, "replicas": 4, "pace": "equal-time"}
OF_TIME = DiLoCoSpec.model_validate(SIZES)


def merged(**seconds: float) -> Commit:
    """Return a commit of slots (``s0=…``) that took so many seconds a step."""
    parts = tuple(
        Included(int(slot[1:]), "", "", 0, 0.5, 1, 1, 1.0, 7, took)
        for slot, took in seconds.items()
    )
    return Commit(1, parts, (), "", "", "", 0, 0)


def steps_after(*commits: Commit, spec: DiLoCoSpec = OF_TIME) -> list[int]:
    pace = Pace(spec)
    for commit in commits:
        pace.note(commit)
    return [pace.steps(slot) for slot in range(4)]


def test_the_fastest_makes_h_steps_and_each_other_what_fits_into_its_time() -> None:
    first = merged(s0=0.3, s1=3.0, s2=0.301)
    assert steps_after() == [100] * 4
    assert steps_after(first) == [100, 10, 99, 100], "down, and H for whom nobody knows"
    assert steps_after(merged(s0=0.1, s1=1000.0)) == [100, 1, 100, 100]
    assert steps_after(first, spec=OF_TIME.model_copy(update={"pace": "equal-steps"})) == [100] * 4
    # Whoever is the fastest has exactly H, whatever its seconds are as a float.
    assert all(steps_after(merged(s0=n / 997))[0] == 100 for n in range(1, 997))


def test_a_slot_is_known_by_its_last_round_and_a_lost_one_is_the_fastest_for_three_more() -> None:
    both = merged(s0=0.1, s1=1.0)
    alone, empty = merged(s1=1.0), Commit(2, (), (), "", "", "", 0, 0)
    assert steps_after(both, merged(s0=0.1, s1=0.2))[:2] == [100, 50]
    assert steps_after(both, alone, alone)[:2] == [100, 10]
    assert steps_after(both, alone, alone, empty, empty)[:2] == [100, 10]
    assert steps_after(both, alone, alone, alone)[:2] == [100, 100]
    assert steps_after(both, merged(s0=0.1), merged(s0=0.1, s1=0.0))[1] == 10, "not measured"
    pace = Pace(OF_TIME)
    pace.note(both)
    pace.clear()
    assert pace.steps(1) == 100


def test_a_step_is_measured_by_the_median_of_its_round() -> None:
    times = iter([100.0, 109.0, 110.0, 111.0, 112.5])
    watch = Stopwatch(lambda: next(times))
    assert watch.seconds() == 0.0
    watch.start()
    watch.lap()
    assert watch.seconds() == 9.0
    watch.start()  # each step begins, and only the first one starts the clock
    for _ in range(3):
        watch.lap()
    assert watch.seconds() == 1.25


def test_a_trainer_of_short_rounds_stays_at_its_place_of_the_run(tmp_path) -> None:
    """A peer that is quick beyond measure leaves it one step a round."""
    agreed = SPEC.model_copy(update={"pace": "equal-time", "min_quorum": 2, "weights": "tokens"})
    url, rates = str(tmp_path / "outer"), []

    class Rates(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            rates.append((callback.position(), kwargs["optimizer"].param_groups[0]["lr"]))

    def quick() -> None:
        replica = Replica(OuterLog.open(url, "run"), agreed, 1)
        replica.join(trainable(Net()))
        while not replica.finished:
            delta = {n: -torch.ones_like(t) for n, t in replica.state.theta.items()}
            replica.sync(delta, tokens=1, work=Work(4, 1e-9))
        replica.close()

    peer = threading.Thread(target=quick, daemon=True)
    peer.start()
    callback = DiLoCoCallback(url=url, run_id="run", slot=0, spec=agreed)
    training = trainer(tmp_path, [callback, Rates()])
    training.train()
    peer.join(DEADLINE_S)
    own, its = zip(*(commit.included for commit in callback.replica.log.commits()[1:]), strict=True)
    assert [part.steps for part in own[1:]] == [1, 1], "from the second round on it is known"
    assert [info["steps"] for info in callback.commits] == [part.steps for part in own]
    assert [(part.steps, part.seconds) for part in its] == [(4, 1e-9)] * 3
    assert all(0 < part.seconds < DEADLINE_S for part in own)
    assert [place for place, _ in rates[-2:]] == [4, 8]
    assert rates == [(place, pytest.approx(0.05 * (12 - place) / 12)) for place, _ in rates]
    assert training.state.global_step == len(rates) == sum(part.steps for part in own)
    slots = overview(url, "run").slots
    assert [slot.steps for slot in slots] == [len(rates), 12]
    assert [slot.step_s for slot in slots] == [own[-1].seconds, 1e-9]


def test_who_made_h_steps_ends_the_round_of_the_others_and_nobody_else(tmp_path) -> None:
    log = OuterLog.open(str(tmp_path), "run")
    agreed = SPEC.model_copy(update={"pace": "equal-time", "replicas": 3, "rounds": 1})
    slots = [Replica(log, agreed, slot) for slot in range(3)]
    joining = [threading.Thread(target=s.join, args=[trainable(Net())]) for s in slots]
    for thread in joining:
        thread.start()
    for thread in joining:
        thread.join(DEADLINE_S)

    def ends_with(slot: int, work: Work) -> None:
        delta = {n: torch.ones_like(t) for n, t in slots[slot].state.theta.items()}
        sync = threading.Thread(
            target=slots[slot].sync, args=[delta], kwargs={"work": work}, daemon=True
        )
        sync.start()
        wait_until(lambda: slot in log.contributions(1)[0], "it contributes")

    ends_with(0, Work(3, 0.1))
    assert not slots[2].awaited(), "a slot of few steps is ready a bit before the fastest"
    ends_with(1, Work(4, 0.1))
    assert not slots[2].awaited(), "it has looked just now"
    wait_until(slots[2].awaited, "it looks again")
    every = Replica(log, agreed.model_copy(update={"pace": "equal-steps"}), 2, 9)
    assert not every.awaited()
    ends_with(2, Work(1, 0.1))
    wait_until(lambda: log.commit(1), "the round is committed")
    for slot in slots:
        slot.close()


def test_a_replica_ten_times_slower_makes_nobody_wait_and_keeps_its_steps(tmp_path) -> None:
    """Real processes: the slow one is killed inside of a round and started again."""
    spec = DiLoCoSpec(
        rounds=4, inner_steps=40, replicas=2, min_quorum=2, pace="equal-time", weights="tokens"
    )
    folder, log = str(tmp_path), OuterLog.open(str(tmp_path), "run")
    with Trainees(folder, spec, (0.05, 0.5)) as replicas:
        wait_until(lambda: log.commit(2), "two rounds are committed")

        def inside() -> bool:
            kept = read(kept_in(folder, 1))
            return kept is not None and kept.round == 3 and not kept.ended

        wait_until(inside, "it is inside of the third round")
        replicas.restart(1)
        replicas.finish()
    commits = log.commits()
    for before, commit in itertools.pairwise(commits):
        assert commit.base_sha == before.state_sha
        fast, slow = commit.included
        assert fast.steps == 40
        assert 1 <= slow.steps < 20, "it has made no round of forty"
        assert slow.weight == pytest.approx(slow.steps / (40 + slow.steps))
    assert read_state(folder, "run")[1].state_sha == commits[-1].state_sha
    # Its steps are those that the log says, also for the process that was started again.
    lines = Path(folder, "steps-1.txt").read_text().splitlines()
    begun = [tuple(map(int, line.split())) for line in lines]
    assert [place[:2] for place in begun] == [(1, 1), (1, 2), (1, 3), (2, 3), (2, 4)]
    pace, steps = Pace(spec), {}
    for commit in commits:
        pace.note(commit)
        steps[commit.round + 1] = pace.steps(1)
    assert [planned for *_, planned in begun] == [steps[round_] for _, round_, _ in begun]
    assert steps[1] == 40
    assert max(steps[2], steps[3], steps[4]) < 20
