"""Runs whose rounds merge one fragment of the parameters each, in turn."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from composer_pipeline.diloco.fragments import fragment_names, read_state
from composer_pipeline.diloco.log import Commit, OuterLog
from composer_pipeline.diloco.outer_optimizer import OuterState, pseudo_gradient
from composer_pipeline.diloco.replica import Replica
from composer_pipeline.diloco.spec import DiLoCoSpec
from composer_pipeline.errors import InputError
from tests.diloco.test_processes import first_state, oracle
from tests.diloco.test_protocol import kill_at, spec
from tests.diloco.test_protocol import run as run  # a fixture

PRESENT: list[Replica] = []
#: Two fragments of equal size: "a" has the odd rounds, "b" the even ones.
START = {"a.w": torch.ones(2), "b.w": torch.ones(2)}


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while PRESENT:
        PRESENT.pop().close()


def joined(path: Path, *, slot: int = 0, attempt: int = 1, **fields) -> Replica:
    quick = {"join_timeout_s": 0.01, "grace_s": 20, "heartbeat_timeout_s": 2, "takeover_s": 0.01}
    agreed = DiLoCoSpec.model_validate(
        {
            "replicas": 1, "rounds": 9, "inner_steps": 1, "fragments": 2, "outer_lr": 1.0,
            "outer_momentum": 0.0, **quick, **fields,
        }
    )  # fmt: skip
    replica = Replica(OuterLog.open(str(path), "run"), agreed, slot, attempt)
    PRESENT.append(replica)
    replica.join(START)
    return replica


def change(a: float, b: float) -> dict[str, torch.Tensor]:
    """A change whose norms are ``a`` and ``b``."""
    return {"a.w": torch.tensor([a, 0.0]), "b.w": torch.tensor([b, 0.0])}


def first_of(replica: Replica) -> tuple[float, float]:
    """The first element of each parameter."""
    return replica.state.theta["a.w"][0].item(), replica.state.theta["b.w"][0].item()


# -- dealing -----------------------------------------------------------------------------------


def layers(count: int = 12) -> dict[str, torch.Tensor]:
    """The parameters of some equal layers."""
    parts = ("attention.q", "mlp.up", "norm")
    return {f"model.layers.{n}.{part}": torch.zeros(4) for n in range(count) for part in parts}


def test_layers_stay_together_and_neighbours_are_apart() -> None:
    fragments = fragment_names(layers(), 3)
    numbers = [sorted({int(name.split(".")[2]) for name in part}) for part in fragments]
    assert numbers == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]
    assert sorted(name for part in fragments for name in part) == sorted(layers())
    assert fragment_names(dict(reversed(layers().items())), 3) == fragments


def test_fragments_are_of_about_the_same_size() -> None:
    """A module outside of the layers stays together too."""
    outside = {"model.embed.weight": 50, "head.weight": 90, "head.bias": 10}
    parameters = layers() | {name: torch.zeros(size) for name, size in outside.items()}
    fragments = fragment_names(parameters, 3)
    assert [sum(parameters[n].numel() for n in part) for part in fragments] == [100, 98, 96]
    assert fragments[0] == ["head.bias", "head.weight"]


def test_of_few_layers_each_parameter_goes_by_itself(toy) -> None:
    parameters = toy.Inner(0).parameters()
    assert fragment_names(parameters, 1) == [["0.bias", "0.weight", "2.bias", "2.weight"]]
    assert fragment_names(parameters, 2) == TWO
    assert fragment_names(parameters, 3) == THREE
    message = "diloco.fragments is 5, and the model has 4 trained tensors"
    with pytest.raises(InputError, match=message):
        fragment_names(parameters, 5)


def test_tensors_without_elements_make_no_fragment_empty() -> None:
    fragments = fragment_names({f"{n}.w": torch.zeros(0) for n in range(3)}, 3)
    assert sorted(map(len, fragments)) == [1, 1, 1]


def test_a_model_of_too_few_tensors_is_refused_before_anything_is_written(tmp_path) -> None:
    with pytest.raises(InputError, match="has 2 trained tensors"):
        joined(tmp_path, fragments=3)
    assert not list(OuterLog.open(str(tmp_path), "run").store.list(""))


# -- a run of real replicas --------------------------------------------------------------------

#: How the toy's parameters are fragment_names.
TWO = [["0.bias", "0.weight"], ["2.bias", "2.weight"]]
THREE = [["0.weight"], ["2.weight"], ["0.bias", "2.bias"]]


@pytest.mark.parametrize(
    ("fragments", "changes"),
    [
        (TWO, {}),
        (THREE, {"codec": "int8", "kept_rounds": 4, "rounds": 8}),
        (TWO, {"codec": "int4", "error_feedback": True}),
    ],
)
def test_a_run_equals_plain_tensors(run, toy, tmp_path, fragments, changes) -> None:
    agreed = spec(fragments=len(fragments), **{"rounds": 5, "kept_rounds": None, **changes})
    log, outcomes = run(tmp_path, agreed)
    if agreed.kept_rounds is None:
        shas = oracle(toy, first_state(log), agreed, {}, fragments)
        assert [commit.state_sha for commit in log.commits()[1:]] == shas
    else:  # what the first state needs is removed: the last one is that of a run that keeps all
        whole, _ = run(tmp_path / "whole", agreed.model_copy(update={"kept_rounds": None}), seed=7)
        log, outcomes = run(tmp_path / "again", agreed, seed=7)
        assert [c.state_sha for c in log.commits()] == [c.state_sha for c in whole.commits()]
        assert oracle(toy, first_state(whole), agreed, {}, fragments) == [
            commit.state_sha for commit in log.commits()[1:]
        ]
    assert all(result.contributed for results in outcomes.values() for result in results)
    late = Replica(log, agreed, 1, 9)
    late.join(toy.Inner(1).parameters())
    late.close()
    assert late.sha == log.commits()[-1].state_sha
    # A round's bytes are those of its fragment; the last one's are everything.
    sizes = [commit.included[0].size for commit in log.commits()[1:]]
    assert sizes[-1] == max(sizes)
    assert all(size < sizes[-1] for size in sizes[:-1])


def test_a_killed_replica_comes_back_into_the_fragments(run, toy, tmp_path) -> None:
    """It trains its round again from the whole state; the others keep what they have trained."""
    agreed = spec(fragments=2, rounds=5, kept_rounds=None)
    kills = {slot: kill_at("inner", 3) for slot in (0, 1)}
    log, _ = run(tmp_path, agreed, hooks=kills, silence=None)
    assert log.last_round() == 2
    log, _ = run(tmp_path, agreed, attempt=2)
    shas = oracle(toy, first_state(log), agreed, {3: {0, 1}}, TWO)
    assert [commit.state_sha for commit in log.commits()[1:]] == shas


def test_every_state_can_be_read(run, tmp_path) -> None:
    log, _ = run(tmp_path, spec(fragments=2, rounds=5, kept_rounds=None))
    before = read_state(str(tmp_path), "run", 0)[0]
    for round_, names in enumerate([*TWO, *TWO, [*TWO[0], *TWO[1]]], 1):
        theta, commit = read_state(str(tmp_path), "run", round_)
        assert {n for n in theta if not torch.equal(theta[n], before[n])} == set(names)
        assert commit == log.commit(round_)
        before = theta


def test_a_replica_alone_trains_what_it_would_without_rounds(toy, tmp_path) -> None:
    agreed = DiLoCoSpec(rounds=5, inner_steps=3, replicas=1, fragments=2)
    replica = Replica(OuterLog.open(str(tmp_path), "run"), agreed, 0)
    inner, plain = toy.Inner(0), toy.Inner(0)
    inner.adopt(replica.join(inner.parameters()).theta)
    while not replica.finished:
        round_ = replica.round
        inner.steps(round_, 3)
        plain.steps(round_, 3)
        delta = pseudo_gradient(replica.state.theta, inner.parameters())
        result = replica.sync(delta, local=inner.parameters())
        inner.adopt(replica.state.theta, result.changed)
    replica.close()
    theta = replica.state.theta
    assert all(torch.equal(theta[n], p) for n, p in plain.parameters().items())


# -- one round after the other -----------------------------------------------------------------


def test_a_round_changes_its_fragment_and_no_other(tmp_path: Path) -> None:
    replica = joined(tmp_path, rounds=3)
    results = []
    for a, b in ((1, 10), (2, 20), (4, 40)):
        results.append(replica.sync(change(a, b)))
    assert first_of(replica) == (1 - 1 - 4, 1 - 20 - 40)
    assert [result.changed for result in results] == [{"a.w"}, {"b.w"}, {"a.w", "b.w"}]
    assert [result.norm for result in results[:2]] == [1, 20]


def test_commits_say_what_they_merge_and_those_of_whole_rounds_are_as_ever(tmp_path) -> None:
    def said(path: Path, **fields) -> list[object]:
        replica = joined(path, rounds=3, **fields)
        while not replica.finished:
            replica.sync(change(1, 1))
        files = [path / f"runs/run/rounds/{n}/commit.json" for n in range(4)]
        return [json.loads(file.read_text()).get("fragment", "all") for file in files]

    assert said(tmp_path / "2") == ["all", 0, 1, "all"]
    assert said(tmp_path / "1", fragments=1) == ["all"] * 4


def test_a_longer_run_knows_what_the_end_of_the_earlier_one_merged(tmp_path: Path) -> None:
    """Where only the deltas lead over it: for a replica, and for a reader."""
    short = joined(tmp_path, rounds=3, kept_rounds=None)
    while not short.finished:
        short.sync(change(1, 2))
    (tmp_path / "runs/run/spec.json").unlink()
    short.log.store.put(short.log.commits()[3].state_key, b"torn")
    longer = joined(tmp_path, attempt=2, rounds=6, kept_rounds=None)
    assert (longer.round, longer.sha) == (4, short.sha)
    assert torch.equal(read_state(str(tmp_path), "run")[0]["a.w"], short.state.theta["a.w"])
    assert longer.sync(change(1, 2)).changed == {"b.w"}


def test_another_number_of_fragments_is_refused(tmp_path: Path) -> None:
    joined(tmp_path, replicas=2)
    with pytest.raises(InputError, match="fragments is 2 there and 1 here"):
        joined(tmp_path, replicas=2, slot=1, fragments=1)


@pytest.mark.parametrize(
    ("rounds", "changed"),
    [(1, {"a.w"}), (2, {"a.w", "b.w"}), (4, {"a.w", "b.w"}), (7, {"a.w", "b.w"})],
)
def test_who_was_left_behind_takes_what_has_changed_since(tmp_path, rounds, changed) -> None:
    """After four rounds the changes of the first are removed, and it goes to a whole state."""
    slow = joined(tmp_path, slot=1, replicas=2, kept_rounds=4)
    slow.leave()
    fast = joined(tmp_path, replicas=2, kept_rounds=4)
    for _ in range(rounds):
        fast.sync(change(1, 1))
    result = slow.sync(change(5, 5))
    assert (result.contributed, result.changed) == (False, changed)
    assert (slow.round, slow.sha, first_of(slow)) == (fast.round, fast.sha, first_of(fast))
    assert slow._guard.norms == fast._guard.norms


def commit_without(replica: Replica, round_: int) -> None:
    """The others commit a round without this replica, and leave the state as it is."""
    first = replica.log.commit(0)
    assert first is not None
    state = replica.sha, first.state_key, first.state_size
    replica.log.try_commit(
        Commit(round_, (), (), replica.sha, *state, 1, 0, replica.spec.fragment(round_))
    )


def test_a_late_change_is_carried_to_the_next_turn_of_its_fragment(tmp_path: Path) -> None:
    replica = joined(tmp_path, late_decay=0.5, max_empty_rounds=9, norm_guard=None)
    commit_without(replica, 1)
    assert not replica.sync(change(8, 0), tokens=10).contributed
    assert replica.sync(change(0, 3), tokens=1).commit.tokens == 1
    assert first_of(replica) == (1, 1 - 3)
    kept = replica.private()
    assert replica.sync(change(2, 0), tokens=1).commit.tokens == 11
    assert first_of(replica) == (1 - 2 - 0.5 * 8, 1 - 3)
    assert not replica._late
    # A restart at the beginning of round 3 has it; one behind its commit has carried it.
    again = joined(tmp_path, attempt=2, late_decay=0.5, max_empty_rounds=9, norm_guard=None)
    again.load_private(*kept)
    assert not again._late
    tensors, numbers = kept
    again.load_private(tensors, {**numbers, "round": again.round})
    assert again._late.keys() == {0}
    assert again._late[0][1] == 10


def test_what_is_late_of_each_fragment_waits_for_its_own_turn(tmp_path: Path) -> None:
    replica = joined(tmp_path, late_decay=0.5, max_empty_rounds=9, norm_guard=None)
    for round_, (a, b) in ((1, (8, 0)), (2, (0, 4))):
        commit_without(replica, round_)
        replica.sync(change(a, b), tokens=10 * round_)
    results = [replica.sync(change(1, 1), tokens=1).commit for _ in range(2)]
    assert [commit.tokens for commit in results] == [11, 21]
    assert first_of(replica) == (1 - 1 - 0.5 * 8, 1 - 1 - 0.5 * 4)


def test_what_the_codec_lost_waits_for_its_fragment(tmp_path: Path) -> None:
    wide = {name: torch.linspace(-1, 1, 64) for name in START}
    options = {"codec": "int2", "error_feedback": True, "norm_guard": None}

    def start(attempt: int) -> Replica:
        agreed = DiLoCoSpec.model_validate(
            {"replicas": 1, "rounds": 9, "inner_steps": 1, "fragments": 2} | options
        )
        replica = Replica(OuterLog.open(str(tmp_path), "run"), agreed, 0, attempt)
        replica.join({name: torch.zeros(64) for name in START})
        replica.close()
        return replica

    replica = start(1)
    replica.sync(wide)
    assert replica.lost.keys() == {"a.w"}
    first = replica.lost["a.w"].clone()
    replica.sync(wide)
    assert torch.equal(replica.lost["a.w"], first)
    kept = replica.private()
    replica.sync(wide)
    assert not torch.equal(replica.lost["a.w"], first)
    # Behind the commit of round 3 what was lost of "a" before has been carried, and of "b" not.
    again = start(2)
    again.load_private(*kept)
    assert again.lost.keys() == {"b.w"}
    assert torch.equal(again.lost["b.w"], replica.lost["b.w"])


@pytest.mark.parametrize(
    ("sizes", "merged"),
    [
        ([(1, 0), (0, 100)] * 3 + [(30, 0), (0, 3000)], [True, True]),
        ([(1, 0), (0, 100)] * 3 + [(31, 0), (0, 3000)], [False, True]),
        ([(1, 0), (0, 100)] * 3 + [(1, 0), (0, 3001)], [True, False]),
    ],
)
def test_a_change_is_judged_by_those_of_its_own_fragment(tmp_path, sizes, merged) -> None:
    replica = joined(tmp_path)
    results = [replica.sync(change(*size)).commit for size in sizes]
    assert [not commit.empty for commit in results] == [True] * 6 + merged


@pytest.mark.parametrize(("size", "merged"), [((30, 3000), True), ((31, 1), False)])
def test_the_last_round_is_judged_fragment_by_fragment(tmp_path, size, merged) -> None:
    """Beside the large one a small one would not be seen."""
    replica = joined(tmp_path, rounds=7)
    for _ in range(3):
        replica.sync(change(1, 0))
        replica.sync(change(0, 100))
    commit = replica.sync(change(*size)).commit
    assert (not commit.empty) == merged
    assert not merged or commit.included[0].norm == pytest.approx((30**2 + 3000**2) ** 0.5)


def test_who_was_not_finite_takes_everything(tmp_path: Path) -> None:
    replica = joined(tmp_path)
    result = replica.sync({name: tensor / 0 for name, tensor in change(1, 1).items()})
    assert result.withheld
    assert result.commit.empty
    assert result.changed == START.keys()
    assert first_of(replica) == (1, 1)


def test_an_empty_round_drops_its_fragment_alone(tmp_path: Path) -> None:
    """As an empty round of a whole model does: the next change is from the state that is there."""
    replica = joined(tmp_path, replicas=2, max_empty_rounds=1)
    commit_without(replica, 1)
    assert replica.sync(change(5, 0)).changed == {"a.w"}
    replica.sync(change(0, 3))
    assert first_of(replica) == (1, 1 - 3)


def test_the_momentum_of_other_fragments_stays(tmp_path: Path) -> None:
    replica = joined(tmp_path, outer_lr=1.0, outer_momentum=0.5, rounds=9)
    for a, b in ((2, 0), (0, 4), (0, 0)):
        replica.sync(change(a, b))
    state: OuterState = replica.state
    assert state.momentum["a.w"][0].item() == 0.5 * 2
    assert state.momentum["b.w"][0].item() == 4
    # Nesterov: the change and half of the momentum with it, then half of what is left of that.
    assert first_of(replica) == (1 - (2 + 1) - 0.5, 1 - (4 + 2))


def test_momentum_pays_where_each_fragment_is_merged_often_enough() -> None:
    def outer(**fields) -> tuple[float, float]:
        return DiLoCoSpec.model_validate({"inner_steps": 1, **fields}).outer_step

    assert outer(rounds=12, fragments=2) == (0.4, 0.8)
    assert outer(rounds=11, fragments=2) == (1.0, 0.0)
