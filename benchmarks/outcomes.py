"""What asking git costs: CPU seconds and memory of ``outcomes``, beside `git log` alone.

The repositories are made by ``git fast-import``: each commit changes five lines of one file. Every
commit but a few carries the edit of a session. The floor is ``git log --raw`` of the same
repository alone. Reading with pygit2 is compared where it is installed: trees diffed one commit
after the other, which is what the log gives.

Usage: ``python benchmarks/outcomes.py [--commits N --states N --sessions N]``.
"""

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # this checkout, whatever is installed

from composer_pipeline.lake.store import Lake  # noqa: E402
from composer_pipeline.traces.ingest import ingest_changes  # noqa: E402

BEGIN = datetime(2026, 6, 1, tzinfo=UTC)
FILES, LINES = 200, 150
#: Bytes of what a session reads beside each edit, as in real sessions.
READ = 250_000

_RUN = """
import json, resource, sys, time
from datetime import datetime, UTC
from composer_pipeline.lake.store import Lake
from composer_pipeline.survival.stage import evaluate_outcomes, stale_outcomes
lake, now = Lake(sys.argv[1]), datetime.fromisoformat(sys.argv[2])
days = list(stale_outcomes(lake, now=now))
report = evaluate_outcomes(lake, days=days, now=now)
used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(json.dumps({"states": report.states, "known": report.known, "days": len(days),
                  "cpu": sum(u.ru_utime + u.ru_stime for u in used),
                  "mib": int(open("/proc/self/status").read().split("HWM:")[1].split()[0]) / 1024}))
"""
_PYGIT2 = """
import sys, time, pygit2
begun, n = time.process_time(), 0
repository = pygit2.Repository(sys.argv[1])
for commit in repository.walk(repository.head.target, pygit2.enums.SortMode.TOPOLOGICAL):
    for parent in commit.parents:
        n += len(list(repository.diff(parent.tree, commit.tree).deltas))
print(time.process_time() - begun)
"""


