"""How close two actions are: L0, L1, L2, L4 or none.

Belongs here: whole actions. Does not belong here: two calls
(``preferences.actions.call_levels``), the levels (``preferences.actions.tool_rules``), what is
cosmetic (``preferences.actions.canonical``) and who wins a vote
(``preferences.agreement.vote``).

L0 is a byte-equal canonical form; L1 an equal effect; L2 the same tool on the same target;
L4 the same class of tool. L3, a paid judge of meaning, is never given here. The relation is
symmetric but not transitive.
"""

import json
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from composer_pipeline.actions import Action, apply_edits, unnumbered
from composer_pipeline.preferences.actions import shell_meaning, shell_parse
from composer_pipeline.preferences.actions.canonical import (
    RULES,
    CanonicalAction,
    CanonicalCall,
    Level,
    Verdict,
    other_tool,
    read_action,
    text_kind,
    whole_text,
)
from composer_pipeline.preferences.actions.shell_meaning import changes_state
from composer_pipeline.preferences.actions.shell_parse import Place, varies


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
        wanted = self.place.path(whole_text(path))
        return next(
            (t for p, t in self.known.items() if self.place.path(whole_text(p)) == wanted),
            None,
        )


def call_verdict(a: CanonicalCall, b: CanonicalCall, situation: Situation) -> Verdict:
    """Return how close two calls are, and why."""
    if a.form == b.form:
        return Verdict(Level.L0, "equal canonical form")
    if a.kind != b.kind:
        return Verdict(Level.NONE, f"{a.name} and {b.name} are of different classes")
    if a.kind == "edit":
        return _edits(a, b, situation)
    if a.name != b.name:
        return Verdict(Level.L4, f"{a.name} and {b.name} are both of class {a.kind}")
    if a.name == "Bash":
        return _bash(a, b, situation.place)
    return RULES.get(a.name, other_tool)(a.args, b.args)


def _bash(a: CanonicalCall, b: CanonicalCall, place: Place) -> Verdict:
    left, right = (whole_text(str(c.call.arguments.get("command", ""))) for c in (a, b))
    if shell_meaning.targets(left, place) != shell_meaning.targets(right, place):
        return Verdict(Level.L4, "different commands")
    plain = [{k: v for k, v in c.args.items() if k != "command"} for c in (a, b)]
    if plain[0] == plain[1] and _loose(a.args) == _loose(b.args):
        return Verdict(Level.L1, "equal commands but for the display")
    return Verdict(Level.L2, "same programs on the same targets")


def _loose(args: Mapping[str, Any]) -> list[Any]:
    """The stages of a line, trimmers inside it without their length."""
    stages = args.get("command")
    return [
        [stage[0], ["head/tail"], *stage[2:]] if shell_meaning.trimmer(stage) else stage
        for stage in (stages if isinstance(stages, list) else [])
    ]


def _edits(a: CanonicalCall, b: CanonicalCall, situation: Situation) -> Verdict:
    x, y = a.args, b.args
    path = "notebook_path" if "notebook_path" in x else "file_path"
    if x.get(path) != y.get(path) or x.get(path) is None:
        return Verdict(Level.L4, "edits of different files")
    if a.name == b.name == "NotebookEdit":
        return Verdict(Level.L2, "other edits of one notebook")
    if a.name == b.name == "Write":
        return Verdict(Level.L2, "the same file written with different content")
    family = {a.name, b.name} <= {"Edit", "MultiEdit"}
    content = situation.content(a.call.arguments.get("file_path"))
    if content is not None:
        after = [apply_edits(content, c.name, c.call.arguments) for c in (a, b)]
        if None not in after and _same_text(after[0], after[1], whole=not family):
            return Verdict(Level.L1, "edits that give the same text")
        why = "a call that fails" if None in after else "different texts"
        return Verdict(Level.L2 if family else Level.L4, f"edits of one file: {why}")
    if family and _trailing(x) == _trailing(y):
        return Verdict(Level.L1, "edits that differ only in whitespace at line ends")
    return Verdict(Level.L2 if family else Level.L4, "edits of the same file")


def _same_text(a: str | None, b: str | None, *, whole: bool) -> bool:
    """Compare results: byte for byte, but a whole written file without its final newline."""
    if whole:
        return whole_text(a or "") == whole_text(b or "")
    return a == b


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


#: Says whether two actions mean the same.
Semantic = Callable[[Action, Action], bool]


def level(
    a: Action, b: Action, situation: Situation, *, semantic: Semantic | None = None
) -> Verdict:
    """Return the level of agreement of two actions: the one function that decides it.

    Parallel calls are matched without order; the level is the loosest of the best
    complete matching. Calls without a partner leave L4, or none when no call of one side
    shares a class with a call of the other. Texts before calls do not count.

    Args:
        a: one action.
        b: the other; the result does not depend on which is which.
        situation: what both had before them.
        semantic: asked about two different actions of one class; where it says that they
            mean the same the level is L3. It may cost money, and is off by default.
    """
    place = situation.place
    return level_of(read_action(a, place), read_action(b, place), situation, semantic=semantic)


