"""The engine over real HTTP: exact bills, no second purchase, every kind of fault."""

import asyncio
import json
import logging
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.states.load import load_states
from composer_pipeline.teachers.ledger import operations
from composer_pipeline.teachers.ledger.ledger import Ledger
from composer_pipeline.teachers.plan import plan
from composer_pipeline.teachers.rate_limit import TeacherWindow
from composer_pipeline.teachers.report import ReplayReport
from composer_pipeline.teachers.run import replay
from composer_pipeline.teachers.teachers import TeacherSet
from composer_pipeline.testing.openrouter.faults import Fault, SeenRequest
from composer_pipeline.testing.openrouter.server import LoopbackOpenRouter
from composer_pipeline.testing.personas import Script
from tests.fixtures.lake_states import DAY, write_session
from tests.fixtures.waiting import DEADLINE_S
from tests.places import ROOT

Serve = Callable[..., LoopbackOpenRouter]
USD = Decimal(1)


def run(lake: Lake, teacher_set: TeacherSet, **options: Any) -> ReplayReport:
    options.setdefault("max_usd", USD)
    return replay(lake, teacher_set, **options)


def ledger_sums(lake: Lake) -> tuple[int, int, int]:
    with Ledger(Path(lake.root) / "ledger.db") as ledger:
        status = ledger.status()["global"]
    return status.spent, status.reserved, status.unknown


def once(fault: Fault) -> Callable[[SeenRequest], Fault | None]:
    return lambda asked: fault if asked.nth == 1 else None


def test_every_reply_once_and_the_bill_exact(
    lake: Lake, teacher_set: TeacherSet, serve: Serve
) -> None:
    server = serve()
    seen: list[tuple[str, int, int]] = []
    report = run(lake, teacher_set, progress=lambda *event: seen.append(event))
    assert (report.calls, report.replies, report.cached) == (48, 48, 0)
    assert server.requests == len(server.bills) == 48
    assert ledger_sums(lake) == (server.billed, 0, 0)
    assert int(report.spent_usd * 10**12) == server.billed
    assert sorted(done for _, done, _ in seen) == list(range(1, 49))

    rows = lake.rows("replies")
    assert len(rows) == 48
    assert sum(row["cost_picodollars"] for row in rows) == server.billed
    assert {row["status"] for row in rows} == {"ok"}
    assert {row["obtained"] for row in rows} == {"bought"}
    assert all(row["simulated"] for row in rows)
    assert report.by_teacher["careful"].latency_p95_ms is not None
    assert report.by_day_teacher[DAY]["careful"]["rows"] == 12
    assert report.to_dict()["ceiling_usd"] == 1.0

    again = run(lake, teacher_set)
    assert (again.calls, again.replies, again.cached) == (0, 48, 48)
    assert again.spent_usd == 0
    assert server.requests == 48
    assert lake.rows("replies") == rows


def test_actions_come_back_as_the_script_says(
    lake: Lake, teacher_set: TeacherSet, serve: Serve
) -> None:
    better = Action(tool_calls=(ToolCall("Bash", {"command": "pytest -k 'shop'"}),))
    script = Script.from_states(load_states(lake), {"msg_s0_1": better})
    serve(script=script)
    run(lake, teacher_set)
    states = {s.state_id: s for s in load_states(lake)}
    for row in lake.rows("replies"):
        action, agent = Action.from_json(row["action"]), states[row["state_id"]].action
        names = {call.name for call in action.tool_calls}
        poor = states[row["state_id"]].message_id == "msg_s0_1"
        if row["teacher"] == "contrarian" or (row["teacher"] == "careful" and not poor):
            assert action.tool_calls[0].arguments == agent.tool_calls[0].arguments
        elif row["teacher"] == "careful":
            assert action.tool_calls[0].arguments == better.tool_calls[0].arguments
        elif row["teacher"] == "steady" and poor:
            assert action.tool_calls[0].arguments["command"] == 'pytest -k "shop"'
        elif row["teacher"] == "flaky":
            assert names != {"Read"}


