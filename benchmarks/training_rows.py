"""Training rows on disk: memory of a reader, bytes a row, rows a second.

Writes preference pairs of 8,000 prompt tokens and reads all of them, shuffled, in a process of
its own. Anonymous memory is what that process holds for itself; pages of the mapped file are
shared by all replicas and given back when memory is short. The peer is how rows were kept before:
one msgpack file, decoded into Python lists; it is measured on fewer rows, since each replica had
all of them in memory. The base model's scores of as many pairs, groups of three answers and hints
lie in files too; a reader keeps their ids.

Usage: ``python benchmarks/training_rows.py [--rows N] [--tokens N] [--peer-rows N] [--scores]``.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # this checkout, whatever is installed

import msgspec  # noqa: E402

from composer_pipeline.training.rows import ArrowRows, Pair, writing_rows  # noqa: E402
from trainers.common.base_scores import FOLDER, BaseScores, Score  # noqa: E402

BUILD = ROOT / "build"
MIB = 1 << 20
#: The bar: MiB of anonymous memory above the process without rows.
BAR_MIB = 1024
RESPONSE = 120


def memory(kind: str) -> int:
    """Return a field of this process's memory in bytes: ``RssAnon`` or ``RssFile``."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{kind}:"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"/proc/self/status has no {kind}")


def read(path: Path) -> None:
    """Read all rows in a shuffled order and print what that took, as JSON."""
    before = memory("RssAnon")
    started = time.perf_counter()
    rows: Any = (
        ArrowRows(path, Pair)
        if path.suffix == ".arrow"
        else msgspec.msgpack.decode(path.read_bytes(), type=list[Pair])
    )
    order = list(range(len(rows)))
    random.Random(0).shuffle(order)
    tokens = most = 0
    for number, index in enumerate(order):
        row = rows[index]
        tokens += len(row.prompt_ids) + len(row.chosen_ids) + len(row.rejected_ids)
        if number % 500 == 0:
            most = max(most, memory("RssAnon"))
    most = max(most, memory("RssAnon"))
    print(
        json.dumps(
            {
                "anonymous": most - before,
                "mapped": memory("RssFile"),
                "seconds": time.perf_counter() - started,
                "tokens": tokens,
            }
        )
    )


def write(path: Path, rows: int, tokens: int) -> tuple[float, int]:
    """Write rows; return seconds and the anonymous bytes that writing added at most."""
    random_ = random.Random(1)
    ids = [random_.randrange(49152) for _ in range(tokens + 1000)]
    before, most, started = memory("RssAnon"), 0, time.perf_counter()
    with writing_rows(path, Pair) as out:
        for number in range(rows):
            start = number % 1000
            prompt = ids[start : start + tokens]
            out.append(Pair(f"pair-{number}", prompt, prompt[:RESPONSE], prompt[-RESPONSE:]))
            if number % 500 == 0:
                most = max(most, memory("RssAnon"))
    return time.perf_counter() - started, most - before


def write_scores(run_dir: Path, rows: int) -> None:
    """Write scores as they are for answers of 150, 120 and 150 tokens."""
    logps = [-i / 400 for i in range(400)]
    lists: dict[str, Callable[[int], list[list[float]]]] = {
        "dpo": lambda i: [[logps[i]], [logps[-i]]],
        "grpo": lambda i: [logps[i : i + 150], logps[:120], logps[50:200]],
        "sdpo": lambda i: [logps[i : i + 150], [-1.0], [-2.0], [-3.0], [-2.5]],
    }
    for channel, of in lists.items():
        with writing_rows(run_dir / FOLDER / f"{channel}.arrow", Score) as out:
            for number in range(rows):
                out.append(Score(f"{number:064d}", of(number % 100)))


def read_scores(run_dir: Path) -> None:
    """Open scores as a replica does, look a tenth of them up, and print what that took."""
    before, started = memory("RssAnon"), time.perf_counter()
    base = BaseScores.load(run_dir)
    gains, answers, references = base.gains(), base.answers(), base.references()
    opened = time.perf_counter() - started
    for name in list(gains)[::10]:
        assert len(answers[name]) == 3
        assert references[name][0] <= 0
    anonymous = memory("RssAnon") - before
    print(json.dumps({"anonymous": anonymous, "seconds": opened}))


def scores(rows: int) -> bool:
    """Print what the scores of so many rows take; return whether that is below the bar."""
    with tempfile.TemporaryDirectory(dir=BUILD) as folder:
        write_scores(Path(folder), rows)
        size = sum(path.stat().st_size for path in (Path(folder) / FOLDER).iterdir())
        took = child(Path(folder))
    print(
        f"scores of {rows:,} pairs, groups and hints: {size / MIB:,.0f} MiB of files,"
        f" {took['anonymous'] / MIB:,.0f} MiB of its own (bar {BAR_MIB:,}), opened in"
        f" {took['seconds']:,.0f} s"
    )
    return took["anonymous"] <= BAR_MIB * MIB


def child(path: Path) -> dict[str, float]:
    """Run :func:`read` or :func:`read_scores` in a process of its own."""
    command = [sys.executable, __file__, "--read", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> int:
    """Print the figures; return 1 where the bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--tokens", type=int, default=8_000)
    parser.add_argument("--peer-rows", type=int, default=1_000)
    parser.add_argument("--scores", action="store_true", help="the base model's scores alone")
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        (read_scores if options.read.is_dir() else read)(options.read)
        return 0
    BUILD.mkdir(exist_ok=True)
    if options.scores:
        return int(not scores(options.rows))
    with tempfile.TemporaryDirectory(dir=BUILD) as folder:
        path = Path(folder) / "pairs.arrow"
        seconds, added = write(path, options.rows, options.tokens)
        size = path.stat().st_size
        print(f"{options.rows:,} pairs of {options.tokens:,} prompt tokens: {size / MIB:,.0f} MiB")
        print(f"writing: {options.rows / seconds:,.0f} rows/s, {added / MIB:,.0f} MiB of its own")
        ours = child(path)
        path.unlink()
        few = Path(folder) / "few.arrow"
        write(few, options.peer_rows, options.tokens)
        peer = Path(folder) / "few.msgpack"
        peer.write_bytes(msgspec.msgpack.encode(list(ArrowRows(few, Pair))))
        theirs = child(peer)
    rate = options.rows / ours["seconds"]
    print(
        f"reading all, shuffled: {rate:,.0f} rows/s, {ours['anonymous'] / MIB:,.1f} MiB of its own"
        f" (bar {BAR_MIB:,}), {ours['mapped'] / MIB:,.0f} MiB mapped and shared"
    )
    each = theirs["anonymous"] / MIB / options.peer_rows * 1000
    print(f"peer, lists from msgpack: {each:,.0f} MiB for each 1,000 rows and replica")
    fits = scores(options.rows)
    return int(not fits or ours["anonymous"] > BAR_MIB * MIB)


if __name__ == "__main__":
    sys.exit(main())
