"""The short form of ``make chaos-ingest``, on S3; folders are in ``test_two_at_once``."""

import subprocess
import sys

import pytest

from tests.places import ROOT


@pytest.mark.slow
def test_killed_ingests_of_a_bucket_add_up() -> None:
    pytest.importorskip("boto3", reason="pip install 'moto[server]'")
    command = [sys.executable, str(ROOT / "tests" / "chaos" / "ingest_driver.py")]
    options = ["--processes", "2", "--kills", "2", "--places", "s3"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert "tables that differ: none" in done.stdout
