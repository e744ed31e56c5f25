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
    return svg(width, 12 + 22 * len(values), parts)


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
    return svg(width, height, parts)


def intervals(
    rows: Mapping[str, tuple[float, float | None, float | None]], *, width: int = 520
) -> str:
    """Return an SVG with a dot and its interval a row, about a line at 0.

    An interval that excludes 0 is coloured, below and above differently; a row without one has
    an empty dot.

    Args:
        rows: label to (mean, low, high); low and high are ``None`` where there is no interval.
        width: pixels.
    """
    ends = [0.0, *(v for row in rows.values() for v in row if v is not None)]
    x0, span = min(ends), (max(ends) - min(ends)) or 1.0
    label = 8 + 7 * max((len(name) for name in rows), default=0)
    room = max(60, width - label - 70)

    def place(value: float) -> float:
        return label + (value - x0) / span * room

    height = 12 + 22 * len(rows)
    parts = [f'<path d="M{place(0):.1f},0 V{height}" stroke="#999" stroke-dasharray="3"/>']
    for row, (name, (mean, low, high)) in enumerate(rows.items()):
        y = 14 + 22 * row
        parts.append(f'<text x="0" y="{y + 4}" {_FONT}>{escape(name)}</text>')
        colour, fill = "#868e96", "white"
        if low is not None and high is not None:
            colour = _COLOURS[2] if low > 0 else _COLOURS[4] if high < 0 else "#868e96"
            fill = colour
            line = f"M{place(low):.1f},{y} H{place(high):.1f}"
            parts.append(f'<path d="{line}" stroke="{colour}" stroke-width="3"/>')
        dot = f'<circle cx="{place(mean):.1f}" cy="{y}" r="4" fill="{fill}" stroke="{colour}"/>'
        parts.append(dot)
        parts.append(f'<text x="{width - 58}" y="{y + 4}" {_FONT}>{mean:+.3g}</text>')
    return svg(width, height, parts)


def heatmap(
    names: Sequence[str], cells: Mapping[tuple[str, str], tuple[float, int]], *, cell: int = 64
) -> str:
    """Return an SVG of a symmetric matrix of shares, darker for more, with numbers.

    Args:
        names: rows and columns, in order.
        cells: (name, name), in either order, to (share in [0, 1], observations); a cell that
            is not there is left empty, and so is the diagonal.
        cell: pixels of a cell's width; its height is half of that.
    """
    height = cell // 2
    label = 8 + 7 * max((len(name) for name in names), default=0)
    parts = []
    for row, a in enumerate(names):
        y = 24 + row * height
        parts.append(f'<text x="0" y="{y + height / 2 + 4:g}" {_FONT}>{escape(a)}</text>')
        x = label + row * cell
        short = a if 7 * len(a) <= cell else a[: max(1, cell // 7 - 1)] + "…"
        parts.append(f'<text x="{x + 3}" y="16" {_FONT}>{escape(short)}</text>')
        for column, b in enumerate(names):
            found = cells.get((a, b), cells.get((b, a)))
            x = label + column * cell
            if a == b or found is None:
                size = f'width="{cell - 2}" height="{height - 2}"'
                parts.append(f'<rect x="{x}" y="{y}" {size} fill="#f1f3f5"/>')
                continue
            share, n = found
            shade = " ".join(f"{255 + (end - 255) * share:.0f}" for end in (59, 91, 219))
            ink = "white" if share > 0.55 else "black"
            parts.append(
                f'<rect x="{x}" y="{y}" width="{cell - 2}" height="{height - 2}"'
                f' fill="rgb({shade.replace(" ", ",")})"><title>{escape(a)}, {escape(b)}:'
                f" {share:.1%} of {n}</title></rect>"
                f'<text x="{x + cell / 2 - 1:g}" y="{y + height / 2 + 4:g}" text-anchor="middle"'
                f' fill="{ink}" {_FONT}>{share:.0%}</text>'
            )
    return svg(label + cell * len(names) + 4, 28 + height * len(names), parts)


def markdown_image(svg: str, alt: str) -> str:
    """Return Markdown that shows an SVG from a data URI; Dagster's pages allow it."""
    data = base64.b64encode(svg.encode()).decode()
    return f"![{alt}](data:image/svg+xml;base64,{data})"


def svg(width: int, height: int, parts: Sequence[str]) -> str:
    """Return a picture of ``width`` by ``height`` pixels on white, from its elements."""
    body = "".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        f' viewBox="0 0 {width} {height}">'
        f'<rect width="100%" height="100%" fill="white"/>{body}</svg>'
    )
