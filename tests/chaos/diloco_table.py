"""The page of ``diloco_driver``: a row a fault, with what was run and what was not."""

from collections.abc import Sequence
from pathlib import Path

#: Name, place, replicas, bar in seconds, seconds, what is wrong, and a note of one run.
Row = tuple[str, str, int, float | None, float | None, list[str], str]


def record(path: Path, rows: Sequence[Row], took_s: float, beside: str = "") -> None:
    """Write the table."""
    names = dict.fromkeys(row[0] for row in rows)
    bad = sum(bool(row[5]) for row in rows)
    lines = [
        "# DiLoCo under faults",
        "",
        f"`make chaos-diloco`: {len(rows)} runs of real processes in {took_s:.0f} s, {bad} with",
        "an error. After each run: one commit per round, each state computed again from its",
        "deltas with plain tensors, every contribution merged or left out by name, a reason for",
        "each empty round, and all replicas at one hash. Replicas are real processes of a tiny",
        "model behind the callback of a Trainer, killed with SIGKILL; S3 is a moto server; wrong",
        "clocks are those of Python. With *overlap* each change travels during two of the next",
        "three steps. Seconds are from a fault to its round's commit, or to the orphans' end.",
        *([beside] if beside else []),
        "",
        "| fault | runs | places | replicas | slowest, s | bar, s | wrong |",
        "|---|---:|---|---|---:|---:|---|",
    ]
    for name in names:
        of = [row for row in rows if row[0] == name]
        seconds = [row[4] for row in of if row[4] is not None]
        bars = {f"{row[3]:g}" for row in of if row[3] is not None} if seconds else set()
        wrong = "; ".join(dict.fromkeys(why for row in of for why in row[5])) or "nothing"
        places = ", ".join(dict.fromkeys(row[1] for row in of))
        replicas = ", ".join(map(str, sorted({row[2] for row in of})))
        slowest = f"{max(seconds):.1f}" if seconds else ""
        lines.append(
            f"| {name} | {len(of)} | {places} | {replicas} | {slowest} | {', '.join(bars)} |"
            f" {wrong} |"
        )
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
