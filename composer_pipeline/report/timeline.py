"""A DiLoCo run over time: who trained, who waited, what was merged.

Belongs here: a picture of the events of ``metrics.jsonl``. Does not belong here: reading them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

_FONT = 'font-family="sans-serif" font-size="11"'
_MERGED, _LEFT_OUT, _WAIT, _STEP = "#2f9e44", "#e8590c", "#adb5bd", "#3b5bdb"
_ROW, _LEFT, _TOP = 34, 76, 22


@dataclass(frozen=True)
class Round:
    """What one replica did in a round; times are seconds since the first event.

    It trained from ``start`` to ``end - wait`` and then waited for the merge; ``merged`` says
    whether what it contributed was taken, and ``why`` why not. ``attempt`` counts its starts.
    """

    slot: int
    number: int
    start: float
    end: float
    wait: float
    merged: bool
    why: str
    tokens: int
    attempt: int


def rounds_of(events: Iterable[Mapping[str, Any]]) -> tuple[list[Round], list[tuple[int, float]]]:
    """Return the rounds of every replica, and (slot, seconds) of each step.

    A replica that began again tells its rounds again: the last time counts.
    """
    known = [e for e in events if e.get("event") in ("step", "commit") and "time" in e]
    if not known:
        return [], []
    zero = min(float(e["time"]) for e in known)
    last: dict[int, float] = {}
    found: dict[tuple[int, int], Round] = {}
    steps = []
    for event in sorted(known, key=lambda e: float(e["time"])):
        slot, at = int(event["slot"]), float(event["time"]) - zero
        if event["event"] == "step":
            steps.append((slot, at))
            continue
        number = int(event["round"])
        why = str((event.get("rejected") or {}).get(str(slot), ""))
        found[slot, number] = Round(
            slot, number, last.get(slot, 0.0), at, min(float(event.get("wait_s") or 0), at),
            slot in (event.get("included") or ()), why, int(event.get("local_tokens") or 0),
            int(event.get("attempt") or 1),
        )  # fmt: skip
        last[slot] = at
    return [found[key] for key in sorted(found)], steps


def timeline(
    rounds: Iterable[Round], steps: Iterable[tuple[int, float]], *, width: int = 960
) -> str:
    """Return an SVG with one line a replica: training, waiting, and what became of each round."""
    made, ticks = list(rounds), list(steps)
    slots = sorted({r.slot for r in made} | {slot for slot, _ in ticks})
    span = max([*(r.end for r in made), *(at for _, at in ticks), 1e-9])
    room = width - _LEFT - 16

    def place(seconds: float) -> float:
        return _LEFT + seconds / span * room

    parts = []
    for row, slot in enumerate(slots):
        y = _TOP + row * _ROW
        parts.append(f'<text x="0" y="{y + 15}" {_FONT}>replica {slot}</text>')
        for r in (r for r in made if r.slot == slot):
            colour = _MERGED if r.merged else _LEFT_OUT
            became = "merged" if r.merged else f"not merged: {r.why or 'no contribution'}"
            said = f"round {r.number}, replica {slot}: {r.tokens:,} tokens, {became}"
            said += f"; start {r.attempt}" if r.attempt > 1 else ""
            begin, work, end = map(place, (r.start, max(r.start, r.end - r.wait), r.end))
            parts.append(
                f"<g><title>{escape(said)}</title>"
                f'<rect x="{begin:.1f}" y="{y}" width="{max(1, work - begin):.1f}"'
                f' height="20" rx="3" fill="{colour}" fill-opacity="0.28"/>'
                f'<rect x="{work:.1f}" y="{y}" width="{max(0, end - work):.1f}" height="20"'
                f' fill="{_WAIT}" fill-opacity="0.45"/>'
                f'<rect x="{end - 2:.1f}" y="{y - 2}" width="4" height="24" fill="{colour}"/></g>'
            )
            if end - begin > 46:
                parts.append(f'<text x="{begin + 5:.1f}" y="{y - 6}" {_FONT}>'
                             f"round {r.number}</text>" if row == 0 else "")  # fmt: skip
        for _, at in ((s, at) for s, at in ticks if s == slot):
            parts.append(f'<circle cx="{place(at):.1f}" cy="{y + 10}" r="2.5" fill="{_STEP}"/>')
    bottom = _TOP + len(slots) * _ROW
    for share in (0.0, 0.5, 1.0):
        anchor = {0.0: "start", 1.0: "end"}.get(share, "middle")
        parts.append(f'<text x="{place(share * span):.1f}" y="{bottom + 8}" text-anchor="{anchor}"'
                     f" {_FONT}>{share * span:.0f} s</text>")  # fmt: skip
    legend = [("step", _STEP), ("merged", _MERGED), ("not merged", _LEFT_OUT), ("waiting", _WAIT)]
    for index, (name, colour) in enumerate(legend):
        x = _LEFT + 110 * index
        parts.append(f'<rect x="{x}" y="{bottom + 20}" width="12" height="12" fill="{colour}"/>'
                     f'<text x="{x + 18}" y="{bottom + 30}" {_FONT}>{name}</text>')  # fmt: skip
    height = bottom + 40
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        f' viewBox="0 0 {width} {height}">{"".join(parts)}</svg>'
    )
