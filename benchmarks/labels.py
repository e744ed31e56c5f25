"""Verdicts and culprits beside labels that people gave, and a check that needs no labels.

    python benchmarks/labels.py [--labels FILE] [FOLDER]

FOLDER holds session files (default: the shared corpus), FILE the labels (default: those of
``../shared/labels``). *Before* is what the error turns say without verdicts: each call that failed
is a mistake of its own, words of the user are the user's choice. The check looks at culprits that
a line names: how often does the session's own next edit of that file change lines that the culprit
wrote, against a random earlier edit of the same file? The interval is a bootstrap over sessions.
Last comes whether edits that count as taken back are gone from the file, by content that Claude
Code recorded before a later edit of it. Exits 1 below a bar.
"""

import json
import random
import sys
import tempfile
from argparse import ArgumentParser
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from shared_corpus import SHARED, source_files

from composer_pipeline import ingest
from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences.labels import Share, read_labels, rows_of, score, scores
from composer_pipeline.redaction.redact import json_redactor
from composer_pipeline.traces.content_store import Redactor
from composer_pipeline.traces.edits import Edits, Event, distinct, undone
from composer_pipeline.traces.outcomes import corrections, failures_of, outcomes
from composer_pipeline.traces.parse import analyse
from composer_pipeline.traces.verdicts import Judge

LABELS = SHARED.parent / "labels" / "error_turns.jsonl"
BARS = {
    "accuracy": 0.85, "three_classes": 0.90, "precision_mistake": 0.90,
    "precision_revealed": 0.90, "culprit_right": 0.85, "visible_found": 0.60, "hints_stand": 0.85,
}  # fmt: skip
DRAWS = 2000


def before(lake: Lake, labels: list[dict[str, Any]]) -> dict[str, str]:
    """Return the scores of error turns without verdicts."""
    columns = ["state_id", "chain_id", "n_messages", "error_kind", "hint"]
    states = {}
    for row in lake.iter_rows("states", columns=columns):
        kind = row["error_kind"] or ""
        verdict = "user_choice" if kind.startswith("user") else "mistake" if kind else None
        own = row["state_id"] if row["hint"] else None
        states[row["state_id"]] = row | {"verdict": verdict, "culprit_state_id": own}
    rows = [(label, states[label["state_id"]]) for label in labels if label["state_id"] in states]
    return dict(rows_of(scores(rows, states)))


def changed(event: Event) -> tuple[frozenset[str], frozenset[str]]:
    """Return the distinctive lines that an edit took away, and those that it added."""
    old = distinct("\n".join(change.old for change in event.changes))
    new = distinct("\n".join(change.new for change in event.changes))
    return old - new, new - old


def checks(path: Path, draw: random.Random) -> list[tuple[bool, float]]:
    """Return, for each culprit of a line, whether the next edits mend it, and the control's share.

    The next edits are those of the file before it is checked again, at most three.
    """
    agent = path.name.startswith("agent-")
    graph = analyse(path.read_bytes(), subagent=agent, redactor=Redactor(json_redactor()))[0]
    active = graph.active_nodes()
    edits = Edits(graph, sorted(active))
    judge, after, said = Judge(graph, edits, active), outcomes(graph, active), corrections(graph)
    found, seen = [], set()
    for number in sorted(active):
        outcome = after[number]
        if outcome is None:
            continue
        bad = outcome.tests_passed is False
        failures = failures_of(graph.nodes[number], said.get(number), tests_failed=bad)
        judged = judge.judge(number, failures[0]) if failures else None
        if judged is None or judged.verdict != "revealed" or judged.by != "line":
            continue
        culprit = next(e for e in edits.events if e.author == judged.culprit and e.path)
        own = [e for e in edits.events if e.path == culprit.path and e.kind in ("edit", "write")]
        later = [e for e in own if e.author.node > number and e.kind == "edit"][:3]
        others = [e for e in own if e.author.node < number and e.author != culprit.author]
        if not later or not others or (culprit.author, culprit.path) in seen:
            continue
        seen.add((culprit.author, culprit.path))
        gone = frozenset().union(*(changed(event)[0] for event in later))
        hits = [bool(gone & changed(event)[1]) for event in others]
        found.append((bool(gone & changed(culprit)[1]), sum(hits) / len(hits)))
    draw.shuffle(found)
    return found


