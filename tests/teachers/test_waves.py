"""Waves, bounded work, tighter reservations, progress, and teachers that stop."""

import asyncio
import shutil
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.actions import Action
from composer_pipeline.errors import ComposerError, StorageError
from composer_pipeline.lake.store import Lake
from composer_pipeline.states.state import TraceState
from composer_pipeline.teachers import caller
from composer_pipeline.teachers import run as engine
from composer_pipeline.teachers.caller import Caller
from composer_pipeline.teachers.ledger.ledger import Ledger
from composer_pipeline.teachers.ledger.values import LedgerFull
from composer_pipeline.teachers.report import ReplayReport, Snapshot
from composer_pipeline.teachers.run import replay
from composer_pipeline.teachers.selection import Fits, KnownActions
from composer_pipeline.teachers.teachers import Teacher, TeacherSet
from composer_pipeline.testing.openrouter.faults import Fault, SeenRequest
from composer_pipeline.testing.openrouter.server import LoopbackOpenRouter
from tests.fixtures.lake_states import write_sessions
from tests.places import fill

Serve = Callable[..., LoopbackOpenRouter]


def run(lake: Lake, teacher_set: TeacherSet, **options: Any) -> ReplayReport:
    return replay(lake, teacher_set, **{"max_usd": Decimal(1), **options})


def changed(teacher_set: TeacherSet, limits: Any = (), **teacher: Any) -> TeacherSet:
    data = teacher_set.model_dump()
    data["limits"] |= dict(limits)
    data["teachers"] = [one | teacher for one in data["teachers"]]
    return TeacherSet.model_validate(data)


