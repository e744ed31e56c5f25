"""How close two calls of one tool are, tool by tool.

Belongs here: the levels, and the rules of tools whose arguments alone decide. Does not belong
here: edits, command lines and whole actions (``preferences.actions.levels``).
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any
from urllib.parse import urlsplit

from composer_pipeline.preferences.actions.canonical_arguments import READ_LIMIT


class Level(IntEnum):
    """Levels of agreement; a smaller one is finer."""

    L0 = 0
    L1 = 1
    L2 = 2
    L3 = 3
    L4 = 4
    NONE = 5

    @property
    def label(self) -> str:
        """``L0`` … ``L4`` or ``none``."""
        return "none" if self is Level.NONE else self.name


@dataclass(frozen=True)
class Verdict:
    """A level, and one phrase that says why."""

    level: Level
    why: str


def _read(x: Mapping[str, Any], y: Mapping[str, Any]) -> Verdict:
    if x.get("file_path") != y.get("file_path"):
        return Verdict(Level.L4, "reads of different files")
    if "pages" in x or "pages" in y:
        a, b, c, d = *_pages(x), *_pages(y)
    else:
        a, b, c, d = *_window(x), *_window(y)
    if max(a, c) <= min(b, d):
        return Verdict(Level.L1, "reads of the same file, lines overlap")
    return Verdict(Level.L2, "reads of the same file, other lines")


def _window(args: Mapping[str, Any]) -> tuple[int, int]:
    """First and last line, both inclusive and counted from 1."""
    first, limit = args.get("offset", 1), args.get("limit", READ_LIMIT)
    if not isinstance(first, int) or not isinstance(limit, int):
        return 1, READ_LIMIT
    return first, first + limit - 1


def _pages(args: Mapping[str, Any]) -> tuple[int, int]:
    """First and last page of ``"3"`` or ``"3-5"``; a whole document without one."""
    match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", str(args.get("pages", "1-999999")))
    if match is None:
        return 0, -1
    return int(match[1]), int(match[2] or match[1])


def _grep(x: Mapping[str, Any], y: Mapping[str, Any]) -> Verdict:
    target = ("pattern", "path")
    if any(x.get(key) != y.get(key) for key in target):
        return Verdict(Level.L4, "searches for other text or in other places")
    scope = ("glob", "type", "-i", "multiline")
    if all(x.get(key) == y.get(key) for key in scope):
        return Verdict(Level.L1, "one search, shown differently")
    return Verdict(Level.L2, "same pattern and place, other scope")


def _todo(x: Mapping[str, Any], y: Mapping[str, Any]) -> Verdict:
    return Verdict(Level.L2, "to-do lists of other statuses")


def _search(x: Mapping[str, Any], y: Mapping[str, Any]) -> Verdict:
    if x.get("query") == y.get("query"):
        return Verdict(Level.L2, "one query, other sites")
    return Verdict(Level.L4, "other queries")


def _fetch(x: Mapping[str, Any], y: Mapping[str, Any]) -> Verdict:
    if _host(x.get("url")) == _host(y.get("url")):
        return Verdict(Level.L2, "pages of the same host")
    return Verdict(Level.L4, "pages of other hosts")


def _host(url: object) -> str:
    return urlsplit(str(url)).netloc.lower()


_TARGET_KEY = re.compile(r"(^|_)(id|path|file|url|uri|key|skill|name)$|(Id|Path|Uri|Url|Key|Name)$")


def other_tool(x: Mapping[str, Any], y: Mapping[str, Any]) -> Verdict:
    """Tools without rules of their own: their identifying arguments are the target."""
    keys = {key for key in {*x, *y} if _TARGET_KEY.search(key)}
    if keys and all(x.get(key) == y.get(key) for key in keys):
        return Verdict(Level.L2, f"same {', '.join(sorted(keys))}")
    return Verdict(Level.L4, "same tool, other target")


RULES: dict[str, Callable[[Mapping[str, Any], Mapping[str, Any]], Verdict]] = {
    "Read": _read,
    "Grep": _grep,
    "TodoWrite": _todo,
    "WebFetch": _fetch,
    "WebSearch": _search,
}
