"""The chaos test in its short form; ``make chaos`` runs the full one.

The driver is a program of its own, so that both forms are the same code.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.postgres import postgres_folder
from tests.places import ROOT

DRIVER = Path(__file__).with_name("chaos_driver.py")


def run(store: str) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.run(
        [sys.executable, str(DRIVER), "--short", store],
        env=env, capture_output=True, text=True, timeout=1200, check=False,
    )  # fmt: skip
    print(process.stdout)
    assert process.returncode == 0, process.stdout + process.stderr[-3000:]
    assert "bars missed: 0" in process.stdout


@pytest.mark.slow
def test_kills_and_faults_on_sqlite() -> None:
    run("sqlite")


@pytest.mark.slow
def test_kills_and_faults_on_postgresql() -> None:
    if postgres_folder() is None:
        required = "postgres" in os.environ.get("COMPOSER_REQUIRE", "")
        assert not required, "PostgreSQL is required and not installed"
        pytest.skip("PostgreSQL is not installed")
    run("postgres")
