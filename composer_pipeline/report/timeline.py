"""A DiLoCo run over time: who trained, waited or was dead, what was merged, bytes and loss.

Belongs here: one picture of a run, and its file in the run folder. Does not belong here: reading
the log (``diloco.views.history``).
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

import msgspec

from composer_pipeline.charts import svg
from composer_pipeline.diloco.views import (
    DEAD,
    LATE,
    MERGED,
    MISSING,
    REJECTED,
    TRAINING,
    WAITING,
    History,
    RoundMark,
)
from composer_pipeline.errors import InputError
from composer_pipeline.files import make_folder, replace

#: The picture in a run folder, and what it was drawn from.
TIMELINE, FIGURES = "report/timeline.svg", "report/timeline.json"
Losses = Mapping[str, Mapping[int, float]]
_FONT = 'font-family="sans-serif" font-size="11"'
#: Fill and opacity of a span, colour of a commit's mark.
_SPANS = {TRAINING: ("#3b5bdb", 0.45), WAITING: ("#adb5bd", 0.55), DEAD: ("#212529", 0.85)}
_FATES = {MERGED: "#2f9e44", REJECTED: "#e03131", LATE: "#f08c00", MISSING: ""}
_INK = ("#9c36b5", "#0c8599", "#e8590c", "#5c940d")
#: From seconds to pixels.
Place = Callable[[float], float]
_ROW, _LEFT, _RIGHT, _TOP, _PANEL = 30, 76, 16, 24, 64


class Figures(msgspec.Struct, frozen=True):
    """What a picture is drawn from."""

    history: History
    losses: dict[str, dict[int, float]] = {}


def write_timeline(run_dir: Path, told: History, losses: Losses) -> None:
    """Write the picture and its figures into a run folder; each appears whole."""
    make_folder((run_dir / TIMELINE).parent)
    figures = Figures(told, {name: dict(points) for name, points in losses.items()})
    replace(run_dir / FIGURES, msgspec.json.encode(figures).decode())
    replace(run_dir / TIMELINE, timeline(told, losses))


def read_timeline(run_dir: Path) -> str | None:
    """Return the picture of a run, drawn anew; ``None`` where it has left none.

    Raises:
        InputError: its file is not one of these.
    """
    path = run_dir / FIGURES
    if not path.is_file():
        return None
    try:
        figures = msgspec.json.decode(path.read_bytes(), type=Figures)
    except msgspec.DecodeError as error:
        raise InputError(f"{path} is not what a run leaves: {error}") from None
    return timeline(figures.history, figures.losses)


def timeline(told: History, losses: Losses | None = None, *, width: int = 960) -> str:
    """Return an SVG: a row a slot, the bytes of each round below, and below these the losses.

    Args:
        told: what the log says.
        losses: name to (round to value); each has its own scale.
        width: pixels.
    """
    span = max(told.seconds, 1e-9)
    room = width - _LEFT - _RIGHT

    def place(seconds: float) -> float:
        return _LEFT + seconds / span * room

    parts = _head(told, place)
    for slot in range(told.replicas):
        parts += _slot(told, slot, place)
    y = _TOP + told.replicas * _ROW
    parts += _bytes(told.rounds, y, place)
    y += _PANEL
    kept = {name: points for name, points in (losses or {}).items() if points}
    if kept:
        parts += _losses(told.rounds, kept, y, place)
        y += _PANEL
    parts += _foot(span, y, place)
    return svg(width, y + 52, parts)


def _text(x: float, y: float, said: str, *, anchor: str = "start", fill: str = "black") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}" {_FONT}>'
        f"{escape(said)}</text>"
    )


def _head(told: History, place: Place) -> list[str]:
    """Return the rounds' numbers where there is room, and a line down at each commit."""
    bottom = _TOP + told.replicas * _ROW + _PANEL
    parts, free = [], 0.0
    for mark in told.rounds:
        x = place(mark.at)
        parts.append(f'<path d="M{x:.1f},{_TOP - 6} V{bottom}" stroke="#dee2e6"/>')
        if x - 4 > free:
            parts.append(_text(x, 12, f"{mark.round}", anchor="middle"))
            free = x + 20
    return [_text(0, 12, "round"), *parts]


