"""Secrets that the structure around them gives away: keys, pairs, cookies, manifests.

Belongs here: walking values with their keys, and finding structures in text. Does not belong
here: single positions (``redaction.tables.contexts``), names and their values
(``redaction.finders.assignments``).
"""

import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from composer_pipeline.redaction.edits import Found
from composer_pipeline.redaction.literals import is_given_secret, is_placeholder
from composer_pipeline.redaction.tables.patterns import LINE_HEAD

#: Judges a string under a name; returns what it becomes. ``certain``: the structure says that
#: it is a secret, whatever its name.
Judge = Callable[[str, str, bool], str]

#: The private numbers of a key as a JSON Web Key writes them.
_PRIVATE_PARTS = frozenset(("d", "k", "p", "q", "dp", "dq", "qi"))
_PAIR = re.compile(r"[A-Za-z][A-Za-z0-9_. -]{2,60}")


def with_keys(item: Any, judge: Judge, key: str = "") -> Any:
    """Return a JSON value whose strings ``judge`` saw together with their keys.

    Beside objects these are pairs of a name and a value: ``["Cookie", "sid=…"]``,
    ``{"name": "Cookie", "value": "sid=…"}``.
    """
    if isinstance(item, str):
        return judge(key, item, False) if key else item
    if isinstance(item, list):
        if (
            len(item) == 2
            and all(isinstance(part, str) for part in item)
            and _PAIR.fullmatch(item[0])
        ):
            return [item[0], judge(item[0], item[1], False)]
        return [part if isinstance(part, str) else with_keys(part, judge) for part in item]
    if not isinstance(item, dict):
        return item
    names = (item.get(name) for name in ("name", "key", "header", "Name", "Key"))
    named = next((name for name in names if isinstance(name, str)), "")
    secret = item.get("kind") == "Secret"
    sensitive = item.get("sensitive") is True
    private = _PRIVATE_PARTS if isinstance(item.get("kty"), str) else frozenset[str]()
    out: dict[str, Any] = {}
    for name, part in item.items():
        if secret and name in ("data", "stringData") and isinstance(part, dict):
            out[name] = {
                inner: judge(inner, text, True) if isinstance(text, str) else text
                for inner, text in part.items()
            }
        elif isinstance(part, str):
            of = named if named and name in ("value", "Value", "val") else name
            out[name] = judge(of, part, (sensitive and name == "value") or name in private)
        elif isinstance(part, list) and all(isinstance(text, str) for text in part):
            judged = [judge(name, text, False) for text in part]
            # Two strings may also be a name and its value.
            out[name] = with_keys(part, judge) if len(part) == 2 and judged == part else judged
        else:
            out[name] = with_keys(part, judge, name)
    return out


# -- cookies -----------------------------------------------------------------------------

_COOKIES = re.compile(
    r"(?<![A-Za-z0-9_-])(?i:set-cookie2?|cookies?)\\*[\"'`]?\s{0,3}(?::|=>|,|=)\s{0,3}\\*[\"'`]?"
    r"(?P<pairs>[A-Za-z0-9_.%-]{1,60}=[^\n\r\"'`\\]{1,4000})"
)
COOKIE_GATE = r"cookies?2?[\\\"'`]*\s{0,3}(?::|=>|,|=)\s{0,3}[\\\"'`]*[a-z0-9_.%-]{1,60}="
_COOKIE = re.compile(r"(?:^|;\s?)(?P<name>[A-Za-z0-9_.%-]{1,60})=(?P<value>[^;\s,]{1,4000})")
_NOT_COOKIES = frozenset(
    ("expires", "max-age", "path", "domain", "samesite", "version", "priority")
)
_SESSION = re.compile(
    r"(?i)sess|sid|token|auth|csrf|xsrf|jwt|remember|login|secret|ticket|key|user"
)
_PLAIN_COOKIE = re.compile(r"[A-Za-z]{1,16}(?:[-_][A-Za-z]{1,12}){0,3}|[0-9]{1,4}|[01]|GA?\d\.\d.*")


def cookie_values(text: str, start: int = 0) -> Iterator[Found]:
    """Yield the values of ``name=value; name=value`` that may open a session."""
    for match in _COOKIE.finditer(text):
        name, value = match["name"], match["value"]
        if name.lower() in _NOT_COOKIES or is_placeholder(value) or _PLAIN_COOKIE.fullmatch(value):
            continue
        if len(value) >= (6 if _SESSION.search(name) else 10):
            yield Found(start + match.start("value"), start + match.end("value"), "COOKIE")


def find_cookies(text: str) -> Iterator[Found]:
    """Yield the values of cookies in headers, in any notation."""
    for match in _COOKIES.finditer(text):
        yield from cookie_values(match["pairs"], match.start("pairs"))


# -- Kubernetes -------------------------------------------------------------------------

_SECRET = re.compile(rf"(?m)^{LINE_HEAD}[ \t]*(?:- )?kind:[ \t]*[\"']?Secret[\"']?[ \t]*\r?$")
_DOCUMENT_END = re.compile(rf"(?m)^{LINE_HEAD}(?:---|\.\.\.)[ \t]*\r?$")
_DATA = re.compile(rf"(?m)^{LINE_HEAD}(?P<indent>[ \t]*)(?:data|stringData):[ \t]*\r?\n")
_ENTRY = re.compile(
    rf"{LINE_HEAD}(?P<indent>[ \t]+)[\"']?[A-Za-z0-9_.-]+[\"']?:[ \t]+(?P<q>[\"']?)"
    r"(?P<value>[^\s\"'#|>][^\n\r\"']{2,8000}?)(?P=q)[ \t]*(?:#[^\n]*)?\r?(?:\n|$)"
)
_OTHER = re.compile(rf"{LINE_HEAD}(?P<indent>[ \t]*)[^\n]*(?:\n|$)")


def find_kubernetes(text: str) -> Iterator[Found]:
    """Yield the values below ``data:`` and ``stringData:`` of a Secret in YAML."""
    starts = [0, *(m.end() for m in _DOCUMENT_END.finditer(text)), len(text)]
    for begin, end in pairwise(starts):
        if not _SECRET.search(text, begin, end):
            continue
        for data in _DATA.finditer(text, begin, end):
            yield from _entries(text, data.end(), end, len(data["indent"]))


def _entries(text: str, at: int, end: int, indent: int) -> Iterator[Found]:
    while at < end:
        match = _ENTRY.match(text, at, end)
        if match is not None and len(match["indent"]) > indent:
            if is_given_secret(match["value"], 3):
                yield Found(*match.span("value"), "KUBERNETES")
            at = match.end()
            continue
        other = _OTHER.match(text, at, end)
        if other is None or len(other["indent"]) <= indent or other.end() == at:
            return
        at = other.end()
