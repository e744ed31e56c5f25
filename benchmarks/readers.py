"""What readers of Claude Code sessions make of a session: its steps, its calls, and its order.

    python benchmarks/readers.py [--record]

The truth of the real files is the shared corpus's ``expected.json``, which shares no code with the
product; that of the hand-made ones stands below. Without the corpus there is nothing to measure.
"""

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pages
from shared_corpus import SHARED, source_files
from trace_peers import READERS, Reader

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # this checkout, whatever is installed
RESULTS = ROOT / "benchmarks" / "results" / "readers.md"

#: What the model had before its last action, by hand-made file: the first words of each message.
TRUE_PREFIX = {
    "rewind": ["start", "ready", "try B"],
    "compact_preserved": ["This session is being", "more", "two", "go on"],
}
#: Files, and how many model calls or readable records each has.
PARALLEL, PARALLEL_CALLS = "parallel_interleaved", 2
GLUED, GLUED_TEXTS = "glued_and_truncated", ["hi", "hello", "again", "bye"]
EDGES = (*TRUE_PREFIX, PARALLEL, GLUED)
TRUTHS = ("responses", "tool_calls", "tool_results")

_READ = """
import sys, json, logging
from pathlib import Path
logging.disable(50)
{read}
{messages}
for line in sys.stdin.read().splitlines():
    file = Path(line)
    try:
        made = [dict(m, text=m["text"][:60]) for m in messages(read(file, file.parent))]
    except Exception as error:
        made = type(error).__name__
    print()
    print(json.dumps([line, made]))
"""


@dataclass
class Kept:
    """What one reader made: its messages by hand-made file, and counts by real file."""

    label: str
    edges: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    counts: dict[str, tuple[int, int, int]] = field(default_factory=dict)


def by_peer(reader: Reader, files: list[Path]) -> Kept | str:
    """Return what a peer makes of files, or why it was not run."""
    python = reader.python()
    if isinstance(python, str):
        return python
    done = subprocess.run(
        [str(python), "-c", _READ.format(read=reader.read, messages=reader.messages)],
        input="\n".join(map(str, files)), capture_output=True, text=True, check=True,
    )  # fmt: skip
    kept = Kept(f"{reader.name} {reader.version}")
    for line in done.stdout.splitlines():
        if not line.startswith('["/'):
            continue
        path, made = json.loads(line)
        file = Path(path)
        if isinstance(made, str):
            continue
        if file.stem in EDGES:
            kept.edges[file.stem] = made
        else:
            calls = {call for m in made for call in m["calls"]}
            results = {result for m in made for result in m["results"]}
            steps = sum(m["role"] == "assistant" for m in made)
            kept.counts[file.name] = steps, len(calls), len(results)
    return kept


def by_us(files: list[Path]) -> Kept:
    """Return what ours makes of them."""
    from composer_pipeline.lake.store import Lake
    from composer_pipeline.states.load import load_states
    from composer_pipeline.traces.ingest import ingest

    kept = Kept("composer-pipeline")
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(f"{folder}/real")
        found = ingest(lake, [f for f in files if f.stem not in EDGES]).by_file
        kept.counts = {name: tuple(int(facts[t]) for t in TRUTHS) for name, facts in found.items()}  # type: ignore[misc]
        for file in (f for f in files if f.stem in EDGES):
            lake = Lake(f"{folder}/{file.stem}")
            ingest(lake, [file])
            states = sorted(load_states(lake), key=lambda state: state.n_messages)
            last = states[-1]
            messages = [
                {
                    "role": message["role"],
                    "text": " ".join(b.get("text", "") for b in message["content"])[:60],
                }
                for message in last.messages
            ]
            messages += [{"role": "assistant", "text": last.action.text}]
            kept.edges[file.stem] = messages
    return kept


def foreign(kept: Kept, edge: str) -> str:
    """Say how the messages before the last action differ from what the model had."""
    if edge not in kept.edges:
        return "file refused"
    given = [m["text"] for m in kept.edges[edge][:-1] if m["role"] != "system"]
    true = TRUE_PREFIX[edge]
    extra = [text for text in given if not text.startswith(tuple(true))]
    missing = [want for want in true if not any(text.startswith(want) for text in given)]
    said = [f"{len(extra)} too many ({', '.join(extra)})"] if extra else []
    said += [f"{len(missing)} missing"] if missing else []
    return "; ".join(said) or "right"


