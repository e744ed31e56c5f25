"""Tool calls of a script, and the project that a session works on.

In every string ``§`` stands for the session's working directory and ``¤`` for the home folder.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Project:
    """A fictional code base: where it lies, and the files that every session starts from."""

    name: str
    home: str
    cwd: str
    files: Mapping[str, str]


@dataclass(frozen=True)
class Call:
    """A tool call of a script. ``result`` is filled in from the virtual files if ``None``."""

    name: str
    args: Mapping[str, Any]
    result: str | None = None
    error: bool = False
    progress: int = 0

    def gives(self, result: str, *, error: bool = False, progress: int = 0) -> "Call":
        """Return the call with its recorded result and a number of progress records."""
        return Call(self.name, self.args, result, error, progress)

    def fails(self, result: str, *, code: int | None = 1) -> "Call":
        """Return the call with an error result; ``code`` adds Bash's ``Exit code`` line."""
        text = result if code is None else f"Exit code {code}\n{result}"
        return Call(self.name, self.args, text, True, self.progress)


def bash(command: str, description: str = "") -> Call:
    """Bash."""
    extra = {"description": description} if description else {}
    return Call("Bash", {"command": command, **extra})


def read(path: str, offset: int | None = None, limit: int | None = None) -> Call:
    """Read; ``path`` is relative to the working directory unless absolute."""
    window = {"offset": offset, "limit": limit}
    return Call(
        "Read",
        {"file_path": _absolute(path), **{k: v for k, v in window.items() if v is not None}},
    )


def grep(pattern: str, path: str = "", *, files: bool = False, **extra: Any) -> Call:
    """Grep; content with line numbers unless ``files``."""
    mode: dict[str, Any] = (
        {"output_mode": "files_with_matches"} if files else {"output_mode": "content", "-n": True}
    )
    place = {"path": _absolute(path)} if path else {}
    return Call("Grep", {"pattern": pattern, **place, **mode, **extra})


def glob(pattern: str) -> Call:
    """Glob in the working directory."""
    return Call("Glob", {"pattern": pattern})


def edit(path: str, old: str, new: str) -> Call:
    """Edit one occurrence."""
    return Call(
        "Edit",
        {
            "file_path": _absolute(path),
            "old_string": old,
            "new_string": new,
            "replace_all": False,
        },
    )


def write(path: str, content: str) -> Call:
    """Write a whole file."""
    return Call("Write", {"file_path": _absolute(path), "content": content})


def todo(*items: tuple[str, str]) -> Call:
    """TodoWrite from (status, content)."""
    todos = [{"content": text, "status": status, "activeForm": text} for status, text in items]
    return Call("TodoWrite", {"todos": todos}, "The list was updated.")


def task(description: str, prompt: str, kind: str = "Explore") -> Call:
    """Start a subagent."""
    return Call("Task", {"description": description, "prompt": prompt, "subagent_type": kind})


def tool(name: str, **args: Any) -> Call:
    """Any other tool, for example one of an MCP server."""
    return Call(name, args)


def _absolute(path: str) -> str:
    return path if path.startswith(("/", "§", "¤")) else f"§/{path}"