def level_of(
    a: CanonicalAction,
    b: CanonicalAction,
    situation: Situation,
    *,
    semantic: Semantic | None = None,
) -> Verdict:
    """Return the level of two actions that were read before (see :func:`level`)."""
    if a.form == b.form:
        return Verdict(Level.L0, "equal canonical form" if a.calls else "equal text")
    verdict = _verdict(a, b, situation)
    if semantic is not None and verdict.level is Level.L4:
        first, second = sorted((a, b), key=lambda side: side.form)
        if semantic(first.action, second.action):
            return Verdict(Level.L3, "one meaning, as the semantic judge says")
    return verdict


def _verdict(a: CanonicalAction, b: CanonicalAction, situation: Situation) -> Verdict:
    if not a.calls and not b.calls:
        return _texts(a.action.text, b.action.text)
    if not a.calls or not b.calls:
        text = a.action.text if not a.calls else b.action.text
        kind = text_kind(text)
        if any(call.kind == kind for call in a.calls or b.calls):
            return Verdict(Level.L4, "both ask the user")
        return Verdict(Level.NONE, "one side calls a tool, the other answers in text")
    if len(a.calls) == len(b.calls) == 1:
        return call_verdict(a.calls[0], b.calls[0], situation)
    grid = [[call_verdict(x, y, situation) for y in b.calls] for x in a.calls]
    if len(a.calls) == len(b.calls):
        for bound in (Level.L0, Level.L1, Level.L2, Level.L4):
            match = _perfect_matching([[cell.level <= bound for cell in row] for row in grid])
            if match is not None:
                cells = [grid[i][j] for i, j in enumerate(match)]
                loosest = max(cells, key=lambda cell: cell.level)
                return Verdict(loosest.level, f"{len(cells)} calls matched; {loosest.why}")
    if any(cell.level < Level.NONE for row in grid for cell in row):
        return Verdict(Level.L4, "some calls have no partner")
    return Verdict(Level.NONE, "no call shares a class")


def _texts(a: str, b: str) -> Verdict:
    if whole_text(a).strip() == whole_text(b).strip():
        return Verdict(Level.L0, "equal text")
    kinds = text_kind(a), text_kind(b)
    if kinds[0] == kinds[1]:
        return Verdict(Level.L4, f"both texts {kinds[0]}")
    return Verdict(Level.NONE, "one text asks, the other does not")


def _perfect_matching(allowed: Sequence[Sequence[bool]]) -> list[int] | None:
    """Match every row to a column of its own (Kuhn); ``None`` if that is impossible.

    scipy has it too, but the base install does without scipy.
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


#: Programs that change something, but no file that an agent has read.
_KEEPS_FILES = frozenset(
    ["mkdir", "touch", "kill", "pkill", "killall", "gh", "pip", "pip3", "brew", "apt", "apt-get",
     "curl", "chmod", "chown", "systemctl", "aws", "gcloud", "kubectl"]
)  # fmt: skip
_KEEPS_GIT = frozenset(
    ["add", "commit", "push", "fetch", "tag", "branch", "remote", "config", "init"]
)


class KnownFiles(Mapping[str, str]):
    """:func:`known_content` of a prefix, rebuilt when it is first looked at."""

    def __init__(self, messages: Sequence[Mapping[str, Any]]) -> None:
        self._messages = messages
        self._known: dict[str, str] | None = None

    def _files(self) -> dict[str, str]:
        if self._known is None:
            self._known = known_content(self._messages)
        return self._known

    def __getitem__(self, path: str) -> str:
        return self._files()[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files())

    def __len__(self) -> int:
        return len(self._files())


def known_content(messages: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return absolute path to content, as far as a prefix shows whole files.

    A Read from line 1 without a limit, a successful Write, and successful edits of a file
    that is already known count. An edit that does not apply makes the file unknown again, and
    so does a command or an agent that may have changed it.

    Args:
        messages: the prefix, Anthropic-shaped.
    """
    calls: dict[str, tuple[str, Mapping[str, Any]]] = {}
    known: dict[str, str] = {}
    for message in messages:
        content = message.get("content")
        for block in content if isinstance(content, list) else ():
            if not isinstance(block, Mapping):
                continue
            if block.get("type") == "tool_use" and isinstance(block.get("input"), Mapping):
                name, args = str(block.get("name")), block["input"]
                calls[str(block.get("id"))] = (name, args)
                if known and name in ("Bash", "Task", "Agent"):
                    _forget(known, name, args)
            elif block.get("type") == "tool_result" and block.get("is_error") is not True:
                name, args = calls.get(str(block.get("tool_use_id")), ("", {}))
                _learn(known, name, args, block.get("content"))
    return known


def _forget(known: dict[str, str], name: str, args: Mapping[str, Any]) -> None:
    """Drop what a command or an agent may have changed."""
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


def _learn(known: dict[str, str], name: str, args: Mapping[str, Any], result: Any) -> None:
    path = args.get("file_path")
    if not isinstance(path, str):
        return
    if name == "Read":
        whole = args.get("offset") in (None, 0, 1) and args.get("limit") is None
        text = unnumbered(result) if whole else None
        if text is not None:
            known[path] = text
    elif name == "Write" or (name in ("Edit", "MultiEdit") and path in known):
        text = apply_edits(known.get(path, ""), name, args)
        if text is None:
            known.pop(path, None)
        else:
            known[path] = text
