"""What an agent knows of files from its prefix: content read, written and edited.

Belongs here: rebuilding file contents from the messages of a prefix, and applying an edit.
Does not belong here: comparing edits (``preferences.actions.levels``).
"""

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from composer_pipeline.preferences.actions.shell import lines as shell
from composer_pipeline.preferences.actions.shell.effects import changes_state
from composer_pipeline.preferences.actions.shell.words import varies

#: Lines as long as this are shown cut off.
_CUT_OFF = 2000
#: Programs that change something, but no file that an agent has read.
_KEEPS_FILES = frozenset(
    ["mkdir", "touch", "kill", "pkill", "killall", "gh", "pip", "pip3", "brew", "apt", "apt-get",
     "curl", "chmod", "chown", "systemctl", "aws", "gcloud", "kubectl"]
)  # fmt: skip
_KEEPS_GIT = frozenset(
    ["add", "commit", "push", "fetch", "tag", "branch", "remote", "config", "init"]
)
_NUMBERED = re.compile(r"^ *(\d+)(?:→|\t)(.*)$")


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


def _forget(known: dict[str, str], name: str, args: Mapping[str, Any]) -> None:
    """Drop what a command or an agent may have changed."""
    command = args.get("command")
    if name != "Bash" or not isinstance(command, str):
        known.clear()
        return
    line = shell.parse(command)
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
    elif not shell.mutates(command):
        return
    for path in [path for path in known if posixpath.basename(path) in command]:
        del known[path]


def _learn(known: dict[str, str], name: str, args: Mapping[str, Any], result: Any) -> None:
    path = args.get("file_path")
    if not isinstance(path, str):
        return
    if name == "Read":
        whole = args.get("offset") in (None, 0, 1) and args.get("limit") is None
        text = _unnumbered(result) if whole else None
        if text is not None:
            known[path] = text
    elif name == "Write" or (name in ("Edit", "MultiEdit") and path in known):
        text = apply_edits(known.get(path, ""), name, args)
        if text is None:
            known.pop(path, None)
        else:
            known[path] = text


def _unnumbered(result: Any) -> str | None:
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
