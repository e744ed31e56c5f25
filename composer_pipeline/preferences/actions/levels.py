"""How close two actions are: the level of agreement (``canonical.Level``), and why.

The relation is symmetric but not transitive.
"""

import json
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from composer_pipeline.actions import Action, ToolCall, apply_edits
from composer_pipeline.preferences.actions import shell_meaning, shell_parse
from composer_pipeline.preferences.actions.canonical import (
    RULES,
    CanonicalAction,
    CanonicalCall,
    Comparison,
    Level,
    other_tool,
    read_action,
    text_kind,
    whole_text,
)
from composer_pipeline.preferences.actions.shell_meaning import changes_state
from composer_pipeline.preferences.actions.shell_parse import Place, varies
from composer_pipeline.tool_names import AGENTS, learn, translate


@dataclass(frozen=True)
class ActionContext:
    """Where two actions would run: the place, and known file contents by absolute path."""

    place: Place = field(default_factory=Place)
    known: Mapping[str, str] = field(default_factory=dict)

    def content(self, path: object) -> str | None:
        """Return the known content of a file, in any spelling of its path."""
        if not isinstance(path, str):
            return None
        if path in self.known:
            return self.known[path]
        wanted = self.place.path(whole_text(path))
        same = (t for p, t in self.known.items() if self.place.path(whole_text(p)) == wanted)
        return next(same, None)


def _compare_calls(a: CanonicalCall, b: CanonicalCall, context: ActionContext) -> Comparison:
    if a.form == b.form:
        return Comparison(Level.L0, "equal canonical form")
    if a.kind != b.kind:
        return Comparison(Level.NONE, f"{a.name} and {b.name} are of different classes")
    if a.kind == "edit":
        return _edits(a, b, context)
    if a.name != b.name:
        return Comparison(Level.L4, f"{a.name} and {b.name} are both of class {a.kind}")
    if a.name == "Bash":
        return _bash(a, b, context.place)
    return RULES.get(a.name, other_tool)(a.args, b.args)


def _bash(a: CanonicalCall, b: CanonicalCall, place: Place) -> Comparison:
    left, right = (whole_text(str(c.call.arguments.get("command", ""))) for c in (a, b))
    if shell_meaning.targets(left, place) != shell_meaning.targets(right, place):
        return Comparison(Level.L4, "different commands")
    plain = [{k: v for k, v in c.args.items() if k != "command"} for c in (a, b)]
    if plain[0] == plain[1] and _loose(a.args) == _loose(b.args):
        return Comparison(Level.L1, "equal commands but for the display")
    return Comparison(Level.L2, "same programs on the same targets")


def _loose(args: Mapping[str, Any]) -> list[Any]:
    """Return the stages of a line, ``| head`` and ``| tail`` without their counts."""
    stages = args.get("command")
    return [
        [stage[0], ["head/tail"], *stage[2:]] if shell_meaning.trimmer(stage) else stage
        for stage in (stages if isinstance(stages, list) else [])
    ]


def _edits(a: CanonicalCall, b: CanonicalCall, context: ActionContext) -> Comparison:
    x, y = a.args, b.args
    path = "notebook_path" if "notebook_path" in x else "file_path"
    if x.get(path) != y.get(path) or x.get(path) is None:
        return Comparison(Level.L4, "edits of different files")
    if a.name == b.name == "NotebookEdit":
        return Comparison(Level.L2, "other edits of one notebook")
    if a.name == b.name == "Write":
        return Comparison(Level.L2, "the same file written with different content")
    family = {a.name, b.name} <= {"Edit", "MultiEdit"}
    content = context.content(a.call.arguments.get("file_path"))
    if content is not None:
        after = [apply_edits(content, c.name, c.call.arguments) for c in (a, b)]
        # A whole written file counts without its final newline, edits byte for byte.
        texts = after if family else [whole_text(text or "") for text in after]
        if None not in after and texts[0] == texts[1]:
            return Comparison(Level.L1, "edits that give the same text")
        why = "a call that fails" if None in after else "different texts"
        return Comparison(Level.L2 if family else Level.L4, f"edits of one file: {why}")
    if family and _trailing(x) == _trailing(y):
        return Comparison(Level.L1, "edits that differ only in whitespace at line ends")
    return Comparison(Level.L2 if family else Level.L4, "edits of the same file")


def _trailing(args: Mapping[str, Any]) -> str:
    """Return the list of edits of an Edit or MultiEdit, without whitespace at line ends."""

    def trimmed(text: object) -> str:
        return re.sub(r"[ \t]+(?=\r?\n|$)", "", str(text))

    plain = [
        [trimmed(e.get("old_string")), trimmed(e.get("new_string")), bool(e.get("replace_all"))]
        for e in args.get("edits", [args])
        if isinstance(e, Mapping)
    ]
    return json.dumps(plain)


#: Returns True if two actions mean the same.
Semantic = Callable[[Action, Action], bool]


def level(
    a: Action, b: Action, context: ActionContext, *, semantic: Semantic | None = None
) -> Comparison:
    """Return the level of agreement of two actions; text before calls does not count."""
    place = context.place
    return compare_read(read_action(a, place), read_action(b, place), context, semantic=semantic)


