"""Slots: who takes which, how often one is started again, and what an onlooker sees."""

import datetime as dt
import os
from pathlib import Path

import msgspec
import pytest

from composer_pipeline.cli.__main__ import main
from composer_pipeline.diloco import inputs, slots
from composer_pipeline.diloco.codecs import Delta, encode_delta
from composer_pipeline.diloco.heartbeat import HeartbeatSender
from composer_pipeline.diloco.inputs import Inputs
from composer_pipeline.diloco.log import Commit, Contribution, CorruptObject, Included, OuterLog
from composer_pipeline.diloco.slots import Claim, claim, claim_free, claims, restarts_used
from composer_pipeline.diloco.views import only_run, overview
from composer_pipeline.errors import InputError
from tests.diloco.test_true_rounds import delta, joined


@pytest.fixture
def log(tmp_path: Path) -> OuterLog:
    return OuterLog.open(str(tmp_path), "run")


def make_old(tmp_path: Path, name: str) -> None:
    path = tmp_path / "runs/run" / name
    then = path.stat().st_mtime - 1000
    os.utime(path, (then, then))


def run_command(*options: str) -> object:
    with pytest.raises(SystemExit) as end:
        main(["replicas", *options])
    return end.value.code


def test_no_two_starts_of_a_slot_have_one_number(log: OuterLog) -> None:
    assert [claim(log, 1), claim(log, 1), claim(log, 0)] == [1, 2, 1]
    assert [(one.slot, one.attempt) for one in claims(log)] == [(0, 1), (1, 1), (1, 2)]


def test_a_free_slot_is_one_that_nobody_has_or_whose_replica_is_dead(log, tmp_path) -> None:
    def free(*which: int) -> tuple[int, int]:
        return claim_free(log, which, timeout_s=60, wait_s=0)

    assert [free(1, 2), free(1, 2)] == [(1, 1), (2, 1)]
    with pytest.raises(InputError, match=r"run run in .* has no free slot \(1, 2\); end a replica"):
        free(1, 2)
    make_old(tmp_path, "slots/1/1.json")
    HeartbeatSender(log, 1, 1, 60)._beat()  # it loads, and shows that it lives
    with pytest.raises(InputError, match="no free slot"):
        free(1, 2)
    make_old(tmp_path, "members/1/1.json")
    assert free(1, 2) == (1, 2)


def test_of_two_that_see_the_same_free_slot_one_takes_it(log, monkeypatch) -> None:
    create = log.store.create

    def overtaken(key: str, data: bytes) -> bool:
        if key == "slots/0/1.json":
            create(key, data)  # the other was faster
        return create(key, data)

    monkeypatch.setattr(log.store, "create", overtaken)
    assert claim_free(log, [0, 1], timeout_s=60, wait_s=0) == (1, 1)


def test_who_leaves_is_not_waited_for(log: OuterLog) -> None:
    pulse = HeartbeatSender(log, 0, 1, 60)
    pulse.start()
    pulse.start()
    assert list(log.members()) == [(0, 1)]
    pulse.leave()
    assert log.members() == {}


def merged(round_: int, *which: int) -> Commit:
    parts = tuple(Included(slot, "k", "s", 1, 1.0, 1, 1) for slot in which)
    return Commit(round_, parts, (), "", "", "", 0, 0)


@pytest.mark.parametrize(
    ("commits", "used"),
    [((), 3), ((merged(1, 1),), 3), ((merged(1, 0, 1),), 2), ((merged(1, 0), merged(2, 0)), 1)],
    ids=["no round yet", "rounds of others only", "one of its own", "two of its own"],
)
def test_a_round_that_merged_a_slot_gives_its_restarts_back(commits, used) -> None:
    """Whoever started it: claims outlive supervisors. A first start of one is none."""
    of = [Claim(0, 1, 0), Claim(0, 2, 0, True), Claim(0, 3, 1, True), Claim(0, 4, 2, True)]
    of += [Claim(0, 5, 2), Claim(1, 1, 0), Claim(1, 2, 2, True)]
    assert restarts_used(of, 0, commits) == used


