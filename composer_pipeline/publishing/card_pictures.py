"""The card's pictures: PNG files, the same bytes for the same numbers.

Belongs here: drawing. Does not belong here: counting (``card.facts``). Colours can be told apart
without colour vision; every picture has a table beside it in the card.
"""

import io
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from composer_pipeline.errors import InputError

BLUE, ORANGE, GREY = "#3b5bdb", "#e8590c", "#adb5bd"


def bars(title: str, values: Mapping[str, int], *, of: str = "") -> bytes:
    """Return a PNG with one horizontal bar a value, in order, each with its number.

    Args:
        title: stands above.
        values: label to number.
        of: label of the value that the others are a share of; none is told without.
    """
    return _bars(title, tuple(values.items()), values.get(of, 0))


def shares(title: str, rows: Sequence[tuple[str, int, int, int]]) -> bytes:
    """Return a PNG of shares: states, those that confirm the agent, those that are pairs."""
    return _shares(title, tuple(rows))


def teachers(rows: Sequence[tuple[str, float, float]]) -> bytes:
    """Return a PNG of each teacher's median answer, tokens, and dollars for 1,000 answers."""
    return _teachers(tuple(rows))


@lru_cache(64)
def _bars(title: str, values: tuple[tuple[str, int], ...], whole: int) -> bytes:
    figure, axes = _figure(title, len(values))
    labels, numbers = [name for name, _ in values], [number for _, number in values]
    axes.barh(labels, numbers, color=BLUE, height=0.7)
    for at, number in enumerate(numbers):
        text = f" {number:,}" + (f"  {number / whole:.0%}" if whole else "")
        axes.text(number, at, text, va="center", fontsize=9)
    axes.set_xlim(0, max(numbers, default=1) * 1.2 or 1)
    return _png(figure, axes)


@lru_cache(64)
def _shares(title: str, rows: tuple[tuple[str, int, int, int], ...]) -> bytes:
    figure, axes = _figure(title, len(rows), legend=True)
    labels = [name for name, *_ in rows]
    parts = (
        ("with the agent", BLUE, [same for _, _, same, _ in rows]),
        ("against it: a pair", ORANGE, [pairs for *_, pairs in rows]),
        ("neither", GREY, [voted - same - pairs for _, voted, same, pairs in rows]),
    )
    left = [0.0] * len(rows)
    for name, colour, numbers in parts:
        widths = [number / row[1] for number, row in zip(numbers, rows, strict=True)]
        axes.barh(labels, widths, left=left, color=colour, height=0.7, label=name)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    for at, (_, voted, _, _) in enumerate(rows):
        axes.text(1.01, at, f"{voted:,}", va="center", fontsize=9)
    axes.set_xlim(0, 1.12)
    axes.legend(loc="upper center", bbox_to_anchor=(0.45, -0.02), ncol=3, frameon=False, fontsize=9)
    return _png(figure, axes)


@lru_cache(64)
def _teachers(rows: tuple[tuple[str, float, float], ...]) -> bytes:
    figure = _blank(0.9 + 0.34 * len(rows))
    tokens, cost = figure.subplots(1, 2, sharey=True)
    labels = [name for name, *_ in rows]
    for axes, title, numbers, form in (
        (tokens, "median answer, tokens", [n for _, n, _ in rows], "{:,.0f}"),
        (cost, "cost of 1,000 answers, US dollars", [n for *_, n in rows], "{:,.2f}"),
    ):
        axes.barh(labels, numbers, color=BLUE, height=0.7)
        axes.set_title(title, fontsize=10, loc="left")
        axes.set_xlim(0, max(numbers, default=1) * 1.25 or 1)
        for at, number in enumerate(numbers):
            axes.text(number, at, " " + form.format(number), va="center", fontsize=9)
        _plain(axes)
    tokens.invert_yaxis()
    return _saved(figure)


def _figure(title: str, rows: int, *, legend: bool = False) -> tuple[Any, Any]:
    figure = _blank(0.7 + 0.34 * rows + 0.35 * legend)
    axes = figure.subplots()
    axes.set_title(title, fontsize=10, loc="left")
    return figure, axes


def _blank(height: float) -> Any:
    """Return an empty figure, inches high."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError(
            "the card's pictures need: pip install 'composer-pipeline[publish]'"
        ) from error
    return Figure(figsize=(8, height), dpi=110)


def _plain(axes: Any) -> None:
    axes.set_xticks([])
    axes.tick_params(axis="y", length=0, labelsize=9)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _png(figure: Any, axes: Any) -> bytes:
    _plain(axes)
    axes.invert_yaxis()
    return _saved(figure)


def _saved(figure: Any) -> bytes:
    figure.set_layout_engine("tight")
    sink = io.BytesIO()
    # Neither a time nor the version of the library: equal numbers are equal bytes.
    figure.savefig(sink, format="png", metadata={"Software": None})
    return sink.getvalue()