def test_partitions_are_rebuilt_for_nothing(
    lake: Lake, teacher_set: TeacherSet, serve: Serve
) -> None:
    server = serve()
    run(lake, teacher_set)
    before = lake.rows("replies")
    for part in lake.partitions("replies"):
        Path(lake.path("replies", **part)).unlink()
    server.stop()  # not even reachable any more
    report = run(lake, teacher_set)
    assert report.calls == 0
    assert lake.rows("replies") == before


@pytest.mark.parametrize("usd", ["0.0000001", "0.01"])
def test_ceiling_refuses_and_is_never_passed(
    lake: Lake, teacher_set: TeacherSet, serve: Serve, usd: str
) -> None:
    server = serve()
    report = run(lake, teacher_set, max_usd=Decimal(usd))
    assert report.exhausted_scope.startswith("run:")
    assert server.billed <= Decimal(usd) * 10**12
    assert ledger_sums(lake) == (server.billed, 0, 0)
    assert len(report.not_bought) + report.replies == 48
    assert {"state_id", "teacher", "why"} == set(report.not_bought[0])
    assert len(lake.rows("replies")) == report.replies == len(server.bills)
    if usd == "0.01":
        assert report.replies > 0
    rest = run(lake, teacher_set)
    assert (rest.replies, rest.cached) == (48, report.replies)
    assert server.duplicate_bills() == 0


def test_a_shared_scope_binds_every_run(lake: Lake, teacher_set: TeacherSet, serve: Serve) -> None:
    server = serve()
    with Ledger(Path(lake.root) / "ledger.db") as ledger:
        ledger.do(operations.set_ceiling("teacher:steady", Decimal("0.005")))
    report = run(lake, teacher_set)
    assert report.exhausted_scope == "teacher:steady"
    assert {item["teacher"] for item in report.not_bought} == {"steady"}
    steady = [bill.cost for bill in server.bills if "steady" in bill.model]
    assert sum(steady) <= 5 * 10**9
    assert report.by_teacher["careful"].replies == 12


@pytest.mark.parametrize("usd", ["0", "-1", "NaN", "Infinity"])
def test_bad_ceiling_changes_nothing(lake: Lake, teacher_set: TeacherSet, usd: str) -> None:
    with pytest.raises(InputError, match="max_usd must be above 0"):
        run(lake, teacher_set, max_usd=Decimal(usd))
    assert not (Path(lake.root) / "ledger.db").exists()


