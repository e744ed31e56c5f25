"""Listings that are stale or lack entries: the log reads on, or says which object is missing."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.diloco import store as stores
from composer_pipeline.diloco.fragments import read_state
from composer_pipeline.diloco.heartbeat import HeartbeatSender
from composer_pipeline.diloco.log import Commit, Contribution, OuterLog, OuterLogError
from composer_pipeline.diloco.slots import alive_slots, claim, store_time
from composer_pipeline.diloco.store import ObjectStore, StoreFailed
from composer_pipeline.diloco.views import history, overview
from composer_pipeline.errors import InputError
from tests.diloco.listings import Listings
from tests.diloco.test_protocol import included, run, spec  # noqa: F401
from tests.diloco.test_true_rounds import delta, joined
from tests.fixtures.waiting import DEADLINE_S

Faults = Callable[..., list[Listings]]


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    """Give every store that is opened from here on its own listings of this kind."""

    def install(**kind: Any) -> list[Listings]:
        made: list[Listings] = []
        opened = ObjectStore.__init__

        def opens(self: ObjectStore, url: str, prefix: str) -> None:
            opened(self, url, prefix)
            made.append(Listings(self, **kind))

        monkeypatch.setattr(ObjectStore, "__init__", opens)
        return made

    return install


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stale listings are waited for no longer than ``store_patience_s``."""
    monkeypatch.setattr(stores, "STALE_S", 0.0)


