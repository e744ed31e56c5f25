"""Memory of ``dataset`` and ``publish``, and the size of what they write beside ``push_to_hub``.

Real sessions (the shared corpus, or the bundled samples) get answers of simulated teachers, written
as a replay would have: at two of three states both name one action of another state of the session.
Each stage runs in a process of its own, whose peak of resident memory is printed, with the sessions
once and with each of them twice under another name. The bytes of the tables are compared with what
``Dataset.push_to_hub`` would send: Parquet with the settings of ``datasets`` (snappy, 1 MB
dictionaries, pages cut by content).

Usage: ``python benchmarks/publish.py [--corpus DIR] [--keep DIR]``.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shared_corpus import source_files

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # this checkout, whatever is installed

import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402

from composer_pipeline.actions import Action  # noqa: E402
from composer_pipeline.dataset.build import build_dataset  # noqa: E402
from composer_pipeline.dataset.manifest import read_build  # noqa: E402
from composer_pipeline.lake.parquet import column  # noqa: E402
from composer_pipeline.lake.schema import TABLES  # noqa: E402
from composer_pipeline.lake.store import Lake  # noqa: E402
from composer_pipeline.preferences.hints import build_hints  # noqa: E402
from composer_pipeline.preferences.pairs import build_pairs  # noqa: E402
from composer_pipeline.preferences.rules import GATES, PreferenceRules  # noqa: E402
from composer_pipeline.publishing.publish import publish  # noqa: E402
from composer_pipeline.states.load import load_states  # noqa: E402
from composer_pipeline.testing.hub.server import LoopbackHub  # noqa: E402
from composer_pipeline.traces.ingest import ingest  # noqa: E402

MIB = 1 << 20
#: What names a record, a response or a session; a quote ends it.
_IDS = re.compile(
    r'"(?:uuid|parentUuid|logicalParentUuid|leafUuid|sessionId|requestId|agentId)": *"[^"]+'
    r'|"id": *"msg_[^"]+'
)
#: Bars: MiB of the dataset's and the publication's peak, growth with twice the sessions, size.
DATASET_MIB, PUBLISH_MIB, GROWTH, SIZE = 800, 500, 1.3, 1 / 10


def answered(lake: Lake) -> None:
    """Write answers of two simulated teachers to two of three states, and what comes of them."""
    for day in lake.days("states"):
        states = list(load_states(lake, days=[day]))
        by_session: dict[str, list[Any]] = {}
        for state in states:
            if state.action.tool_calls:
                by_session.setdefault(state.session_id, []).append(state)
        for teacher in ("one", "two"):
            rows = []
            for mine in by_session.values():
                for number, state in enumerate(mine):
                    if number % 3 == 2:
                        continue
                    other = mine[(number * 7 + 3) % len(mine)].action
                    rows.append(
                        {
                            "state_id": state.state_id,
                            "session_id": state.session_id,
                            "family": teacher,
                            "model": f"m/{teacher}",
                            "status": "ok",
                            "action": Action("", other.tool_calls[:1]).to_json(),
                            "request_hash": state.state_id,
                            "simulated": True,
                            "training_terms": "enforced",
                            "cost_picodollars": 1_000_000,
                            "created_at": datetime(2026, 1, 1, tzinfo=UTC),
                        }
                    )
            lake.write("replies", rows, teacher=teacher, day=day)


def prepared(folder: Path, sources: list[Path]) -> Lake:
    """Return a lake that has all that the dataset is made of."""
    lake = Lake(folder)
    ingest(lake, sources)
    answered(lake)
    build_hints(lake)
    for day in lake.days("states"):
        build_pairs(lake, days=[day])
        pairs = lake.read("pairs", days=[day]).drop_columns(["day"])
        recipe = column(["bench@1"] * len(pairs), pa.string())
        table = pairs.append_column("recipe", recipe).cast(TABLES["normalized_pairs"].schema)
        lake.write("normalized_pairs", table, day=day)
    return lake


def twice(source: Path, out: Path) -> Path:
    """Write each session under another name and with other words of the user."""
    for path in source.rglob("*.jsonl"):
        target = out / path.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("w") as file:
            for line in path.read_text().splitlines():
                file.write(_renamed(line) + "\n")
    return out


def _renamed(line: str) -> str:
    try:
        record = json.loads(_IDS.sub(r"\g<0>2", line))
    except ValueError:
        return line
    message = record.get("message") if isinstance(record, dict) else None
    if isinstance(message, dict) and record.get("type") == "user":
        if isinstance(message.get("content"), str):
            message["content"] = f"Again: {message['content']}"
        for block in message["content"] if isinstance(message.get("content"), list) else ():
            if isinstance(block, dict) and block.get("type") == "text":
                block["text"] = f"Again: {block['text']}"
    return json.dumps(record)


def peak(stage: str, lake: Lake, **environment: str) -> dict[str, float]:
    """Run a stage in a process of its own; return its peak in MiB and its CPU seconds."""
    command = [sys.executable, __file__, "--stage", stage, "--lake", lake.url]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, **environment}
    )
    told: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return told


def run_stage(stage: str, lake: Lake) -> None:
    """Run one stage here and print what it took, as JSON."""
    if stage == "dataset":
        build_dataset(lake, rules=PreferenceRules(accept=GATES))
    else:
        publish(lake, "bench/dataset", allow_simulated=True)
    high = next(
        line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line
    )
    seconds = time.process_time()
    print(json.dumps({"mib": int(high.split()[1]) / 1024, "seconds": seconds}))


def published(lake: Lake, scratch: Path) -> dict[str, float]:
    """Publish to a Hub on the loopback, which is in this process and not in the measured one."""
    with LoopbackHub("hf_bench") as hub:
        return peak(
            "publish", lake, HF_ENDPOINT=hub.endpoint, HF_TOKEN="hf_bench",
            HF_HOME=str(scratch / "home"), HF_HUB_DISABLE_XET="1",
            HF_HUB_DISABLE_PROGRESS_BARS="1",
        )  # fmt: skip


def pushed_bytes(lake: Lake, scratch: Path) -> tuple[int, int]:
    """Return the bytes of the build's files, and as ``push_to_hub`` writes the same rows."""
    ours = theirs = 0
    for number, file in enumerate(read_build(lake).files):
        code = (
            "import sys, datasets; datasets.Dataset.from_parquet(sys.argv[1],"
            " cache_dir=sys.argv[2]).to_parquet(sys.argv[3])"
        )
        cache, out = scratch / f"cache{number}", scratch / "theirs.parquet"
        command = [sys.executable, "-c", code, f"{lake.root}/{file.name}", str(cache), str(out)]
        subprocess.run(command, check=True, capture_output=True)
        ours, theirs = ours + file.bytes, theirs + out.stat().st_size
        shutil.rmtree(cache)
    return ours, theirs


