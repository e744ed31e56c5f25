"""What an edit makes of a file's text, and a file's text as a Read shows it.

Belongs here: the text semantics of Claude Code's Read, Edit, MultiEdit and Write. Does not belong
here: which files an agent knows (``preferences.actions.file_knowledge``) and what an edit is worth
(``training.rewards``).
"""

import re
from collections.abc import Mapping
from typing import Any

#: Lines as long as this are shown cut off.
_CUT_OFF = 2000
_NUMBERED = re.compile(r"^ *(\d+)(?:→|\t)(.*)$")


def apply_edits(content: str, name: str, args: Mapping[str, Any]) -> str | None:
    """Return the text after an Edit, MultiEdit or Write, or ``None`` if the call fails."""
    if name == "Write":
        text = args.get("content")
        return text if isinstance(text, str) else None
    edits = args.get("edits") if name == "MultiEdit" else [args]
    if not isinstance(edits, list) or not edits:
        return None
    for edit in edits:
        old = edit.get("old_string") if isinstance(edit, Mapping) else None
        new = edit.get("new_string") if isinstance(edit, Mapping) else None
        if not isinstance(old, str) or not isinstance(new, str) or not old or old == new:
            return None
        count = content.count(old)
        if count == 0 or (count > 1 and edit.get("replace_all") is not True):
            return None
        content = content.replace(old, new)
    return content


def unnumbered(result: Any) -> str | None:
    """Return the text of a Read result without line numbers, or ``None`` if it has none."""
    if isinstance(result, list):
        result = "\n".join(str(b.get("text", "")) for b in result if isinstance(b, Mapping))
    if not isinstance(result, str):
        return None
    lines: list[str] = []
    for line in result.split("\n"):
        match = _NUMBERED.match(line)
        if match is None or int(match[1]) != len(lines) + 1:
            break
        if len(match[2]) >= _CUT_OFF:
            return None
        lines.append(match[2])
    return "\n".join(lines) + "\n" if lines and len(lines) < 2000 else None
