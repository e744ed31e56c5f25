"""Small SVG charts from numbers, for Dagster's pages, the dataset card and the reports.

A chart is as wide as a phone's page and its text has 12 px, so that nothing shrinks there. Colours
are those of a light ground; a style in the image changes them where the reader prefers a dark one.
"""

import base64
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from math import ceil, floor, log10
from types import MappingProxyType
from xml.sax.saxutils import escape

#: Width of a chart in pixels, without its margin.
WIDTH, MARGIN = 308, 6
INK, SOFT, GREY, GRID, PAPER, EMPTY = (
    "#1b1f24", "#5c6670", "#868e96", "#e5e8ec", "#ffffff", "#f1f3f5",
)  # fmt: skip
BLUE, ORANGE, GREEN, GRAPE, CYAN, LIME, RED, AMBER = (
    "#3b5bdb", "#d9480f", "#2f9e44", "#9c36b5", "#0c8599", "#5c940d", "#e03131", "#b35900",
)  # fmt: skip
#: The colour of each quantity, wherever it is drawn.
QUANTITIES = {
    "dpo": BLUE, "sft": ORANGE, "grpo": GREEN, "grpo best gain": GREEN, "sdpo": GRAPE,
    "held out": CYAN, "kto": LIME, "base": GREY, "trained": BLUE, "before": GREY, "after": BLUE,
    "promoted": GREEN, "not better": GREY, "worse": RED, "held": AMBER,
    "nothing to learn": SOFT, "too few": SOFT, "nothing new": SOFT, "dry run": SOFT, "limit": GREY,
}  # fmt: skip
_SERIES = (BLUE, ORANGE, GREEN, GRAPE, CYAN, LIME, AMBER, RED)
#: Ink and colour of a heat map's numbers and cells, which are alike on both grounds.
_ON_DARK, _HEAT = "#fffffe", "#3b5bdc"
#: Each colour on a dark ground.
DARK = {
    INK: "#e6e9ed", SOFT: "#9aa4af", GREY: "#adb5bd", GRID: "#333a42", PAPER: "#1d2127",
    EMPTY: "#272c33", BLUE: "#8ea2ff", ORANGE: "#ffa94d", GREEN: "#69db7c", GRAPE: "#da77f2",
    CYAN: "#3bc9db", LIME: "#a9e34b", RED: "#ff8787", AMBER: "#ffc078", "#000000": "#fffffe",
}  # fmt: skip
_CHAR = 7  # the width of a character, about

Points = Sequence[tuple[float, float]]


def bars(
    values: Mapping[str, float], *, width: int = WIDTH, unit: str = "", total: float = 0
) -> str:
    """Return horizontal bars with their numbers, and their shares of ``total`` unless it is 0."""
    top = max(values.values(), default=0) or 1
    parts = []
    for row, (name, value) in enumerate(values.items()):
        y, share = 36 * row, f" ({value / total:.0%})" if total else ""
        parts += _label(y, name, f"{_number(value)}{unit}{share}", width)
        colour = QUANTITIES.get(name.rpartition(", ")[2], BLUE)
        parts.append(_bar(0, y + 19, width * max(value, 0) / top, colour))
    return svg(width, 36 * len(values), parts)


def stacked_shares(
    names: Sequence[str],
    rows: Mapping[str, Sequence[float]],
    *,
    width: int = WIDTH,
    unit: str = "",
    amounts: bool = False,
) -> str:
    """Return one bar per row, divided by the row's numbers, which ``names`` names in the legend.

    All bars have one length and the last part is grey, for the rest; with ``amounts``, a bar is
    as long as its sum and every part has a colour.
    """
    colours = [_SERIES[at % len(_SERIES)] for at in range(len(names))]
    if not amounts:
        colours[-1:] = [GREY]
    top = max(map(sum, rows.values()), default=0) if amounts else 0
    parts, y = _legend(zip(names, colours, strict=True), width)
    for name, numbers in rows.items():
        x, total = 0.0, sum(numbers)
        parts += _label(y, name, f"{_number(total)}{unit}", width)
        for colour, number in zip(colours, numbers, strict=True):
            size = width * number / (top or total or 1)
            parts.append(_bar(x, y + 19, size, colour))
            x += size
        y += 36
    return svg(width, y, parts)


