"""The tools of recorded sessions, for TRL's ``GRPOTrainer(environment_factory=…)``.

TRL makes a tool of each public method: its name, type hints and docstring are what the model reads.
The common tools of Claude Code have a method each, under their own names, because the recorded
prefix that the model reads calls them so; every other tool is called through ``call_tool``.
"""

import json
from typing import Any

from composer_pipeline.environment.recorded import OVER


class TraceTools:
    """The client of one rollout; ``base_url`` is that of ``composer-pipeline environment``."""

    def __init__(self, base_url: str) -> None:
        from openenv.core import GenericEnvClient

        self._client = GenericEnvClient(base_url=base_url).sync()
        self._total, self._done = 0.0, True

    def reset(self, state_id: str = "", session: str = "", **row: Any) -> None:
        """Begin an episode at a state or, without one, at the first trace of a session.

        The other columns of the dataset's row, which already holds the prompt, are ignored.
        """
        start = {"state_id": state_id} if state_id else {"session": session}
        self._client.reset(**{key: value for key, value in start.items() if value})
        self._total, self._done = 0.0, False

    def get_reward(self) -> float:
        """Return the total reward of the rollout, in [0, 1]."""
        return self._total

    def Read(self, file_path: str, offset: int | None = None, limit: int | None = None) -> str:  # noqa: N802  the tool's name
        """Read a file.

        Args:
            file_path: The file's absolute path.
            offset: The line to begin with.
            limit: How many lines.
        """
        return self._call("Read", file_path=file_path, offset=offset, limit=limit)

    def Edit(  # noqa: N802  the tool's name
        self, file_path: str, old_string: str, new_string: str, replace_all: bool | None = None
    ) -> str:
        """Replace a text in a file.

        Args:
            file_path: The file's absolute path.
            old_string: The text to replace.
            new_string: What takes its place.
            replace_all: Whether every occurrence is replaced.
        """
        return self._call(
            "Edit", file_path=file_path, old_string=old_string, new_string=new_string,
            replace_all=replace_all,
        )  # fmt: skip

    def Write(self, file_path: str, content: str) -> str:  # noqa: N802  the tool's name
        """Write a file.

        Args:
            file_path: The file's absolute path.
            content: The whole text of the file.
        """
        return self._call("Write", file_path=file_path, content=content)

    def Bash(  # noqa: N802  the tool's name
        self, command: str, description: str | None = None, timeout: int | None = None
    ) -> str:
        """Run a shell command.

        Args:
            command: The command.
            description: What it does, in a few words.
            timeout: Milliseconds after which it is ended.
        """
        return self._call("Bash", command=command, description=description, timeout=timeout)

    def Grep(  # noqa: N802  the tool's name
        self,
        pattern: str,
        path: str | None = None,
        glob: str | None = None,
        output_mode: str | None = None,
    ) -> str:
        """Search the contents of files.

        Args:
            pattern: The regular expression.
            path: The file or folder to search in.
            glob: Which files, such as *.py.
            output_mode: What is shown: content, files_with_matches or count.
        """
        return self._call("Grep", pattern=pattern, path=path, glob=glob, output_mode=output_mode)

    def Glob(self, pattern: str, path: str | None = None) -> str:  # noqa: N802  the tool's name
        """Find files by name.

        Args:
            pattern: The glob pattern.
            path: The folder to search in.
        """
        return self._call("Glob", pattern=pattern, path=path)

    def call_tool(self, name: str, arguments_json: str) -> str:
        """Call any other tool.

        Args:
            name: The tool's name.
            arguments_json: Its arguments, as one JSON object.
        """
        try:
            arguments = json.loads(arguments_json)
        except ValueError:
            arguments = None
        if not isinstance(arguments, dict):
            return "arguments_json is not a JSON object"
        return self._call(name, **arguments)

    def _call(self, tool: str, /, **arguments: Any) -> str:
        if self._done:
            return OVER
        given = {key: value for key, value in arguments.items() if value is not None}
        step = self._client.step({"name": tool, "arguments": given})
        self._total += step.reward or 0.0
        self._done = step.done
        observation = step.observation
        return str(observation["text"] if observation["result"] is None else observation["result"])
