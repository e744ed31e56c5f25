"""Rounds that train nothing are not committed in silence, and one replica cannot spoil a merge."""

from pathlib import Path

import pytest
import torch
from transformers import TrainerCallback

from composer_pipeline.diloco.callback import DiLoCoCallback, Diverged
from composer_pipeline.diloco.codecs import Delta, encode_delta
from composer_pipeline.diloco.log import Contribution, EmptyRounds, OuterLog
from composer_pipeline.diloco.replica import Replica
from composer_pipeline.diloco.rounds import Work
from composer_pipeline.diloco.spec import DiLoCoSpec
from composer_pipeline.errors import InputError
from tests.diloco.test_callback import trainer
from tests.diloco.test_supervisor import supervisor

NAN = {"w": torch.tensor([1.0, float("nan")])}


def delta(size: float) -> dict[str, torch.Tensor]:
    """A change whose norm is ``size``."""
    return {"w": torch.tensor([size, 0.0])}


def joined(tmp_path: Path, *, base: str = "", slot: int = 0, **fields: object) -> Replica:
    spec = DiLoCoSpec.model_validate(
        {
            "replicas": 1, "rounds": 9, "inner_steps": 1, "outer_lr": 1.0, "outer_momentum": 0.0,
            "join_timeout_s": 0.01, "heartbeat_timeout_s": 2, "takeover_s": 0.01,
            "grace_s": 20, "round_timeout_s": 20, **fields,
        }
    )  # fmt: skip
    replica = Replica(OuterLog.open(str(tmp_path), "run"), spec, slot)
    replica.base = base
    replica.join({"w": torch.ones(2)})
    return replica


@pytest.fixture(autouse=True)
def _closed(monkeypatch: pytest.MonkeyPatch):
    """Stop every heartbeat when the test ends."""
    made: list[Replica] = []
    join = Replica.join

    def joins(self: Replica, parameters):
        made.append(self)
        return join(self, parameters)

    monkeypatch.setattr(Replica, "join", joins)
    yield
    for replica in made:
        replica.close()


def test_a_delta_that_is_not_finite_is_said_and_not_stored(tmp_path: Path) -> None:
    replica = joined(tmp_path)
    result = replica.sync(dict(NAN), tokens=5)
    assert (result.contributed, result.bytes_sent, result.wasted_tokens) == (False, 0, 5)
    assert result.withheld == "its delta has values that are not finite"
    assert result.commit.empty
    assert result.commit.reasons == "replica 0: its delta has values that are not finite"
    assert not list(replica.log.store.list("rounds/1/delta"))
    assert replica.sync(delta(1)).withheld == ""


def test_more_empty_rounds_than_allowed_fail_the_run(tmp_path: Path) -> None:
    """Also of those that come back, and not only one after the other."""
    replica = joined(tmp_path)
    replica.sync(dict(NAN))
    replica.sync(delta(1))
    with pytest.raises(EmptyRounds, match=r"2 rounds merged nothing \(1, 3\).* not finite"):
        replica.sync(dict(NAN))
    with pytest.raises(EmptyRounds, match=r"run run: 2 rounds .*max_empty_rounds allows 1"):
        joined(tmp_path)
    with pytest.raises(EmptyRounds, match="max_empty_rounds allows 0"):
        joined(tmp_path / "strict", max_empty_rounds=0).sync(dict(NAN))
    patient = joined(tmp_path / "patient", max_empty_rounds=3)
    assert [patient.sync(dict(NAN)).commit.empty for _ in range(3)] == [True] * 3


def test_the_supervisor_sees_empty_rounds_too(tmp_path: Path) -> None:
    log = joined(tmp_path / "outer", replicas=2, rounds=4, inner_steps=5).log
    first = log.commit(0)
    assert first is not None
    for round_ in (1, 2):
        log.try_commit(type(first)(round_, (), (), "", first.state_sha, first.state_key, 1, 0))
    (tmp_path / "outer/runs/run/spec.json").unlink()
    with pytest.raises(EmptyRounds, match=r"2 rounds merged nothing \(1, 2\)"):
        supervisor(tmp_path, "sleep 60", "sleep 60").run()


@pytest.mark.parametrize(
    ("sizes", "merged"),
    [
        ([1, 2, 3, 60], [True, True, True, True]),
        ([1, 2, 3, 61], [True, True, True, False]),
        ([1, 2, 61], [True, True, True]),
    ],
    ids=["as large as allowed", "larger", "too few to compare with"],
)
def test_a_delta_far_above_recent_ones_is_left_out(
    tmp_path: Path, sizes: list[float], merged: list[bool]
) -> None:
    replica = joined(tmp_path)
    results = [replica.sync(delta(size)).commit for size in sizes]
    assert [not commit.empty for commit in results] == merged
    if not all(merged):
        assert "its norm 61 is above 30 times the median 2" in results[-1].reasons
    assert [part.norm for commit in results[:3] for part in commit.included][:2] == [1, 2]


