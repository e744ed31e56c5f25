"""Redaction: MB of decoded text a CPU second on one core, and what it replaces.

    python benchmarks/redaction.py [FOLDER]

FOLDER holds session files (default: the unpacked shared corpus in ``../shared/corpus``,
else the bundled sample sessions). The input is the JSON of the distinct pieces of
messages, each once, as ``ingest`` redacts them; the size counted is that of their
decoded strings. Prints one table and the bar, then every replacement that is no home folder
or known user: its place, rule, length and first three letters, for a person to judge (bar for
false alarms: 1e-4 a message). Exits 1 below the bar of speed.
"""

import os
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from composer_pipeline.redaction.redact import Redacted, explain_file, json_redactor
from composer_pipeline.redaction.secrets import Known
from composer_pipeline.testing.samples import sample_sessions_dir
from composer_pipeline.traces.content_store import Redactor
from composer_pipeline.traces.parse import analyse
from composer_pipeline.traces.records import decode_any

Redact = Callable[[Sequence[bytes], frozenset[Known]], list[Redacted]]
BAR_MB_S = 30.0
#: Pieces of about 256 kB, as ``ingest`` takes them at once, are timed so often, and the least
#: counts: other work on a machine only adds.
ROUNDS, PIECES = 10, 150
CORPUS = Path(__file__).resolve().parents[2] / "shared" / "corpus"


def pieces(folder: Path) -> list[tuple[bytes, frozenset[Known]]]:
    """Return the distinct pieces of messages below ``folder``, as ``ingest`` redacts them."""
    found: dict[tuple[bytes, frozenset[Known]], None] = {}

    def keep(sources: Sequence[bytes], names: frozenset[Known]) -> list[Redacted]:
        found.update(((source, names), None) for source in sources)
        return [Redacted(source, Counter()) for source in sources]

    redactor = Redactor(keep)
    for path in sorted(folder.rglob("*.jsonl")):
        analyse(path.read_bytes(), subagent=path.name.startswith("agent-"), redactor=redactor)
    return list(found)


def strings(value: Any) -> Iterator[str]:
    """Yield every string of a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for part in value:
            yield from strings(part)
    elif isinstance(value, dict):
        for key, part in value.items():
            yield key
            yield from strings(part)


def list_replacements(found: list[tuple[bytes, frozenset[Known]]]) -> None:
    """Print what stands to be judged by a person, masked; equal ones once, with their number."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "pieces.jsonl"
        file.write_bytes(b"\n".join(source for source, _ in found))
        every = explain_file(file).replacements
    others = [item for item in every if item.new != "user"]
    table = Table("first place", "rule", "times", "letters", "begins", title="to be judged")
    kinds: dict[tuple[str, str], list[Any]] = {}
    for item in others:
        kinds.setdefault((item.rule, item.new), []).append(item)
    for (rule, _), items in kinds.items():
        first = items[0]
        table.add_row(first.place, rule, str(len(items)), str(first.length), first.shown)
    Console(width=110).print(table)
    print(f"{len(others)} replacements, {len(kinds)} distinct, in {len(found):,} pieces")


def seconds(redact: Redact, part: list[tuple[bytes, frozenset[Known]]]) -> float:
    """Return the CPU seconds that redacting some pieces takes."""
    groups = [(names, [s for s, _ in group]) for names, group in groupby(part, itemgetter(1))]
    start = time.process_time()
    for names, sources in groups:
        redact(sources, names)
    return time.process_time() - start


def main() -> int:
    """Measure and print."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as scratch:
        if len(sys.argv) > 1:
            folder = Path(sys.argv[1])
        elif CORPUS.is_dir():
            folder = Path(scratch)
            for name in ("claude-code-sessions", "claude-code-subagents"):
                with tarfile.open(CORPUS / f"{name}.tar.xz", "r:xz") as archive:
                    archive.extractall(folder, filter="data")
        else:
            folder = sample_sessions_dir()
        found = pieces(folder)
    size = sum(len(s.encode()) for source, _ in found for s in strings(decode_any(source)))
    redact = json_redactor()
    counts = sum((redact([piece], names)[0].counts for piece, names in found), Counter[str]())
    parts = [found[at : at + PIECES] for at in range(0, len(found), PIECES)]
    rounds = [[seconds(redact, part) for part in parts] for _ in range(ROUNDS)]
    speed = size / 1e6 / sum(map(min, zip(*rounds, strict=True)))
    try:
        engine = f"hyperscan {version('hyperscan')}"
    except PackageNotFoundError:
        engine = "literals one by one (hyperscan is not installed)"
    table = Table(title="redaction", show_header=False, title_justify="left")
    table.add_row("distinct pieces of messages", f"{len(found):,}")
    table.add_row("decoded text", f"{size / 1e6:.1f} MB")
    table.add_row("prefilter", engine)
    table.add_row(
        f"speed (CPU time, one core; best of {ROUNDS}, each {PIECES} pieces)", f"{speed:.1f} MB/s"
    )
    table.add_row("bar", f"{BAR_MB_S:.0f} MB/s: {'met' if speed >= BAR_MB_S else 'MISSED'}")
    table.add_row("replaced, by kind", ", ".join(f"{k} {n}" for k, n in sorted(counts.items())))
    Console(width=110).print(table)
    list_replacements(found)
    return 0 if speed >= BAR_MB_S else 1


if __name__ == "__main__":
    sys.exit(main())