class Curtailed:
    """Asks the first teacher about everything, the second where that one did not read."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Mapping[str, Action | None]]] = []

    def next_wave(
        self,
        states: Sequence[TraceState],
        teachers: Sequence[Teacher],
        answers: KnownActions,
        fits: Fits,
    ) -> Sequence[tuple[TraceState, Teacher]]:
        self.seen.append({state.state_id: dict(answers(state.state_id)) for state in states})
        if len(self.seen) == 1:
            return [(state, teachers[0]) for state in states]
        if len(self.seen) == 2:
            return [(state, teachers[1]) for state in states[:5]]
        return [(state, teachers[0]) for state in states]  # all asked before: ends the run


def test_a_selector_is_asked_wave_by_wave(
    lake: Lake, teacher_set: TeacherSet, serve: Serve
) -> None:
    server = serve()
    selector = Curtailed()
    report = run(lake, teacher_set, selector=selector)
    assert (report.replies, report.calls, len(server.bills)) == (17, 17, 17)
    assert report.not_asked == 48 - 17
    assert [f.not_asked for f in report.by_teacher.values()] == [0, 7, 12, 12]
    first, second, third = selector.seen
    assert not any(first.values())
    assert all(list(known) == ["careful"] for known in second.values())
    answered = [known["careful"] for known in second.values()]
    assert {call.name for action in answered if action for call in action.tool_calls} == {"Read"}
    assert sorted(len(known) for known in third.values()) == [1] * 7 + [2] * 5
    # Again: the same answers, from the ledger, for nothing.
    again = Curtailed()
    report = run(lake, teacher_set, selector=again)
    assert (report.calls, report.cached) == (0, 17)
    assert again.seen == selector.seen


def test_a_selector_sees_who_gave_nothing(
    lake: Lake, teacher_set: TeacherSet, serve: Serve
) -> None:
    serve(faults=lambda asked: Fault("length"))
    selector = Curtailed()
    run(lake, teacher_set, selector=selector)
    assert all(known == {"careful": None} for known in selector.seen[1].values())


# -- bounded work and order ------------------------------------------------------


def test_few_tasks_and_bodies_for_many_states(
    lake: Lake, teacher_set: TeacherSet, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_sessions(lake, sessions=20, turns=5)
    serve(latency=0.01)
    most_tasks = most_bytes = 0
    build = Caller.answer

    async def counting(self: Caller, *args: Any, **options: Any) -> bool:
        nonlocal most_tasks, most_bytes
        most_tasks = max(most_tasks, len(asyncio.all_tasks()))
        most_bytes = max(most_bytes, self.gate.held)
        return await build(self, *args, **options)

    monkeypatch.setattr(Caller, "answer", counting)
    monkeypatch.setattr(caller, "ByteGate", _small_gate)
    few = changed(teacher_set, concurrency=4)
    report = run(lake, few)
    assert report.replies == report.states * 4 > 350
    assert most_tasks < 4 * 2 * 4 + 30
    assert 0 < most_bytes <= 40_000


def _small_gate(most: int) -> Any:
    from composer_pipeline.teachers.queue import ByteGate

    assert most == 256 << 20
    return ByteGate(40_000)


@pytest.mark.parametrize("order", ["chain", "longest_first"])
def test_order_at_the_provider(
    lake: Lake, teacher_set: TeacherSet, serve: Serve, order: str
) -> None:
    server = serve(latency=0.02)
    run(lake, changed(teacher_set, prompt_cache=order), teachers=["careful"])
    sessions: dict[str, list[int]] = {}
    for body in server.bodies:
        sessions.setdefault(body["session_id"], []).append(len(body["messages"]))
    assert len(sessions) == 3
    for lengths in sessions.values():
        assert len(lengths) == 4
        assert lengths == sorted(lengths) if order == "chain" else lengths[0] == max(lengths)


def test_reservations_follow_the_measured_prefix(
    lake: Lake, teacher_set: TeacherSet, serve: Serve
) -> None:
    serve()
    loose = run(lake, changed(teacher_set, prompt_cache="none"), teachers=["careful"])
    other = Lake(Path(lake.root).parent / "other")
    write_sessions(other, sessions=3, turns=4)
    serve()  # whose response cache is empty: a hit tells no tokens
    tight = run(other, teacher_set, teachers=["careful"])
    assert loose.spent_usd > 0
    assert tight.replies == 12
    reserved = [_reserved(Path(where.root) / "ledger.db") for where in (lake, other)]
    assert reserved[0].keys() == reserved[1].keys()
    tighter = [key for key in reserved[0] if reserved[1][key] < reserved[0][key]]
    assert len(tighter) == 9  # all but the first of each session
    # The output's worst case dominates these small prompts; still a visible share.
    assert sum(reserved[1].values()) < 0.9 * sum(reserved[0].values())


def _reserved(path: Path) -> dict[str, int]:
    with sqlite3.connect(path) as db:
        return dict(db.execute("SELECT key, reserve FROM attempt").fetchall())


# -- progress --------------------------------------------------------------------


def test_snapshots_count_and_add_up(
    lake: Lake, teacher_set: TeacherSet, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "TICK_S", 0.02)
    server = serve(latency=0.05)
    seen: list[Snapshot] = []

    def halfway() -> bool:
        return len(seen) > 3 and any(s.reserved_usd > 0 and 0 < s.done < 48 for s in seen)

    server.held = lambda asked: asked.total > 40 and not halfway()
    report = run(lake, teacher_set, on_progress=seen.append)
    assert len(seen) > 3
    assert [s.done for s in seen] == sorted(s.done for s in seen)
    assert any(0 < s.done < 48 for s in seen)
    assert any(s.reserved_usd > 0 for s in seen)
    last = seen[-1]
    assert (last.done, last.total, last.unknown) == (48, 48, 0)
    assert int(last.settled_usd * 10**12) == server.billed
    assert last.reserved_usd == 0
    careful = last.by_teacher["careful"]
    assert careful.latency_p95_ms is not None
    assert careful.latency_p95_ms >= 50
    assert careful.cache_read_share == report.by_teacher["careful"].cache_read_share
    assert careful.cache_read_share is not None
    assert 0 < careful.cache_read_share < 1
    assert "48 of 48" in last.line()


# -- teachers that stop ------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        (Fault("unavailable", code="model_not_found"), "model_not_found", "does not offer"),
        (Fault("unavailable", code="privacy_restricted"), "privacy_restricted", "privacy terms"),
        (Fault("unavailable", code="no_endpoints"), "no_endpoints", "no provider"),
        (Fault("error", 402), "payment_required", "no credit"),
    ],
)
def test_one_teacher_stops_the_others_go_on(
    lake: Lake, teacher_set: TeacherSet, serve: Serve, fault: Fault, code: str, words: str
) -> None:
    server = serve(faults=lambda asked: fault if "steady" in asked.model else None)
    report = run(lake, teacher_set)
    assert report.replies == 36
    figures = report.by_teacher["steady"]
    assert (figures.stopped, figures.stopped_scope) == (code, "teacher:steady")
    assert len(report.not_bought) == 12
    assert all(code in item["why"] for item in report.not_bought)
    assert figures.calls <= 8  # what was in flight at the first refusal
    (error,) = report.stopped()
    assert (error.teacher, error.scope, error.code) == ("steady", "teacher:steady", code)
    assert words in str(error)
    assert "\n" not in str(error)
    server.faults = None
    assert run(lake, teacher_set).replies == 48


def test_a_refused_account_stops_everybody_and_says_so(
    lake: Lake, teacher_set: TeacherSet, serve: Serve
) -> None:
    def faults(asked: SeenRequest) -> Fault | None:
        return Fault("error", 401) if asked.total > 10 else None

    server = serve(faults=faults)
    with pytest.raises(ComposerError, match="refuses the account"):
        run(lake, teacher_set)
    assert len(lake.rows("replies")) == len(server.bills) == 10


def test_a_breaker_spares_a_teacher_that_fails(
    lake: Lake, teacher_set: TeacherSet, serve: Serve
) -> None:
    write_sessions(lake, sessions=10, turns=8)
    down = True

    def faults(asked: SeenRequest) -> Fault | None:
        return Fault("error", 500) if down and "steady" in asked.model else None

    server = serve(faults=faults)
    report = run(lake, teacher_set, teachers=["careful", "steady"])
    states = report.states
    assert report.by_teacher["careful"].replies == states
    assert report.by_teacher["steady"].stopped.startswith("too many failures")
    # Twenty to open the breaker, what was in flight then, and five probes.
    assert 20 <= report.by_teacher["steady"].calls <= 40
    assert server.duplicate_bills() == 0
    down = False
    assert run(lake, teacher_set, teachers=["steady"]).by_teacher["steady"].replies == states


def test_a_full_disk_under_the_ledger_ends_the_run_and_loses_nothing(
    lake: Lake, teacher_set: TeacherSet, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve()
    apply, full = Ledger.apply, False

    def failing(self: Ledger, operations: Any) -> Any:
        nonlocal full
        full = full or len(server.bills) >= 7
        if full and operations:
            raise LedgerFull(f"ledger {self.name}: its disk is full")
        return apply(self, operations)

    monkeypatch.setattr(Ledger, "apply", failing)
    with pytest.raises(LedgerFull, match="full"):
        run(lake, teacher_set)
    monkeypatch.undo()
    monkeypatch.setenv("COMPOSER_OPENROUTER_URL", server.url)
    paid = len(server.bills)
    assert paid < 48
    report = run(lake, teacher_set)
    assert report.replies == len(server.bills) == 48
    assert report.recovered > 0
    assert server.duplicate_bills() == 0
    with Ledger(Path(lake.root) / "ledger.db") as ledger:
        status = ledger.status()["global"]
    assert (status.spent, status.reserved, status.unknown) == (server.billed, 0, 0)


def test_a_full_disk_under_the_lake_loses_nothing_that_was_paid_for(
    lake: Lake, small_disk: Path, tmp_path: Path, teacher_set: TeacherSet, serve: Serve
) -> None:
    server = serve()
    lake = Lake(shutil.copytree(lake.root, small_disk / "lake"))
    books = {"ledger": tmp_path / "ledger.db"}
    ballast = fill(small_disk)
    with pytest.raises(StorageError, match="No space left on device"):
        run(lake, teacher_set, **books)
    assert server.bills == []  # what teachers are offered is kept first
    ballast.unlink()

    def full_at_the_end(seen: Snapshot) -> None:
        if seen.done == seen.total:
            fill(small_disk)

    with pytest.raises(StorageError, match="what was paid for is in the ledger: make room"):
        run(lake, teacher_set, on_progress=full_at_the_end, **books)
    assert len(server.bills) == 48
    assert lake.rows("replies") == []
    ballast.unlink()
    assert run(lake, teacher_set, **books).calls == 0
    assert len(lake.rows("replies")) == 48
    assert len(server.bills) == 48


def test_a_refusal_does_not_hide_a_reply_that_was_paid_for(
    lake: Lake, teacher_set: TeacherSet, serve: Serve
) -> None:
    def faults(asked: SeenRequest) -> Fault | None:
        return {1: Fault("reset"), 2: Fault("moderation")}.get(asked.nth)

    server = serve(faults=faults)
    report = run(lake, teacher_set, teachers=["careful"], max_states=4)
    assert (report.replies, report.refused, report.recovered) == (4, 0, 4)
    assert server.duplicate_bills() == 0


def test_a_lost_call_is_not_asked_for_while_it_is_generated(
    lake: Lake, teacher_set: TeacherSet, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked again no sooner than the file says; by then it has been generated, and is free."""
    wait_s, wait, given_up, ended = 0.6, Caller._pause, 0, False
    again: list[int] = []

    def faults(asked: SeenRequest) -> None:
        if asked.nth == 2:
            again.append(time.time_ns() // 1000)

    async def pause(self: Caller, seconds: float) -> None:
        nonlocal given_up, ended
        if seconds == 0:  # before another try; only the wait for the lost call counts
            return
        given_up += 1
        await wait(self, seconds)
        while given_up < 3:
            await asyncio.sleep(0.01)
        ended = True
        while server.generating:
            await asyncio.sleep(0.01)

    monkeypatch.setattr(Caller, "_pause", pause)
    server = serve(faults=faults)
    server.held = lambda asked: not ended
    limits = {"read_timeout_s": 0.1, "recover_after_s": wait_s, "attempts": 20, "backoff_s": 0}
    report = run(lake, changed(teacher_set, limits), teachers=["careful"], max_states=3)
    assert (report.replies, report.recovered, server.duplicate_bills()) == (3, 3, 0)
    with sqlite3.connect(Path(lake.root) / "ledger.db") as db:
        ((begun,),) = db.execute("SELECT min(created_us) FROM attempt")
    assert min(again) - begun >= 0.95 * wait_s * 1_000_000


def test_a_call_that_is_asked_for_while_it_is_generated_is_bought_twice(
    lake: Lake, teacher_set: TeacherSet, serve: Serve
) -> None:
    """The provider coalesces nothing: this is what the wait before asking again is for."""
    server, again = serve(), set()

    def held(asked: SeenRequest) -> bool:
        if asked.nth > 1:
            again.add(asked.digest)
        return asked.digest not in again

    server.held = held
    limits = {"read_timeout_s": 0.1, "recover_after_s": 0.0, "attempts": 20}
    report = run(lake, changed(teacher_set, limits), teachers=["careful"], max_states=3)
    assert report.replies == 3
    assert server.duplicate_bills() >= 3


# -- any other endpoint ------------------------------------------------------------


def test_an_openai_endpoint_gets_plain_bodies_and_is_priced_by_tokens(
    lake: Lake, teacher_set: TeacherSet, serve: Serve
) -> None:
    data = teacher_set.model_dump()
    data["endpoint"] |= {"api": "openai"}
    data["teachers"] = [data["teachers"][0] | {"prompt_cache": "none"}]
    server = serve(response_cache=False)
    report = run(lake, TeacherSet.model_validate(data))
    assert report.replies == 12
    allowed = {"model", "messages", "tools", "tool_choice", "max_completion_tokens", "temperature"}
    assert all(body.keys() <= allowed for body in server.bodies)
    assert report.to_dict()["spent_usd"] > 0
