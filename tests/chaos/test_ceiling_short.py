"""The short form of ``make chaos-ceiling``: killed runs of a backfill and its ceiling."""

import re
import subprocess
import sys

import pytest

from tests.places import ROOT


@pytest.mark.slow
def test_a_killed_backfill_stays_below_what_was_typed() -> None:
    command = [sys.executable, str(ROOT / "tests" / "chaos" / "ceiling_driver.py")]
    options = ["--schedules", "1", "--chunks", "4", "--again", "1", "--seed", "54"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert "every paid day green: 1 of 1" in done.stdout
    found = re.search(r"(\d+) green", done.stdout)
    assert found
    assert int(found[1]) > 0  # the ceiling left something to be held to