def test_an_onlooker_sees_rounds_slots_and_who_is_missing(tmp_path, capsys) -> None:
    replica = joined(tmp_path, replicas=2, rounds=2, heartbeat_timeout_s=30)
    claim(replica.log, 0)
    data = encode_delta(Delta.pack(delta(2)))
    key, digest = replica.log.put_delta(1, 1, data)
    replica.log.contribute(Contribution(1, 1, 1, key, digest, len(data), replica.sha, 7))
    replica.sync(delta(1), tokens=5)
    seen = overview(str(tmp_path), only_run(str(tmp_path)))
    assert (seen.done, seen.rounds, seen.tokens, seen.missing) == (1, 2, 12, [1])
    first, second = seen.slots
    assert (first.state, first.attempts, first.merged, first.tokens) == ("alive", 1, 1, 5)
    assert (second.state, second.seen_s, second.merged, second.bytes_sent) == (
        "free",
        None,
        1,
        len(data),
    )
    assert seen.stored_bytes > 2 * len(data)
    make_old(tmp_path, "members/0/1.json")
    replica.close()
    make_old(tmp_path, "members/0/1.json")
    assert overview(str(tmp_path), "run").slots[0].state == "dead"

    assert run_command(str(tmp_path), "--json") == 0
    said = msgspec.json.decode(capsys.readouterr().out)
    assert (said["run_id"], said["missing"], said["tokens"]) == ("run", [0, 1], 12)
    assert run_command(str(tmp_path)) == 0
    text = capsys.readouterr().out
    assert "run run: 1 of 2 rounds" in text
    assert "missing: 0, 1 (a round needs 1 of 2)" in text


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["{tmp}/nowhere"], "nowhere: no such folder"),
        (["{tmp}/empty"], "empty holds no DiLoCo run"),
        (["{tmp}/two"], "two holds the runs a, b; name one with --run-id"),
        (["{tmp}/two", "--run-id", "a b"], "run id 'a b' must be letters"),
        (["{tmp}/two", "--run-id", "c"], "two holds no DiLoCo run c"),
        (["{tmp}/two", "--run-id", "a"], "run a has commits for rounds [0, 2]: some are lost"),
    ],
)
def test_a_run_that_cannot_be_shown_is_one_sentence(tmp_path, capsys, options, says) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("a", "b"):
        log = OuterLog.open(str(tmp_path / "two"), name)
        spec = joined(tmp_path / name).spec
        log.agree(spec)
        for round_ in (0, 2):
            log.try_commit(merged(round_, 0))
    code = run_command(*(option.format(tmp=tmp_path) for option in options))
    said = capsys.readouterr().err
    assert says in said.replace("\n", "")
    assert code == (1 if "lost" in says else 2)


def test_inputs_are_what_was_put_and_stay_in_the_folder(log, tmp_path) -> None:
    (tmp_path / "rows").write_bytes(b"rows")
    given = {"data/rows.arrow": tmp_path / "rows", "agreed.yaml": tmp_path / "rows"}
    mine = Inputs({"recipe": "a"}, "{}", 1)
    there = inputs.publish(log, mine, given)
    assert inputs.read(log) == there == inputs.publish(log, mine, {})
    assert len(log.store.list("inputs")) == 2
    inputs.fetch(log, there, tmp_path / "new", below=("data/",))
    assert [p.name for p in (tmp_path / "new").rglob("*") if p.is_file()] == ["rows.arrow"]
    with pytest.raises(InputError, match=r"run run in .* was started with another recipe; choose"):
        inputs.publish(log, Inputs({"recipe": "b"}, "{}", 1), {})
    log.store.put(there.files["data/rows.arrow"].key, b"torn")
    with pytest.raises(CorruptObject, match="another SHA-256"):
        inputs.fetch(log, there, tmp_path / "other")
    assert not (tmp_path / "other/data/rows.arrow").exists()
    evil = msgspec.structs.replace(there, files={"../x": there.files["agreed.yaml"]})
    with pytest.raises(InputError, match=r"names the path '\.\./x'"):
        inputs.fetch(log, evil, tmp_path / "new")


def test_the_stores_clock_decides_who_is_alive(log, monkeypatch) -> None:
    claim(log, 0)
    later = slots.store_time(log) + dt.timedelta(seconds=100)
    monkeypatch.setattr(slots, "store_time", lambda log: later)
    assert slots.alive_slots(log, 99) == set()
    assert slots.alive_slots(log, 101) == {0}
