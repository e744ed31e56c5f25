"""Tables of a git revision and of this checkout, byte by byte: what a move must not change.

    python benchmarks/same_tables.py REV [--keep FOLDER]

The command line of each (``python -m composer_pipeline.cli``) runs ``ingest`` on the bundled
sample sessions and, where it is present, on the shared corpus in ``../shared/corpus``; behind
the first of them ``replay`` (every teacher of the demo on the loopback provider), ``pairs``,
``normalize`` and ``dataset``. Every file of the two lakes is then compared by hash.

What a replay buys depends on time and chance by nature: how long a call took, when, under which
generation id. VOLATILE names those columns and, of a recorded answer, those fields; a table that
has some is compared row by row without them. Prints a table; exits 1 where anything differs.
The ledger is left out: its rows differ by times and process ids.

REV is checked out into a temporary worktree and installed without its dependencies into a
temporary folder, so that its entry points resolve: both sides use this environment's packages.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import zstandard
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared" / "corpus"
SETS = ("claude-code-sessions", "claude-code-subagents")
KEY = "loopback-same-tables"

#: By table, the columns (or the fields of a JSON file) that differ between two runs, and why.
VOLATILE = {
    "replies": {
        "generation_id": "made up by the provider for each call",
        "latency_ms": "how long a call took",
        "created_at": "when it was made",
    },
    "dataset_replies": {"latency_ms": "how long a call took"},
    "catalogue": {"fetched_at": "when it was read", "source": "the port of the provider"},
    # Digests of the files above, and where the lake lies.
    "made": {"inputs": "digests of replies"},
    "dataset.json": {
        "id": "a digest of the files",
        "files": "digests of dataset_replies",
        "inputs": "digests of replies",
        "partitions": "digests of replies",
    },
    "receipts": {"lake": "the lake's path", "said": "the lake's path"},
}
#: Of a recorded answer (``replies.raw``): the provider's generation id and its time.
VOLATILE_IN_RAW = ("id", "created")


@dataclass(frozen=True)
class Side:
    """One revision: where its code lies, and what a process needs to run it."""

    name: str
    code: Path
    env: dict[str, str]

    def run(self, *command: str, env: dict[str, str] | None = None) -> None:
        """Run one command of the command line."""
        done = subprocess.run(
            [sys.executable, "-m", "composer_pipeline.cli", *command, "--json"],
            cwd=self.code,
            env={**self.env, **(env or {})},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{self.name}: {' '.join(command)}\n{done.stderr}")


@contextmanager
def revision(rev: str, folder: Path) -> Iterator[Side]:
    """Check a revision out and install it, for as long as the context lasts."""
    code, installed = folder / "rev", folder / "installed"
    git = ["git", "-C", str(ROOT)]
    subprocess.run([*git, "worktree", "add", "-q", "--detach", str(code), rev], check=True)
    try:
        pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        pip += ["--no-deps", "--no-build-isolation", "--no-index", "--target", str(installed)]
        subprocess.run([*pip, str(code)], check=True)
        yield Side(rev, code, environment(str(installed)))
    finally:
        subprocess.run([*git, "worktree", "remove", "--force", str(code)], check=True)


def environment(path: str = "") -> dict[str, str]:
    """Return this process's environment without the user's settings and keys."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("COMPOSER_")}
    for name in ("OPENROUTER_API_KEY", "HF_TOKEN", "PYTHONPATH"):
        env.pop(name, None)
    return {**env, "OMP_NUM_THREADS": "1", **({"PYTHONPATH": path} if path else {})}