def test_a_delta_of_many_steps_may_be_larger_than_those_of_few(tmp_path: Path) -> None:
    """One step leads to 1 and a hundred to 300, but not further."""
    replica = joined(tmp_path)
    results = [replica.sync(delta(1), work=Work(1)).commit for _ in range(4)]
    results += [replica.sync(delta(size), work=Work(100)).commit for size in (300, 301)]
    assert [commit.empty for commit in results] == [False] * 5 + [True]
    assert "its norm 301 is above 30 times the median 10 of recent ones" in results[-1].reasons
    fast = joined(tmp_path / "fast")
    results = [fast.sync(delta(10), work=Work(100)).commit for _ in range(4)]
    results += [fast.sync(delta(size), work=Work(1)).commit for size in (30, 31)]
    assert [commit.empty for commit in results] == [False] * 5 + [True]


def test_the_guard_remembers_what_was_merged_before_a_restart(tmp_path: Path) -> None:
    first = joined(tmp_path)
    for size in (1, 1, 1):
        first.sync(delta(size))
    assert joined(tmp_path).sync(delta(31)).commit.empty
    free = joined(tmp_path / "free", norm_guard=None)
    assert not any(free.sync(delta(size)).commit.empty for size in (1, 1, 1, 1e6))


@pytest.mark.parametrize(
    ("weights", "tokens", "shares"),
    [
        ("tokens", (10, 30), [0.25, 0.75]),
        ("equal", (10, 30), [0.5, 0.5]),
        ("tokens", (0, 0), [0.5, 0.5]),
    ],
)
def test_replicas_count_alike_or_by_their_tokens(
    tmp_path: Path, weights: str, tokens: tuple[int, int], shares: list[float]
) -> None:
    replica = joined(tmp_path, replicas=2, weights=weights)
    data = encode_delta(Delta.pack(delta(8)))
    key, digest = replica.log.put_delta(1, 1, data)
    replica.log.contribute(
        Contribution(1, 1, 1, key, digest, len(data), replica.sha, tokens[1])
    )  # fmt: skip
    commit = replica.sync(delta(4), tokens=tokens[0]).commit
    assert [part.weight for part in commit.included] == shares
    assert replica.state.theta["w"].tolist() == [1 - (4 * shares[0] + 8 * shares[1]), 1]


def test_replicas_of_another_base_model_do_not_merge(tmp_path: Path) -> None:
    joined(tmp_path, base="weights 1a tokenizer 2b", replicas=2)
    with pytest.raises(InputError) as failure:
        joined(tmp_path, base="weights ff tokenizer 2b", replicas=2, slot=1)
    said = "spec.json of run run does not fit: weights is 1a there and ff here"
    assert str(failure.value) == said


class Poison(TrainerCallback):
    """Spoils the parameters after some steps."""

    def __init__(self, *steps: int) -> None:
        self.steps, self.moments = steps, list[float]()

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step in self.steps:
            with torch.no_grad():
                next(p for p in kwargs["model"].parameters() if p.requires_grad).fill_(torch.nan)
        for held in kwargs["optimizer"].optimizer.state.values():
            self.moments.append(float(held["exp_avg"].sum()))


def callback(tmp_path: Path) -> DiLoCoCallback:
    spec = DiLoCoSpec(rounds=3, inner_steps=4, replicas=1, round_timeout_s=60)
    return DiLoCoCallback(url=str(tmp_path / "outer"), run_id="run", slot=0, spec=spec)


def test_a_replica_recovers_from_a_round_that_was_not_finite(tmp_path: Path) -> None:
    """Its optimizer's moments are as spoiled as the parameters: with them no round would do."""
    replica = callback(tmp_path)
    poison = Poison(2)
    trainer(tmp_path, [poison, replica]).train()
    assert [info["merged"] for info in replica.commits] == [False, True, True]
    assert [bool(info["withheld"]) for info in replica.commits] == [True, False, False]
    assert poison.moments[-1] == poison.moments[-1], "the moments are finite again"


def test_twice_in_a_row_a_replica_leaves(tmp_path: Path) -> None:
    replica = callback(tmp_path)
    replica.replica.spec = replica.spec.model_copy(update={"max_empty_rounds": 3})
    with pytest.raises(Diverged, match=r"replica 0: .*2 rounds one after the other; lower learn"):
        trainer(tmp_path, [Poison(2, 6), replica]).train()
    again = callback(tmp_path / "again")
    again.replica.spec = again.spec.model_copy(update={"max_empty_rounds": 3})
    trainer(tmp_path, [Poison(2, 10), again]).train()
    assert [info["merged"] for info in again.commits] == [False, True, False]
