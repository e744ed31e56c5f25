"""Statistics of many texts at once, equal to data-juicer's one by one.

Belongs here: the three statistics that count characters, which data-juicer does in a Python
loop over each text. Does not belong here: verdicts; the operator compares the statistic with
its bounds itself.

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
CHUNK = 2_000_000

#: Filters whose statistic is counted here.
COLUMNAR = frozenset({"alphanumeric_filter", "special_characters_filter", "words_num_filter"})


def columnar(op: Any, texts: list[str]) -> list[dict[str, Any]] | None:
    """Return what ``op.compute_stats_batched`` would put into each text's statistics.

    Args:
        op: a data-juicer filter.
        texts: the values of its ``text_key``.

    Returns:
        one dictionary a text, or ``None`` where the operator has to count itself.
    """
    if not is_columnar(op):
        return None
    if op._name == "special_characters_filter":
        return _ratios("special_char_ratio", _special(), texts)
    if op._name == "alphanumeric_filter":
        return _ratios("alnum_ratio", _alphanumeric(), texts)
    counts = [count for piece in _pieces(texts) for count in _words(piece)]
    return [{"num_words": count} for count in counts]


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
    return np.frombuffer(joined, np.uint32), np.cumsum([len(text) for text in texts])


def _per_text(marks: Any, ends: Any) -> Any:
    """The number of marked code points of each text."""
    sums = np.zeros(len(marks) + 1, np.int64)
    np.cumsum(marks, out=sums[1:])
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
    return sums[ends] - sums[starts]


def _ratios(name: str, table: Any, texts: list[str]) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for piece in _pieces(texts):
        points, ends = _points(piece)
        counts = _per_text(table[points], ends).tolist() if piece else []
        out += [
            {name: count / len(text) if text else 0.0}
            for count, text in zip(counts, piece, strict=True)
        ]
    return out


def _words(texts: list[str]) -> list[int]:
    """Words are runs between breaks that are not special characters throughout."""
    if not texts:
        return []
    points, ends = _points(texts)
    plain = np.flatnonzero(~_special()[points])
    breaks = (points == ord(" ")) | (points == ord("\n")) | (points == ord("\t"))
    runs = np.cumsum(breaks)[plain] if len(plain) else plain
    # A text starts a run of its own, though no break stands before it.
    runs = runs + np.searchsorted(ends, plain, side="right")
    first = np.ones(len(plain), bool)
    first[1:] = runs[1:] != runs[:-1]
    marks = np.zeros(len(points), bool)
    marks[plain[first]] = True
    counts: list[int] = _per_text(marks, ends).tolist()
    return counts
