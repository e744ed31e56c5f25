"""A virtual working folder: what the agent reads, edits and writes is consistent."""

from collections.abc import Mapping
from typing import Any

from scripts.sample_sessions.calls import Project


class WorkingFolder:
    """The files of a project as one session changes them."""

    def __init__(self, project: Project) -> None:
        self.files = dict(project.files)
        self.seen: set[str] = set()
        self._project = project

    def copy(self) -> "WorkingFolder":
        """Return the folder of a fork: the same now, but changed apart."""
        other = WorkingFolder(self._project)
        other.files, other.seen = dict(self.files), set(self.seen)
        return other

    def answer(self, name: str, args: Mapping[str, Any]) -> tuple[str, bool]:
        """Return what the client answers to Read, Edit or Write, and whether it is an error."""
        path = str(args.get("file_path", "")).removeprefix(self._project.cwd + "/")
        known = self.files.get(path)
        if name == "Write":
            self.files[path] = str(args["content"])
            self.seen.add(path)
            return f"File created successfully at: {args['file_path']}", False
        if name not in ("Read", "Edit"):
            raise ValueError(f"{name} needs a recorded result")
        if known is None:
            return "<tool_use_error>File does not exist.</tool_use_error>", True
        if name == "Read":
            self.seen.add(path)
            first = int(args.get("offset", 1))
            lines = known.splitlines()[first - 1 :][: int(args.get("limit", 2000))]
            return "\n".join(f"{n:>6}→{line}" for n, line in enumerate(lines, first)), False
        if path not in self.seen:
            return (
                "<tool_use_error>File has not been read yet. Read it first before writing to it."
                "</tool_use_error>",
                True,
            )
        old, new = str(args["old_string"]), str(args["new_string"])
        if known.count(old) == 0:
            return (
                "<tool_use_error>String to replace not found in file.\n"
                f"String: {old}</tool_use_error>",
                True,
            )
        if known.count(old) > 1:
            return (
                f"<tool_use_error>Found {known.count(old)} matches of the string to replace, but"
                f" replace_all is false.\nString: {old}</tool_use_error>",
                True,
            )
        self.files[path] = known.replace(old, new)
        return f"The file {args['file_path']} has been updated successfully.", False