@contextmanager
def provider(side: Side) -> Iterator[dict[str, str]]:
    """Run a side's loopback provider; yield the variables that point at it."""
    server = subprocess.Popen(
        [sys.executable, "-m", "composer_pipeline.testing.openrouter", "--port", "0"],
        cwd=side.code,
        env={**side.env, "COMPOSER_LOOPBACK_KEY": KEY},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        url = json.loads(server.stdout.readline())["url"]
        yield {"COMPOSER_OPENROUTER_URL": url, "COMPOSER_LOOPBACK_KEY": KEY}
    finally:
        server.terminate()
        server.wait()


def make(side: Side, folder: Path, sessions: Path, corpus: Path | None) -> None:
    """Fill the lakes of one side, below ``folder``."""
    lake = ["--lake", str(folder / "sample")]
    recipes = side.code / "recipes"
    teachers = ["--teachers", str(recipes / "teachers" / "demo.yaml")]
    side.run("ingest", str(sessions), *lake)
    with provider(side) as env:
        side.run("replay", *teachers, "--max-usd", "5", *lake, env=env)
    side.run("pairs", *lake)
    side.run("normalize", "--recipe", str(recipes / "normalize" / "demo.yaml"), *lake)
    side.run("dataset", *lake)
    if corpus is not None:
        paths = [str(corpus / name) for name in SETS]
        side.run("ingest", *paths, "--lake", str(folder / "corpus"))


def tables(root: Path) -> dict[str, dict[str, Path]]:
    """Return the files of lakes below ``root`` by table (lake/table), then by path."""
    found: dict[str, dict[str, Path]] = {}
    for file in sorted(f for f in root.rglob("*") if f.is_file()):
        parts = file.relative_to(root).parts
        if not parts[1].startswith("ledger"):
            found.setdefault("/".join(parts[:2]), {})["/".join(parts[2:])] = file
    return found


def differences(table: str, ours: dict[str, Path], theirs: dict[str, Path]) -> list[str]:
    """Say in which files two tables differ, beyond the columns that may."""
    out = [f"{name}: only on one side" for name in sorted(ours.keys() ^ theirs.keys())]
    volatile = VOLATILE.get(table.split("/")[1], {})
    for name in sorted(ours.keys() & theirs.keys()):
        files = ours[name], theirs[name]
        if len({hashlib.sha256(file.read_bytes()).hexdigest() for file in files}) == 1:
            continue
        apart = columns_apart(*map(rows_of, files), leave_out=volatile)
        if apart or not volatile:
            out.append(f"{name}: {apart or 'bytes differ, rows do not'}")
    return out


def rows_of(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a Parquet file; a JSON file is one row, any other file a digest."""
    if file.suffix == ".json":
        return [json.loads(file.read_text())]
    if file.suffix != ".parquet":
        return [{"bytes": hashlib.sha256(file.read_bytes()).hexdigest()}]
    rows: list[dict[str, Any]] = pq.ParquetFile(file).read().to_pylist()
    for row in rows:
        if isinstance(row.get("raw"), bytes):
            raw = json.loads(zstandard.ZstdDecompressor().decompress(row["raw"]))
            row["raw"] = {k: v for k, v in raw.items() if k not in VOLATILE_IN_RAW}
    return rows


def columns_apart(
    one: list[dict[str, Any]], other: list[dict[str, Any]], *, leave_out: Container[str]
) -> str:
    """Name the columns in which rows differ, each side in an order of its own; else empty."""
    if len(one) != len(other):
        return f"{len(one)} and {len(other)} rows"
    sides = [
        sorted(json.dumps({k: v for k, v in row.items() if k not in leave_out}, default=str)
               for row in rows)
        for rows in (one, other)
    ]  # fmt: skip
    if sides[0] == sides[1]:
        return ""
    pairs = [(json.loads(a), json.loads(b)) for a, b in zip(*sides, strict=True)]
    names = sorted({k for a, b in pairs for k in a.keys() | b.keys() if a.get(k) != b.get(k)})
    return f"columns differ: {', '.join(names) or 'their order'}"


def compare(ours: Path, theirs: Path, console: Console) -> bool:
    """Print both sides' tables; say whether they are the same."""
    one, other = tables(ours), tables(theirs)
    shown = Table("table", "files", "bytes", "result")
    same = True
    for name in sorted(one.keys() | other.keys()):
        here = one.get(name, {})
        apart = differences(name, here, other.get(name, {}))
        same = same and not apart
        volatile = ", ".join(VOLATILE.get(name.split("/")[1], {}))
        result = f"[red]{apart[0]}[/] (of {len(apart)})" if apart else "equal"
        result += f" without {volatile}" if volatile and not apart else ""
        size = sum(file.stat().st_size for file in here.values())
        shown.add_row(name, str(len(here)), f"{size:,}", result)
    console.print(shown)
    for name, columns in VOLATILE.items():
        console.print(f"{name}: " + "; ".join(f"{c} ({why})" for c, why in columns.items()))
    return same


def main() -> int:
    """Compare; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("rev", help="a git revision, for example HEAD~5")
    parser.add_argument("--keep", type=Path, help="keep the lakes in this folder")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        sessions, corpus = folder / "sessions", None
        shutil.copytree(ROOT / "composer_pipeline/testing/sample_sessions/sessions", sessions)
        if SHARED.is_dir():
            corpus = folder / "corpus"
            for name in SETS:
                with tarfile.open(SHARED / f"{name}.tar.xz", "r:xz") as archive:
                    archive.extractall(corpus, filter="data")
        lakes = given.keep or folder / "lakes"
        with revision(given.rev, folder) as before:
            for side, name in ((before, "before"), (Side("checkout", ROOT, environment()), "now")):
                make(side, lakes / name, sessions, corpus)
        same = compare(lakes / "now", lakes / "before", Console(width=160))
    print("same tables" if same else f"tables differ from {given.rev}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
