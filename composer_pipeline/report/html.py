"""HTML in which text cannot become markup: every string is escaped unless an element made it.

Belongs here: elements and escaping. Does not belong here: what a page says.
"""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from composer_pipeline.states.previews import printable


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
    """Return a picture of ``composer_pipeline.charts``, whose labels are escaped there."""
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


#: Nothing is loaded and no script runs, whatever is in the page.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

CSS = """
:root{color-scheme:light dark;--paper:#f6f7f9;--card:#fff;--ink:#1b1f24;--soft:#5c6670;--line:#dfe3e8;
--accent:#3b5bdb;--good:#2f9e44;--bad:#c92a2a;--warn:#b35900;--warnbg:#fff4e6;
--del:#ffe3e3;--ins:#d3f9d8;--code:#f1f3f5}
@media (prefers-color-scheme:dark){:root{--paper:#14171b;--card:#1d2127;--ink:#e6e9ed;--soft:#9aa4af;
--line:#333a42;--accent:#8ea2ff;--good:#69db7c;--bad:#ff8787;--warn:#ffc078;--warnbg:#3a2a14;
--del:#5c2326;--ins:#1d4a2a;--code:#272c33}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);
font:15px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:1120px;margin:0 auto;padding:36px 28px 64px}
header h1{font-size:30px;line-height:1.2;margin:0 0 4px;letter-spacing:-.01em}
header p{margin:0;color:var(--soft)}
nav{margin:18px 0 0;display:flex;flex-wrap:wrap;gap:6px 18px;font-size:14px}
a{color:var(--accent);text-decoration:none}a:hover{text-decoration:underline}
h2{font-size:20px;margin:44px 0 6px;letter-spacing:-.005em}
h3{font-size:15px;margin:26px 0 6px}h3:first-child{margin-top:0}
p{margin:6px 0 10px;max-width:76ch}
.soft{color:var(--soft)}
.tiles{display:grid;grid-template-columns:repeat(4,1fr);gap:12px;margin:24px 0 0}
.tile{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:12px 14px}
.tile b{display:block;font-size:23px;line-height:1.25;font-weight:650;letter-spacing:-.01em}
.tile span{color:var(--soft);font-size:13px;line-height:1.35;display:block}
.card{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:18px 20px;margin:14px 0}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(440px,100%),1fr));gap:14px;align-items:start}
.grid.small{grid-template-columns:repeat(auto-fit,minmax(min(310px,100%),1fr))}
.grid .card{margin:0;min-width:0}
.note{background:var(--warnbg);border-left:4px solid var(--warn);border-radius:6px;padding:10px 14px;
margin:18px 0;max-width:none}
.none{border:1px dashed var(--line);border-radius:10px;padding:14px 18px;color:var(--soft);margin:14px 0}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:14px}
th{text-align:left;font-weight:600;color:var(--soft);font-size:12.5px;padding:6px 14px 6px 0;
border-bottom:1px solid var(--line);vertical-align:bottom}
td{padding:6px 14px 6px 0;border-bottom:1px solid var(--line);vertical-align:top}
tbody tr:last-child td{border-bottom:0}
td.n{font-variant-numeric:tabular-nums;white-space:nowrap}
figure{margin:10px 0 4px;overflow-x:auto}
svg{max-width:100%;height:auto;display:block}
svg>rect[width="100%"]{fill:transparent}
svg text{font-family:inherit}svg text:not([fill]){fill:var(--ink)}
svg rect[fill="#f1f3f5"]{fill:var(--code)}
code,pre{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;font-size:12.5px}
code{background:var(--code);border-radius:4px;padding:1px 4px}
pre{margin:0;white-space:pre-wrap;overflow-wrap:anywhere;line-height:1.5}
.pair .task{font-weight:600;margin:0 0 2px}
.pair .about{color:var(--soft);font-size:13px;margin:0 0 10px;max-width:none}
.pair details{margin:0 0 10px;font-size:13.5px}
summary{cursor:pointer;color:var(--soft);font-size:13.5px}
.pair details pre{background:var(--code);border-radius:6px;padding:10px 12px;margin-top:6px}
.sides{display:grid;grid-template-columns:1fr 1fr;gap:12px}
.side{border:1px solid var(--line);border-radius:8px;padding:10px 12px;min-width:0}
.side h4{margin:0 0 6px;font-size:13px;font-weight:600}
.side.no{border-top:3px solid var(--bad)}.side.yes{border-top:3px solid var(--good)}
.no mark{background:var(--del)}.yes mark{background:var(--ins)}
mark{color:inherit;border-radius:3px}
footer{margin-top:48px;padding-top:14px;border-top:1px solid var(--line);color:var(--soft);font-size:13px}
@media (max-width:640px){.tiles{grid-template-columns:1fr 1fr}.sides{grid-template-columns:1fr}main{padding:20px 14px 40px}}
@media print{body{background:#fff}.card,.tile{break-inside:avoid}}
"""