def independent(folder: Path) -> dict[str, str]:
    """Return the shares of the check and their ratio with its interval."""
    draw = random.Random(0)
    groups: dict[str, list[tuple[bool, float]]] = defaultdict(list)
    for path in sorted(folder.rglob("*.jsonl")):
        groups[path.stem] += checks(path, draw)
    sessions = [group for group in groups.values() if group]
    items = [item for group in sessions for item in group]
    if not items:
        return {"fixed lines": "no culprit of a line has a later edit and an earlier one beside it"}

    def ratio(sample: list[tuple[bool, float]]) -> float:
        control = sum(share for _, share in sample)
        return sum(hit for hit, _ in sample) / control if control else float("inf")

    drawn = sorted(
        ratio([item for group in draw.choices(sessions, k=len(sessions)) for item in group])
        for _ in range(DRAWS)
    )
    low, high = drawn[int(0.025 * DRAWS)], drawn[int(0.975 * DRAWS)]
    control = sum(share for _, share in items) / len(items)
    return {
        "lines of the culprit changed by the fix": str(Share(sum(h for h, _ in items), len(items))),
        "lines of another earlier edit changed": f"{control:.3f}",
        "ratio": f"{ratio(items):.2f} [{low:.2f}, {high:.2f}] over {len(sessions)} sessions",
    }


def recorded(data: bytes) -> dict[str, str]:
    """Return, by the id of a call, the whole file before it as Claude Code recorded it."""
    found: dict[str, str] = {}
    for line in data.splitlines():
        row = json.loads(line) if b'"originalFile"' in line else {}
        result = row.get("toolUseResult")
        if isinstance(result, dict) and isinstance(result.get("originalFile"), str):
            ids = (block.get("tool_use_id") for block in row["message"]["content"])
            found |= {name: result["originalFile"] for name in ids if name}
    return found


def taken_back(folder: Path) -> dict[str, str]:
    """Return how many edits are gone from the next recorded content of their file.

    ``traces`` never reads that content. An edit is gone if most of the lines that it added are.
    """
    counts: Counter[tuple[bool, bool | None]] = Counter()
    for path in sorted(folder.rglob("*.jsonl")):
        data = path.read_bytes()
        agent, contents = path.name.startswith("agent-"), recorded(data)
        graph = analyse(data, subagent=agent)[0]
        edits = Edits(graph, sorted(graph.active_nodes()))
        undone_at = undone(edits)
        own = {e.author: e for e in edits.events if e.kind in ("edit", "write") and e.changes}
        seen = [
            (author.node, event.path, text)
            for author, event in own.items()
            if (text := contents.get(graph.nodes[author.node].calls[author.call].id)) is not None
        ]
        for author, event in own.items():
            at, added = undone_at.get(author, author.node), changed(event)[1]
            later = (text for node, where, text in seen if node > at and where == event.path)
            text = next(later, None)
            gone = None
            if added and text is not None:
                gone = 2 * len(added - distinct(text)) > len(added)
            counts[author in undone_at, gone] += 1
    return {
        f"edits {name}, gone from the next recorded content of the file": (
            f"{Share(counts[flag, True], counts[flag, True] + counts[flag, False])},"
            f" {counts[flag, None]} without such content"
        )
        for flag, name in ((True, "taken back"), (False, "not taken back"))
    }


def main() -> int:
    """Print the table."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--labels", type=Path, default=LABELS)
    parser.add_argument("folder", type=Path, nargs="?")
    given = parser.parse_args()
    if not given.labels.is_file():
        print(f"not run: the labels ({given.labels}) are absent", file=sys.stderr)
        return 0
    folder, what = source_files(given.folder)
    labels = read_labels(given.labels)
    with tempfile.TemporaryDirectory() as made:
        lake = Lake(made)
        ingest(lake, [folder])
        now, sure = score(lake, labels), score(lake, labels, guesses=False)
        old = before(lake, labels)
    title = f"{len(labels)} labelled error turns of {what}"
    table = Table("", "before", "now", "without guesses", "bar", title=title)
    strict = dict(rows_of(sure))
    for name, value in rows_of(now):
        bar = BARS.get(name.replace(" ", "_"))
        table.add_row(name, old[name], value, strict[name], f"{bar:.2f}" if bar else "")
    console = Console(width=110)
    console.print(table)
    for name, value in (independent(folder) | taken_back(folder)).items():
        console.print(f"{name}: {value}", highlight=False)
    return int(any((getattr(now, name).value or 0) < bar for name, bar in BARS.items()))


if __name__ == "__main__":
    sys.exit(main())
