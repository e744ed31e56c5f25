"""Small SVG charts from numbers, for Dagster's pages, the dataset card and the reports."""

import base64
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

_COLOURS = ("#3b5bdb", "#e8590c", "#2f9e44", "#9c36b5", "#c92a2a", "#0c8599")
_GREY = "#868e96"
_FONT = 'font-family="sans-serif" font-size="11"'


def bars(values: Mapping[str, float], *, width: int = 520, unit: str = "", total: float = 0) -> str:
    """Return horizontal bars with their numbers, and their shares of ``total`` unless it is 0."""
    top = max(values.values(), default=0) or 1
    left = _label_width(values)
    space = max(60, width - left - 110)
    parts = []
    for row, (name, value) in enumerate(values.items()):
        y, size = 6 + 22 * row, space * value / top
        number = f"{value:,}" if isinstance(value, int) else f"{value:g}"
        share = f"  {value / total:.0%}" if total else ""
        parts += [
            _text(0, y + 12, name),
            f'<rect x="{left}" y="{y}" width="{size:.1f}" height="16" fill="{_COLOURS[0]}"/>',
            _text(left + size + 6, y + 12, f"{number}{unit}{share}"),
        ]
    return svg(width, 12 + 22 * len(values), parts)


def stacked_shares(
    names: Sequence[str], rows: Mapping[str, Sequence[int]], *, width: int = 720
) -> str:
    """Return one bar per row, divided by the row's counts, which ``names`` names in the legend."""
    colours = (*_COLOURS[: len(names) - 1], "#adb5bd")
    left = _label_width(rows)
    space = max(60, width - left - 70)
    parts = []
    for row, (name, counts) in enumerate(rows.items()):
        y, x, total = 6 + 22 * row, float(left), sum(counts)
        parts.append(_text(0, y + 12, name))
        for colour, number in zip(colours, counts, strict=True):
            size = space * number / (total or 1)
            parts.append(
                f'<rect x="{x:.1f}" y="{y}" width="{size:.1f}" height="16" fill="{colour}"/>'
            )
            x += size
        parts.append(_text(left + space + 6, y + 12, f"{total:,}"))
    y = 24 + 22 * len(rows)
    for at, (name, colour) in enumerate(zip(names, colours, strict=True)):
        x = left + 150 * at
        parts.append(f'<rect x="{x}" y="{y - 10}" width="12" height="12" fill="{colour}"/>')
        parts.append(_text(x + 18, y, name))
    return svg(width, y + 10, parts)


