"""Who is alive, by the store's clock alone."""

import datetime as dt
from pathlib import Path

import pytest

from composer_pipeline.diloco.heartbeat import HeartbeatSender
from composer_pipeline.diloco.log import OuterLog


def test_ages_are_of_a_slots_latest_attempt_by_the_stores_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = OuterLog.open(str(tmp_path), "run")
    # The store's present is years from this machine's.
    mine = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    seen = {(0, 2): 0, (0, 1): 50, (1, 1): 100, (1, 2): 3, (2, 1): -1}
    beats = {who: mine - dt.timedelta(seconds=age) for who, age in seen.items()}
    monkeypatch.setattr(log, "members", lambda: beats)
    assert HeartbeatSender(log, 0, 2, 1.0).ages() == ({0: 0.0, 1: 3.0, 2: -1.0}, mine)
