"""A changed price cap buys no stored reply again; what was lost under another stays charged."""

import json
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.lake.store import Lake
from composer_pipeline.teachers.ledger.ledger import Ledger
from composer_pipeline.teachers.replies import rebuild
from composer_pipeline.teachers.report import ReplayReport
from composer_pipeline.teachers.run import replay
from composer_pipeline.teachers.teachers import TeacherSet
from composer_pipeline.testing.openrouter.faults import Fault, SeenRequest
from composer_pipeline.testing.openrouter.server import LoopbackOpenRouter

Serve = Callable[..., LoopbackOpenRouter]
NAMES = ["careful", "steady"]


def capped(teacher_set: TeacherSet, factor: str = "2", **limits: Any) -> TeacherSet:
    """Return the same teachers with every cap multiplied."""
    data = teacher_set.model_dump()
    for teacher in data["teachers"]:
        price = teacher["max_price"]
        teacher["max_price"] = {name: price[name] * Decimal(factor) for name in price}
    data["limits"] |= limits
    return TeacherSet.model_validate(data)


def run(lake: Lake, teacher_set: TeacherSet, target: str | Path, **more: Any) -> ReplayReport:
    options = {"max_usd": Decimal(20), "teachers": NAMES, **more}
    return replay(lake, teacher_set, ledger=target, **options)


def sums(target: str | Path) -> tuple[int, int, int]:
    with Ledger(target) as ledger:
        held = ledger.status()["global"]
    return held.spent, held.reserved, held.unknown


def command(lake: Lake, teacher_set: TeacherSet, folder: Path, name: str) -> list[str]:
    file = folder / f"{name}.yaml"
    file.write_text(teacher_set.model_dump_json())
    return [
        sys.executable, "-m", "composer_pipeline.cli", "replay", "--json", "--max-usd", "20",
        "--teachers", str(file), "--lake", lake.root,
    ]  # fmt: skip


