"""What a call costs the client: the replay engine beside litellm and the openai SDK.

All clients send bodies of 8 kB to the same stub server (``stub_provider.py``), which runs in
a process of its own and answers after a fixed latency. CPU seconds are those of the client's
process, its ledger thread included. Ours is the real engine with a durable ledger (SQLite,
``synchronous=FULL``): serialise, hash, reserve and commit, send, settle and commit.
Usage: ``python benchmarks/replay.py [--calls N]``.
"""

import argparse
import asyncio
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

from peers import environment

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # this checkout, whatever is installed
BUILD = ROOT / "build" / "bench-replay"
PEERS = {"openai": "2.54.0", "litellm": "1.106.2"}
BODY_BYTES = 8_000
Bar = tuple[str, float, float]  # name, measured, at least


def messages(number: int) -> list[dict[str, Any]]:
    """Return a conversation of about 8 kB that no other call has."""
    turn = f"call {number}. " + "def test_total(): assert total([1, 2]) == 3 # look again\n" * 17
    roles = ("system", "user", "assistant", "user", "assistant", "user", "assistant", "user")
    return [{"role": role, "content": turn} for role in roles]


def cpu() -> float:
    """Return the CPU seconds that this process has used."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Stub:
    """The server, in a process of its own."""

    def __init__(self, latency: float) -> None:
        command = [sys.executable, str(ROOT / "benchmarks" / "stub_provider.py")]
        self.process = subprocess.Popen(
            [*command, "--latency", str(latency)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout
        self.url = f"http://127.0.0.1:{int(self.process.stdout.readline())}/api/v1"

    def __enter__(self) -> "Stub":
        return self

    def __exit__(self, *exc: object) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


# -- ours ------------------------------------------------------------------------


class Conversations:
    """Questions without a lake: real bodies, keys, worst cases and calls."""

    def __init__(self, teacher_set: Any, calls: int) -> None:
        from composer_pipeline.actions import Action
        from composer_pipeline.states.state import TraceState

        self.teacher_set = teacher_set
        self.teachers = list(teacher_set.teachers)
        self.days = ["2026-11-16"]
        self.catalogue_checks: dict[str, Any] = {}
        self.states = [
            TraceState(
                state_id=f"{n:032x}", session_id=f"s{n}", agent_id="", message_id=f"m{n}",
                day=self.days[0], chain_id=f"c{n}", n_messages=8, messages=[], system=None,
                tools=None, action=Action(), action_json="{}", fidelity="reconstructed",
                on_active_path=True, repaired=False, project="", cwd="", turn=0,
                parser_version="bench",
            )
            for n in range(calls)
        ]  # fmt: skip

    def chains(self) -> list[list[Any]]:
        """Return one chain for each state: the stub has no prompt cache."""
        return [[state] for state in self.states]

    def build(self, state: Any, teacher: Any) -> Any:
        """Build the body as ``Questions.build`` does."""
        from composer_pipeline.chat.convert import Conversion
        from composer_pipeline.teachers.ledger.values import Call
        from composer_pipeline.teachers.questions import Question
        from composer_pipeline.teachers.request import serialise, worst_case

        conversion = Conversion(messages(int(state.state_id, 16)), [], {}, {}, "bench")
        request = serialise(teacher, conversion, state.session_id)
        meta = {
            "family": teacher.family, "model": teacher.model, "simulated": True,
            "schema_source": "bench", "converter_version": "bench", "toolset": "0" * 32,
        }  # fmt: skip
        call = Call(state.state_id, teacher.name, state.session_id, state.day, meta)
        names = request.key("bench"), request.digest("bench")
        return Question(request.body, *names, worst_case(teacher, request.body), call)


def ours(url: str, calls: int, in_flight: int) -> dict[str, Any]:
    """Run the engine over ``calls`` bodies and return its figures."""
    from composer_pipeline.money import Pico
    from composer_pipeline.teachers.ledger import operations
    from composer_pipeline.teachers.ledger.ledger import Ledger
    from composer_pipeline.teachers.run import _Run
    from composer_pipeline.teachers.teachers import TeacherSet

    teacher_set = TeacherSet.model_validate(
        {
            "endpoint": {"name": "bench", "base_url": url, "simulated": True},
            "teachers": [
                {
                    "name": "stub", "family": "stub", "model": "stub/model-20261101",
                    "licence": "none", "max_price": {"prompt": "1", "completion": "4"},
                    "concurrency": in_flight, "prompt_cache": "none",
                }
            ],
        }
    )  # fmt: skip
    with (
        tempfile.TemporaryDirectory(dir=BUILD) as folder,
        Ledger(Path(folder) / "ledger.db") as ledger,
    ):
        ledger.do(operations.set_ceiling("run:warm", Decimal(1_000_000)))
        ledger.do(operations.set_ceiling("run:bench", Decimal(1_000_000)))
        # Imports, connections of the kernel, the ledger's pages.
        warm = _Run(_questions(teacher_set, 200), ledger, "warm", Pico(10**18))
        asyncio.run(warm.main(None))
        questions = _questions(teacher_set, calls, offset=200)
        run = _Run(questions, ledger, "bench", Pico(10**18))
        began, cpu_began = time.perf_counter(), cpu()
        asyncio.run(run.main(None))
        wall, used = time.perf_counter() - began, cpu() - cpu_began
        window = run.windows["stub"]
        assert window.bought == calls, (window.bought, window.errors)
        assert ledger.status()["run:bench"].spent == calls * 123_456_000
    return {"cpu": used, "wall": wall, "calls": calls}


def _questions(teacher_set: Any, calls: int, offset: int = 0) -> Any:
    questions = Conversations(teacher_set, calls + offset)
    questions.states = questions.states[offset:]
    return questions


# -- peers -----------------------------------------------------------------------


def peer(name: str, url: str, calls: int, in_flight: int) -> dict[str, Any]:
    """Run a peer over ``calls`` bodies and return its figures."""
    client: dict[str, Callable[[str], Any]] = {"openai": _openai, "litellm": _litellm}
    return asyncio.run(_timed(client[name](url), calls, in_flight))


async def _timed(
    one: Callable[[int], Awaitable[str]], calls: int, in_flight: int
) -> dict[str, Any]:
    numbers = iter(range(-in_flight, calls))

    async def worker(end: int) -> None:
        for number in numbers:
            text = await one(number)
            assert text.startswith("I look"), text
            if number >= end:
                return

    await asyncio.gather(*(worker(-in_flight) for _ in range(in_flight)))  # one each: warm
    began, cpu_began = time.perf_counter(), cpu()
    await asyncio.gather(*(worker(calls) for _ in range(in_flight)))
    return {"wall": time.perf_counter() - began, "cpu": cpu() - cpu_began, "calls": calls}


def _openai(url: str) -> Callable[[int], Awaitable[str]]:
    from openai import AsyncOpenAI

    client = AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=600)

    async def one(number: int) -> str:
        asked: Any = messages(number)  # the SDK's types are narrower than what it sends
        reply = await client.chat.completions.create(
            model="stub/model-20261101", messages=asked, temperature=0.0,
            max_completion_tokens=2048,
        )  # fmt: skip
        return str(reply.choices[0].message.content)

    return one


def _litellm(url: str) -> Callable[[int], Awaitable[str]]:
    import litellm

    litellm.suppress_debug_info = True

    async def one(number: int) -> str:
        reply = await litellm.acompletion(
            model="openai/stub/model-20261101", messages=messages(number), temperature=0.0,
            max_completion_tokens=2048, api_base=url, api_key="none", num_retries=0,
            max_retries=0, timeout=600,
        )  # fmt: skip
        return str(reply.choices[0].message.content)

    return one


# -- the table -------------------------------------------------------------------


def child(python: Path | str, name: str, url: str, calls: int, in_flight: int) -> dict[str, Any]:
    """Measure one client in a process of its own."""
    command = [str(python), str(Path(__file__).resolve()), "--client", name, "--url", url]
    command += ["--calls", str(calls), "--in-flight", str(in_flight)]
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=900
    )
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def best(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the run with the least CPU a call."""
    return min(runs, key=lambda figures: figures["cpu"] / figures["calls"])