def lines(
    series: Mapping[str, Points],
    *,
    width: int = WIDTH,
    height: int = 200,
    unit: str = "",
    x_unit: str = "",
    colour: str = "",
    thin: Mapping[str, Points] = MappingProxyType({}),
    dots: Mapping[str, Points] = MappingProxyType({}),
) -> str:
    """Return one line per series of (x, y) points that is not empty, on axes with round numbers.

    ``thin`` are lines that belong to the first series, such as the replicas of a mean; ``dots``
    are points without a line, by quantity; ``unit`` and ``x_unit`` say what y and x count,
    ``colour`` is that of every line.
    """
    kept = {name: points for name, points in series.items() if points}
    drawn = (*kept.values(), *thin.values(), *dots.values())
    every = [point for points in drawn for point in points] or [(0, 0)]
    xs, ys = [x for x, _ in every], [y for _, y in every]
    rows, columns = ticks(ys, height // 45), ticks(xs, width // 70)
    free = cycle(ink for ink in _SERIES if ink not in map(QUANTITIES.get, kept))
    colours = [colour or QUANTITIES.get(name) or next(free) for name in kept]
    marks = [(name, QUANTITIES[name]) for name in dots]
    legend = [*zip(kept, colours, strict=True), *marks, *([(unit, "")] if unit else [])]
    parts, top = _legend(legend, width)
    left = 8 + _CHAR * max(len(label) for label in rows.values())
    right, bottom = width - 14, height - (38 if x_unit else 22)
    y0, y1 = min(rows), max(rows)
    x0, x1 = (min(xs), max(xs)) if min(xs) < max(xs) else (min(columns), max(columns))

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            left + (x - x0) / (x1 - x0) * (right - left),
            bottom - (y - y0) / (y1 - y0) * (bottom - top - 6),
        )

    for value, label in rows.items():
        y = place(x0, value)[1]
        parts += [path(f"M{left},{y:.1f} H{right}", GRID),
                  text(left - 5, y + 4, label, anchor="end", fill=SOFT)]  # fmt: skip
    for value, label in columns.items():
        if x0 <= value <= x1:
            x = place(value, y0)[0]
            parts += [path(f"M{x:.1f},{bottom} v4", GREY),
                      text(x, bottom + 17, label, anchor="middle", fill=SOFT)]  # fmt: skip
    parts.append(path(f"M{left},{bottom} H{right}", GREY))
    if x_unit:
        parts.append(text(right, height - 4, x_unit, anchor="end", fill=SOFT))
    for name, points in thin.items():
        parts.append(curve([place(*point) for point in points], (colours or [BLUE])[0], name, 1))
    for (name, points), ink in zip(kept.items(), colours, strict=True):
        parts.append(curve([place(*point) for point in points], ink, name, 2.5))
    for name, ink in marks:
        parts += [curve([place(*point)], ink, name, 3.5) for point in dots[name]]
    return svg(width, height, parts)


def intervals(
    rows: Mapping[str, tuple[float, float | None, float | None]], *, width: int = WIDTH
) -> str:
    """Return a dot and its interval per row (mean, low, high), about a line at 0.

    An interval that excludes 0 is coloured, below and above differently; a row without one has
    an empty dot.
    """
    axis = ticks([0.0, *(v for row in rows.values() for v in row if v is not None)], width // 70)
    x0, x1, bottom = min(axis), max(axis), 36 * len(rows) + 4

    def place(value: float) -> float:
        return 16 + (value - x0) / (x1 - x0) * (width - 32)

    parts = []
    for value, label in axis.items():
        rows_of = "".join(f"M{place(value):.1f},{36 * row + 18} v14" for row in range(len(rows)))
        parts += [path(f"{rows_of}M{place(value):.1f},{bottom - 4} v4", GRID if value else GREY),
                  text(place(value), bottom + 14, label, anchor="middle", fill=SOFT)]  # fmt: skip
    for row, (name, (mean, low, high)) in enumerate(rows.items()):
        y = 36 * row
        parts += _label(y, name, f"{mean:+.3g}", width)
        colour, fill = GREY, PAPER
        if low is not None and high is not None:
            colour = fill = GREEN if low > 0 else RED if high < 0 else GREY
            parts.append(path(f"M{place(low):.1f},{y + 25} H{place(high):.1f}", colour, 3))
        parts.append(
            f'<circle cx="{place(mean):.1f}" cy="{y + 25}" r="4.5" fill="{fill}"'
            f' stroke="{colour}" stroke-width="1.5"/>'
        )
    return svg(width, bottom + 20, parts)


def heatmap(
    names: Sequence[str], cells: Mapping[tuple[str, str], tuple[float, int]], *, cell: int = 48
) -> str:
    """Return a symmetric matrix of shares, darker for more, with numbers.

    ``cells`` maps (name, name), in either order, to (share in [0, 1], observations); a missing
    cell and the diagonal stay empty. ``cell`` is a cell's width in pixels.
    """
    height = 32
    left = 8 + _CHAR * max((len(name) for name in names), default=0)
    parts = []
    for row, a in enumerate(names):
        y = 24 + row * height
        short = _cut(a, cell)
        parts += [text(0, y + height / 2 + 4, a), text(left + row * cell + 3, 16, short)]
        for column, b in enumerate(names):
            x = left + column * cell
            box = f'<rect x="{x}" y="{y}" width="{cell - 2}" height="{height - 2}"'
            found = cells.get((a, b), cells.get((b, a)))
            if a == b or found is None:
                parts.append(f'{box} fill="{EMPTY}"/>')
                continue
            share, n = found
            title = escape(printable(f"{a}, {b}: {share:.1%} of {n}"))
            # At this share of blue, black and white are equally readable.
            ink = _ON_DARK if share > 0.89 else "#000000"
            parts += [
                f'{box} fill="{_HEAT}" fill-opacity="{share:.2f}"><title>{title}</title></rect>',
                text(x + cell / 2 - 1, y + height / 2 + 4, f"{share:.0%}", anchor="middle",
                     fill=ink),
            ]  # fmt: skip
    return svg(left + cell * len(names), 24 + height * len(names), parts)


def markdown_image(svg: str, alt: str) -> str:
    """Return Markdown that shows an SVG from a data URI; Dagster's pages allow it."""
    data = base64.b64encode(svg.encode()).decode()
    return f"![{alt}](data:image/svg+xml;base64,{data})"


def svg(width: int, height: float, parts: Iterable[str]) -> str:
    """Return an image from its elements, light or dark, with a margin around ``width``."""
    margin = f'x="-{MARGIN}" y="-{MARGIN}"'
    body = f'<rect {margin} width="100%" height="100%" fill="{PAPER}"/>' + "".join(parts)
    dark = "".join(
        f'[{name}="{light}"]{{{name}:{dark}}}'
        for light, dark in DARK.items()
        for name in ("fill", "stroke")
        if f'{name}="{light}"' in body
    )
    wide, high = width + 2 * MARGIN, f"{height + 2 * MARGIN:g}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}"'
        f' viewBox="-{MARGIN} -{MARGIN} {wide} {high}">'
        f"<style>@media (prefers-color-scheme:dark){{{dark}}}</style>{body}</svg>"
    )


