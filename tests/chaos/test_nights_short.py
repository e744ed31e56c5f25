"""The short form of ``make chaos-nights``: one bad night through Dagster's own daemon code."""

import subprocess
import sys

import pytest

from tests.places import ROOT

#: A parser of before, a teacher that is away, and the end of its purchase unknown to Dagster.
BAD_NIGHT = "teacher-away+parser-raised+after:replay_and_pair/replay"


@pytest.mark.slow
def test_two_nights_after_a_bad_one_the_lake_is_as_if_it_had_been_good() -> None:
    command = [sys.executable, str(ROOT / "tests" / "chaos" / "nights_driver.py"), "--days", "1"]
    done = subprocess.run(
        [*command, "--only", BAD_NIGHT], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert f"{BAD_NIGHT}: healed" in done.stdout
