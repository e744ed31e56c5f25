"""Text of any origin for a page: nothing in it acts, it is cut, and two texts stand side by side.

Belongs here: form. Does not belong here: which texts.
"""

import textwrap
from itertools import zip_longest

#: Columns of a side in :func:`side_by_side`.
WIDTH = 58


def printable(text: str) -> str:
    """Return text without characters that move or hide others; line ends stay, tabs are blanks."""
    plain = text.replace("\r\n", "\n").replace("\r", "\n").replace("\t", "    ")
    return "\n".join(line if line.isprintable() else _plain(line) for line in plain.split("\n"))


def _plain(line: str) -> str:
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in line)


def cut(text: str, chars: int, lines: int) -> str:
    """Return at most so many characters and lines of a text, printable, and how much there is."""
    shown = printable(text[:chars]).split("\n")
    kept = "\n".join(shown[:lines])
    if len(text) <= chars and len(shown) <= lines:
        return kept
    return f"{kept.rstrip()} … ({len(text):,} characters)"


def one_line(text: str, chars: int) -> str:
    """Return the beginning of a text as one printable line."""
    line = printable(" ".join(text[: 4 * chars].split()))
    return line if len(line) <= chars else line[: chars - 1] + "…"


def side_by_side(left: str, right: str, width: int = WIDTH) -> str:
    """Return two texts as two columns of a monospaced block; long lines are wrapped."""
    pairs = zip_longest(wrapped(left, width), wrapped(right, width), fillvalue="")
    return "\n".join(f"{a:<{width}} │ {b}".rstrip() for a, b in pairs)


def wrapped(text: str, width: int) -> list[str]:
    """Return the lines of a text; long ones are wrapped, and go on as far in as they began."""
    lines = []
    for line in text.split("\n"):
        if len(line) <= width:
            lines.append(line)
            continue
        indent = " " * min(4, len(line) - len(line.lstrip()))
        lines += textwrap.wrap(
            line, width, drop_whitespace=False, subsequent_indent=indent, replace_whitespace=False,
            tabsize=4,
        )  # fmt: skip
    return lines
