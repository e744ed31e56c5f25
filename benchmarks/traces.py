"""Speed, memory and size of reading sessions, beside other readers of the same files.

Builds a corpus by repeating real session files with fresh ids, then measures CPU
seconds on one core. Without the shared corpus the bundled sample sessions are repeated,
and the output says so. Usage: ``python benchmarks/traces.py [--corpus DIR] [--megabytes N]``.
"""

import argparse
import hashlib
import json
import os
import platform
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson
from shared_corpus import source_files
from trace_peers import READERS, Reader

from composer_pipeline.traces.content_store import Piece

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # this checkout, whatever is installed
BUILD = ROOT / "build" / "bench-traces"
#: Each time is the least of so many: other work on the machine only ever adds to it.
RUNS = 3

_IDS = re.compile(
    rb"\b(?:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    rb"|(?:msg|toolu|req)_01[0-9A-Za-z]{20,24})\b"
)

Bar = tuple[str, float, float, bool]  # name, measured, bar, higher is better
Row = tuple[str, float | str, str]  # name, seconds or why there are none, note


# -- corpus ----------------------------------------------------------------------


def renewed(data: bytes, copy: int) -> bytes:
    """Return the bytes of a file with every uuid, message, call and request id renewed."""
    memo: dict[bytes, bytes] = {}

    def fresh(match: re.Match[bytes]) -> bytes:
        old = match[0]
        if old not in memo:
            digest = hashlib.blake2b(b"%d " % copy + old, digest_size=16).hexdigest().encode()
            if old[8:9] == b"-":
                cuts = ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32))
                memo[old] = b"-".join(digest[a:b] for a, b in cuts)
            else:
                memo[old] = old[: old.index(b"_") + 3] + digest[:24]
        return memo[old]

    return _IDS.sub(fresh, data)


def replicate(source: Path, target: Path, megabytes: int) -> None:
    """Fill ``target`` with copies of the files below ``source``, each with fresh ids."""
    shutil.rmtree(target, ignore_errors=True)
    files = sorted(source.rglob("*.jsonl"))
    total, copy = 0, 0
    while total < megabytes * 1_000_000:
        for file in files:
            out = target / f"copy{copy}" / file.relative_to(source)
            out.parent.mkdir(parents=True, exist_ok=True)
            data = renewed(file.read_bytes(), copy)
            out.write_bytes(data)
            total += len(data)
        copy += 1


def one_session(source: Path, target: Path, enough: Callable[[int, int], bool]) -> int:
    """Write one session that goes on through many real ones; return its responses."""
    files = sorted(f for f in source.rglob("*.jsonl") if "subagents" not in f.parts)
    target.parent.mkdir(parents=True, exist_ok=True)
    size, seen, leaf, copy = 0, set[str](), None, 0
    with target.open("wb") as out:
        while not enough(size, len(seen)):
            for file in files:
                for line in renewed(file.read_bytes(), copy).splitlines(keepends=True):
                    try:
                        record = orjson.loads(line)
                    except orjson.JSONDecodeError:
                        continue
                    record["sessionId"] = "5e55-one"
                    if record.get("uuid"):
                        if record.get("parentUuid") is None and record["type"] != "system":
                            record["parentUuid"] = leaf
                        leaf = record["uuid"] if not record.get("isSidechain") else leaf
                    if record.get("type") == "assistant":
                        seen.add(str(record["message"].get("id")))
                    size += out.write(orjson.dumps(record) + b"\n")
                    if enough(size, len(seen)):
                        return len(seen)
            copy += 1
    return len(seen)


# -- measuring -------------------------------------------------------------------


def cpu(work: Callable[[], Any], repeat: int = 1) -> float:
    """Return the least CPU seconds, user and system, that ``work`` took."""
    best = float("inf")
    for _ in range(repeat):
        before = time.process_time()
        work()
        best = min(best, time.process_time() - before)
    return best


def lines_of(folder: Path) -> Iterator[bytes]:
    """Yield the lines of all session files."""
    for file in sorted(folder.rglob("*.jsonl")):
        with file.open("rb") as lines:
            yield from lines


def floor(folder: Path) -> None:
    """Decode every line with orjson and forget it."""
    loads = orjson.loads
    for line in lines_of(folder):
        try:
            loads(line)
        except orjson.JSONDecodeError:
            continue


def typed(folder: Path) -> None:
    """Decode every line into our envelope and forget it."""
    from composer_pipeline.traces.records import LineStats, read_records

    for file in sorted(folder.rglob("*.jsonl")):
        with file.open("rb") as lines:
            for _ in read_records(lines, LineStats()):
                pass


class Unredacted:
    """Stands in for the redactor where the cost of redaction is to be left out."""

    def __init__(self, *_: object) -> None: ...

    def __call__(self, sources: Sequence[bytes], _: object) -> list[Piece]:
        """Return the values as they are."""
        return [Piece(source) for source in sources]