def compare_read(
    a: CanonicalAction,
    b: CanonicalAction,
    context: ActionContext,
    *,
    semantic: Semantic | None = None,
) -> Comparison:
    """Return the level of two canonical actions; at L4 ``semantic``, if given, may find L3."""
    if a.form == b.form:
        return Comparison(Level.L0, "equal canonical form" if a.calls else "equal text")
    found = _compare(a, b, context)
    if semantic is not None and found.level is Level.L4:
        first, second = sorted((a, b), key=lambda side: side.form)
        if semantic(first.action, second.action):
            return Comparison(Level.L3, "one meaning, as the semantic judge says")
    return found


def _compare(a: CanonicalAction, b: CanonicalAction, context: ActionContext) -> Comparison:
    if not a.calls and not b.calls:
        return _texts(a.action.text, b.action.text)
    if not a.calls or not b.calls:
        text = a.action.text if not a.calls else b.action.text
        kind = text_kind(text)
        if any(call.kind == kind for call in a.calls or b.calls):
            return Comparison(Level.L4, "both ask the user")
        return Comparison(Level.NONE, "one side calls a tool, the other answers in text")
    if len(a.calls) == len(b.calls) == 1:
        return _compare_calls(a.calls[0], b.calls[0], context)
    # Parallel calls match in any order; the loosest match of the best matching is the level.
    grid = [[_compare_calls(x, y, context) for y in b.calls] for x in a.calls]
    if len(a.calls) == len(b.calls):
        for bound in (Level.L0, Level.L1, Level.L2, Level.L4):
            match = _perfect_matching([[cell.level <= bound for cell in row] for row in grid])
            if match is not None:
                cells = [grid[i][j] for i, j in enumerate(match)]
                loosest = max(cells, key=lambda cell: cell.level)
                return Comparison(loosest.level, f"{len(cells)} calls matched; {loosest.why}")
    if any(cell.level < Level.NONE for row in grid for cell in row):
        return Comparison(Level.L4, "some calls have no partner")
    return Comparison(Level.NONE, "no call shares a class")


def _texts(a: str, b: str) -> Comparison:
    if whole_text(a).strip() == whole_text(b).strip():
        return Comparison(Level.L0, "equal text")
    kinds = text_kind(a), text_kind(b)
    if kinds[0] == kinds[1]:
        return Comparison(Level.L4, f"both texts {kinds[0]}")
    return Comparison(Level.NONE, "one text asks, the other does not")


def _perfect_matching(allowed: Sequence[Sequence[bool]]) -> list[int] | None:
    """Match every row to a column of its own (Kuhn), or return ``None``.

    scipy has it too, but is not in the base install.
    """
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


#: Programs that change something, but no file that the agent has read.
_KEEPS_FILES = frozenset(
    ["mkdir", "touch", "kill", "pkill", "killall", "gh", "pip", "pip3", "brew", "apt", "apt-get",
     "curl", "chmod", "chown", "systemctl", "aws", "gcloud", "kubectl"]
)  # fmt: skip
_KEEPS_GIT = frozenset(
    ["add", "commit", "push", "fetch", "tag", "branch", "remote", "config", "init"]
)


class KnownFiles(Mapping[str, str]):
    """:func:`known_content` of a prefix, computed at the first access."""

    def __init__(self, messages: Sequence[Mapping[str, Any]]) -> None:
        self._messages = messages

    @cached_property
    def _files(self) -> dict[str, str]:
        return known_content(self._messages)

    def __getitem__(self, path: str) -> str:
        return self._files[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def known_content(messages: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return path to content of the files that Anthropic messages show as a whole."""
    # Whole reads, writes, and edits of known files; what may have changed a file forgets it.
    calls: dict[str, ToolCall] = {}
    known: dict[str, str] = {}
    for message in messages:
        content = message.get("content")
        for block in content if isinstance(content, list) else ():
            if not isinstance(block, Mapping):
                continue
            if block.get("type") == "tool_use" and isinstance(block.get("input"), Mapping):
                call = ToolCall(str(block.get("name")), dict(block["input"]))
                calls[str(block.get("id"))] = call
                for step in translate(call) if known else ():
                    if step.name == "Bash" or step.name in AGENTS:
                        _forget(known, step.name, step.arguments)
            elif block.get("type") == "tool_result" and block.get("is_error") is not True:
                called = calls.get(str(block.get("tool_use_id")), ToolCall("", {}))
                learn(known, called, block.get("content"))
    return known


def _forget(known: dict[str, str], name: str, args: Mapping[str, Any]) -> None:
    """Drop files that a command or an agent may have changed."""
    command = args.get("command")
    if name != "Bash" or not isinstance(command, str):
        known.clear()
        return
    line = shell_parse.parse(command)
    for stage in line.every:
        words = stage.words
        if any(varies(target) for target in stage.redirects):
            known.clear()
        if not words or stage.compound or not changes_state(words):
            continue
        if words[0] not in _KEEPS_FILES and not (
            words[0] == "git" and words[1:2] and words[1] in _KEEPS_GIT
        ):
            known.clear()
    if not line.parsed:
        known.clear()
    elif not shell_meaning.mutates(command):
        return
    for path in [path for path in known if posixpath.basename(path) in command]:
        del known[path]
