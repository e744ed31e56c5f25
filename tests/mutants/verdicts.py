"""What came of each change, kept between runs: ``verdicts.json``, and a table of it in words.

Belongs here: reading, adding to and counting verdicts. A change is named by its file and its two
texts, so that a row that moves keeps its verdict, and a row that says another thing has none.
Does not belong here: how a verdict comes about (``run_mutants``).
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypedDict

from tests.mutants.table import ROOT, TABLES, Mutant, mutants, rooms

VERDICTS = TABLES / "verdicts.json"
PAGE = ROOT / "benchmarks" / "results" / "mutants.md"


class Verdict(TypedDict):
    """What came of one change.

    Attributes:
        verdict: ``killed`` or ``survived``.
        by: the test (``file::function``) that noticed, or another reason; empty for a survivor.
        day: when it ran, in UTC (``2026-11-23``).
    """

    verdict: str
    by: str
    day: str


def load(path: Path = VERDICTS) -> dict[str, Verdict]:
    """Return the kept verdicts by the changes' keys; none when there is no file."""
    if not path.is_file():
        return {}
    found: dict[str, Verdict] = json.loads(path.read_text(encoding="utf-8"))
    return found


def verdict_now(said: str) -> Verdict:
    """Return what ``run_mutants.judge`` said as a verdict of today."""
    word, _, by = said.partition(": ")
    return {"verdict": word, "by": by, "day": datetime.now(UTC).strftime("%Y-%m-%d")}


def save(found: Mapping[str, Verdict], path: Path = VERDICTS, page: Path = PAGE) -> None:
    """Write the verdicts of the changes that still stand in a table, and the page about them."""
    rows = {room: mutants(room) for room in rooms()}
    keys = {mutant.key for listed in rows.values() for mutant in listed}
    lines = (f"{json.dumps(key)}: {json.dumps(found[key])}" for key in sorted(keys & set(found)))
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    page.write_text(as_page(rows, found), encoding="utf-8")


def as_page(rows: Mapping[str, Sequence[Mutant]], found: Mapping[str, Verdict]) -> str:
    """Return the table of all rooms: what ran, what was killed, and which changes survived."""
    text = (
        "# Small wrong changes\n\n"
        "Written by `make mutants` for each room it runs; `run` are the changes with a verdict in\n"
        "`tests/mutants/verdicts.json`, of the day when they last ran. The argued ones say in their"
        " table why no test\nneeds to notice them. The share is of those run.\n\n"
        "| room | rows | run | killed | argued | survived | not run | killed or argued"
        " | last run |\n|---|--:|--:|--:|--:|--:|--:|--:|---|\n"
    )
    survivors = []
    for room, listed in rows.items():
        n = Counter(_word(mutant, found.get(mutant.key)) for mutant in listed)
        ran = len(listed) - n["not run"]
        share = f"{(n['killed'] + n['argued']) / ran:.0%}" if ran else ""
        days = [found[mutant.key]["day"] for mutant in listed if mutant.key in found]
        cells = (room, len(listed), ran, n["killed"], n["argued"], n["survived"], n["not run"])
        text += "".join(f"| {cell} " for cell in (*cells, share, max(days, default="")))
        text += "|\n"
        survivors += [
            f"- {room}: `{mutant.file}`: {mutant.loses}\n"
            for mutant in listed
            if _word(mutant, found.get(mutant.key)) == "survived"
        ]
    return text + ("\nSurvivors:\n\n" + "".join(survivors) if survivors else "")


def _word(mutant: Mutant, verdict: Verdict | None) -> str:
    if verdict is None:
        return "not run"
    return "argued" if mutant.accepted and verdict["verdict"] == "survived" else verdict["verdict"]
