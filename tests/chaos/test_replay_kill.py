"""Real processes that replay are killed at random points; money and replies survive."""

import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from composer_pipeline.lake.store import Lake
from composer_pipeline.states.load import load_states
from composer_pipeline.teachers.ledger.ledger import Ledger
from composer_pipeline.teachers.teachers import TeacherSet
from composer_pipeline.testing.openrouter.faults import Fault, SeenRequest
from composer_pipeline.testing.openrouter.server import LoopbackOpenRouter
from composer_pipeline.testing.personas import Script
from tests.fixtures.lake_states import write_sessions
from tests.fixtures.waiting import DEADLINE_S, wait_until
from tests.places import ROOT

DEMO = ROOT / "recipes" / "teachers" / "demo.yaml"

REPLAY = """
import json
import sys
from decimal import Decimal
from pathlib import Path
from composer_pipeline.errors import ComposerError
from composer_pipeline.lake.store import Lake
from composer_pipeline.teachers.run import replay
from composer_pipeline.teachers.teachers import TeacherSet
lake, teachers, usd, run_id = sys.argv[1:]
try:
    report = replay(
        Lake(lake), TeacherSet.model_validate_json(Path(teachers).read_text()),
        max_usd=Decimal(usd), run_id=run_id,
    )
except ComposerError as error:
    sys.exit(str(error))
print(json.dumps(report.to_dict()))
"""


class Stage:
    """A lake, a server, and processes that replay the one against the other."""

    def __init__(self, folder: Path, server: LoopbackOpenRouter, lake: Lake) -> None:
        self.server, self.lake = server, lake
        data = TeacherSet.load(DEMO).model_dump()
        data["endpoint"]["base_url"] = server.url
        data["limits"] |= {"backoff_s": 0.01, "backoff_cap_s": 0.05}
        data["limits"] |= {"read_timeout_s": DEADLINE_S, "drain_s": DEADLINE_S}
        self.teachers = folder / "teachers.json"
        self.teachers.write_text(TeacherSet.model_validate(data).model_dump_json())

    def start(self, usd: str, run_id: str = "chaos") -> subprocess.Popen[str]:
        command = [sys.executable, "-c", REPLAY, self.lake.root, str(self.teachers), usd, run_id]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def wait_for_requests(self, process: subprocess.Popen[str], more: int) -> None:
        """Wait until ``more`` have come; those after them do not end, until ``go_on``."""
        goal = self.server.requests + more
        self.server.held = lambda asked: asked.total > goal
        wait_until(
            lambda: self.server.requests >= goal or process.poll() is not None,
            f"{more} requests",
        )

    def go_on(self) -> None:
        """Let the provider end what it generates; wait for it, as the engine does."""
        self.server.held = None
        wait_until(lambda: not self.server.generating, "the provider is quiet")

    def sums(self) -> tuple[int, int, int]:
        with Ledger(Path(self.lake.root) / "ledger.db") as ledger:
            status = ledger.status()["run:chaos"]
        return status.spent, status.reserved, status.unknown


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.delenv("COMPOSER_OPENROUTER_URL", raising=False)
    lake = Lake(tmp_path / "lake")
    write_sessions(lake, sessions=6, turns=8)  # 48 states, 192 calls
    script = Script.from_states(load_states(lake), {})
    with LoopbackOpenRouter(script, latency=0.03, flaky_faults=False) as server:
        yield Stage(tmp_path, server, lake)


@pytest.mark.slow
def test_kill_nine_loses_nothing_and_buys_nothing_twice(stage: Stage) -> None:
    rng = random.Random(7)
    kills = 0
    for _ in range(4):
        process = stage.start("5")
        stage.wait_for_requests(process, rng.randint(5, 30))
        kills += process.poll() is None
        process.kill()
        process.communicate()
        stage.go_on()
    assert kills >= 3
    process = stage.start("5")
    _, errors = process.communicate(timeout=6000)
    assert process.returncode == 0, errors

    assert stage.server.duplicate_bills() == 0
    assert len(stage.server.bills) == 192
    rows = stage.lake.rows("replies")
    assert len(rows) == 192
    assert {row["status"] for row in rows} == {"ok"}
    assert sum(row["cost_picodollars"] for row in rows) == stage.server.billed
    assert "recovered" in {row["obtained"] for row in rows}
    spent, reserved, unknown = stage.sums()
    assert (spent, reserved) == (stage.server.billed, 0)
    assert spent + unknown <= 5 * 10**12


@pytest.mark.slow
def test_kill_nine_under_a_tight_ceiling_never_overspends(stage: Stage) -> None:
    ceiling = "0.03"
    rng = random.Random(11)
    for _ in range(3):
        process = stage.start(ceiling)
        stage.wait_for_requests(process, rng.randint(5, 15))
        process.kill()
        process.communicate()
        stage.go_on()
        assert stage.server.billed <= Decimal(ceiling) * 10**12
    process = stage.start(ceiling)
    output, errors = process.communicate(timeout=6000)
    assert process.returncode == 0, errors
    assert json.loads(output)["exhausted_scope"] == "run:chaos"

    spent, reserved, unknown = stage.sums()
    assert reserved == 0
    assert stage.server.billed <= spent + unknown <= Decimal(ceiling) * 10**12
    assert stage.server.duplicate_bills() == 0
    rows = [row for row in stage.lake.rows("replies") if row["status"] == "ok"]
    lost = len(stage.server.bills) - len(rows)
    # Recoveries come first and have headroom: what was billed is in the lake.
    assert lost == 0


@pytest.mark.slow
def test_faults_and_kills_together(stage: Stage) -> None:
    """Resets and truncated bodies besides the kills; the bill stays exact."""

    def faults(asked: SeenRequest) -> Fault | None:
        if asked.nth > 1:
            return None
        dice = int(asked.digest[:4], 16) % 12
        return {
            0: Fault("reset"),
            1: Fault("truncate"),
            2: Fault("error", 429, retry_after="0.05"),
            3: Fault("in_body", 502),
            4: Fault("garble"),
        }.get(dice)

    stage.server.faults = faults
    rng = random.Random(3)
    for _ in range(2):
        process = stage.start("5")
        stage.wait_for_requests(process, rng.randint(10, 40))
        process.kill()
        process.communicate()
        stage.go_on()
    process = stage.start("5")
    _, errors = process.communicate(timeout=6000)
    assert process.returncode == 0, errors
    rows = stage.lake.rows("replies")
    assert len(rows) == len(stage.server.bills) == 192
    assert stage.server.duplicate_bills() == 0
    assert sum(row["cost_picodollars"] for row in rows) == stage.server.billed
    assert stage.sums()[:2] == (stage.server.billed, 0)


@pytest.mark.slow
def test_sigterm_drains(stage: Stage) -> None:
    process = stage.start("5")
    stage.wait_for_requests(process, 20)
    process.send_signal(signal.SIGTERM)
    stage.go_on()
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 1
    assert "interrupted" in errors
    bills = len(stage.server.bills)
    assert 0 < bills < 192
    assert stage.sums() == (stage.server.billed, 0, 0)
    assert len(stage.lake.rows("replies")) == bills
