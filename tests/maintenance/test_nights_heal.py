"""A night that was killed anywhere is made good by the next one, and nothing is bought twice."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.lake.store import Lake
from examples.demo.profile import loopback
from tests.fixtures.lake_content import content
from tests.maintenance.ticks import tick
from tests.places import ROOT

pytestmark = pytest.mark.slow

#: Where a night is killed, as shares of its writes: in the archive, in pairs. The end of a purchase
#: is ``tests/chaos/test_nights_short.py``'s.
SHARES = (0.3, 0.97)


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[dict[str, str]]:
    names = ("COMPOSER_OPENROUTER_URL", "COMPOSER_LOOPBACK_KEY")
    with loopback():
        yield {name: os.environ[name] for name in names}


@pytest.fixture(autouse=True)
def _at_the_server(server: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in server.items():
        monkeypatch.setenv(name, value)


def night(lake: Path, *at: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.maintenance.ticks", str(lake), *at]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("calm") / "lake"
    done = night(folder)
    assert done.returncode == 0, done.stderr
    return int(done.stdout), content(Lake(folder))


@pytest.mark.parametrize("share", SHARES)
def test_two_further_nights_give_the_lake_of_an_undisturbed_one(
    undisturbed: tuple[int, dict[str, Any]], tmp_path: Path, share: float
) -> None:
    writes, wanted = undisturbed
    folder = tmp_path / "lake"
    killed = night(folder, str(1 + int(share * writes)))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    tick(Lake(folder))
    tick(Lake(folder))
    found = content(Lake(folder))
    assert found["money"] == (0, 0, 0)
    assert {name for name in wanted if found[name] != wanted[name]} == set()
