"""Peak memory of ``ingest`` on a large database of OpenCode.

Run: ``python -m benchmarks.opencode_memory > benchmarks/results/opencode_memory.md``; some minutes.
The database is made here, of sessions that differ in length, in a temporary folder. ``ingest``
runs in a process of its own, first into an empty lake, then again, when nothing has changed;
measured is its peak resident set (``VmHWM``). *Libraries* is that of a process that only
imports ``ingest``.
"""

import argparse
import json
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SCHEMA = """
CREATE TABLE project (id text PRIMARY KEY);
CREATE TABLE session (id text PRIMARY KEY, project_id text, parent_id text, directory text,
    version text, time_created integer, time_updated integer);
CREATE TABLE message (id text PRIMARY KEY, session_id text, time_created integer,
    time_updated integer, data text);
CREATE TABLE part (id text PRIMARY KEY, message_id text, session_id text, time_created integer,
    time_updated integer, data text);
CREATE INDEX message_session_time_created_id_idx ON message (session_id, time_created, id);
CREATE INDEX part_message_id_id_idx ON part (message_id, id);
CREATE INDEX part_session_idx ON part (session_id);
"""
START = 1_780_000_000_000
#: Megabytes of the longest session; the others have an eighth.
LONGEST = 64
WORDS = [f"{a}_{b}" for a in ("load", "till", "lamp", "cart", "price", "stock") for b in range(900)]

CHILD = """
import sys
from pathlib import Path
from composer_pipeline import Lake, ingest
if sys.argv[1:]:
    ingest(Lake(sys.argv[1]), [sys.argv[2]])
for line in Path("/proc/self/status").read_text().splitlines():
    if line.startswith("VmHWM:"):
        print(int(line.split()[1]) / 1024)
"""


def texts() -> Iterator[str]:
    """Yield outputs of commands, as long as real ones."""
    number = random.Random(0)
    while True:
        count = int(min(600, number.lognormvariate(4, 1.2)))
        a, b, c = (number.choices(WORDS, k=count) for _ in range(3))
        lines = [f"{a[n]}/{b[n]}.py:{n}: {c[n]}({a[n]}) = {b[-n]}" for n in range(count)]
        yield "\n".join(lines) or "ok"


def fill(db: sqlite3.Connection, session: str, size: int, outputs: Iterator[str]) -> int:
    """Add a session of at least ``size`` bytes; return how many responses it has."""
    db.execute("INSERT INTO session VALUES (?, 'p', NULL, '/home/ada/shop', '1.18.33', ?, ?)",
               (session, START, START))  # fmt: skip
    at = written = steps = 0

    def add(role: str, parts: list[dict[str, Any]], **info: Any) -> None:
        nonlocal at, written
        at += 1
        now = START + at * 1000
        message = f"msg_{session}_{at:08}"
        data = {"role": role, "time": {"created": now, "completed": now + 500}, **info}
        row = (message, session, now, now, json.dumps(data))
        db.execute("INSERT INTO message VALUES (?, ?, ?, ?, ?)", row)
        for number, part in enumerate(parts):
            text = json.dumps(part)
            written += len(text)
            part_id = f"prt_{session}_{at:08}_{number}"
            db.execute("INSERT INTO part VALUES (?, ?, ?, ?, ?, ?)",
                       (part_id, message, session, now, now, text))  # fmt: skip

    while written < size:
        if steps % 20 == 0:
            add("user", [{"type": "text", "text": f"now part {steps} of {session}"}])
        steps += 1
        state = {"status": "completed", "input": {"command": f"make {steps}"},
                 "output": next(outputs), "metadata": {"exit": 0}}  # fmt: skip
        call = {"type": "tool", "tool": "bash", "callID": f"{session}-{steps}", "state": state}
        said = {"type": "text", "text": f"I run step {steps}."}
        add("assistant", [{"type": "step-start"}, said, call, {"type": "step-finish"}],
            modelID="m1", providerID="p", finish="tool-calls")  # fmt: skip
    return steps


def build(file: Path, megabytes: int) -> int:
    """Make a database of this size; return how many responses it has."""
    db = sqlite3.connect(file)
    db.execute("PRAGMA journal_mode = WAL")
    db.executescript(SCHEMA)
    outputs, steps, number = texts(), 0, 0
    while file.stat().st_size < megabytes << 20:
        size = min(LONGEST if not number else LONGEST // 8, megabytes) << 20
        steps += fill(db, f"ses_{number:04}", size, outputs)
        number += 1
        db.commit()
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    return steps


def run(*arguments: str) -> tuple[float, float]:
    """Return the peak of a process in MiB, and its seconds."""
    begun = time.monotonic()
    argv = [sys.executable, "-c", CHILD, *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    return float(done.stdout.splitlines()[-1]), time.monotonic() - begun


def main() -> None:
    """Build the database, measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1024)
    megabytes = parser.parse_args().megabytes
    with tempfile.TemporaryDirectory() as folder:
        file, lake = Path(folder, "opencode.db"), str(Path(folder, "lake"))
        steps = build(file, megabytes)
        size = file.stat().st_size / 2**20
        print("# Peak memory of reading a database of OpenCode\n")
        print((__doc__ or "").split("\n\n", 1)[1].strip(), "\n")
        print(f"{size:.0f} MiB, {steps:,} responses, the longest session {LONGEST} MiB.\n")
        print("| what | peak MiB | seconds |\n|---|---|---|")
        for name, arguments in (
            ("libraries", ()),
            ("ingest", (lake, str(file))),
            ("ingest again", (lake, str(file))),
        ):
            peak, seconds = run(*arguments)
            print(f"| {name} | {peak:.0f} | {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
