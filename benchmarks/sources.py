"""How fast each trace source reads its logs, next to `orjson.loads` on the same lines (CPU time).

    python benchmarks/sources.py [--megabytes N]

The logs are made up: those of `tests/fixtures/agents.py`, with 11 kB a response (as twenty real
rollouts of Codex had; 67 real sessions of Claude Code had 18 kB). The bar is 0.15: a source takes
at most 6.7 times what decoding the JSON alone takes. Of an OpenCode database the rows are read
before. One process, the best of five runs of each.
"""

import argparse
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import orjson

from composer_pipeline.traces.records import LineStats
from composer_pipeline.traces.source import SOURCES
from tests.fixtures.agents import AGENTS, write

BAR = 0.15
RUNS = 5
OUTPUT = "\n".join(f"{number}: the till, the lamp and the door" for number in range(600))


def log_of(agent: str, times: int) -> list[bytes]:
    """Return the lines of a session that does its work some times."""
    with TemporaryDirectory() as folder:
        file = Path(folder, "opencode.db" if agent == "opencode" else "log")
        write(agent, file, OUTPUT, times)
        for member in SOURCES.get(agent).members(file) or ():
            return list(member.lines())
        return file.read_bytes().splitlines(keepends=True)


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
    size = parser.parse_args().megabytes * 1e6
    print("| source | MB | lines | orjson.loads, CPU s | source, CPU s | ratio |")
    print("|---|---|---|---|---|---|")
    worst = 1.0
    for name in AGENTS:
        once = sum(map(len, log_of(name, 1)))
        lines, source = log_of(name, int(size / once) + 1), SOURCES.get(name)
        loads = seconds(lambda: deque(map(orjson.loads, lines), maxlen=0))  # noqa: B023
        took = seconds(lambda: deque(source.records(lines, LineStats()), maxlen=0))  # noqa: B023
        worst = min(worst, loads / took)
        megabytes = sum(map(len, lines)) / 1e6
        row = f"{megabytes:.1f} | {len(lines):,} | {loads:.4f} | {took:.4f} | {loads / took:.2f}"
        print(f"| {name} | {row} |")
    return int(worst < BAR)


if __name__ == "__main__":
    raise SystemExit(main())
