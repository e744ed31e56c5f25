"""A replica whose uplink is slow sends fewer bytes, and its upload counts as its time."""

import threading
import time
from typing import Any

import pytest
import torch

from composer_pipeline.diloco.codecs import CODECS, Delta, bytes_of, encode_delta
from composer_pipeline.diloco.fragments import read_state
from composer_pipeline.diloco.log import Commit, Included, OuterLog
from composer_pipeline.diloco.replica import Replica
from composer_pipeline.diloco.rounds import Pace
from composer_pipeline.diloco.spec import DiLoCoSpec
from tests.fixtures.waiting import DEADLINE_S

SIZE, ROUNDS, GRACE_S = 40_000, 24, 0.5


class SlowLog(OuterLog):
    """A log to which a delta travels at so many bytes a second."""

    rate = 0.0

    def put_delta(self, round_: int, slot: int, data: Any) -> tuple[str, str]:
        if self.rate:
            time.sleep(len(data) / self.rate)
        return super().put_delta(round_, slot, data)


def trained(folder: str, spec: DiLoCoSpec, slot: int, rate: float) -> None:
    """Follow a run from its beginning to its end with random changes."""
    log = SlowLog.open(folder, "run")
    assert isinstance(log, SlowLog)
    log.rate = rate
    replica = Replica(log, spec, slot)
    replica.join({"w": torch.zeros(SIZE)})
    while not replica.finished:
        time.sleep(0.05)
        generator = torch.Generator().manual_seed(100 * replica.round + slot)
        replica.sync({"w": torch.randn(SIZE, generator=generator)}, tokens=1)
    replica.close()


def test_an_uplink_three_times_slower_than_the_grace_time_is_in_nine_of_ten_rounds(tmp_path):
    spec = DiLoCoSpec(
        rounds=ROUNDS, inner_steps=1, replicas=2, grace_s=GRACE_S, kept_rounds=None,
        heartbeat_timeout_s=DEADLINE_S, join_timeout_s=DEADLINE_S,
    )  # fmt: skip
    rate = bytes_of("fp32", SIZE) / (3 * GRACE_S)
    folder = str(tmp_path)
    threads = [
        threading.Thread(target=trained, args=[folder, spec, slot, slot * rate], daemon=True)
        for slot in (0, 1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    log = OuterLog.open(folder, "run")
    every = [part for c in log.commits()[1:] for part in c.included]
    sizes = {slot: [part.size for part in every if part.slot == slot] for slot in (0, 1)}
    assert len(sizes[1]) >= 0.9 * ROUNDS
    assert max(sizes[1]) < bytes_of("int8", SIZE), "it sends integers of four bits or two"
    assert min(sizes[0]) > bytes_of("fp32", SIZE), "the other's changes are whole"
    read_state(folder, "run")  # what was committed follows from what was sent


def test_what_a_coarse_codec_lost_is_sent_once_when_the_uplink_is_fast_again(tmp_path):
    spec = DiLoCoSpec(
        rounds=9, inner_steps=1, replicas=2, error_feedback=True, join_timeout_s=0.01,
        heartbeat_timeout_s=0.5, takeover_s=0.01, outer="fedavg",
    )  # fmt: skip
    replica = Replica(OuterLog.open(str(tmp_path), "run"), spec, 0)
    replica.join({"w": torch.zeros(SIZE)})
    change = torch.randn(SIZE, generator=torch.Generator().manual_seed(1))
    replica._byte_s = 1e9
    replica.sync({"w": change}, tokens=1)
    assert not torch.allclose(replica.state.theta["w"], -change, atol=0.1), "two bits"
    for _ in range(2):
        replica._byte_s = 0.0
        replica.sync({"w": torch.zeros(SIZE)}, tokens=1)
        torch.testing.assert_close(replica.state.theta["w"], -change, rtol=0, atol=1e-5)
    replica.close()


def test_the_bytes_of_a_codec_are_those_that_it_sends():
    for codec in CODECS:
        delta = Delta.pack({"w": torch.randn(SIZE)}, codec)
        assert 0 < len(encode_delta(delta)) - bytes_of(codec, SIZE) < 1000
    sizes = [bytes_of(codec, SIZE) for codec in CODECS]
    assert sizes == sorted(sizes, reverse=True)


def commit(*parts: tuple[float, float]) -> Commit:
    """Return a commit of slots with seconds of a step and of an upload."""
    included = tuple(
        Included(slot, "", "", 0, 0.5, 1, 1, 1.0, 10, seconds, upload)
        for slot, (seconds, upload) in enumerate(parts)
    )
    return Commit(1, included, (), "", "", "", 0, 0)


@pytest.mark.parametrize(
    ("overlap", "expected"), [(0, [100, 60]), (20, [100, 80]), (40, [100, 100])]
)
def test_an_upload_leaves_less_time_for_steps_but_for_what_overlaps(overlap, expected):
    """A step takes a second, the upload of slot 1 takes 40."""
    spec = DiLoCoSpec(
        rounds=9, inner_steps=100, replicas=2, pace="equal-time", overlap_steps=overlap
    )
    pace = Pace(spec)
    pace.note(commit((1.0, 0.0), (1.0, 40.0)))
    assert [pace.steps(slot) for slot in (0, 1)] == expected
    pace.note(commit((1.0, 0.0), (1.0, 4000.0)))
    assert pace.steps(1) == 1
