"""Normalisation: CPU seconds for 100,000 pairs, beside stock data-juicer and DuckDB.

    python benchmarks/normalize.py [--rows N] [--skip-dj-process] [--keep FOLDER]

The pairs are made from the bundled sample sessions: lines of their actions, cut and put
together to the lengths of real agent actions (quantiles below), 4 % of them empty, too long or
pure punctuation, 8 % exact repeats. The recipe filters both fields: length, words and special
characters of ``chosen_text`` and of ``rejected_text``, then exact de-duplication on both sides.

Engines, each in a process of its own whose CPU seconds include its children and its start:

- ours: the runner alone, from the flat columns to the kept ids;
- ours, whole stage: from the lake's ``pairs`` to ``normalized_pairs`` and ``drops``;
- stock: one recipe a field, because stock data-juicer is wrong on two fields in one recipe,
  with ``NestedDataset.process`` in one process (np 1), without the monitor, on a table of
  nothing but the id and the column that is judged, with ``turbo`` where it helps: the
  fairest setting that was found, and the one that the bar is against;
- dj-process: as its documentation says to run it, once a field, with its default np;
- DuckDB: the same rules in SQL, the floor.

All engines must keep the same ids. The exit code is 1 below the bar or where they differ.
"""

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml
from rich.console import Console
from rich.table import Table

BAR = 5.0
SIDES = ("chosen_text", "rejected_text")
#: Lengths of 4,201 real agent actions (name and arguments, or prose), in characters.
QUANTILES = (
    (0.0, 20), (0.05, 79), (0.1, 96), (0.25, 136), (0.5, 247), (0.75, 646),
    (0.9, 1460), (0.95, 2583), (0.99, 7364), (1.0, 22202),
)  # fmt: skip
LENGTH = {"min_len": 10, "max_len": 20000}
WORDS = {"min_num": 2, "max_num": 5000}
SPECIAL = {"min_ratio": 0.0, "max_ratio": 0.5}


def field_filters(field: str) -> list[dict[str, dict[str, Any]]]:
    """Return the filters of one field."""
    return [
        {"text_length_filter": {"text_key": field, **LENGTH}},
        {"words_num_filter": {"text_key": field, **WORDS}},
        {"special_characters_filter": {"text_key": field, **SPECIAL}},
    ]


DEDUP: dict[str, dict[str, Any]] = {
    "document_deduplicator": {
        "text_key": "pair_text",
        "lowercase": False,
        "ignore_non_character": False,
    }
}


# -- data ------------------------------------------------------------------------


def fixture_lines() -> list[str]:
    """Return the distinct lines of the actions in the bundled sample sessions."""
    from composer_pipeline.lake.store import Lake
    from composer_pipeline.states.load import load_states
    from composer_pipeline.testing.samples import sample_sessions_dir
    from composer_pipeline.traces.ingest import ingest

    lines: dict[str, None] = {}
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(folder)
        ingest(lake, [sample_sessions_dir()])
        for state in load_states(lake):
            texts = [state.action.text]
            texts += [json.dumps(c.arguments, ensure_ascii=False) for c in state.action.tool_calls]
            for text in texts:
                lines.update(dict.fromkeys(text.replace("\\n", "\n").splitlines()))
    return [line for line in lines if line.strip()]


def length(rng: random.Random) -> int:
    """Draw a length from :data:`QUANTILES`, linear between them."""
    q = rng.random()
    for (low_q, low), (high_q, high) in pairwise(QUANTILES):
        if q <= high_q:
            return int(low + (high - low) * (q - low_q) / (high_q - low_q))
    return QUANTILES[-1][1]


def text(rng: random.Random, lines: list[str]) -> str:
    """Put lines together to a drawn length; 4 % of texts are ones that filters drop."""
    draw = rng.random()
    if draw < 0.01:
        return ""
    if draw < 0.02:
        return "#" * rng.randrange(20, 200)
    if draw < 0.03:
        return "word " * 6000
    if draw < 0.04:
        return "0123456789 " * 20
    wanted, parts, size = length(rng), [], 0
    while size < wanted:
        parts.append(rng.choice(lines))
        size += len(parts[-1]) + 1
    return "\n".join(parts)[:wanted]


