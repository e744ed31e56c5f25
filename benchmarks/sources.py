"""How fast each trace source reads its logs, next to `orjson.loads` on the same lines (CPU time).

    python benchmarks/sources.py [--megabytes N]

The logs are made up: sizes and kinds of lines are those of real sessions, the texts are words. The
bar is 0.15: a source takes at most 6.7 times what decoding the JSON alone takes. One process, the
best of five runs of each.
"""

import argparse
import json
import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import orjson

from composer_pipeline.traces.records import LineStats
from composer_pipeline.traces.source import SOURCES

Line = dict[str, Any]
BAR = 0.15
RUNS = 5
WORDS = [f"{a}{b}" for a in ("till", "lamp", "door", "shelf", "box") for b in range(40)]


def words(dice: random.Random, count: int) -> str:
    """Return a text of some words, a few of which stand on a line of their own."""
    return " ".join(dice.choices(WORDS, k=count)).replace("box1 ", "box1\n")


def moment(number: int) -> str:
    """Return the time of a line."""
    minutes, seconds = divmod(number, 60)
    return f"2026-11-16T{minutes // 60 % 24:02d}:{minutes % 60:02d}:{seconds:02d}.000Z"


def claude_code(dice: random.Random) -> Iterator[Line]:
    """Yield the lines of a Claude Code session: a prompt, then calls and results."""
    common = {"sessionId": "s", "version": "2.1.0", "cwd": "/home/alice/shop", "isSidechain": False}
    above, number = None, 0
    while True:
        number += 1
        usage = {"input_tokens": 900, "output_tokens": 40, "cache_read_input_tokens": 8000}
        call = {"command": words(dice, 8), "description": words(dice, 5)}
        use = {"type": "tool_use", "id": f"toolu_{number}", "name": "Bash", "input": call}
        text = words(dice, dice.choice((5, 60, 400, 1500)))
        bodies: list[tuple[str, Line]] = [
            ("assistant", {"content": [{"type": "text", "text": words(dice, 40)}]}),
            ("assistant", {"content": [use]}),
            ("user", {"content": [
                {"type": "tool_result", "tool_use_id": use["id"], "content": text}]}),
        ]  # fmt: skip
        if number % 20 == 1:
            bodies.insert(0, ("user", {"content": words(dice, 30)}))
        for part, (kind, body) in enumerate(bodies):
            uuid = f"{number}-{part}"
            message = {"role": kind, **body}
            if kind == "assistant":
                message |= {"id": f"msg_{number}", "model": "claude", "usage": usage}
            yield {
                "type": kind, "uuid": uuid, "parentUuid": above, "timestamp": moment(number),
                "message": message, **common,
            }  # fmt: skip
            above = uuid


def codex(dice: random.Random) -> Iterator[Line]:
    """Yield the lines of a Codex rollout: items, and the events that tell the same."""
    number = 0

    def line(kind: str, payload: Line, **more: Any) -> Line:
        return {
            "timestamp": moment(number),
            "ordinal": number,
            "type": kind,
            "payload": payload,
            **more,
        }

    base = {"text": words(dice, 3000)}
    yield line("session_meta", {"id": "c", "cwd": "/home/alice/shop", "base_instructions": base})
    while True:
        number += 1
        about = {"history_sequence": number, "sampled_through_sequence": number}
        ids = {"thread_id": "c", "turn_id": "t"}
        usage = {"input_tokens": 900, "cached_input_tokens": 800, "output_tokens": number}
        if number % 20 == 1:
            part = {"type": "input_text", "text": words(dice, 30)}
            yield line("turn_context", {"model": "gpt", "cwd": "/home/alice/shop", **ids})
            yield line("response_item", {"type": "message", "role": "user", "content": [part]})
        thought = {"type": "reasoning", "summary": [], "encrypted_content": "QUJD" * 300}
        yield line("response_item", thought, metadata=about)
        if number % 3 == 0:
            part = {"type": "output_text", "text": words(dice, 40)}
            said = {"type": "message", "role": "assistant", "content": [part]}
            yield line("event_msg", {"type": "item_completed", "item": said, **ids})
            yield line("response_item", said, metadata=about)
        call_id, given = f"call_{number}", json.dumps({"cmd": words(dice, 8)})
        call = {"type": "function_call", "name": "exec_command", "arguments": given}
        yield line("response_item", {**call, "call_id": call_id}, metadata=about)
        text = words(dice, dice.choice((5, 60, 400, 1500)))
        done = {
            "type": "CommandExecution",
            "id": call_id,
            "exit_code": 0,
            "aggregated_output": text,
        }
        yield line("token_usage_record", {"usage": usage, "turn_token_usage": usage, **ids})
        yield line("event_msg", {"type": "item_completed", "item": done, **ids})
        text = f"Chunk ID: 1\nWall time: 0.1 seconds\nProcess exited with code 0\nOutput:\n{text}"
        output = {"type": "function_call_output", "call_id": call_id, "output": text}
        yield line("response_item", output, metadata=about)
        yield line("event_msg", {"type": "token_count", "info": {
            "total_token_usage": usage, "last_token_usage": usage}})  # fmt: skip


#: By the name of the source: what yields the lines of an endless log of its.
LOGS: dict[str, Callable[[random.Random], Iterator[Line]]] = {
    "claude-code": claude_code,
    "codex": codex,
}


def log_of(name: str, size: int) -> list[bytes]:
    """Return the lines of a log of about ``size`` bytes."""
    lines: list[bytes] = []
    for line in LOGS[name](random.Random(1)):
        lines.append(orjson.dumps(line) + b"\n")
        size -= len(lines[-1])
        if size < 0:
            break
    return lines


def seconds(run: Callable[[], object]) -> float:
    """Return the CPU seconds of a run, the best of some."""
    best = float("inf")
    for _ in range(RUNS):
        start = time.process_time()
        run()
        best = min(best, time.process_time() - start)
    return best


def main() -> int:
    """Print a row for each source; fail if one is below the bar."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=4.0, help="of each log (default: 4)")
    size = int(parser.parse_args().megabytes * 1e6)
    print("| source | MB | lines | orjson.loads, CPU s | source, CPU s | ratio |")
    print("|---|---|---|---|---|---|")
    worst = 1.0
    for name in LOGS:
        lines, source = log_of(name, size), SOURCES.get(name)
        loads = seconds(lambda: deque(map(orjson.loads, lines), maxlen=0))  # noqa: B023
        took = seconds(lambda: deque(source.records(lines, LineStats()), maxlen=0))  # noqa: B023
        worst = min(worst, loads / took)
        megabytes = sum(map(len, lines)) / 1e6
        row = f"{megabytes:.1f} | {len(lines):,} | {loads:.4f} | {took:.4f} | {loads / took:.2f}"
        print(f"| {name} | {row} |")
    return int(worst < BAR)


if __name__ == "__main__":
    raise SystemExit(main())