def _slot(told: History, slot: int, place: Place) -> list[str]:
    y = _TOP + slot * _ROW
    parts = [_text(0, y + 14, f"replica {slot}")]
    marks = {mark.round: mark for mark in told.rounds}
    for one in (one for one in told.spans if one.slot == slot):
        mark = marks[one.round]
        fill, opacity = _SPANS[one.kind]
        if one.kind == TRAINING and mark.fate[slot] == REJECTED:
            fill = _FATES[REJECTED]
        why = f": {mark.why[slot]}" if slot in mark.why else ""
        took = f"{one.end - one.start:.1f} s"
        if one.kind == TRAINING and slot in mark.steps:
            took = f"{took}, {mark.steps[slot]} steps"
        said = f"replica {slot}, round {one.round}: {one.kind} {took}; {mark.fate[slot]}{why}"
        x, end = place(one.start), place(one.end)
        parts.append(
            f'<rect class="{one.kind}" x="{x:.1f}" y="{y}" width="{max(0.8, end - x):.1f}"'
            f' height="20" fill="{fill}" fill-opacity="{opacity}">'
            f"<title>{escape(said)}</title></rect>"
        )
    for mark in told.rounds:
        if colour := _FATES[mark.fate[slot]]:
            x = place(mark.at)
            parts.append(
                f'<rect class="{mark.fate[slot]}" x="{x - 2:.1f}" y="{y - 2}" width="3"'
                f' height="24" fill="{colour}"/>'
            )
    for number, start in enumerate(told.starts.get(slot, []), 1):
        if number > 1:
            x = place(start)
            said = f"replica {slot}: start {number}"
            parts.append(
                f'<path class="start" d="M{x:.1f},{y - 3} l-4,-6 h8 z" fill="#212529">'
                f"<title>{escape(said)}</title></path>"
            )
    return parts


def _bytes(rounds: Sequence[RoundMark], y: float, place: Place) -> list[str]:
    top = max((mark.bytes for mark in rounds), default=0) or 1
    high = _PANEL - 22
    base = y + 8 + high
    parts = [_text(0, y + 18, "bytes"), _text(0, y + 34, _size(top))]
    for mark in rounds:
        tall = mark.bytes / top * high
        said = f"round {mark.round}: {_size(mark.bytes)}, {mark.tokens:,} tokens"
        parts.append(
            f'<rect class="bytes" x="{place(mark.at) - 4:.1f}" y="{base - tall:.1f}" width="6"'
            f' height="{max(tall, 0.5):.1f}" fill="#495057"><title>{said}</title></rect>'
        )
    return parts


def _losses(rounds: Sequence[RoundMark], losses: Losses, y: float, place: Place) -> list[str]:
    at = {mark.round: mark.at for mark in rounds}
    high = _PANEL - 22
    parts = [_text(0, y + 18, "loss")]
    for index, (name, values) in enumerate(losses.items()):
        known = [(at[r], value) for r, value in sorted(values.items()) if r in at]
        if not known:
            continue
        low, span = min(v for _, v in known), max(v for _, v in known) - min(v for _, v in known)
        colour = _INK[index % len(_INK)]
        points = [
            (place(when), y + 8 + high - (value - low) / (span or 1.0) * high)
            for when, value in known
        ]
        if len(points) == 1:
            x, height = points[0]
            parts.append(f'<circle cx="{x:.1f}" cy="{height:.1f}" r="3" fill="{colour}"/>')
        else:
            joined = " ".join(f"{x:.1f},{height:.1f}" for x, height in points)
            parts.append(
                f'<polyline class="loss" points="{joined}" fill="none" stroke="{colour}"'
                ' stroke-width="2"/>'
            )
        said = f"{name} {known[0][1]:.4g} to {known[-1][1]:.4g}"
        parts.append(_text(_LEFT + 190 * index, y + _PANEL + 4, said, fill=colour))
    return parts


def _foot(span: float, y: float, place: Place) -> list[str]:
    anchors = {0.0: "start", 0.5: "middle", 1.0: "end"}
    parts = [
        _text(place(share * span), y + 22, f"{share * span:.0f} s", anchor=anchor)
        for share, anchor in anchors.items()
    ]
    legend = [(kind, *paint) for kind, paint in _SPANS.items()]
    legend += [(fate, colour, 1.0) for fate, colour in _FATES.items() if colour]
    x = _LEFT - 124
    for name, colour, opacity in legend:
        x += 124 if name in (TRAINING, WAITING) else 92
        parts.append(
            f'<rect x="{x}" y="{y + 32}" width="12" height="12" fill="{colour}"'
            f' fill-opacity="{opacity}"/>'
        )
        parts.append(_text(x + 17, y + 42, "training, loading" if name == TRAINING else name))
    x += 92
    parts.append(f'<path d="M{x + 4},{y + 43} l-4,-8 h8 z" fill="#212529"/>')
    return [*parts, _text(x + 14, y + 42, "started again")]


def _size(count: int) -> str:
    return f"{count / 1e6:.2f} MB" if count >= 10_000 else f"{count:,} B"
