"""Order of calls, the byte cap, the window and the breaker: all without a network."""

import asyncio
from typing import Any

import pytest

from composer_pipeline.actions import Action
from composer_pipeline.states.state import TraceState
from composer_pipeline.teachers.queue import ByteGate, Queue, Unit, units
from composer_pipeline.teachers.rate_limit import BREAKER_CALLS, MAX_PROBES, TeacherWindow
from composer_pipeline.teachers.teachers import PromptCache
from tests.fixtures.waiting import DEADLINE_S


def state(name: str, chain: str = "c", n: int = 1) -> TraceState:
    return TraceState(
        state_id=name, session_id="s", agent_id="", message_id=name, day="2026-11-16",
        chain_id=chain, n_messages=n, messages=[], system=None, tools=None, action=Action(),
        action_json="", fidelity="", on_active_path=True, repaired=False, project="", cwd="",
        turn=0, parser_version="",
    )  # fmt: skip


class Rounds:
    """Takes all that may run, then answers all of it, until nothing is left."""

    def __init__(self, cut: list[Unit]) -> None:
        self.queue = Queue(cut)

    async def run(self) -> list[list[str]]:
        rounds: list[list[str]] = []
        while True:
            taken = []
            while True:
                try:
                    item = await asyncio.wait_for(self.queue.next(), 0.01)
                except TimeoutError:
                    break
                if item is None:
                    break
                taken.append(item)
            if not taken:
                return rounds
            rounds.append([one.state_id for one, _ in taken])
            for _, unit in taken:
                self.queue.done(unit)


SESSIONS = [
    [state("a1"), state("a2", n=3), state("b1", "d", 2), state("a3", n=5)],
    [state("x1", "x"), state("x2", "x", 3)],
]


@pytest.mark.parametrize(
    ("order", "rounds"),
    [
        # Sessions side by side, each in order.
        ("chain", [["a1", "x1"], ["a2", "x2"], ["b1"], ["a3"]]),
        # The longest of each chain, then all of its prefixes at once.
        ("longest_first", [["a3", "b1", "x2"], ["a2", "a1", "x1"]]),
        ("none", [["a1", "a2", "b1", "a3", "x1", "x2"]]),
    ],
)
def test_orders(order: PromptCache, rounds: list[list[str]]) -> None:
    assert asyncio.run(Rounds(units(SESSIONS, order)).run()) == rounds


def test_started_sessions_come_before_new_ones() -> None:
    async def scenario() -> list[str]:
        queue = Queue(units([[state(f"{s}{n}", s) for n in range(3)] for s in "abc"], "chain"))
        seen = []
        for _ in range(9):  # one at a time
            item = await queue.next()
            assert item is not None
            seen.append(item[0].state_id)
            queue.done(item[1])
        assert await queue.next() is None
        return seen

    assert asyncio.run(scenario()) == [f"{s}{n}" for s in "abc" for n in range(3)]


def test_bytes_are_capped_first_come_first_served() -> None:
    async def scenario() -> None:
        gate = ByteGate(10)
        order: list[str] = []
        most = 0

        async def hold(name: str, size: int) -> None:
            nonlocal most
            await gate.acquire(size)
            order.append(name)
            most = max(most, gate.held)
            await asyncio.sleep(0.005)
            gate.release(size)

        await asyncio.gather(
            *(hold(name, size) for name, size in [("a", 6), ("b", 6), ("big", 50), ("c", 4)])
        )
        assert order == ["a", "b", "big", "c"]
        assert most == 50  # alone, although larger than the cap
        assert gate.held == 0
        await gate.acquire(10)
        waiting = asyncio.ensure_future(gate.acquire(5))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        gate.release(10)
        assert gate.held == 0
        await asyncio.wait_for(gate.acquire(10), DEADLINE_S)

    asyncio.run(scenario())


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def fail(window: TeacherWindow, times: int, **options: Any) -> None:
    for _ in range(times):
        window.failed("HTTP 500", **{"busy": False, "retry_after": None, **options})


