"""A night that was killed anywhere is made good by the next one, and nothing is bought twice."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.lake import Lake
from composer_pipeline.replay.ledger import Ledger
from examples.demo.profile import loopback
from tests.care.ticks import tick
from tests.places import ROOT

pytestmark = pytest.mark.slow

#: Where a night is killed, as shares of its writes: in the archive, with replies, in pairs.
SHARES = (0.3, 0.65, 0.97)
#: Tables whose bytes are a function of sessions alone.
EXACT = ("raw_files", "sessions", "messages", "chains", "states", "hints")


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
    command = [sys.executable, "-m", "tests.care.ticks", str(lake), *at]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def content(folder: Path) -> dict[str, Any]:
    lake = Lake(folder)
    found: dict[str, Any] = {
        table: {p["day"]: Path(lake.path(table, **p)).read_bytes() for p in lake.partitions(table)}
        for table in EXACT
    }
    columns = {
        "replies": ["state_id", "teacher", "request_hash", "status", "action"],
        "votes": ["state_id", "reason", "tier", "winners"],
        "pairs": ["pair_id", "chosen", "rejected"],
        "normalized_pairs": ["pair_id", "chosen", "rejected", "recipe"],
    }
    for table, names in columns.items():
        rows = [tuple(str(row[name]) for name in names) for row in lake.rows(table)]
        found[table] = sorted(rows)
    with Ledger(folder / "ledger.db") as ledger:
        held = ledger.status()["global"]
    # Every cent is that of a reply in the lake: nothing was bought twice, or lost.
    kept = sum(row["cost_picodollars"] or 0 for row in lake.rows("replies"))
    found["money"] = (int(held.spent) - kept, int(held.reserved), int(held.unknown))
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("calm") / "lake"
    done = night(folder)
    assert done.returncode == 0, done.stderr
    return int(done.stdout), content(folder)


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
    found = content(folder)
    assert found["money"] == (0, 0, 0)
    assert {name for name in wanted if found[name] != wanted[name]} == set()