def measure_ours(corpus: Path, real: Path, redacted: bool) -> dict[str, float]:
    """Harvest and parse in this process; return CPU seconds and sizes."""
    import composer_pipeline.traces.parse as parse
    import composer_pipeline.traces.states as states
    from composer_pipeline.lake.store import Lake
    from composer_pipeline.traces.archive import harvest

    if not redacted:
        vars(parse)["Redactor"] = Unredacted
        vars(states)["redact_text"] = lambda text, names=(): (text, None)
    with tempfile.TemporaryDirectory(dir=BUILD) as folder:
        small = Lake(f"{folder}/warm")  # imports and caches of the libraries
        harvest(small, [sorted(real.rglob("*.jsonl"))[0]])
        parse.parse_days(small)
        lake = Lake(f"{folder}/lake")
        archive = cpu(lambda: harvest(lake, [corpus]))
        return {"archive": archive, "parse": cpu(lambda: parse.parse_days(lake), RUNS)}


def measure_memory(file: Path) -> dict[str, float]:
    """Ingest one file; return the peak resident memory of this process in MB."""
    from composer_pipeline.lake.store import Lake
    from composer_pipeline.traces.ingest import ingest

    with tempfile.TemporaryDirectory(dir=BUILD) as folder:
        report = ingest(Lake(folder), [file])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    return {"peak_mb": peak, "states": report.totals["states"]}


def bytes_per_state(path: Path) -> tuple[float, int]:
    """Ingest with redaction; return the bytes of the tables that hold states, and states."""
    from composer_pipeline.lake.store import Lake
    from composer_pipeline.traces.ingest import ingest

    with tempfile.TemporaryDirectory(dir=BUILD) as folder:
        lake = Lake(folder)
        ingest(lake, [path])
        states = lake.read("states", columns=["state_id"]).num_rows
        tables = ("messages", "chains", "states")
        size = sum(f.stat().st_size for t in tables for f in Path(folder, t).rglob("*.parquet"))
        return size / states, states