def test_missing_key_names_the_variable(
    lake: Lake, teacher_set: TeacherSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    real = TeacherSet.load(ROOT / "recipes" / "teachers" / "default.yaml")
    with pytest.raises(InputError, match="OPENROUTER_API_KEY"):
        run(lake, real)
    assert not (Path(lake.root) / "ledger.db").exists()


@pytest.mark.parametrize(
    "fault",
    [
        Fault("error", 429),
        Fault("error", 429, retry_after="0.2"),
        Fault("error", 503),
        Fault("in_body", 502),
    ],
)
def test_unbilled_faults_cost_nothing(
    lake: Lake, teacher_set: TeacherSet, serve: Serve, fault: Fault
) -> None:
    server = serve(faults=once(fault))
    report = run(lake, teacher_set, teachers=["careful"])
    assert (report.calls, report.replies) == (24, 12)
    assert ledger_sums(lake) == (server.billed, 0, 0)
    assert len(server.bills) == 12
    assert sum(report.by_teacher["careful"].errors.values()) == 12


@pytest.mark.parametrize("kind", ["reset", "truncate", "garble", "hang"])
def test_lost_replies_are_fetched_again_for_nothing(
    lake: Lake, teacher_set: TeacherSet, serve: Serve, kind: Any
) -> None:
    data = teacher_set.model_dump()
    if kind == "hang":
        data["limits"] |= {"read_timeout_s": 0.5, "attempts": 20}
    patient = TeacherSet.model_validate(data)
    server = serve(faults=once(Fault(kind)))
    report = run(lake, patient, teachers=["careful"], max_states=5)
    assert report.replies == report.recovered == 5
    # A hit that took too long, on a busy machine, is fetched once more.
    assert server.hits == 5 or (kind == "hang" and server.hits > 5)
    assert len(server.bills) == 5
    assert ledger_sums(lake) == (server.billed, 0, 0)
    rows = lake.rows("replies")
    assert {row["obtained"] for row in rows} == {"recovered"}
    assert sum(row["cost_picodollars"] for row in rows) == server.billed


def test_a_reply_without_a_cost_is_kept_and_its_cost_asked(
    lake: Lake, teacher_set: TeacherSet, serve: Serve
) -> None:
    """It is not asked again; without somebody who tells its cost it stays charged."""
    server = serve(faults=lambda asked: Fault("no_cost"), generation_endpoint=False)
    report = run(lake, teacher_set, teachers=["careful"], max_states=5)
    assert (report.replies, report.calls, server.hits) == (5, 5, 0)
    assert ledger_sums(lake)[2] >= server.billed
    server.generation_endpoint = True
    assert run(lake, teacher_set, teachers=["careful"], max_states=5).calls == 0
    assert ledger_sums(lake) == (server.billed, 0, 0)
    rows = lake.rows("replies")
    assert {row["status"] for row in rows} == {"ok"}
    assert sum(row["cost_picodollars"] for row in rows) == server.billed


def test_without_a_generation_endpoint_the_worst_case_stays(
    lake: Lake, teacher_set: TeacherSet, serve: Serve
) -> None:
    server = serve(faults=once(Fault("reset")), generation_endpoint=False)
    run(lake, teacher_set, teachers=["careful"], max_states=3)
    spent, reserved, unknown = ledger_sums(lake)
    assert (spent, reserved) == (0, 0)
    assert unknown >= server.billed
    assert len(lake.rows("replies")) == 3
    server.generation_endpoint = True
    run(lake, teacher_set, teachers=["careful"], max_states=3)
    assert ledger_sums(lake) == (server.billed, 0, 0)
    assert sum(row["cost_picodollars"] for row in lake.rows("replies")) == server.billed


def test_unknown_outcomes_stay_charged(lake: Lake, teacher_set: TeacherSet, serve: Serve) -> None:
    """A gateway that always fails: nobody knows, so every try keeps its worst case."""
    server = serve(faults=lambda asked: Fault("reset", billed=False))
    report = run(lake, teacher_set, teachers=["careful"], max_states=1)
    spent, reserved, unknown = ledger_sums(lake)
    assert (spent, reserved, server.billed) == (0, 0, 0)
    assert report.unknown == 1
    assert unknown > 0
    assert int(report.reserved_usd * 10**12) == unknown
    assert {row["status"] for row in lake.rows("replies")} == {"unknown"}
    server.faults = None
    again = run(lake, teacher_set, teachers=["careful"], max_states=1)
    assert again.replies == 1
    assert {row["status"] for row in lake.rows("replies")} == {"ok"}


def test_refusals_are_kept_and_not_asked_again(
    lake: Lake, teacher_set: TeacherSet, serve: Serve
) -> None:
    server = serve(faults=lambda asked: Fault("moderation"))
    report = run(lake, teacher_set, teachers=["careful"])
    assert (report.calls, report.refused, report.replies) == (12, 12, 0)
    again = run(lake, teacher_set, teachers=["careful"])
    assert (again.calls, again.refused) == (0, 12)
    assert server.requests == 12
    assert {row["status"] for row in lake.rows("replies")} == {"refused"}


def test_cut_off_replies_are_paid_but_unusable(
    lake: Lake, teacher_set: TeacherSet, serve: Serve
) -> None:
    server = serve(faults=lambda asked: Fault("length"))
    run(lake, teacher_set, teachers=["careful"])
    rows = lake.rows("replies")
    assert {(r["status"], r["detail"]) for r in rows} == {("unusable", "finish_reason length")}
    assert sum(row["cost_picodollars"] for row in rows) == server.billed > 0


def test_a_bill_above_the_bound_stops_the_teacher(
    lake: Lake, teacher_set: TeacherSet, serve: Serve
) -> None:
    server = serve(faults=lambda asked: Fault("overcharge") if "careful" in asked.model else None)
    report = run(lake, teacher_set, teachers=["careful", "steady"])
    assert "bound_violation" in report.by_teacher["careful"].stopped
    assert report.by_teacher["careful"].calls < 12
    assert report.by_teacher["steady"].replies == 12
    assert ledger_sums(lake)[0] == server.billed


def test_prices_above_the_cap_stop_the_teacher(
    lake: Lake, teacher_set: TeacherSet, serve: Serve
) -> None:
    data = teacher_set.model_dump()
    data["teachers"][0]["max_price"]["prompt"] = Decimal("0.01")
    server = serve()
    report = run(lake, TeacherSet.model_validate(data), teachers=["careful"])
    stopped = report.by_teacher["careful"].stopped
    assert "max_price.prompt" in stopped
    assert "0.27 USD per million tokens, above the cap of 0.01" in stopped
    assert server.billed == 0


def test_wrong_key_ends_the_run(
    lake: Lake, teacher_set: TeacherSet, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(api_key="right")
    monkeypatch.setenv("COMPOSER_LOOPBACK_KEY", "wrong")
    with pytest.raises(ComposerError, match="COMPOSER_LOOPBACK_KEY"):
        run(lake, teacher_set)


def test_nobody_there(lake: Lake, teacher_set: TeacherSet, serve: Serve) -> None:
    serve().stop()
    with pytest.raises(ComposerError, match="cannot be reached"):
        run(lake, teacher_set)
    assert ledger_sums(lake) == (0, 0, 0)


def test_a_run_that_reaches_nobody_ends_without_trying_everything(
    lake: Lake, teacher_set: TeacherSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPOSER_OPENROUTER_URL", "http://127.0.0.1:9/api/v1")
    engine = "composer_pipeline.teachers"
    monkeypatch.setattr(sys.modules[f"{engine}.rate_limit"], "PATIENCE_S", 0.0)
    monkeypatch.setattr(sys.modules[f"{engine}.run"], "TICK_S", 0.0)
    data = teacher_set.model_dump()
    data["limits"] |= {"attempts": 20, "backoff_s": DEADLINE_S, "backoff_cap_s": DEADLINE_S}
    patient = TeacherSet.model_validate(data)
    with pytest.raises(ComposerError, match=r"cannot be reached \(ClientConnector"):
        run(lake, patient)


def test_the_key_is_nowhere(
    lake: Lake,
    teacher_set: TeacherSet,
    serve: Serve,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    secret = "k-5d41402abc4b2a76b9719d911017c592"
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("COMPOSER_LOOPBACK_KEY", secret)
    serve(api_key=secret, faults=once(Fault("reset")))
    report = run(lake, teacher_set, max_states=3)
    assert report.replies == 12
    assert secret not in json.dumps(report.to_dict())
    assert secret not in caplog.text
    assert secret not in "".join(capfd.readouterr())
    with sqlite3.connect(Path(lake.root) / "ledger.db") as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for path in Path(lake.root).rglob("*"):
        if path.is_file():
            assert secret.encode() not in path.read_bytes(), path


def test_secrets_are_not_sent(lake: Lake, teacher_set: TeacherSet, serve: Serve) -> None:
    leak = "ghp_" + "a1B2" * 9
    steps = [(Action("", (ToolCall("Bash", {"command": "env"}),)), f"GITHUB_TOKEN is {leak}")] * 2
    ids = write_session(lake, "leaky", steps)
    server = serve()
    report = run(lake, teacher_set, teachers=["careful"])
    # The prefix of the first state ends before the leak.
    assert (report.refused, report.replies) == (1, 13)
    assert leak not in json.dumps(server.bodies)
    refused = [row for row in lake.rows("replies") if row["status"] == "refused"]
    assert [(row["state_id"], row["detail"]) for row in refused] == [(ids[1], "secret")]
    assert refused[0]["raw"] is None


def test_too_long_states_are_skipped_and_named(
    lake: Lake, teacher_set: TeacherSet, serve: Serve
) -> None:
    steps = [
        (Action("", (ToolCall("Read", {"file_path": "/home/user/x"}),)), "word " * 150_000)
    ] * 2
    (_, long_state) = write_session(lake, "long", steps)
    serve()
    report = run(lake, teacher_set, teachers=["careful"])
    assert [item["state_id"] for item in report.skipped] == [long_state]
    assert "context_length" in report.skipped[0]["why"]
    assert report.replies == 13


def test_selection_is_deterministic_errors_first(
    lake: Lake, teacher_set: TeacherSet, serve: Serve
) -> None:
    steps = [(Action("", (ToolCall("Read", {"file_path": "/home/user/x"}),)), "x")] * 3
    ids = write_session(lake, "late", steps, day="2026-11-18", error_turns=[2])
    serve()
    report = run(lake, teacher_set, teachers=["careful"], max_states=2)
    bought = {row["state_id"] for row in lake.rows("replies")}
    assert report.states == len(bought) == 2
    assert ids[2] in bought
    with pytest.raises(InputError, match="--max-states"):
        run(lake, teacher_set, max_states=0)


def test_days_and_teachers_are_selected(lake: Lake, teacher_set: TeacherSet, serve: Serve) -> None:
    steps = [(Action("", (ToolCall("Read", {"file_path": "/home/user/x"}),)), "x")]
    write_session(lake, "late", steps, day="2026-11-18")
    serve()
    run(lake, teacher_set, teachers=["steady"], days=["2026-11-18"])
    assert lake.partitions("replies") == [{"teacher": "steady", "day": "2026-11-18"}]
    with pytest.raises(InputError, match="nobody"):
        run(lake, teacher_set, teachers=["nobody"])


def test_empty_lake(tmp_path: Path, teacher_set: TeacherSet) -> None:
    with pytest.raises(InputError, match="no states"):
        run(Lake(tmp_path / "nothing"), teacher_set)
    assert not (tmp_path / "nothing").exists()


def test_identical_states_are_bought_once(
    lake: Lake, teacher_set: TeacherSet, serve: Serve
) -> None:
    """A rewind leaves two states with the same prefix; one purchase answers both."""
    rows = lake.rows("states", days=[DAY])
    twin = {k: v for k, v in rows[0].items() if k != "day"} | {"state_id": "f" * 32}
    kept = [{k: v for k, v in row.items() if k != "day"} for row in rows]
    lake.write("states", [*kept, twin], day=DAY)
    server = serve(latency=0.05)
    report = run(lake, teacher_set, teachers=["careful"])
    assert (report.calls, report.replies) == (12, 13)
    assert len(server.bills) == 12
    assert len(lake.rows("replies")) == 13


def test_recover_first_with_the_budget_gone(
    lake: Lake, teacher_set: TeacherSet, serve: Serve
) -> None:
    """What a dead process paid for is fetched before anything new is bought."""
    server = serve()
    full = run(lake, teacher_set, teachers=["careful"])
    path = Path(lake.root) / "ledger.db"
    with sqlite3.connect(path) as db:  # as if the process had died after sending
        (key, reserve) = db.execute("SELECT key, reserve FROM attempt LIMIT 1").fetchone()
        cost = db.execute("SELECT cost FROM attempt WHERE key = ?", (key,)).fetchone()[0]
        db.execute("DELETE FROM reply WHERE key = ?", (key,))
        db.execute(
            "UPDATE attempt SET state = 'sent', cost = NULL, generation_id = NULL,"
            " owner = 'old-boot:1:1:gone' WHERE key = ?", (key,),
        )  # fmt: skip
        db.execute(
            "UPDATE scope SET spent = spent - ?, reserved = reserved + ?"
            " WHERE name IN ('global', 'run:' || ?)", (cost, reserve, full.run_id),
        )  # fmt: skip
    # Room for the lost attempt and for asking again, and for nothing else.
    room = full.spent_usd + Decimal(2 * reserve - cost) / 10**12
    report = run(lake, teacher_set, max_usd=room, teachers=["careful"], run_id=full.run_id)
    assert (report.calls, report.recovered, server.hits) == (1, 1, 1)
    assert report.spent_usd == full.spent_usd
    assert ledger_sums(lake) == (server.billed, 0, 0)


def test_plan_before_and_after(lake: Lake, teacher_set: TeacherSet, serve: Serve) -> None:
    server = serve()
    before = plan(lake, teacher_set)
    assert (before.states, before.calls, before.cached) == (12, 48, 0)
    assert before.by_teacher["careful"].prices == "catalogue"
    assert 0 < before.expected_usd < before.worst_usd
    assert not (Path(lake.root) / "ledger.db").exists()
    assert server.requests == 0
    run(lake, teacher_set)
    assert server.billed <= before.worst_usd * 10**12
    after = plan(lake, teacher_set).to_dict()
    assert (after["calls"], after["cached"], after["worst_usd"]) == (0, 48, 0)
    server.stop()
    assert plan(lake, teacher_set).by_teacher["careful"].prices == "caps"


def test_window_shrinks_and_grows() -> None:
    async def scenario() -> None:
        window = TeacherWindow(cap=16)
        assert window.size == 8
        window.failed("429", busy=True, retry_after=None)
        window.failed("429", busy=True, retry_after=None)  # of the same burst
        assert window.size == pytest.approx(5.6)
        for _ in range(400):
            window.succeeded(1.0)
        assert window.size == 16
        assert not window.stopped

    asyncio.run(scenario())


OTHER = """
import sys, time
from decimal import Decimal
from pathlib import Path
from composer_pipeline.lake.store import Lake
from composer_pipeline.teachers.run import replay
from composer_pipeline.teachers.teachers import TeacherSet
folder = Path(sys.argv[2])
teachers = TeacherSet.model_validate_json((folder / "teachers.json").read_text())
(folder / f"ready-{sys.argv[3]}").touch()
while not (folder / "go").exists():
    time.sleep(0.005)
report = replay(Lake(sys.argv[1]), teachers, max_usd=Decimal(1))
print(report.calls, report.replies)
"""


def test_processes_share_the_work(
    lake: Lake, teacher_set: TeacherSet, serve: Serve, tmp_path: Path
) -> None:
    """Two engines at once on one ledger: one bill for each body, all replies for both."""
    server = serve(latency=0.3)  # long enough for the two to overlap
    (tmp_path / "teachers.json").write_text(teacher_set.model_dump_json())
    command = [sys.executable, "-c", OTHER, lake.root, str(tmp_path)]
    others = [
        subprocess.Popen([*command, str(n)], env={**os.environ}, stdout=subprocess.PIPE)
        for n in range(2)
    ]
    while not all((tmp_path / f"ready-{n}").exists() for n in range(2)):
        assert all(other.poll() is None for other in others)
        time.sleep(0.01)
    (tmp_path / "go").touch()
    figures = [other.communicate(timeout=2 * DEADLINE_S)[0].split() for other in others]
    calls = [int(calls) for calls, _ in figures]
    assert sum(calls) == len(server.bills) == 48
    assert [int(replies) for _, replies in figures] == [48, 48]
    assert server.duplicate_bills() == 0
    assert ledger_sums(lake) == (server.billed, 0, 0)
