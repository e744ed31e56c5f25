"""The short form of ``make chaos-diloco``: every fault once, on a folder or on S3."""

import subprocess
import sys

import pytest

from tests.places import ROOT


@pytest.mark.slow
def test_replicas_survive_each_fault() -> None:
    pytest.importorskip("boto3", reason="pip install 'moto[server]'")
    command = [sys.executable, str(ROOT / "tests" / "chaos" / "diloco_driver.py")]
    done = subprocess.run(
        [*command, "--short", "--patient"], capture_output=True, text=True, timeout=1200
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert ", 0 with something wrong" in done.stdout
