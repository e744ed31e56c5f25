"""How close two actions are: L0, L1, L2, L4 or none.

Belongs here: the levels and the rules of each tool. Does not belong here: what is
cosmetic (``preferences.canonical``) and who wins a vote (``preferences.agree``).

L0 is a byte-equal canonical form; L1 an equal effect; L2 the same tool on the same target;
L4 the same class of tool. L3, a paid judge of meaning, is never given here. The relation is
symmetric but not transitive.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any
from urllib.parse import urlsplit

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.preferences import canonical as canon
from composer_pipeline.preferences import shell
from composer_pipeline.preferences.known import apply_edits
from composer_pipeline.preferences.shell import Place


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
class Situation:
    """What both actions had before them: place, and contents by absolute path."""

    place: Place = field(default_factory=Place)
    known: Mapping[str, str] = field(default_factory=dict)

    def content(self, path: object) -> str | None:
        """Return the known content of a file, however its path is spelled."""
        if not isinstance(path, str):
            return None
        if path in self.known:
            return self.known[path]
        wanted = self.place.path(path)
        return next((t for p, t in self.known.items() if self.place.path(p) == wanted), None)


@dataclass(frozen=True)
class Verdict:
    """A level, and one phrase that says why."""

    level: Level
    why: str


def level(a: Action, b: Action, situation: Situation) -> Verdict:
    """Return the level of agreement of two actions.

    Parallel calls are matched without order; the level is the loosest of the best
    complete matching. Calls without a partner leave L4, or none when no call of one side
    shares a class with a call of the other. Texts before calls do not count.
    """
    if not a.tool_calls and not b.tool_calls:
        return _texts(a.text, b.text)
    if not a.tool_calls or not b.tool_calls:
        text = a.text if not a.tool_calls else b.text
        calls = a.tool_calls or b.tool_calls
        kind = canon.text_kind(text)
        if any(canon.class_of(c.name) == kind for c in calls):
            return Verdict(Level.L4, "both ask the user")
        return Verdict(Level.NONE, "one side calls a tool, the other answers in text")
    if len(a.tool_calls) == len(b.tool_calls) == 1:
        return call_level(a.tool_calls[0], b.tool_calls[0], situation)
    grid = [[call_level(x, y, situation) for y in b.tool_calls] for x in a.tool_calls]
    if len(a.tool_calls) == len(b.tool_calls):
        for bound in (Level.L0, Level.L1, Level.L2, Level.L4):
            match = _perfect_matching([[cell.level <= bound for cell in row] for row in grid])
            if match is not None:
                cells = [grid[i][j] for i, j in enumerate(match)]
                loosest = max(cells, key=lambda cell: cell.level)
                return Verdict(loosest.level, f"{len(cells)} calls matched; {loosest.why}")
    if any(cell.level < Level.NONE for row in grid for cell in row):
        return Verdict(Level.L4, "some calls have no partner")
    return Verdict(Level.NONE, "no call shares a class")


def call_level(a: ToolCall, b: ToolCall, situation: Situation) -> Verdict:
    """Return the level of agreement of two tool calls."""
    place = situation.place
    if canon.canonical_call(a, place) == canon.canonical_call(b, place):
        return Verdict(Level.L0, "equal canonical form")
    name, other = canon.tool_name(a.name), canon.tool_name(b.name)
    kind = canon.class_of(name)
    if kind != canon.class_of(other):
        return Verdict(Level.NONE, f"{name} and {other} are of different classes")
    x, y = canon.canonical_args(a, place), canon.canonical_args(b, place)
    if kind == "edit":
        return _edits(a, b, x, y, situation)
    if name != other:
        return Verdict(Level.L4, f"{name} and {other} are both of class {kind}")
    if name == "Bash":
        return _bash(a, b, place)
    return _RULES.get(name, _other)(x, y)


def _texts(a: str, b: str) -> Verdict:
    if canon.whole_text(a).strip() == canon.whole_text(b).strip():
        return Verdict(Level.L0, "equal text")
    kinds = canon.text_kind(a), canon.text_kind(b)
    if kinds[0] == kinds[1]:
        return Verdict(Level.L4, f"both texts {kinds[0]}")
    return Verdict(Level.NONE, "one text asks, the other does not")


def _bash(a: ToolCall, b: ToolCall, place: Place) -> Verdict:
    left, right = str(a.arguments.get("command", "")), str(b.arguments.get("command", ""))
    background = [bool(call.arguments.get("run_in_background")) for call in (a, b)]
    if shell.targets(left, place) == shell.targets(right, place):
        if background[0] == background[1] and _same_effect(left, right, place):
            return Verdict(Level.L1, "equal commands but for the display")
        return Verdict(Level.L2, "same programs on the same targets")
    return Verdict(Level.L4, "different commands")


def _same_effect(left: str, right: str, place: Place) -> bool:
    """Equal but for trimmers inside the line that differ only in length."""

    def loose(command: str) -> list[Any]:
        stages = shell.canonical_line(command, place)
        return [
            [s[0], ["head/tail"], *s[2:]]
            if s[0] == "|" and s[1] and s[1][0] in ("head", "tail") and len(s[1]) <= 3
            else s
            for s in stages
        ]

    return loose(left) == loose(right)


def _edits(
    a: ToolCall, b: ToolCall, x: Mapping[str, Any], y: Mapping[str, Any], situation: Situation
) -> Verdict:
    path = "notebook_path" if "notebook_path" in x else "file_path"
    if x.get(path) != y.get(path) or x.get(path) is None:
        return Verdict(Level.L4, "edits of different files")
    if a.name == b.name == "NotebookEdit":
        cells = x.get("cell_id") == y.get("cell_id")
        return Verdict(Level.L2 if cells else Level.L4, "edits of one notebook")
    if a.name == b.name == "Write":
        return Verdict(Level.L2, "the same file written with different content")
    content = situation.content(a.arguments.get("file_path"))
    family = {a.name, b.name} <= {"Edit", "MultiEdit"}
    if content is not None:
        after = [apply_edits(content, call.name, call.arguments) for call in (a, b)]
        if None not in after and _file(after[0]) == _file(after[1]):
            return Verdict(Level.L1, "edits that give the same text")
        return Verdict(
            Level.L2 if family else Level.L4, "edits of one file that give different texts"
        )
    if family and _trailing(x) == _trailing(y):
        return Verdict(Level.L1, "edits that differ only in whitespace at line ends")
    return Verdict(Level.L2 if family else Level.L4, "edits of the same file")


def _file(text: str | None) -> str:
    return canon.whole_text(text or "")


def _trailing(args: Mapping[str, Any]) -> str:
    """An Edit or MultiEdit as its list of edits, whitespace at line ends removed."""
    edits = args.get("edits", [args])
    plain = [
        [
            *(
                re.sub(r"[ \t]+(?=\r?\n|$)", "", str(e.get(k)))
                for k in ("old_string", "new_string")
            ),
            bool(e.get("replace_all")),
        ]
        for e in edits
        if isinstance(e, Mapping)
    ]
    return json.dumps(plain)


def _read(x: Mapping[str, Any], y: Mapping[str, Any]) -> Verdict:
    if x.get("file_path") != y.get("file_path"):
        return Verdict(Level.L4, "reads of different files")
    (a, b), (c, d) = _window(x), _window(y)
    if max(a, c) <= min(b, d):
        return Verdict(Level.L1, "reads of the same file, lines overlap")
    return Verdict(Level.L2, "reads of the same file, other lines")


def _window(args: Mapping[str, Any]) -> tuple[int, int]:
    """First and last line, both inclusive and counted from 1."""
    first, limit = args.get("offset", 1), args.get("limit", canon.READ_LIMIT)
    if not isinstance(first, int) or not isinstance(limit, int):
        return 1, canon.READ_LIMIT
    return first, first + limit - 1


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


def _fetch(x: Mapping[str, Any], y: Mapping[str, Any]) -> Verdict:
    if _host(x.get("url")) == _host(y.get("url")):
        return Verdict(Level.L2, "pages of the same host")
    return Verdict(Level.L4, "pages of other hosts")


def _host(url: object) -> str:
    return urlsplit(str(url)).netloc.lower()


_TARGET_KEY = re.compile(r"(^|_)(id|path|file|url|uri|key|skill|name)$|(Id|Path|Uri|Url|Key|Name)$")


def _other(x: Mapping[str, Any], y: Mapping[str, Any]) -> Verdict:
    """Tools without rules of their own: their identifying arguments are the target."""
    keys = {key for key in {*x, *y} if _TARGET_KEY.search(key)}
    if keys and all(x.get(key) == y.get(key) for key in keys):
        return Verdict(Level.L2, f"same {', '.join(sorted(keys))}")
    return Verdict(Level.L4, "same tool, other target")


_RULES: dict[str, Callable[[Mapping[str, Any], Mapping[str, Any]], Verdict]] = {
    "Read": _read,
    "Grep": _grep,
    "TodoWrite": _todo,
    "WebFetch": _fetch,
}


def _perfect_matching(allowed: Sequence[Sequence[bool]]) -> list[int] | None:
    """Match every row to a column of its own (Kuhn); ``None`` if that is impossible."""
    size = len(allowed)
    owner = [-1] * size

    def place(row: int, seen: set[int]) -> bool:
        for column in range(size):
            if allowed[row][column] and column not in seen:
                seen.add(column)
                if owner[column] < 0 or place(owner[column], seen):
                    owner[column] = row
                    return True
        return False

    if not all(place(row, set()) for row in range(size)):
        return None
    match = [0] * size
    for column, row in enumerate(owner):
        match[row] = column
    return match