def main() -> int:
    """Print the table; return 1 where a bar is missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=6000)
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--client", default="")
    parser.add_argument("--url", default="")
    options = parser.parse_args()
    BUILD.mkdir(parents=True, exist_ok=True)
    if options.client:
        run = ours if options.client == "ours" else None
        arguments = (options.url, options.calls, options.in_flight)
        print(json.dumps(run(*arguments) if run else peer(options.client, *arguments)))
        return 0
    python, few = environment(PEERS), max(200, options.calls // 10)
    load = os.getloadavg()[0]
    with Stub(0.02) as stub:
        mine = best([child(sys.executable, "ours", stub.url, options.calls, 64) for _ in range(3)])
        peers = {name: best([child(python, name, stub.url, few, 64) for _ in range(2)])
                 for name in PEERS}  # fmt: skip
    with Stub(0.1) as stub:
        wide = [child(sys.executable, "ours", stub.url, options.calls * 2, 256) for _ in range(2)]
    share = max(one["calls"] / one["wall"] for one in wide) / (256 / 0.1)
    return report(mine, peers, best(wide), share, load)


def report(
    mine: dict[str, Any],
    peers: dict[str, dict[str, Any]],
    wide: dict[str, Any],
    share: float,
    load: float,
) -> int:
    """Print figures and bars; return 1 where a bar is missed."""
    cost = mine["cpu"] / mine["calls"]
    print(f"{platform.machine()}, Python {platform.python_version()}, {os.cpu_count()} cores,"
          f" load {load:.1f} before; bodies of {len(json.dumps(messages(7)))} bytes")  # fmt: skip
    print("\nclient                      in flight  CPU ms/call  calls/s/core   of ours")
    rows = [("ours, ledger included", 64, mine), ("ours, ledger included", 256, wide)]
    rows += [(f"{name} {PEERS[name]}", 64, figures) for name, figures in peers.items()]
    for name, in_flight, figures in rows:
        each = figures["cpu"] / figures["calls"]
        print(f"{name:28}{in_flight:9}{each * 1000:13.3f}{1 / each:14.0f}{each / cost:9.1f} x")
    print(f"\n256 in flight at 100 ms: {share:.0%} of 2560 calls/s")
    bars: list[Bar] = [
        ("calls/s per core, ledger included", 1 / cost, 1500),
        *(
            (f"{name} CPU / ours", figures["cpu"] / figures["calls"] / cost, bar)
            for (name, figures), bar in zip(
                peers.items(), ({"openai": 10, "litellm": 4}[n] for n in peers), strict=True
            )
        ),
        ("share of concurrency / latency, 256 at 100 ms", share, 0.85),
    ]
    print()
    for name, value, bar in bars:
        print(f"{'ok  ' if value >= bar else 'MISS'} {name:48}{value:10.2f} >= {bar}")
    name, value, bar = min(bars, key=lambda one: one[1] / one[2])
    print(f"\nworst: {name}, {value / bar:.2f} of its bar (3,000 calls/s is the goal)")
    return int(any(value < bar for _, value, bar in bars))


if __name__ == "__main__":
    sys.exit(main())
