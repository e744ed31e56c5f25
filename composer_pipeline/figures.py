"""Small SVG pictures from numbers, with the standard library alone.

Belongs here: line and bar charts of a few kilobytes for Dagster's metadata and for
cards. Does not belong here: computing what is drawn.
"""

import base64
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

_COLOURS = ("#3b5bdb", "#e8590c", "#2f9e44", "#9c36b5", "#c92a2a", "#0c8599")
_FONT = 'font-family="sans-serif" font-size="11"'


def bars(values: Mapping[str, float], *, width: int = 520, unit: str = "") -> str:
    """Return an SVG with one horizontal bar a value, in the given order.

    Args:
        values: label to value, not negative.
        width: pixels.
        unit: written after each number.
    """
    top = max(values.values(), default=0) or 1
    label = 8 + 7 * max((len(name) for name in values), default=0)
    room = max(60, width - label - 110)
    parts = []
    for row, (name, value) in enumerate(values.items()):
        y = 6 + 22 * row
        parts.append(f'<text x="0" y="{y + 12}" {_FONT}>{escape(name)}</text>')
        size = room * value / top
        colour = _COLOURS[0]
        parts.append(f'<rect x="{label}" y="{y}" width="{size:.1f}" height="16" fill="{colour}"/>')
        text = f"{value:g}{unit}"
        parts.append(f'<text x="{label + size + 6:.1f}" y="{y + 12}" {_FONT}>{escape(text)}</text>')
    return _svg(width, 12 + 22 * len(values), parts)


def lines(
    series: Mapping[str, Sequence[tuple[float, float]]], *, width: int = 520, height: int = 220
) -> str:
    """Return an SVG with one line a series of (x, y) points and a legend.

    Args:
        series: name to points; empty series are left out.
        width: pixels.
        height: pixels.
    """
    kept = {name: points for name, points in series.items() if points}
    xs = [x for points in kept.values() for x, _ in points] or [0.0]
    ys = [y for points in kept.values() for _, y in points] or [0.0]
    left, bottom, right, top = 56, 24, 8, 18
    x0, xspan = min(xs), (max(xs) - min(xs)) or 1
    y0, yspan = min(ys), (max(ys) - min(ys)) or 1

    def place(x: float, y: float) -> str:
        px = left + (x - x0) / xspan * (width - left - right)
        py = height - bottom - (y - y0) / yspan * (height - bottom - top)
        return f"{px:.1f},{py:.1f}"

    parts = [
        f'<path d="M{left},{top} V{height - bottom} H{width - right}" fill="none" stroke="#999"/>',
        f'<text x="0" y="{top + 8}" {_FONT}>{max(ys):.4g}</text>',
        f'<text x="0" y="{height - bottom}" {_FONT}>{min(ys):.4g}</text>',
        f'<text x="{left}" y="{height - 8}" {_FONT}>{min(xs):g}</text>',
        f'<text x="{width - 40}" y="{height - 8}" {_FONT}>{max(xs):g}</text>',
    ]
    for index, (name, points) in enumerate(kept.items()):
        colour = _COLOURS[index % len(_COLOURS)]
        path = " ".join(place(x, y) for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        x = left + 8 + 90 * index
        parts.append(f'<text x="{x}" y="12" fill="{colour}" {_FONT}>{escape(name)}</text>')
    return _svg(width, height, parts)


def markdown_image(svg: str, alt: str) -> str:
    """Return Markdown that shows an SVG from a data URI; Dagster's pages allow it."""
    data = base64.b64encode(svg.encode()).decode()
    return f"![{alt}](data:image/svg+xml;base64,{data})"


def _svg(width: int, height: int, parts: Sequence[str]) -> str:
    body = "".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        f' viewBox="0 0 {width} {height}">'
        f'<rect width="100%" height="100%" fill="white"/>{body}</svg>'
    )