class World:
    """A repository and the sessions whose edits its commits carry."""

    def __init__(self, folder: Path, commits: int, states: int, sessions: int, read: int) -> None:
        self._read = read
        self.repository, self.sessions = folder / "repository", folder / "sessions"
        self._draw = random.Random(7)
        self._files = [[self._line(0, n) for n in range(LINES)] for _ in range(FILES)]
        self._records: dict[int, list[dict[str, Any]]] = {n: [] for n in range(sessions)}
        self.end = BEGIN + timedelta(minutes=20 * commits)
        stream = "".join(self._stream(commits, states, sessions))
        self.repository.mkdir(parents=True)
        self._git("init", "-q", "-b", "main")
        self._git("fast-import", "--quiet", given=stream.encode())
        self._git("reset", "-q", "--hard")
        self.bytes = self._write()

    def _git(self, *words: str, given: bytes = b"") -> None:
        subprocess.run(["git", "-C", str(self.repository), *words], input=given, check=True)

    def _line(self, commit: int, number: int) -> str:
        return f"    value_{commit}_{number} = compute({self._draw.randrange(10**6)})"

    def _stream(self, commits: int, states: int, sessions: int) -> Iterator[str]:
        for name, lines in enumerate(self._files):
            yield self._commit(-FILES + name, name, "\n".join(lines), first=name == 0)
        for number in range(commits):
            name, at = self._draw.randrange(FILES), self._draw.randrange(LINES - 5)
            before = "\n".join(self._files[name])
            old = self._files[name][at : at + 5]
            new = [self._line(number, n) for n in range(5)]
            self._files[name][at : at + 5] = new
            if number * states // commits != (number + 1) * states // commits:
                self._edit(number, number * sessions // commits, name, before, old, new)
            yield self._commit(number, name, "\n".join(self._files[name]))

    def _commit(self, number: int, name: int, text: str, *, first: bool = False) -> str:
        when = int((BEGIN + timedelta(minutes=20 * number)).timestamp())
        person = f"A Person <person@example.org> {when} +0000"
        start = "reset refs/heads/main\n" if first else ""
        data = text.encode()
        return (
            f"{start}commit refs/heads/main\nauthor {person}\ncommitter {person}\n"
            f"data 4\nWork\nM 644 inline src/file_{name}.py\ndata {len(data)}\n{text}\n"
        )

    def _edit(
        self, number: int, session: int, name: int, before: str, old: list[str], new: list[str]
    ) -> None:
        when = BEGIN + timedelta(minutes=20 * number - 5)
        records, path = self._records[session], f"{self.repository}/src/file_{name}.py"
        strings = {"old_string": "\n".join(old), "new_string": "\n".join(new)}
        given = {"file_path": path, **strings}
        call = {"type": "tool_use", "id": f"toolu_{number}", "name": "Edit", "input": given}
        result = {
            "type": "tool_result",
            "tool_use_id": f"toolu_{number}",
            "content": "y = 1\n" * (self._read // 6),
        }
        usage = {"input_tokens": 10, "output_tokens": 10}
        message = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": "m",
                   "content": [call], "usage": usage}  # fmt: skip
        self._add(records, session, when, type="assistant", message=message)
        about = {"filePath": path, "originalFile": before}
        self._add(records, session, when, type="user", toolUseResult=about,
                  message={"role": "user", "content": [result]})  # fmt: skip

    def _add(self, records: list[Any], session: int, when: datetime, **more: Any) -> None:
        records.append({
            "uuid": f"{session}-{len(records)}", "isSidechain": False, "version": "2.1.0",
            "parentUuid": records[-1]["uuid"] if records else None, "gitBranch": "main",
            "cwd": str(self.repository), "sessionId": str(UUID(int=session + 1)),
            "timestamp": when.isoformat(), **more,
        })  # fmt: skip

    def _write(self) -> int:
        self.sessions.mkdir()
        total = 0
        for number, records in self._records.items():
            file = self.sessions / f"{UUID(int=number + 1)}.jsonl"
            total += file.write_text("".join(json.dumps(record) + "\n" for record in records))
        return total


def measured(lake: Lake, now: datetime) -> dict[str, Any]:
    """Run the stage on what is stale, in a process of its own."""
    words = [sys.executable, "-c", _RUN, lake.url, now.isoformat()]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def floor(repository: Path) -> float:
    """Return the CPU seconds of `git log --raw` alone."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = ["git", "-C", str(repository), "log", "--raw", "--no-abbrev", "-M", "--all"]
    subprocess.run(words, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def with_pygit2(repository: Path) -> str:
    """Return the CPU seconds of the same walk with pygit2, or that it is not there."""
    words = [sys.executable, "-c", _PYGIT2, str(repository)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return f"{float(done.stdout):.2f}" if done.returncode == 0 else "not installed"


def main() -> None:
    """Measure both sizes and a night with nothing new, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=0)
    parser.add_argument("--states", type=int, default=10_000)
    parser.add_argument("--read", type=int, default=READ)
    parser.add_argument("--sessions", type=int, default=600)
    given = parser.parse_args()
    sizes = [(1300, 1200, 300, READ), (20_000, 10_000, 600, READ // 25)]
    if given.commits:
        sizes = [(given.commits, given.states, given.sessions, given.read)]
    print("| commits | sessions | MB | states | known | CPU s | MiB | `git log` alone | pygit2 |"
          " nothing new, CPU s |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|---|")
    for commits, states, sessions, read in sizes:
        with tempfile.TemporaryDirectory() as folder:
            world = World(Path(folder), commits, states, sessions, read)
            lake = Lake(f"{folder}/lake")
            ingest_changes(lake, [str(world.sessions)])
            begun = time.monotonic()
            found = measured(lake, world.end)
            print(f"{time.monotonic() - begun:.1f} s of wall time", file=sys.stderr)
            again = measured(lake, world.end)
            if again["days"]:
                raise SystemExit("a second look found days to look at")
            print(
                f"| {commits} | {sessions} | {world.bytes / 1e6:.0f} | {found['states']} |"
                f" {found['known']} | {found['cpu']:.2f} | {found['mib']:.0f} |"
                f" {floor(world.repository):.2f} | {with_pygit2(world.repository)} |"
                f" {again['cpu']:.2f} |"
            )


if __name__ == "__main__":
    main()
