"""How close two calls are: edits, command lines, and every other tool.

Belongs here: two calls, and the situation they are made in. Does not belong here: the rules of
tools whose arguments alone decide (``preferences.actions.tool_rules``) and whole actions
(``preferences.actions.levels``).
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from composer_pipeline.edits import apply_edits
from composer_pipeline.preferences.actions.canonical import (
    CanonicalCall,
)
from composer_pipeline.preferences.actions.shell import lines as shell
from composer_pipeline.preferences.actions.shell.lines import Place
from composer_pipeline.preferences.actions.text_kinds import whole_text
from composer_pipeline.preferences.actions.tool_rules import RULES, Level, Verdict, other_tool


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
    if shell.targets(left, place) != shell.targets(right, place):
        return Verdict(Level.L4, "different commands")
    plain = [{k: v for k, v in c.args.items() if k != "command"} for c in (a, b)]
    if plain[0] == plain[1] and _loose(a.args) == _loose(b.args):
        return Verdict(Level.L1, "equal commands but for the display")
    return Verdict(Level.L2, "same programs on the same targets")


def _loose(args: Mapping[str, Any]) -> list[Any]:
    """The stages of a line, trimmers inside it without their length."""
    stages = args.get("command")
    return [
        [stage[0], ["head/tail"], *stage[2:]] if shell.trimmer(stage) else stage
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