def lines(
    series: Mapping[str, Sequence[tuple[float, float]]], *, width: int = 520, height: int = 220
) -> str:
    """Return one line per series of (x, y) points that is not empty, and a legend."""
    kept = {name: points for name, points in series.items() if points}
    xs = [x for points in kept.values() for x, _ in points] or [0.0]
    ys = [y for points in kept.values() for _, y in points] or [0.0]
    left, bottom, right, top = 56, 24, 8, 18
    x0, x_span = min(xs), (max(xs) - min(xs)) or 1
    y0, y_span = min(ys), (max(ys) - min(ys)) or 1

    def place(x: float, y: float) -> str:
        px = left + (x - x0) / x_span * (width - left - right)
        py = height - bottom - (y - y0) / y_span * (height - bottom - top)
        return f"{px:.1f},{py:.1f}"

    parts = [
        f'<path d="M{left},{top} V{height - bottom} H{width - right}" fill="none" stroke="#999"/>',
        _text(0, top + 8, f"{max(ys):.4g}"),
        _text(0, height - bottom, f"{min(ys):.4g}"),
        _text(left, height - 8, f"{min(xs):g}"),
        _text(width - 40, height - 8, f"{max(xs):g}"),
    ]
    for index, (name, points) in enumerate(kept.items()):
        colour = _COLOURS[index % len(_COLOURS)]
        path = " ".join(place(x, y) for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(_text(left + 8 + 90 * index, 12, name, f'fill="{colour}" '))
    return svg(width, height, parts)


def intervals(
    rows: Mapping[str, tuple[float, float | None, float | None]], *, width: int = 520
) -> str:
    """Return a dot and its interval per row (mean, low, high), about a line at 0.

    An interval that excludes 0 is coloured, below and above differently; a row without one has
    an empty dot.
    """
    ends = [0.0, *(v for row in rows.values() for v in row if v is not None)]
    x0, span = min(ends), (max(ends) - min(ends)) or 1.0
    left = _label_width(rows)
    space = max(60, width - left - 70)

    def place(value: float) -> float:
        return left + (value - x0) / span * space

    height = 12 + 22 * len(rows)
    parts = [f'<path d="M{place(0):.1f},0 V{height}" stroke="#999" stroke-dasharray="3"/>']
    for row, (name, (mean, low, high)) in enumerate(rows.items()):
        y = 14 + 22 * row
        parts.append(_text(0, y + 4, name))
        colour, fill = _GREY, "white"
        if low is not None and high is not None:
            colour = fill = _COLOURS[2] if low > 0 else _COLOURS[4] if high < 0 else _GREY
            line = f"M{place(low):.1f},{y} H{place(high):.1f}"
            parts.append(f'<path d="{line}" stroke="{colour}" stroke-width="3"/>')
        dot = f'<circle cx="{place(mean):.1f}" cy="{y}" r="4" fill="{fill}" stroke="{colour}"/>'
        parts += [dot, _text(width - 58, y + 4, f"{mean:+.3g}")]
    return svg(width, height, parts)


def heatmap(
    names: Sequence[str], cells: Mapping[tuple[str, str], tuple[float, int]], *, cell: int = 64
) -> str:
    """Return a symmetric matrix of shares, darker for more, with numbers.

    ``cells`` maps (name, name), in either order, to (share in [0, 1], observations); a missing
    cell and the diagonal stay empty. ``cell`` is a cell's width in pixels, twice its height.
    """
    height = cell // 2
    left = _label_width(names)
    parts = []
    for row, a in enumerate(names):
        y = 24 + row * height
        short = a if 7 * len(a) <= cell else a[: max(1, cell // 7 - 1)] + "…"
        parts += [_text(0, y + height / 2 + 4, a), _text(left + row * cell + 3, 16, short)]
        for column, b in enumerate(names):
            x = left + column * cell
            box = f'<rect x="{x}" y="{y}" width="{cell - 2}" height="{height - 2}"'
            found = cells.get((a, b), cells.get((b, a)))
            if a == b or found is None:
                parts.append(f'{box} fill="#f1f3f5"/>')
                continue
            share, n = found
            shade = ",".join(f"{255 + (end - 255) * share:.0f}" for end in (59, 91, 219))
            title = escape(printable(f"{a}, {b}: {share:.1%} of {n}"))
            ink = "white" if share > 0.55 else "black"
            centred = f'text-anchor="middle" fill="{ink}" '
            parts += [
                f'{box} fill="rgb({shade})"><title>{title}</title></rect>',
                _text(x + cell / 2 - 1, y + height / 2 + 4, f"{share:.0%}", centred),
            ]
    return svg(left + cell * len(names) + 4, 28 + height * len(names), parts)


def markdown_image(svg: str, alt: str) -> str:
    """Return Markdown that shows an SVG from a data URI; Dagster's pages allow it."""
    data = base64.b64encode(svg.encode()).decode()
    return f"![{alt}](data:image/svg+xml;base64,{data})"


def svg(width: int, height: int, parts: Sequence[str]) -> str:
    """Return an image of ``width`` by ``height`` pixels on white, from its elements."""
    body = "".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        f' viewBox="0 0 {width} {height}">'
        f'<rect width="100%" height="100%" fill="white"/>{body}</svg>'
    )


def printable(text: str) -> str:
    """Return one line of text without control characters, which XML forbids."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def _label_width(labels: Sequence[str] | Mapping[str, object]) -> int:
    return 8 + 7 * max((len(name) for name in labels), default=0)


def _text(x: float, y: float, text: str, attributes: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" {attributes}{_FONT}>{escape(printable(text))}</text>'
