"""Markdown from values: tables, code that cannot end its own fence, numbers as people read them."""

import re
from collections.abc import Iterable, Sequence
from typing import Any


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table; a cell's line ends and bars do not break it."""

    def line(cells: Sequence[Any]) -> str:
        return "| " + " | ".join(_cell(cell) for cell in cells) + " |"

    return "\n".join([line(head), line(["---"] * len(head)), *map(line, rows)])


def _cell(value: Any) -> str:
    return str(value).replace("\n", " ").replace("|", "\\|")


def fenced(text: str, language: str = "text") -> str:
    """Return text as a block of code, whatever fences are in it."""
    longest = max(map(len, re.findall("`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def code(text: str) -> str:
    """Return a name as code inside a line."""
    return f"``{text}``" if "`" in text else f"`{text}`"


def count(number: int) -> str:
    """Return a whole number with its thousands apart."""
    return f"{number:,}"


def share(part: float, whole: float) -> str:
    """Return a share in per cent, or a dash where there is nothing to share."""
    return f"{part / whole:.0%}" if whole else "-"


def dollars(amount: float) -> str:
    """Return US dollars: cents, or what is left of one to two figures."""
    return f"${amount:,.2f}" if amount >= 0.1 or not amount else f"${amount:.2g}"


def image(name: str, alt: str) -> str:
    """Return a picture of the repository."""
    return f"![{alt}]({name})"
