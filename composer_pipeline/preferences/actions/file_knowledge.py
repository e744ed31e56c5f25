"""What an agent knows of files from its prefix: content read, written and edited.

Belongs here: rebuilding file contents from the messages of a prefix. Does not
belong here: applying an edit (``composer_pipeline.edits``) and comparing edits
(``preferences.actions.levels``).
"""

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from composer_pipeline.edits import apply_edits, unnumbered
from composer_pipeline.preferences.actions.shell import lines as shell
from composer_pipeline.preferences.actions.shell.effects import changes_state
from composer_pipeline.preferences.actions.shell.words import varies

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
        text = unnumbered(result) if whole else None
        if text is not None:
            known[path] = text
    elif name == "Write" or (name in ("Edit", "MultiEdit") and path in known):
        text = apply_edits(known.get(path, ""), name, args)
        if text is None:
            known.pop(path, None)
        else:
            known[path] = text
