"""HTML in which text cannot become markup: every string is escaped unless an element made it.

Belongs here: elements and escaping. Does not belong here: what a page says.
"""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from composer_pipeline.previews import printable


class Html(str):
    """Markup that this module made. A plain string is text and is escaped."""

    __slots__ = ()


_EMPTY = frozenset({"meta", "br", "img"})


def el(name: str, /, *children: "str | Html | Iterable[Any]", **attributes: object) -> Html:
    """Return an element; strings inside and values of attributes are escaped.

    Args:
        name: of the element.
        children: text, elements, or lists of them.
        attributes: ``_class`` is ``class``, ``data_session`` is ``data-session``; ``None`` is left
            out.
    """
    given = "".join(
        f' {key.lstrip("_").replace("_", "-")}="{escape(printable(str(value)))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _EMPTY:
        return Html(f"<{name}{given}>")
    return Html(f"<{name}{given}>{join(children)}</{name}>")


def join(children: Iterable[Any]) -> Html:
    """Return text and elements one after the other; plain strings are escaped."""
    parts = []
    for child in children:
        if isinstance(child, Html):
            parts.append(str(child))
        elif isinstance(child, str):
            parts.append(escape(printable(child), quote=False))
        else:
            parts.append(str(join(child)))
    return Html("".join(parts))


def drawn(svg: str, alt: str) -> Html:
    """Return a picture of ``composer_pipeline.figures``, whose labels are escaped there."""
    return Html(
        f'<figure role="img" aria-label="{escape(printable(alt))}">{printable(svg)}</figure>'
    )


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> Html:
    """Return a table; cells that are no text in their first row are set as numbers."""
    lines = [
        el("tr", [el("td", cell if isinstance(cell, Html) else str(cell),
                     _class="n" if _is_number(cell) else None) for cell in row])
        for row in rows
    ]  # fmt: skip
    top = el("thead", el("tr", [el("th", name) for name in head]))
    return el("div", el("table", top, el("tbody", lines)), _class="wide")


def _is_number(cell: object) -> bool:
    return not isinstance(cell, Html) and str(cell)[:1] in "0123456789$+-–<" and str(cell) != ""