def make(folder: Path, rows: int) -> None:
    """Write ``narrow.parquet``, ``pairs.jsonl`` and a lake with ``pairs``."""
    from composer_pipeline.lake.store import Lake
    from composer_pipeline.normalization.operators import import_data_juicer
    from composer_pipeline.normalization.stage import write_columns

    rng = random.Random(7)
    lines = fixture_lines()
    prompts = []
    for session in range(rows // 40 + 1):
        turns = [f"Session {session}: {text(rng, lines)[:400]}"]
        turns += ["\n".join(rng.choices(lines, k=6))[:400] for _ in range(5)]
        prompts.append([{"role": "user", "content": turn} for turn in turns])
    made: list[dict[str, Any]] = []
    for row in range(rows):
        if made and rng.random() < 0.08:
            old = made[rng.randrange(len(made))]
            made.append({**old, "pair_id": f"pair-{row:07}"})
            continue
        sides = [[{"role": "assistant", "content": text(rng, lines)}] for _ in SIDES]
        prompt = [*prompts[row // 40], {"role": "user", "content": f"Step {row % 40}"}]
        made.append(
            {
                "pair_id": f"pair-{row:07}",
                "state_id": f"state-{row:07}",
                "session_id": f"session-{row // 40}",
                "prompt": prompt,
                "chosen": sides[0],
                "rejected": sides[1],
                "tools": [],
                "tier": "gold",
            }
        )
    lake = Lake(folder / "lake")
    lake.write("pairs", made, day="2026-11-16")
    write_columns(lake, folder / "pairs.jsonl")
    from pyarrow import json as pj

    table = pj.read_json(folder / "pairs.jsonl", pj.ReadOptions(block_size=64 << 20))
    table = table.select(["pair_id", "state_key", *SIDES, "pair_text"]).combine_chunks()
    # DuckDB must not pay for importing data-juicer to know its table of characters.
    import_data_juicer()
    from data_juicer.ops.common.special_characters import SPECIAL_CHARACTERS

    points = sorted(ord(char) for char in SPECIAL_CHARACTERS if len(char) == 1)
    (folder / "special.json").write_text(json.dumps(points))
    pq.write_table(table, folder / "narrow.parquet")


# -- engines: each runs in a process of its own and writes the kept ids ----------------


def keep(folder: Path, ids: list[str]) -> None:
    """Leave the kept ids for the parent."""
    (folder / "kept.json").write_text(json.dumps(ids))


def recipe(folder: Path, process: list[Any], **extra: Any) -> Path:
    """Write a recipe."""
    path = folder / "recipe.yaml"
    base = {
        "text_keys": ["chosen_text"],
        "skip_op_error": False,
        "use_cache": False,
        "auto_op_parallelism": False,
        "open_monitor": False,
    }
    path.write_text(yaml.safe_dump({**base, "process": process, **extra}))
    return path


def two_fields() -> list[Any]:
    """Return the steps of the recipe that all engines implement."""
    return [*field_filters(SIDES[0]), *field_filters(SIDES[1]), DEDUP]


def ours(folder: Path) -> None:
    """Run our runner on the flat columns."""
    from composer_pipeline.normalization.operators import WorkerSettings
    from composer_pipeline.normalization.worker import Worker

    steps = [(name, dict(args)) for entry in two_fields() for name, args in entry.items()]
    with Worker(WorkerSettings(steps=steps), "bench") as worker:
        table = pq.read_table(folder / "narrow.parquet", columns=["pair_id", "state_key", *SIDES])
        drops = worker.judge(range(len(steps)), table)
    gone = {drop.row for drop in drops}
    ids = table.column("pair_id").to_pylist()
    keep(folder, [pair_id for row, pair_id in enumerate(ids) if row not in gone])


def stage(folder: Path) -> None:
    """Run the whole stage on the lake."""
    from composer_pipeline.lake.store import Lake
    from composer_pipeline.normalization.stage import normalize

    lake = Lake(folder / "lake")
    normalize(lake, recipe(folder, two_fields()))
    keep(folder, lake.read("normalized_pairs").column("pair_id").to_pylist())


def stock(folder: Path) -> None:
    """Run stock data-juicer's own loop, one field after the other."""
    import datasets
    from data_juicer.core.data import NestedDataset
    from data_juicer.ops import load_ops

    datasets.disable_progress_bars()
    datasets.disable_caching()
    table = pq.read_table(folder / "narrow.parquet")

    def run(column: str, steps: list[Any], left: pa.Table) -> pa.Table:
        made = load_ops(
            [
                {n: {**a, "skip_op_error": False, "auto_op_parallelism": False, "turbo": True}}
                for step in steps
                for n, a in step.items()
            ]
        )
        data = NestedDataset(datasets.Dataset(left.select(["pair_id", column])))
        kept = data.process(made, open_monitor=False)
        ids = pa.array(list(kept["pair_id"]), pa.string())
        return left.filter(pc.is_in(left.column("pair_id"), value_set=ids))

    for column in SIDES:
        table = run(column, field_filters(column), table)
    table = run("pair_text", [DEDUP], table)
    keep(folder, table.column("pair_id").to_pylist())


def dj_process(folder: Path) -> None:
    """Run the ``dj-process`` command once a field, then for the de-duplication."""
    source = folder / "pairs.jsonl"
    passes = [*(field_filters(column) for column in SIDES), [DEDUP]]
    for number, process in enumerate(passes):
        out = folder / f"dj-{number}" / "out.jsonl"
        column = next(iter(process[0].values()))["text_key"]
        path = folder / "dj.yaml"
        text_keys, extra = [column], {"dataset_path": str(source), "export_path": str(out)}
        path.write_text(
            yaml.safe_dump(
                {
                    "process": process,
                    "text_keys": text_keys,
                    "skip_op_error": False,
                    "use_cache": False,
                    "open_monitor": False,
                    **extra,
                }
            )
        )
        script = "from data_juicer.tools.process_data import main; main()"
        subprocess.run(
            [sys.executable, "-c", script, "--config", str(path)],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        source = out
    lines = source.read_text(encoding="utf-8").splitlines()
    keep(folder, [json.loads(line)["pair_id"] for line in lines])


def duck(folder: Path) -> None:
    """Run the same rules as SQL on one thread."""
    import duckdb

    inside = "".join(
        f"\\x{{{point:X}}}" for point in json.loads((folder / "special.json").read_text())
    )
    con = duckdb.connect()
    con.execute("SET threads = 1")
    source = str(folder / "narrow.parquet").replace("'", "''")

    def rules(column: str) -> str:
        special = f"length(regexp_replace({column}, '[^{inside}]', '', 'g'))"
        # A word is what stays of it when special characters are taken from both its ends.
        words = (
            f"len(list_filter(regexp_split_to_array({column}, '[ \\n\\t]'),"
            f" lambda w: regexp_matches(w, '[^{inside}]')))"
        )
        return (
            f"length({column}) BETWEEN {LENGTH['min_len']} AND {LENGTH['max_len']}"
            f" AND {words} BETWEEN {WORDS['min_num']} AND {WORDS['max_num']}"
            f" AND {special} / greatest(length({column}), 1) <= {SPECIAL['max_ratio']}"
        )

    rows = con.execute(
        f"""
        WITH judged AS (
            SELECT pair_id, pair_text, file_row_number AS n
            FROM read_parquet('{source}', file_row_number = true)
            WHERE {rules(SIDES[0])} AND {rules(SIDES[1])}
        )
        SELECT pair_id FROM judged
        QUALIFY row_number() OVER (PARTITION BY md5(pair_text) ORDER BY n) = 1
        """
    ).fetchall()
    keep(folder, sorted(row[0] for row in rows))


ENGINES: dict[str, Callable[[Path], None]] = {
    "make": lambda folder: make(folder, int(os.environ["BENCH_ROWS"])),
    "ours": ours,
    "ours, whole stage": stage,
    "stock, np 1": stock,
    "dj-process": dj_process,
    "DuckDB": duck,
}


# -- measuring -------------------------------------------------------------------


def measure(name: str, folder: Path) -> dict[str, Any]:
    """Run one engine; return CPU seconds with children, wall seconds and the kept ids."""
    start = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, __file__, "--engine", name, "--keep", str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_DATASETS_OFFLINE": "1"},
        stderr=subprocess.DEVNULL if name != "ours" else None,
    )
    _, status, usage = os.wait4(child.pid, 0)
    wall = time.perf_counter() - start
    if status:
        raise SystemExit(f"{name} failed with status {status}")
    ids = sorted(json.loads((folder / "kept.json").read_text()))
    return {
        "cpu": usage.ru_utime + usage.ru_stime,
        "wall": wall,
        "kept": len(ids),
        "hash": hashlib.sha256("\n".join(ids).encode()).hexdigest()[:12],
        "rss": usage.ru_maxrss / 1024**2,
    }


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--skip-dj-process", action="store_true")
    parser.add_argument("--keep", default="")
    parser.add_argument("--engine", default="")
    options = parser.parse_args()
    if options.engine:
        ENGINES[options.engine](Path(options.keep))
        return 0
    console = Console(width=110)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(options.keep or scratch)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "narrow.parquet").exists():
            # In a process of its own: a child's peak memory begins with its parent's size.
            command = [sys.executable, __file__, "--engine", "make", "--keep", str(folder)]
            subprocess.run(command, check=True, env={**os.environ, "BENCH_ROWS": str(options.rows)})
        rows = pq.read_metadata(folder / "narrow.parquet").num_rows
        skip = {"make", "dj-process"} if options.skip_dj_process else {"make"}
        names = [name for name in ENGINES if name not in skip]
        found = {}
        for name in names:
            found[name] = measure(name, folder)
            console.print(name, found[name])
    base = found["ours"]
    table = Table(title=f"normalize: {rows:,} pairs, two fields")
    for column in ("engine", "CPU s", "against ours", "wall s", "kept", "ids", "peak GB"):
        table.add_column(column, justify="left" if column in ("engine", "ids") else "right")
    for name, row in found.items():
        table.add_row(
            name,
            f"{row['cpu']:.1f}",
            f"{row['cpu'] / base['cpu']:.2f}x",
            f"{row['wall']:.1f}",
            f"{row['kept']:,}",
            row["hash"],
            f"{row['rss']:.2f}",
        )
    console.print(table)
    packages = ("py-data-juicer", "datasets", "duckdb", "pyarrow")
    console.print(", ".join(f"{name} {version(name)}" for name in packages))
    if len({row["hash"] for row in found.values()}) != 1:
        console.print("FAIL: the engines keep different ids")
        return 1
    ratio = found["stock, np 1"]["cpu"] / base["cpu"]
    verdict = "ok" if ratio >= BAR else "BELOW THE BAR"
    console.print(
        f"worst: stock data-juicer (np 1, narrow) {ratio:.2f}x our CPU, bar {BAR:.0f}x: {verdict}"
    )
    return 0 if ratio >= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
