"""Statistics of many texts at once, equal to data-juicer's one by one.

Belongs here: the statistics that count characters and lines, for which data-juicer runs a
Python loop over each text. Does not belong here: verdicts; the operator compares the
statistic with its bounds itself.

data-juicer's tables of characters are used, and the counts are integers, so the results are
equal, not close. The tests compare them on generated texts. This is true of the version that
the tests ran against: with any other, the operator's own code counts.
"""

import importlib
from functools import cache
from importlib.metadata import version
from typing import Any

import numpy as np

#: The release of py-data-juicer whose statistics these are.
VERSION = "1.6.1"

#: Code points counted at once; bounds the memory to some ten times as many bytes.
CHUNK = 300_000

#: Filters whose statistic is counted here.
COLUMNAR = frozenset(
    {
        "alphanumeric_filter",
        "maximum_line_length_filter",
        "special_characters_filter",
        "text_length_filter",
        "words_num_filter",
    }
)


def columnar(op: Any, texts: list[str]) -> tuple[str, list[int] | list[float]] | None:
    """Return what ``op.compute_stats_batched`` would put into each text's statistics.

    Args:
        op: a data-juicer filter.
        texts: the values of its ``text_key``.

    Returns:
        the statistic's name and one number a text, or ``None`` where the operator has to
        count itself.
    """
    if not is_columnar(op):
        return None
    match op._name:
        case "text_length_filter":
            return "text_len", [len(text) for text in texts]
        case "maximum_line_length_filter":
            return "max_line_length", [
                max(map(len, text.splitlines()), default=0) for text in texts
            ]
        case "special_characters_filter":
            return "special_char_ratio", _ratios(_special(), texts)
        case "alphanumeric_filter":
            return "alnum_ratio", _ratios(_alphanumeric(), texts)
    return "num_words", [count for piece in _pieces(texts) for count in _words(piece)]


def is_columnar(op: Any) -> bool:
    """Say whether :func:`columnar` counts for an operator."""
    if op._name not in COLUMNAR or not _same_version():
        return False
    return not getattr(op, "tokenization", False) and getattr(op, "model_key", None) is None


@cache
def _same_version() -> bool:
    return version("py-data-juicer") == VERSION


@cache
def _special() -> Any:
    """Whether each code point is one of data-juicer's special characters."""
    module = importlib.import_module("data_juicer.ops.common.special_characters")
    table = np.zeros(0x110000, bool)
    # Emoji of several code points are in the set too, and no character equals one.
    table[[ord(text) for text in module.SPECIAL_CHARACTERS if len(text) == 1]] = True
    return table


@cache
def _alphanumeric() -> Any:
    return np.fromiter((chr(point).isalnum() for point in range(0x110000)), bool, 0x110000)


def _pieces(texts: list[str]) -> list[list[str]]:
    pieces: list[list[str]] = [[]]
    size = 0
    for text in texts:
        if size > CHUNK:
            pieces.append([])
            size = 0
        pieces[-1].append(text)
        size += len(text)
    return pieces


def _points(texts: list[str]) -> tuple[Any, Any]:
    """The code points of all texts, and where each text ends."""
    joined = "".join(texts).encode("utf-32-le", "surrogatepass")
    return np.frombuffer(joined, np.uint32), np.cumsum(
        [len(text) for text in texts], dtype=np.int64
    )


def _per_text(places: Any, ends: Any) -> list[int]:
    """How many of the sorted ``places`` lie in each text."""
    before = np.searchsorted(places, ends)
    counts: list[int] = np.diff(before, prepend=0).tolist()
    return counts


def _ratios(table: Any, texts: list[str]) -> list[float]:
    out: list[float] = []
    for piece in _pieces(texts):
        points, ends = _points(piece)
        counts = _per_text(np.flatnonzero(table[points]), ends)
        out += [c / len(text) if text else 0.0 for c, text in zip(counts, piece, strict=True)]
    return out


def _words(texts: list[str]) -> list[int]:
    """Words are runs between breaks that are not special characters throughout."""
    points, ends = _points(texts)
    plain = np.flatnonzero(~_special()[points])
    breaks = (points == ord(" ")) | (points == ord("\n")) | (points == ord("\t"))
    # A text begins a run of its own, though no break stands before it.
    starts = ends[:-1]
    breaks[starts[starts < len(points)]] = True
    runs = np.cumsum(breaks, dtype=np.int32)[plain]
    first = np.ones(len(plain), bool)
    first[1:] = runs[1:] != runs[:-1]
    return _per_text(plain[first], ends)
