"""Markdown from values: tables, fenced code, numbers for people."""

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Template


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table; line ends and bars in cells are escaped."""

    def line(cells: Sequence[Any]) -> str:
        return "| " + " | ".join(_cell(cell) for cell in cells) + " |"

    return "\n".join([line(head), line(["---"] * len(head)), *map(line, rows)])


def _cell(value: Any) -> str:
    return str(value).replace("\n", " ").replace("|", "\\|")


def fenced(text: str, language: str = "text") -> str:
    """Return text as a code block, with a fence longer than any inside."""
    longest = max(map(len, re.findall("`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def code(text: str) -> str:
    """Return a name as code inside a line."""
    return f"``{text}``" if "`" in text else f"`{text}`"


def count(number: int) -> str:
    """Return an integer with thousands separators."""
    return f"{number:,}"


def share(part: float, whole: float) -> str:
    """Return a share in per cent, or a dash if the whole is 0."""
    return f"{part / whole:.0%}" if whole else "-"


def dollars(amount: float) -> str:
    """Return US dollars with cents; small amounts with two significant digits."""
    return f"${amount:,.2f}" if amount >= 0.1 or not amount else f"${amount:.2g}"


def image(name: str, alt: str) -> str:
    """Return an image of the repository."""
    return f"![{alt}]({name})"


def template(package: str, name: str) -> "Template":
    """Return a Jinja2 template of a package, in which this module's functions can be used."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader(package), undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
        autoescape=False,  # noqa: S701  Markdown: tables, code and fences escape what they hold
    )  # fmt: skip
    environment.globals |= {"table": table, "image": image, "share": share}
    environment.filters |= {"code": code, "count": count, "dollars": dollars, "fenced": fenced}
    return environment.get_template(name)
