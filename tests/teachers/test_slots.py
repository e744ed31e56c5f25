"""Slots, bytes and pauses of a teacher: none is lost, none is early."""

import asyncio
from typing import Any

import pytest

from composer_pipeline.teachers.queue import ByteGate
from composer_pipeline.teachers.rate_limit import (
    BREAKER_CALLS,
    MAX_PROBES,
    PATIENCE_S,
    Reachability,
    TeacherWindow,
)
from tests.fixtures.waiting import DEADLINE_S


class Clock:
    """Seconds that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def earliest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every random pause be as short as it can be."""
    monkeypatch.setattr("random.uniform", lambda low, high: low)


async def cancelled(task: "asyncio.Future[Any]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_a_slot_granted_to_a_waiter_that_is_cancelled_is_free_again() -> None:
    async def scenario() -> None:
        window = TeacherWindow(cap=1)
        await window.acquire()
        waiter = asyncio.ensure_future(window.acquire())
        await asyncio.sleep(0)
        window.release()  # grants the slot; the waiter has not run yet
        await cancelled(waiter)
        assert window.inflight == 0
        await asyncio.wait_for(window.acquire(), DEADLINE_S)

    asyncio.run(scenario())


def test_bytes_granted_to_a_waiter_that_is_cancelled_are_free_again() -> None:
    async def scenario() -> None:
        gate = ByteGate(10)
        await gate.acquire(10)
        waiter = asyncio.ensure_future(gate.acquire(10))
        await asyncio.sleep(0)
        gate.release(10)
        await cancelled(waiter)
        assert gate.held == 0
        await asyncio.wait_for(gate.acquire(10), DEADLINE_S)

    asyncio.run(scenario())


def test_the_byte_limit_itself_may_be_held() -> None:
    async def scenario() -> None:
        gate = ByteGate(10)
        await gate.acquire(6)
        await asyncio.wait_for(gate.acquire(4), DEADLINE_S)
        assert gate.held == 10

    asyncio.run(scenario())


def test_a_teacher_is_not_asked_before_the_pause_it_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    earliest(monkeypatch)

    async def scenario() -> None:
        clock = Clock()
        window = TeacherWindow(cap=2, clock=clock)
        window.failed("429", busy=True, retry_after=10)
        waiter = asyncio.ensure_future(window.acquire())
        clock.now += 9.9
        window._on_timer()
        await asyncio.sleep(0)
        assert not waiter.done()
        clock.now += 0.1
        window._on_timer()
        await asyncio.wait_for(waiter, DEADLINE_S)

    asyncio.run(scenario())


def test_a_teacher_that_came_back_has_all_its_probes_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    earliest(monkeypatch)

    async def scenario() -> None:
        clock = Clock()
        window = TeacherWindow(cap=8, breaker_pause_s=10, clock=clock)

        def fail(times: int) -> None:
            for _ in range(times):
                window.failed("HTTP 500", busy=False, retry_after=None)

        async def probe() -> None:
            clock.now += 11
            await asyncio.wait_for(window.acquire(), DEADLINE_S)
            window.release()

        fail(BREAKER_CALLS)
        for _ in range(MAX_PROBES - 1):
            await probe()
            fail(1)
        await probe()
        window.succeeded(1.0)
        fail(BREAKER_CALLS)
        for _ in range(MAX_PROBES - 1):
            await probe()
            fail(1)
            assert not window.stopped
        await probe()
        fail(1)
        assert "HTTP 500" in window.stopped

    asyncio.run(scenario())


def test_a_run_that_reaches_nobody_is_lost_after_a_while() -> None:
    clock, windows = Clock(), [TeacherWindow(1), TeacherWindow(1), TeacherWindow(1)]
    reach = Reachability(windows, clock)
    assert not reach.lost()  # nothing was tried yet
    for window in windows[:2]:
        window.calls, window.unreachable, window.errors = 1, True, {"ClientConnectorError": 1}
    assert not reach.lost()
    clock.now += PATIENCE_S - 1
    assert not reach.lost()
    clock.now += 1
    assert reach.lost()
    assert reach.why() == "ClientConnectorError"
    windows[1].unreachable = False  # somebody answers, whatever it is
    assert not reach.lost()
    windows[1].unreachable = True
    assert not reach.lost()  # counted from here
    clock.now += PATIENCE_S
    assert reach.lost()
    windows[0].bought = 1  # what was bought is worth going on for
    assert not reach.lost()