def printable(text: str) -> str:
    """Return one line of text without control characters, which XML forbids."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def text(x: float, y: float, label: str, *, anchor: str = "", fill: str = INK) -> str:
    """Return a text whose baseline is at ``y``; ``anchor`` is that of SVG."""
    where = f' text-anchor="{anchor}"' if anchor else ""
    return (
        f'<text x="{x:.6g}" y="{y:.6g}"{where} fill="{fill}" font-family="sans-serif"'
        f' font-size="12">{escape(printable(label))}</text>'
    )


def path(data: str, colour: str, width: float = 1) -> str:
    """Return a line of the image from SVG's path data."""
    return f'<path d="{data}" fill="none" stroke="{colour}" stroke-width="{width}"/>'


def curve(points: Points, colour: str, name: str, width: float) -> str:
    """Return a line through points of the image, or a dot at the only one."""
    title = f"<title>{escape(printable(name))}</title>"
    if len(points) == 1:
        x, y = points[0]
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{width + 1}" fill="{colour}">{title}</circle>'
    shown = [*points[: -1 : max(1, len(points) // WIDTH)], points[-1]]  # a point a pixel will do
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in shown)
    return (
        f'<polyline class="curve" points="{joined}" fill="none" stroke="{colour}"'
        f' stroke-width="{width}">{title}</polyline>'
    )


def ticks(values: Iterable[float], most: int) -> dict[float, str]:
    """Return round numbers around the values, a few more than ``most`` at most, and their text."""
    known = [*values]
    low, high = min(known), max(known)
    whole = all(float(value).is_integer() for value in known)
    if low == high:
        pad = 1.0 if whole else abs(low) / 20
        low, high = low - pad, high + pad
    rough = (high - low) / max(most, 1)
    power = floor(log10(rough))
    step = next(m * 10.0**power for m in (1, 2, 5, 10) if m * 10.0**power >= rough * 0.999)
    step = max(step, 1.0) if whole else step
    digits = max(0, -floor(log10(step * 1.001)))
    first, last = floor(low / step + 1e-3), ceil(high / step - 1e-3)
    found = [round(number * step, digits + 1) for number in range(first, last + 1)]
    return {value: f"{value:,.{digits}f}" for value in found}


def _cut(name: str, room: float) -> str:
    most = max(2, int(room // _CHAR))
    return name if len(name) <= most else name[: most - 1] + "…"


def _label(y: float, name: str, number: str, width: int) -> list[str]:
    """Return a row's name and, at its end, its number."""
    room = width - _CHAR * (len(number) + 1)
    return [text(0, y + 13, _cut(name, room)), text(width, y + 13, number, anchor="end")]


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _bar(x: float, y: float, size: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y}" width="{size:.1f}" height="11" fill="{colour}"/>'


def _legend(names: Iterable[tuple[str, str]], width: int) -> tuple[list[str], int]:
    """Return names beside their colours, in rows, and where the rows end."""
    parts, x, y = [], 0.0, 13
    for name, colour in names:
        size = _CHAR * len(name) + (30 if colour else 12)
        if x and x + size - 12 > width:
            x, y = 0.0, y + 18
        if colour:
            parts.append(path(f"M{x},{y - 4} h12", colour, 4))
        shift = 18 if colour else 0
        parts.append(text(x + shift, y, name, fill=INK if colour else SOFT))
        x += size
    return parts, y + 8
