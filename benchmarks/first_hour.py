"""The first hour at full size: CPU seconds and peak memory of each command, beside its bar.

    python benchmarks/first_hour.py [--share 1.0] [--corpus DIR] [--work DIR] [--only NAME ...]

Makes 3 GB of session files (158,000 states over two years of days; ``--share`` makes less) by
repeating real session files with fresh ids and other dates: the shared corpus, else the bundled
sample sessions. Then runs every command in a process of its own, as a user does, with teachers on
a loopback server. Prints what each took of CPU time (user and system, of the command alone), the
most memory it held and its wall time; exits 1 where a bar is missed. The files and the lake stay
below ``--work`` (``build/bench-first-hour``) and are used again.
"""

import argparse
import datetime as dt
import functools
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from shared_corpus import source_files
from traces import renewed

ROOT = Path(__file__).resolve().parent.parent
FULL_MEGABYTES = 3000
#: Days over which the copies are spread.
DAYS = 730
#: Most memory that a command may hold, in MB, for a lake of any size.
MOST_MB = 400

_DATE = re.compile(rb'("timestamp":\s*")(\d{4}-\d\d-\d\d)(?=T)')
KEY_VARIABLE = "COMPOSER_LOOPBACK_KEY"
console = Console(width=110)


class Bar(NamedTuple):
    """A command, and the CPU seconds that it may take at full size (``None``: no bar)."""

    name: str
    arguments: tuple[str, ...]
    cpu_s: float | None
    grows: bool = True
    """Whether the bar shrinks with ``--share``."""


COMMANDS = (
    Bar("ingest (unchanged)", ("ingest", "{sessions}"), 1.0, grows=False),
    Bar("sessions", ("sessions", "--json"), None),
    Bar("states", ("states",), 10.0),
    Bar("states --json", ("states", "--json"), 10.0),
    Bar("plan", ("plan",), 60.0),
    Bar("plan --max-states 20", ("plan", "--max-states", "20"), None),
    Bar(
        "replay --max-states 20",
        ("replay", "--max-states", "20", "--max-usd", "50"),
        3.0,
        grows=False,
    ),
    Bar("pairs", ("pairs",), None),
    Bar("statistics", ("statistics",), None),
    Bar("dataset", ("dataset",), None),
)


def later(data: bytes, days: int) -> bytes:
    """Return session lines with every timestamp so many days later (or, below 0, earlier)."""

    @functools.cache
    def moved(day: bytes) -> bytes:
        return str(dt.date.fromisoformat(day.decode()) + dt.timedelta(days)).encode()

    return _DATE.sub(lambda match: match[1] + moved(match[2]), data)


def make_sessions(source: Path, target: Path, megabytes: float) -> None:
    """Fill ``target`` with copies of the files below ``source``, each with fresh ids and dates."""
    files = sorted(source.rglob("*.jsonl"))
    size = sum(file.stat().st_size for file in files)
    copies = max(1, round(megabytes * 1e6 / size))
    step = DAYS * size / (FULL_MEGABYTES * 1e6)
    for copy in range(copies):
        shift = round(copy * step) - DAYS
        for file in files:
            inside = file.relative_to(source)
            out = target / f"{inside.parts[0]}-{copy}" / Path(*inside.parts[1:])
            # Folders of subagents carry their session's id too.
            out = Path(renewed(os.fsencode(out), copy).decode())
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_bytes(later(renewed(file.read_bytes(), copy), shift))
    (target / "made").touch()


class Taken(NamedTuple):
    """What one process took."""

    cpu_s: float
    peak_mb: float
    wall_s: float
    code: int
    tail: str


def take(arguments: list[str], env: Mapping[str, str], log: Path) -> Taken:
    """Run a command of ours in a process of its own, and measure it."""
    began = time.monotonic()
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "composer_pipeline.cli", *arguments],
            cwd=ROOT, env=dict(env), stdout=out, stderr=subprocess.STDOUT,
        )  # fmt: skip
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    return Taken(
        used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, time.monotonic() - began,
        process.returncode, log.read_bytes()[-600:].decode(errors="replace").strip(),
    )  # fmt: skip


@contextmanager
def provider(key: str) -> Iterator[str]:
    """Run the loopback provider in a process of its own; yield its URL."""
    process = subprocess.Popen(
        [sys.executable, "-m", "composer_pipeline.testing.openrouter", "--port", "0"],
        cwd=ROOT, env=os.environ | {KEY_VARIABLE: key}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["url"]
    finally:
        process.terminate()
        process.wait()


def measure(
    only: tuple[str, ...], share: float, env: Mapping[str, str], sessions: Path, work: Path
) -> int:
    """Run the commands, the first ingest where there is no lake yet; return the exit code."""
    lake = Path(env["COMPOSER_LAKE"])
    commands = [c for c in COMMANDS if not only or any(word in c.name for word in only)]
    if not lake.exists():
        commands = [Bar("ingest (first)", ("ingest", "{sessions}"), None), *commands]
    shown = Table("command", "CPU s", "bar", "peak MB", f"bar {MOST_MB}", "wall s", "exit")
    missed = 0
    for command in commands:
        arguments = [part.format(sessions=sessions) for part in command.arguments]
        took = take(arguments, env, work / "output.txt")
        bar = command.cpu_s if not command.grows or command.cpu_s is None else command.cpu_s * share
        slow, big = bar is not None and took.cpu_s > bar, took.peak_mb > MOST_MB
        missed += slow or big or took.code != 0
        shown.add_row(
            command.name, f"{took.cpu_s:.1f}", "" if bar is None else f"{bar:.1f}",
            f"{took.peak_mb:.0f}", "MISSED" if big else "", f"{took.wall_s:.0f}", str(took.code),
            style="bold" if slow or big or took.code else "",
        )  # fmt: skip
        console.print(f"{command.name}: {took.cpu_s:.1f} CPU s, {took.peak_mb:.0f} MB", style="dim")
        if took.code:
            console.print(took.tail, markup=False, highlight=False)
    console.print(shown)
    console.print("MISSED: " + str(missed) if missed else "OK: every bar is kept")
    return 1 if missed else 0


def main() -> int:
    """Make the sessions and the lake, measure every command; return the exit code."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--share", type=float, default=1.0, help="of the full size")
    options.add_argument("--corpus", type=Path, help="session files to repeat")
    options.add_argument("--work", type=Path, default=ROOT / "build" / "bench-first-hour")
    options.add_argument("--only", nargs="*", default=(), help="words of the commands to run")
    given = options.parse_args()
    source, what = source_files(given.corpus)
    work = given.work / f"{given.share:g}"
    sessions, lake = work / "sessions", work / "lake"
    if not (sessions / "made").exists():
        shutil.rmtree(work, ignore_errors=True)
        make_sessions(source, sessions, FULL_MEGABYTES * given.share)
    size = sum(f.stat().st_size for f in sessions.rglob("*.jsonl"))
    console.print(f"{size / 1e6:,.0f} MB of sessions from {what}")
    key = secrets.token_hex(8)
    with provider(key) as url:
        env = os.environ | {
            "COMPOSER_LAKE": str(lake),
            "COMPOSER_TEACHERS": str(ROOT / "recipes" / "teachers" / "demo.yaml"),
            "COMPOSER_OPENROUTER_URL": url,
            KEY_VARIABLE: key,
            "OMP_NUM_THREADS": "1",
        }
        return measure(tuple(given.only), given.share, env, sessions, work)


if __name__ == "__main__":
    sys.exit(main())