def started(arguments: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def told(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def states_bought(server: LoopbackOpenRouter, lake: Lake) -> None:
    """Every question was billed once, whatever the cap of the body was."""
    rows = lake.rows("replies")
    assert len(server.bills) == len(rows) == 48
    assert {row["status"] for row in rows} == {"ok"}
    assert sum(row["cost_picodollars"] for row in rows) == server.billed


@pytest.mark.slow
def test_a_raised_cap_buys_nothing_through_the_command_line(
    lake: Lake, teacher_set: TeacherSet, serve: Serve, tmp_path: Path
) -> None:
    server = serve()
    first = told(started(command(lake, teacher_set, tmp_path, "first")))
    requests, billed, rows = server.requests, server.billed, lake.rows("replies")
    assert (first["calls"], requests) == (48, 48)
    again = told(started(command(lake, capped(teacher_set), tmp_path, "raised")))
    assert (again["calls"], again["cached"], again["spent_usd"]) == (0, 48, 0)
    assert (server.requests, server.billed) == (requests, billed)
    assert lake.rows("replies") == rows
    assert sums(Path(lake.root) / "ledger.db") == (billed, 0, 0)


@pytest.mark.slow
def test_a_cap_that_changes_between_a_kill_and_the_next_run(
    lake: Lake, teacher_set: TeacherSet, serve: Serve, tmp_path: Path
) -> None:
    server = serve()
    lost: list[str] = []

    def faults(asked: SeenRequest) -> Fault | None:
        if asked.nth > 1 or len(server.bills) < 8:
            return None
        lost.append(asked.digest)
        return Fault("hang")  # billed, and the killed process never sees the reply

    server.faults = faults
    patient = capped(teacher_set, "1", recover_after_s=0.5)
    process = started(command(lake, patient, tmp_path, "first"))
    end = time.monotonic() + 60
    while not lost and process.poll() is None and time.monotonic() < end:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert lost
    assert 0 < len(server.bills) < 48
    server.faults = None
    told(started(command(lake, capped(teacher_set, "3", recover_after_s=0.5), tmp_path, "next")))
    rows = lake.rows("replies")
    assert [row["status"] for row in rows] == ["ok"] * 48
    # A lost reply was bought again under the new cap, and its worst case stays charged.
    spent, reserved, unknown = sums(Path(lake.root) / "ledger.db")
    assert reserved == 0
    with sqlite3.connect(Path(lake.root) / "ledger.db") as stored:
        (open_attempts,) = stored.execute(
            "SELECT count(*) FROM attempt WHERE state = 'unknown'"
        ).fetchone()
    # Billed twice is only what the killed process had not settled.
    assert len(server.bills) - 48 <= open_attempts
    assert spent <= server.billed <= spent + unknown


@pytest.mark.slow
def test_two_runs_with_different_caps_at_once(
    lake: Lake, teacher_set: TeacherSet, serve: Serve, tmp_path: Path
) -> None:
    server = serve(latency=0.05)
    sides = [
        started(command(lake, capped(teacher_set, factor), tmp_path, f"x{factor}"))
        for factor in ("1", "2")
    ]
    reports = [told(side) for side in sides]
    assert sum(report["calls"] for report in reports) == 48
    assert [report["replies"] for report in reports] == [48, 48]
    states_bought(server, lake)
    assert sums(Path(lake.root) / "ledger.db") == (server.billed, 0, 0)


def test_what_was_lost_under_another_cap_is_bought_again_and_stays_charged(
    lake: Lake, teacher_set: TeacherSet, serve: Serve, target: str | Path
) -> None:
    server = serve(faults=lambda asked: Fault("reset"), generation_endpoint=False)
    run(lake, capped(teacher_set, "1", attempts=1), target)
    assert len(server.bills) == 24
    (spent, _, lost), billed = sums(target), server.billed
    assert spent == 0
    assert lost >= billed
    server.faults, server.generation_endpoint = None, True
    report = run(lake, capped(teacher_set, recover_after_s=0), target)
    assert (report.replies, report.recovered, server.hits) == (24, 0, 0)
    assert sums(target) == (server.billed - billed, 0, lost)


def test_a_ceiling_holds_over_what_was_lost_under_another_cap(
    lake: Lake, teacher_set: TeacherSet, serve: Serve, target: str | Path
) -> None:
    server = serve(faults=lambda asked: Fault("reset"), generation_endpoint=False)
    run(lake, capped(teacher_set, "1", attempts=1), target, run_id="r")
    server.faults, lost = None, sums(target)[2]
    ceiling = Decimal(int(1.1 * lost)) / 10**12
    report = run(
        lake, capped(teacher_set, recover_after_s=0), target, run_id="r", max_usd=ceiling
    )  # fmt: skip
    spent, reserved, unknown = sums(target)
    assert report.exhausted_scope == "run:r"
    assert reserved == 0
    assert server.billed <= spent + unknown <= int(1.1 * lost)


def test_without_a_response_cache_lost_bytes_are_of_no_use(
    lake: Lake, teacher_set: TeacherSet, serve: Serve, tmp_path: Path
) -> None:
    """A lowered cap is then kept to at once."""
    data = capped(teacher_set, "2", attempts=1).model_dump()
    data["endpoint"]["recovery_cache_s"] = 0
    high = TeacherSet.model_validate(data)
    sent: list[int] = []

    def note(asked: SeenRequest) -> None:
        sent.append(asked.nth)

    server = serve(faults=lambda asked: Fault("reset", billed=False), generation_endpoint=False)
    run(lake, high, tmp_path / "l.db", teachers=["careful"], max_states=2)
    server.faults = note
    low = capped(high, "0.5", recover_after_s=0)
    assert run(lake, low, tmp_path / "l.db", teachers=["careful"], max_states=2).replies == 2
    assert sent == [1, 1]  # never the bytes of the higher cap again


def test_a_rebuilt_ledger_knows_the_replies_under_every_cap(
    lake: Lake, teacher_set: TeacherSet, serve: Serve, target: str | Path, tmp_path: Path
) -> None:
    server = serve()
    run(lake, teacher_set, target)
    lost = tmp_path / "new.db"
    with Ledger(lost) as ledger:
        assert rebuild(lake, ledger)["restored"] == 24
        assert ledger.status()["global"].spent == server.billed
    assert run(lake, capped(teacher_set), lost).calls == 0
    assert server.requests == 24


def test_threads_of_one_process_with_two_caps(
    lake: Lake, teacher_set: TeacherSet, serve: Serve, target: str | Path
) -> None:
    server = serve(latency=0.02)
    found: list[ReplayReport] = []

    def side(factor: str) -> None:
        found.append(run(lake, capped(teacher_set, factor), target))

    threads = [threading.Thread(target=side, args=(factor,)) for factor in ("1", "2", "4")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(report.calls for report in found) == len(server.bills) == 24
    assert [report.replies for report in found] == [24, 24, 24]
    assert sums(target) == (server.billed, 0, 0)