def test_window_doubles_until_the_first_refusal_then_adds() -> None:
    clock = Clock()
    window = TeacherWindow(cap=64, clock=clock)
    for _ in range(8):
        window.succeeded(1.0)
    assert window.size == 16
    window.failed("429", busy=True, retry_after=None, sent=clock.now)
    assert window.size == pytest.approx(11.2)
    clock.now += 1
    window.failed("429", busy=True, retry_after=None, sent=clock.now - 2)  # left before that
    assert window.size == pytest.approx(11.2)
    window.failed("429", busy=True, retry_after=None, sent=clock.now)
    assert window.size == pytest.approx(7.84)
    for _ in range(8):
        window.succeeded(1.0)
    assert 8.7 < window.size < 9
    for _ in range(60):
        clock.now += 1
        window.failed("429", busy=True, retry_after=None, sent=clock.now)
    assert window.size == 1


def test_slots_and_retry_after() -> None:
    async def scenario() -> None:
        window = TeacherWindow(cap=2)
        await window.acquire()
        await window.acquire()
        third = asyncio.ensure_future(window.acquire())
        cancelled = asyncio.ensure_future(window.acquire())
        await asyncio.sleep(0)
        assert not third.done()
        cancelled.cancel()
        window.release()
        await asyncio.wait_for(third, DEADLINE_S)
        assert window.inflight == 2
        window.release()
        window.release()
        window.failed("429", busy=True, retry_after=0.1)
        loop, pauses = asyncio.get_running_loop(), []
        call_later = loop.call_later

        def noted(delay: float, *arguments: Any, **options: Any) -> asyncio.TimerHandle:
            pauses.append(delay)
            return call_later(delay, *arguments, **options)

        began = loop.time()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop, "call_later", noted)
            await window.acquire()
        assert loop.time() - began >= 0.1
        assert max(pauses) < 0.5
        window.failed("429", busy=True, retry_after=60)
        blocked = asyncio.ensure_future(window.acquire())
        await asyncio.sleep(0.01)
        assert not blocked.done()
        window.close()  # the run is over: who waits has to see that
        await asyncio.wait_for(blocked, DEADLINE_S)

    asyncio.run(scenario())


def test_breaker_opens_probes_and_closes() -> None:
    async def scenario() -> None:
        clock = Clock()
        window = TeacherWindow(cap=8, breaker_pause_s=10, clock=clock)
        for _ in range(11):
            window.succeeded(1.0)
        fail(window, 8)
        assert str(window.breaker) == "closed"  # 8 of 19
        fail(window, 1)
        assert str(window.breaker) == "closed"  # 9 of 20
        fail(window, 1)
        assert str(window.breaker) == "open"  # 10 of the last 20
        probe = asyncio.ensure_future(window.acquire())
        second = asyncio.ensure_future(window.acquire())
        await asyncio.sleep(0)
        assert not probe.done()
        clock.now += 12.1
        window._on_timer()
        await asyncio.sleep(0)
        assert probe.done()
        assert not second.done()  # one probe at a time
        assert str(window.breaker) == "half-open"
        window.succeeded(1.0)
        window.release()
        assert str(window.breaker) == "closed"
        await asyncio.wait_for(second, DEADLINE_S)
        fail(window, BREAKER_CALLS - 1)
        assert str(window.breaker) == "closed"  # counts afresh

    asyncio.run(scenario())


def test_failed_probes_stop_the_teacher() -> None:
    async def scenario() -> None:
        clock = Clock()
        window = TeacherWindow(cap=8, breaker_pause_s=10, clock=clock)
        fail(window, BREAKER_CALLS)
        for probe in range(MAX_PROBES):
            assert not window.stopped
            assert window.breaker == "open"
            clock.now += 13
            await asyncio.wait_for(window.acquire(), DEADLINE_S)
            fail(window, 1)
            window.release()
            assert bool(window.stopped) == (probe == MAX_PROBES - 1)
        assert "HTTP 500" in window.stopped
        await asyncio.wait_for(window.acquire(), DEADLINE_S)  # nobody is left waiting

    asyncio.run(scenario())