def steps_of_parallel(kept: Kept) -> str:
    """Return the steps that two model calls became."""
    made = kept.edges.get(PARALLEL)
    return str(sum(m["role"] == "assistant" for m in made)) if made else "file refused"


def glued(kept: Kept) -> str:
    """Return how many of the readable records of glued lines are there."""
    made = kept.edges.get(GLUED)
    if made is None:
        return "file refused"
    texts = {m["text"] for m in made}
    return f"{sum(want in texts for want in GLUED_TEXTS)} of {len(GLUED_TEXTS)}"


def row(kept: Kept, truth: dict[str, dict[str, int]]) -> str:
    """Return a line of the table."""
    sums = []
    for at, key in enumerate(TRUTHS):
        there = sum(truth[name][key] for name in kept.counts)
        sums.append(f"{sum(found[at] for found in kept.counts.values()):,} of {there:,}")
    right = sum(found[0] == truth[name]["responses"] for name, found in kept.counts.items())
    cells = [
        kept.label, len(kept.counts), f"{right}", *sums,
        steps_of_parallel(kept), foreign(kept, "rewind"), foreign(kept, "compact_preserved"),
        glued(kept),
    ]  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |"


def page(rows: list[str], truth: dict[str, dict[str, int]]) -> str:
    """Return the recorded page."""
    sums = [sum(facts[key] for facts in truth.values()) for key in TRUTHS]
    return "\n".join(
        [
            "# What readers make of a session",
            "",
            f"`make bench-readers`: {len(truth)} real sessions and four hand-made ones. *Right*:"
            " files with as many",
            "steps as the model answered in the main conversation; an answer that the client made"
            " up does not count.",
            "Steps, calls and results are of the files that a reader reads. *Of 2 answers*: steps"
            " that two answers",
            "with parallel tools became. *Rewound*, *compacted*: messages that stand before the"
            " last action and",
            "that the model did not have, after a rewind and after a compaction that kept two"
            " messages. *Glued*:",
            "records of a file with two of them on one line and a last line that is cut.",
            "",
            "| | read | right | steps | tool calls | tool results | of 2 answers | rewound |"
            " compacted | glued |",
            "|---|---:|---:|---:|---:|---:|---:|---|---|---|",
            f"| truth | {len(truth)} | {len(truth)} | "
            + " | ".join(f"{n:,}" for n in sums)
            + f" | {PARALLEL_CALLS} | right | right | {len(GLUED_TEXTS)} of {len(GLUED_TEXTS)} |",
            *rows,
            "",
            "Looked at one by one: the steps that atif-sql has too many are answers that the client"
            " made up, which",
            "it marks `<synthetic>`, and the results that it lacks are empty texts.",
            "",
        ]
    )


def main() -> int:
    """Compare, print and perhaps record; 2 without the corpus."""
    parser = pages.options(__doc__, RESULTS)
    given = parser.parse_args()
    if not (SHARED / "expected.json").is_file():
        print(f"not run: the shared corpus ({SHARED}) is absent", file=sys.stderr)
        return 2
    folder, _ = source_files(None)
    sets = json.loads((SHARED / "expected.json").read_text(encoding="utf-8"))
    truth = {name: facts for found in sets.values() for name, facts in found.items()}
    files = [folder / kind / name for kind, found in sets.items() for name in found]
    files += [SHARED / "edge-cases" / f"{edge}.jsonl" for edge in EDGES]
    rows = [row(by_us(files), truth)]
    for reader in READERS:
        if reader.messages:
            kept = by_peer(reader, files)
            if isinstance(kept, str):
                rows.append(f"| {reader.name} {reader.version} | {kept} |" + " |" * 8)
            else:
                rows.append(row(kept, truth))
    text = page(rows, truth)
    pages.show(text, RESULTS, given)
    return 0


if __name__ == "__main__":
    sys.exit(main())