def main() -> int:
    """Print the figures; return 1 where a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, help="folder of session files")
    parser.add_argument("--keep", type=Path, help="folder for the lakes, kept and used again")
    parser.add_argument("--stage", help=argparse.SUPPRESS)
    parser.add_argument("--lake", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.stage:
        run_stage(options.stage, Lake(options.lake))
        return 0
    source, what = source_files(options.corpus)
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        if not (folder / "one" / "normalized_pairs").is_dir():
            prepared(folder / "one", [source])
        if not (folder / "two" / "normalized_pairs").is_dir():
            prepared(folder / "two", [source, twice(source, folder / "again")])
        return measure(Lake(folder / "one"), Lake(folder / "two"), what, Path(scratch))


def largest_group(path: Path) -> int:
    """Return the bytes of a file's largest row group, decoded."""
    file = pq.ParquetFile(path)
    sizes: list[int] = [file.read_row_group(i).nbytes for i in range(file.num_row_groups)]
    return max(sizes)


def measure(one: Lake, two: Lake, what: str, scratch: Path) -> int:
    """Print what the stages took; return 1 where a bar is missed."""
    built = [peak("dataset", lake) for lake in (one, two)]
    sent = [published(lake, scratch) for lake in (one, two)]
    ours, theirs = pushed_bytes(one, scratch)
    counts = [
        lake.select(
            "SELECT (SELECT count(DISTINCT session_id) FROM sessions) AS sessions,"
            " (SELECT count(*) FROM dataset_pairs) AS pairs,"
            " (SELECT count(*) FROM dataset_groups) AS groups"
        )[0]
        for lake in (one, two)
    ]
    groups = max(largest_group(Path(one.root, file.name)) for file in read_build(one).files)
    lines = [
        f"{what}: {counts[0]}, then {counts[1]}",
        "",
        "| what | once | twice the sessions | bar |",
        "|---|---|---|---|",
    ]
    good = groups < 80 * 10**6 and ours <= SIZE * theirs
    for name, found, bar in (("dataset", built, DATASET_MIB), ("publish", sent, PUBLISH_MIB)):
        once, more = (part["mib"] for part in found)
        good &= once <= bar and more <= GROWTH * once
        lines.append(
            f"| {name}: peak of resident memory | {once:.0f} MiB | {more:.0f} MiB"
            f" ({more / once:.2f} times) | {bar} MiB, {GROWTH} times |"
        )
        cpu = " | ".join(f"{part['seconds']:.0f} s" for part in found)
        lines.append(f"| {name}: CPU | {cpu} | |")
    lines += [
        f"| bytes of the files | {ours:,} | | |",
        f"| as push_to_hub writes them | {theirs:,} ({theirs / ours:.1f} times) | | 10 times |",
        f"| largest row group, decoded | {groups / 10**6:.0f} MB | | 80 MB |",
        "",
        "all bars are met" if good else "a bar is missed",
    ]
    print("\n".join(lines))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
