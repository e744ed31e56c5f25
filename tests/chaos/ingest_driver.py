"""Ingests of one lake at once, killed again and again, leave what one undisturbed run leaves.

    python tests/chaos/ingest_driver.py [--processes 6] [--kills 20] [--places folder s3]

Each writer has a folder of sessions of its own; one session is written by all of them, as
where two machines share a folder. A round of a writer: its files grow by some lines (the last
one is sometimes cut in the middle, as of a session that is being written), a real process
ingests them, and is killed at a random moment of its waiting or of its work. When every writer
has had its kills, each ingests once more to its end, and all tables and the archive are
compared with those of a lake that one process filled from the files as they are now.
``s3`` is a moto server. Exits 1 where the lakes differ.
"""

import argparse
import json
import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

HERE = Path(__file__).resolve().parent
# The server that processes are forked from looks there for the modules that it warms.
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), str(HERE.parents[1])])
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import warm  # noqa: E402
from warm import Lake, Script, ingest  # noqa: E402

PLACES = ("folder", "s3")
TABLES = ("raw_files", "sessions", "states", "messages", "chains")
#: Every second kill comes after at most so many seconds of waiting and work (SIGKILL), the
#: others after at most so many CPU seconds, which is about what an ingest takes.
LONGEST = {"folder": (2.0, 0.3), "s3": (10.0, 0.6)}
#: Marks of the moment: a file that grew may have been read in other pieces.
PIECES = ("pieces", "mtime_ns")


class Writer:
    """The growing session files of one writer."""

    def __init__(self, folder: Path, number: int, rng: random.Random) -> None:
        self.folder, self.rng = folder / f"writer-{number}", rng
        names = [f"s{number}-{n}" for n in range(3)]
        self.scripts = [Script(name, f"2026-11-{16 + n}") for n, name in enumerate(names)]
        self.turns = 0

    def grow(self, *, whole: bool = False) -> None:
        """Write some more turns; the last line may be half of one."""
        for script in self.scripts:
            for _ in range(self.rng.randint(1, 3)):
                self.turns += 1
                script.user(f"task {self.turns} of {script.session}")
                script.say(f"m{script.session}-{self.turns}", f"answer {self.turns}")
            data = script.data
            cut = 0 if whole or self.rng.random() < 0.5 else self.rng.randint(1, 60)
            path = self.folder / f"{script.session}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data[: len(data) - cut])


def ingested(lake: str, folder: Path, after_s: float | None = None, cpu_s: float = 0.0) -> bool:
    """Ingest in a process; say whether it was still at work when it was killed."""
    process = multiprocessing.get_context("forkserver").Process(
        target=warm.one_ingest, args=(lake, str(folder), dict(os.environ), cpu_s)
    )
    process.start()
    process.join(after_s)
    if process.is_alive() and process.pid:
        os.kill(process.pid, signal.SIGKILL)
    process.join()
    # 255: the server lost sight of a process that was killed before it had told its number.
    planned = after_s is not None or cpu_s
    ends = (-signal.SIGKILL, -signal.SIGPROF, *((255,) if planned else ()))
    killed = process.exitcode in ends
    if process.exitcode and not killed:
        print(f"an ingest of {folder.name} ended with {process.exitcode}", flush=True)
        os._exit(1)  # from a thread
    return killed


def rounds(writer: Writer, kind: str, lake: str, kills: int, counted: list[int]) -> None:
    """Grow, ingest and kill until there were so many kills."""
    done = 0
    while done < kills:
        writer.grow()
        share = writer.rng.uniform(0.01, 1.0)
        wall_s, cpu_s = LONGEST[kind]
        how = {"after_s": share * wall_s} if done % 2 else {"cpu_s": share * cpu_s}
        hit = ingested(lake, writer.folder, **how)
        done += hit
        counted.append(hit)


def at_once(work: Callable[..., object], each: Sequence[tuple[Any, ...]]) -> None:
    """Call in one thread for each."""
    threads = [Thread(target=work, args=arguments, daemon=True) for arguments in each]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def table(lake: str, name: str) -> list[str]:
    """Return a table's rows as sorted JSON, without what depends on when a file was read."""
    rows = Lake(lake).rows(name)
    for row in rows:
        for column in PIECES:
            row.pop(column, None)
    return sorted(json.dumps(row, sort_keys=True, default=str) for row in rows)


@contextmanager
def place(kind: str, folder: Path) -> Iterator[Callable[[str], str]]:
    """Give names of lakes: folders, or prefixes of a bucket on a moto server."""
    if kind == "folder":
        yield lambda name: str(folder / name)
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    code = (
        "import sys, time\n"
        "from moto.server import ThreadedMotoServer\n"
        "import boto3, logging\n"
        "logging.getLogger('werkzeug').disabled = True\n"
        f"server = ThreadedMotoServer(ip_address='127.0.0.1', port={port}, verbose=False)\n"
        "server.start()\n"
        f"boto3.client('s3', endpoint_url='http://127.0.0.1:{port}').create_bucket(Bucket='bucket')\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
    )
    os.environ.update(
        AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="test", AWS_REGION="us-east-1",
        AWS_DEFAULT_REGION="us-east-1", AWS_ENDPOINT_URL=f"http://127.0.0.1:{port}",
        AWS_ALLOW_HTTP="true",
    )  # fmt: skip
    server = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert server.stdout is not None
        if server.stdout.readline().strip() != "ready":
            raise SystemExit("the moto server did not start; pip install 'moto[server]' boto3")
        yield lambda name: f"s3://bucket/{name}"
    finally:
        server.kill()
        server.wait()


def run(kind: str, processes: int, kills: int, seed: int) -> int:
    """Run one place; print a line; return how many tables differ."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, place(kind, Path(folder)) as named:
        writers = [Writer(Path(folder), n, random.Random(f"{seed} {n}")) for n in range(processes)]
        shared, alone, counted = named("shared"), named("alone"), list[int]()
        at_once(rounds, [(w, kind, shared, kills, counted) for w in writers])
        before = len(Lake(shared).rows("states"))
        for writer in writers:
            writer.grow(whole=True)
        at_once(ingested, [(shared, writer.folder) for writer in writers])
        ingest(Lake(alone), [str(writer.folder) for writer in writers])
        wrong = [name for name in TABLES if table(shared, name) != table(alone, name)]
        states = len(Lake(shared).rows("states"))
        left = [d for d in Lake(shared).days("states") if Lake(shared).damaged_file(d)]
    took = f"{time.monotonic() - begun:.0f} s"
    print(
        f"{kind}: {processes} processes, {sum(counted)} kills in {len(counted)} ingests, "
        f"{before} states after them and {states} in the end, {took}; "
        f"tables that differ: {', '.join(wrong) or 'none'}; damaged days: {len(left)}",
        flush=True,
    )
    return len(wrong) + len(left) + (sum(counted) < processes * kills)


def main() -> int:
    """Run the places; return 1 where a lake differs."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--processes", type=int, default=6)
    options.add_argument("--kills", type=int, default=20, help="of each process")
    options.add_argument("--places", nargs="+", choices=PLACES, default=PLACES)
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    multiprocessing.get_context("forkserver").set_forkserver_preload(["warm"])
    wrong = [run(kind, given.processes, given.kills, given.seed) for kind in given.places]
    return int(any(wrong))


if __name__ == "__main__":
    sys.exit(main())