def latencies(path: Path, count: int = 200) -> list[float]:
    """Return the milliseconds of reading single states, warm, in order of size."""
    from composer_pipeline.lake.store import Lake
    from composer_pipeline.states.load import load_state
    from composer_pipeline.traces.ingest import ingest

    with tempfile.TemporaryDirectory(dir=BUILD) as folder:
        lake = Lake(folder)
        ingest(lake, [path])
        ids = sorted(lake.read("states", columns=["state_id"])["state_id"].to_pylist())
        chosen = ids[:: max(1, len(ids) // count)]
        found = []
        for state_id in chosen:
            times = []
            for _ in range(RUNS):
                before = time.perf_counter()
                load_state(lake, state_id)
                times.append(time.perf_counter() - before)
            found.append(1000 * min(times))
        return sorted(found)


def distinct_share(folder: Path) -> float:
    """Return the share of content text, in bytes, that no earlier message had."""
    seen: set[bytes] = set()
    total = distinct = 0
    for line in lines_of(folder):
        try:
            message = orjson.loads(line).get("message")
        except (orjson.JSONDecodeError, AttributeError):
            continue
        for text in _texts(message.get("content") if isinstance(message, dict) else None):
            data = text.encode("utf-8", "replace")
            total += len(data)
            digest = hashlib.blake2b(data, digest_size=16).digest()
            if digest not in seen:
                seen.add(digest)
                distinct += len(data)
    return distinct / max(1, total)


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)


# -- peers -----------------------------------------------------------------------

#: Prints the seconds of the fastest run, files that failed, and the Python.
_TIMED = """
import sys, time, json, logging, platform
from pathlib import Path
logging.disable(50)
root = Path(sys.argv[1])
files = [Path(line) for line in sys.stdin.read().splitlines()]
{read}
seconds = []
for run in range({runs}):
    failed, begin = 0, time.process_time()
    for file in files:
        try:
            read(file, root)
        except Exception:
            failed += 1
    seconds.append(time.process_time() - begin)
print()
print(json.dumps([min(seconds), failed, platform.python_version()]))
"""


def measure_peer(reader: Reader, corpus: Path) -> str | tuple[float, int, str]:
    """Read the corpus with a peer; return seconds, failures and its Python, or why not."""
    python = reader.python()
    if isinstance(python, str):
        return python
    done = subprocess.run(
        [*_pinned(), str(python), "-c", _TIMED.format(read=reader.read, runs=RUNS), str(corpus)],
        input="\n".join(map(str, reader.files(corpus))),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return f"failed: {done.stderr.strip().splitlines()[-1][:110]}"
    seconds, failed, version = json.loads(done.stdout.strip().splitlines()[-1])
    return float(seconds), int(failed), str(version)


# -- the table -------------------------------------------------------------------


def _pinned() -> list[str]:
    return ["taskset", "-c", "0"] if shutil.which("taskset") else []


def _child(*arguments: str) -> dict[str, float]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*_pinned(), sys.executable, __file__, "--child", *arguments],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def _run_child(kind: str, *paths: str) -> dict[str, float]:
    folders = [Path(path) for path in paths]
    if kind == "floor":
        return {"seconds": cpu(lambda: floor(folders[0]), RUNS)}
    if kind == "typed":
        return {"seconds": cpu(lambda: typed(folders[0]), RUNS)}
    if kind == "memory":
        return measure_memory(folders[0])
    return measure_ours(folders[0], folders[1], kind == "redacted")


def _peer_row(reader: Reader, found: str | tuple[float, int, str]) -> Row:
    label = f"{reader.name} {reader.version}"
    if isinstance(found, str):
        return label, found, ""
    seconds, failed, version = found
    note = f"Python {version}" if version != platform.python_version() else ""
    note += f"{', ' if note else ''}{failed} files failed" if failed else ""
    return label, seconds, note


def _print(rows: list[Row], size: float, base: float) -> None:
    for label, taken, note in rows:
        if isinstance(taken, str):
            print(f"{label:42} {taken}")
        else:
            speed = f"{size / taken:6.0f} MB/s  {base / taken:5.2f} x orjson"
            print(f"{label:42} {taken:8.2f} s {speed}  {note}")


def main() -> int:
    """Run everything; return 1 where a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, help="folder of session files to repeat")
    parser.add_argument("--megabytes", type=int, default=500, help="size of the corpus")
    parser.add_argument("--memory-megabytes", type=int, default=1000)
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--only", nargs="+", metavar="PEER", help="the floor and these readers")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    BUILD.mkdir(parents=True, exist_ok=True)
    if options.child:
        print(json.dumps(_run_child(*options.child)))
        return 0
    source, what = source_files(options.corpus)
    big, long = BUILD / "replicated", BUILD / "long.jsonl"
    replicate(source, big, options.megabytes)
    size = sum(file.stat().st_size for file in big.rglob("*.jsonl")) / 1e6
    print(f"{platform.machine()}, Python {platform.python_version()}, one core,", end=" ")
    print(f"CPU seconds, best of {RUNS}")
    print(f"{size:.0f} MB: {what}, repeated with fresh ids;", end=" ", flush=True)
    print(f"{distinct_share(big):.0%} of its content text is distinct\n")

    base = _child("floor", str(big))["seconds"]
    rows: list[Row] = [("orjson.loads, every line", base, "floor")]
    if options.only:
        for reader in (r for r in READERS if r.name in options.only):
            rows.append(_peer_row(reader, measure_peer(reader, big)))
        _print(rows, size, base)
        return 0
    parsed = _child("typed", str(big))["seconds"]
    rows.append(("ours: typed parse", parsed, ""))
    plain = _child("plain", str(big), str(source))
    safe = _child("redacted", str(big), str(source))
    rows.append(("ours: whole ingest, not redacted", plain["parse"], ""))
    rows.append(("ours: whole ingest, redacted", safe["parse"], ""))
    rows.append(("ours: archiving (zstd, sha256), besides", safe["archive"], ""))
    bars: list[Bar] = [
        ("typed parse / orjson", base / parsed, 1.3, True),
        ("ingest without redaction / orjson", base / plain["parse"], 0.35, True),
        ("ingest with redaction / orjson", base / safe["parse"], 0.2, True),
    ]
    for reader in () if options.no_peers else READERS:
        found, name = measure_peer(reader, big), reader.name
        rows.append(_peer_row(reader, found))
        if isinstance(found, str):
            continue
        seconds = found[0]
        bars.append((f"ingest, not redacted, ahead of {name}", seconds / plain["parse"], 1, True))
        bars.append((f"ingest, redacted, ahead of {name}", seconds / safe["parse"], 1, True))
    _print(rows, size, base)

    one_session(source, long, lambda n, _: n >= options.memory_megabytes * 1_000_000)
    memory = _child("memory", str(long))
    bars.append(
        (f"peak MB on one {options.memory_megabytes} MB file", memory["peak_mb"], 300, False)
    )
    per_state, states = bytes_per_state(source)
    bars.append((f"bytes a state, {states} states of the corpus", per_state, 800, False))
    steps = one_session(source, long, lambda _, n: n >= 2000)
    per_state, states = bytes_per_state(long)
    bars.append((f"bytes a state, one session of {steps} responses", per_state, 600, False))
    for name, path in (("corpus", source), ("long session", long)):
        found_ms = latencies(path)
        middle, slow = statistics.median(found_ms), found_ms[int(len(found_ms) * 0.95)]
        print(
            f"\none state of the {name}: median {middle:.1f} ms, 95 % below {slow:.1f} ms", end=""
        )
        if name == "corpus":
            bars.append(("ms to read one state, median", middle, 15, False))
    print("\n")
    for label, value, bar, higher in bars:
        good = value >= bar if higher else value <= bar
        sign = ">=" if higher else "<="
        print(f"{'ok  ' if good else 'MISS'} {label:50} {value:9.2f} {sign} {bar:g}")
    ratios = [(value / bar if higher else bar / value, label) for label, value, bar, higher in bars]
    worst, label = min(ratios)
    print(f"\nworst: {label}, {worst:.2f} of its bar")
    shutil.rmtree(big, ignore_errors=True)
    long.unlink(missing_ok=True)
    return 0 if worst >= 1 else 1


if __name__ == "__main__":
    sys.exit(main())