KINDS: dict[str, dict[str, Any]] = {
    "all 0.4 s stale": {"stale_s": 0.4},
    "of rounds 1 s stale": {"stale_s": 1.0, "below": "/rounds/"},
    "lack 20 % of the entries": {"drop": 0.2},
    "lack half of the entries": {"drop": 0.5},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("patience", [0.0, DEADLINE_S], ids=["impatient", "patient"])
def test_a_run_ends_as_with_true_listings(run, faults, tmp_path, kind, patience) -> None:  # noqa: F811
    """In the same rounds, with the same states and nothing left out."""
    agreed = spec(rounds=3, kept_rounds=2, store_patience_s=patience)
    calm, _ = run(tmp_path / "calm", agreed, seed=7)
    there = calm.commits()
    made = faults(**KINDS[kind])
    _, outcomes = run(tmp_path / "odd", agreed, seed=7)
    assert sum(one.left_out for one in made) > 0, "the fault came"
    assert all(isinstance(results, list) for results in outcomes.values()), outcomes
    log = OuterLog.open(str(tmp_path / "odd"), "run")
    assert [commit.state_sha for commit in log.commits()] == [c.state_sha for c in there]
    assert included(log) == [[0, 1]] * 3
    # And a replica that comes to a run half done finds its place.
    _, outcomes = run(tmp_path / "odd", agreed, [1], attempt=2)
    assert outcomes == {1: []}


def commits(tmp_path: Path, count: int) -> list[Commit]:
    """Commit so many rounds by one replica; return them."""
    replica = joined(tmp_path, kept_rounds=None)
    for _ in range(count):
        replica.sync(delta(1))
    replica.close()
    return OuterLog.open(str(tmp_path), "run").commits()


@pytest.mark.parametrize("hidden", ["/commit.json", "rounds/3/", "rounds/[12]/", "."])
def test_no_round_is_taken_for_open_that_is_committed(tmp_path, faults, hidden) -> None:
    """Whatever a listing lacks: commits are read by their own names."""
    there = commits(tmp_path, 3)
    faults(hidden=hidden, below="rounds")
    log = OuterLog.open(str(tmp_path), "run")
    assert (log.commits(), log.last_round()) == (there, 3)
    assert read_state(str(tmp_path), "run")[1] == there[-1]
    again = joined(tmp_path, kept_rounds=None)
    again.close()
    assert (again.round, again.sha) == (4, there[-1].state_sha)


def test_a_commit_that_is_lost_is_no_stale_listing(tmp_path) -> None:
    commits(tmp_path, 3)
    log = OuterLog.open(str(tmp_path), "run")
    log.store.delete("rounds/2/commit.json")
    with pytest.raises(OuterLogError, match=r"has commits for rounds \[0, 1, 3\]: some are lost"):
        log.commits()


STALE = (
    "the outer log {url}: {what} cannot be listed: the store's listing is stale, it lacks this"
    " object though it was written; mount a file share without caching of folders"
    " (NFS: actimeo=0), or use a bucket"
)


@pytest.mark.parametrize("patience", [0.0, 0.3])
def test_a_heartbeat_that_never_appears_is_one_sentence(tmp_path, faults, short, patience) -> None:
    faults(hidden="/members/0/")
    begun = time.monotonic()
    with pytest.raises(StoreFailed) as failure:
        joined(tmp_path, replicas=2, store_patience_s=patience)
    what = "the heartbeat of a replica (members/0/1.json)"
    assert str(failure.value) == STALE.format(url=tmp_path, what=what)
    assert time.monotonic() - begun >= patience


@pytest.mark.parametrize("patience", [0.0, 0.3])
def test_a_contribution_that_never_appears_is_one_sentence(
    tmp_path, faults, short, patience
) -> None:
    """And nothing was committed without it, or at all."""
    faults(hidden="/contrib/0.json")
    replica = joined(tmp_path, store_patience_s=patience)
    with pytest.raises(StoreFailed) as failure:
        replica.sync(delta(1))
    what = "a contribution to round 1 (rounds/1/contrib/0.json)"
    assert str(failure.value) == STALE.format(url=tmp_path, what=what)
    assert replica.log.last_round() == 0
    replica.close()


def test_an_object_that_was_removed_is_not_called_stale(tmp_path) -> None:
    log = OuterLog.open(str(tmp_path), "run")
    with pytest.raises(
        InputError, match=r"\(rounds/1/contrib/0.json\) cannot be listed: it is not"
    ):
        log.contributions(1, "rounds/1/contrib/0.json")


def test_a_replica_whose_heartbeat_was_removed_beats_again(tmp_path) -> None:
    log = OuterLog.open(str(tmp_path), "run")
    sender = HeartbeatSender(log, 0, 1, 1000.0)
    sender._beat()
    assert set(sender.ages()[0]) == {0}
    log.store.delete("members/0/1.json")
    assert set(sender.ages()[0]) == {0}


def test_a_peer_that_a_listing_lacks_is_alive_and_one_that_left_is_not(tmp_path) -> None:
    mine, peers = (OuterLog.open(str(tmp_path), "run") for _ in "ab")
    sender, peer = HeartbeatSender(mine, 0, 1, 1000.0), HeartbeatSender(peers, 1, 1, 1000.0)
    sender._beat()
    peer._beat()
    assert set(sender.ages()[0]) == {0, 1}
    Listings(mine.store, hidden="members/1")
    assert set(sender.ages()[0]) == {0, 1}
    peer.leave()
    assert set(sender.ages()[0]) == {0}


def test_a_contribution_once_seen_stays_with_the_time_of_the_first(tmp_path) -> None:
    log = OuterLog.open(str(tmp_path), "run")
    for slot in (0, 1):
        log.contribute(Contribution(1, slot, 1, "k", "s", 1, "b"))
    seen = log.contributions(1)
    assert set(seen[0]) == {0, 1}
    Listings(log.store, hidden="contrib/0")
    assert log.contributions(1) == seen
    assert log.contribution(1, 0) == seen[0][0]
    assert log.contribution(2, 0) is None


def test_the_stores_time_and_who_is_alive_need_no_listing_of_the_clock(tmp_path) -> None:
    log = OuterLog.open(str(tmp_path), "run")
    Listings(log.store, hidden="/clock/")
    claim(log, 1)
    assert (store_time(log) - store_time(log)).total_seconds() <= 0
    assert alive_slots(log, 60) == {1}


def test_an_onlooker_draws_what_is_listed(tmp_path) -> None:
    replica = joined(tmp_path)
    claim(replica.log, 0)
    replica.sync(delta(1))
    replica.close()
    for seed in range(20):
        log = OuterLog.open(str(tmp_path), "run")
        Listings(log.store, drop=0.5)._random.seed(seed)
        assert [mark.round for mark in history(log).rounds] == [1]
    assert overview(str(tmp_path), "run").done == 1


def test_a_place_that_was_emptied_is_one_sentence(tmp_path) -> None:
    replica = joined(tmp_path, replicas=2, join_timeout_s=0.01)
    commit = replica.log.commit(0)
    assert commit is not None
    for entry in replica.log.store.list("rounds"):
        replica.log.store.delete(entry.key)
    replica.close()
    with pytest.raises(OuterLogError) as failure:
        replica._follow(Commit(1, (), (), "other", "other", "", 0, 1))
    assert str(failure.value) == "run run: its commits are gone from the log"
