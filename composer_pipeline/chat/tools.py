"""Which tools a teacher is offered, and their JSON schemas.

Belongs here: a registry of hand-written schemas of Claude Code's tools, with descriptions
of our own; schemas inferred from use for MCP and unknown tools; the choice of tools for a
session. Does not belong here: names on the wire (``chat.messages.short_name``).

Session files rarely record the tools. A recorded set (``prompt_snapshot``) always wins.
Otherwise a session is offered the tools it used and :data:`CORE`; agreement with an agent
is only possible on tools that the teacher has. Inference takes the *keys* and JSON types of
observed inputs, never a value: a value may be private.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

import msgspec
import orjson

from composer_pipeline.actions import Action
from composer_pipeline.chat.installed_tools import InstalledTools, nearest

REGISTRY_VERSION = "registry@1"

#: Offered in every session whose tools are not recorded.
CORE = ("Bash", "Edit", "Glob", "Grep", "Read", "Write")

#: Uses from which a key that was always there counts as required.
MIN_USES_FOR_REQUIRED = 5

_TEXT, _INT, _BOOL = "string", "integer", "boolean"


class SessionState(Protocol):
    """The fields of a trace state that the choice of tools reads."""

    @property
    def session_id(self) -> str: ...  # noqa: D102
    @property
    def messages(self) -> list[dict[str, Any]]: ...  # noqa: D102
    @property
    def tools(self) -> list[Any] | None: ...  # noqa: D102
    @property
    def action(self) -> Action: ...  # noqa: D102


class Toolset(msgspec.Struct, frozen=True, dict=True):
    """Tools in OpenAI form with recorded names, and where their schemas came from."""

    tools: list[dict[str, Any]]
    source: str

    @cached_property
    def digest(self) -> str:
        """BLAKE2b-128 of the tools, in hexadecimal."""
        return hashlib.blake2b(orjson.dumps(self.tools), digest_size=16).hexdigest()


def _tool(description: str, /, required: str = "", **parameters: Any) -> dict[str, Any]:
    properties = {
        key: {"type": value[0], "description": value[1]} if isinstance(value, tuple) else value
        for key, value in parameters.items()
    }
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required.split()
    return {"description": description, "parameters": schema}


def _items(**parameters: Any) -> dict[str, Any]:
    inner = _tool("", required=" ".join(parameters), **parameters)["parameters"]
    return {"type": "array", "items": inner}


_PATH = (_TEXT, "Absolute path of the file")
_EDIT = {
    "old_string": (_TEXT, "Exact text to replace"),
    "new_string": (_TEXT, "Text to put in its place"),
}
_AGENT = _tool(
    "Give a self-contained task to a subagent and wait for its report.",
    "description prompt",
    description=(_TEXT, "The task in a few words"),
    prompt=(_TEXT, "All that the subagent needs to know"),
    subagent_type=(_TEXT, "Kind of subagent"),
    model=(_TEXT, "Model of the subagent"),
    run_in_background=(_BOOL, "Do not wait for it"),
)

REGISTRY: dict[str, dict[str, Any]] = {
    "Bash": _tool(
        "Run a shell command in a session that keeps its working directory.",
        "command",
        command=(_TEXT, "The command line"),
        description=(_TEXT, "What it does, in a few words"),
        timeout=(_INT, "Milliseconds after which it is stopped"),
        run_in_background=(_BOOL, "Return at once and keep it running"),
    ),
    "BashOutput": _tool(
        "Read what a background shell has printed since the last look.",
        "bash_id",
        bash_id=(_TEXT, "The background shell"),
        filter=(_TEXT, "Regular expression for the lines to show"),
    ),
    "KillShell": _tool(
        "Stop a background shell.", "shell_id", shell_id=(_TEXT, "The background shell")
    ),
    "Read": _tool(
        "Read a file, with line numbers.",
        "file_path",
        file_path=_PATH,
        offset=(_INT, "First line, counted from 1"),
        limit=(_INT, "Number of lines"),
    ),
    "Write": _tool(
        "Write a whole file; replaces what was there.",
        "file_path content",
        file_path=_PATH,
        content=(_TEXT, "The whole content"),
    ),
    "Edit": _tool(
        "Replace a text in a file that was read before. The text must occur exactly once"
        " unless replace_all is set.",
        "file_path old_string new_string",
        file_path=_PATH,
        **_EDIT,
        replace_all=(_BOOL, "Replace every occurrence"),
    ),
    "MultiEdit": _tool(
        "Apply several replacements to one file, in order, all or none.",
        "file_path edits",
        file_path=_PATH,
        edits=_items(**_EDIT),
    ),
    "NotebookEdit": _tool(
        "Replace, insert or delete a cell of a Jupyter notebook.",
        "notebook_path new_source",
        notebook_path=(_TEXT, "Absolute path of the notebook"),
        cell_id=(_TEXT, "The cell"),
        new_source=(_TEXT, "New source of the cell"),
        cell_type=(_TEXT, "code or markdown"),
        edit_mode=(_TEXT, "replace, insert or delete"),
    ),
    "NotebookRead": _tool(
        "Read the cells of a Jupyter notebook.",
        "notebook_path",
        notebook_path=(_TEXT, "Absolute path of the notebook"),
        cell_id=(_TEXT, "Only this cell"),
    ),
    "Glob": _tool(
        "Find files whose path matches a pattern, newest first.",
        "pattern",
        pattern=(_TEXT, "Glob pattern, for example src/**/*.py"),
        path=(_TEXT, "Folder to search"),
    ),
    "Grep": _tool(
        "Search file contents with a regular expression.",
        "pattern",
        pattern=(_TEXT, "Regular expression"),
        path=(_TEXT, "File or folder to search"),
        glob=(_TEXT, "Only files that match"),
        type=(_TEXT, "Only files of this type"),
        output_mode=(_TEXT, "content, files_with_matches or count"),
        head_limit=(_INT, "At most so many results"),
        multiline=(_BOOL, "Let the pattern span lines"),
        **{
            "-i": (_BOOL, "Ignore case"),
            "-n": (_BOOL, "Show line numbers"),
            "-A": (_INT, "Lines of context after"),
            "-B": (_INT, "Lines of context before"),
            "-C": (_INT, "Lines of context around"),
        },
    ),
    "LS": _tool(
        "List a folder.",
        "path",
        path=(_TEXT, "Absolute path of the folder"),
        ignore={"type": "array", "items": {"type": _TEXT}, "description": "Patterns to leave out"},
    ),
    "TodoWrite": _tool(
        "Replace the task list.",
        "todos",
        todos=_items(
            content=(_TEXT, "The task"),
            status=(_TEXT, "pending, in_progress or completed"),
            activeForm=(_TEXT, "The task while it is being done"),
        ),
    ),
    "Task": _AGENT,
    "Agent": _AGENT,
    "TaskOutput": _tool(
        "Read the output of a background task.",
        "task_id",
        task_id=(_TEXT, "The task"),
        block=(_BOOL, "Wait until it ends"),
        timeout=(_INT, "Milliseconds to wait"),
    ),
    "TaskCreate": _tool(
        "Add a task to the task list.",
        "subject",
        subject=(_TEXT, "The task in a few words"),
        description=(_TEXT, "What has to be done"),
        activeForm=(_TEXT, "The task while it is being done"),
    ),
    "TaskUpdate": _tool(
        "Change a task of the task list.",
        "taskId",
        taskId=(_TEXT, "The task"),
        status=(_TEXT, "pending, in_progress, completed or deleted"),
        subject=(_TEXT, "New subject"),
        description=(_TEXT, "New description"),
    ),
    "TaskList": _tool("Show the task list."),
    "WebFetch": _tool(
        "Fetch a page and answer a question about it.",
        "url prompt",
        url=(_TEXT, "Address of the page"),
        prompt=(_TEXT, "What to find out"),
    ),
    "WebSearch": _tool(
        "Search the web.",
        "query",
        query=(_TEXT, "Search terms"),
        allowed_domains={"type": "array", "items": {"type": _TEXT}},
        blocked_domains={"type": "array", "items": {"type": _TEXT}},
    ),
    "EnterPlanMode": _tool("Start planning before any change is made."),
    "ExitPlanMode": _tool(
        "Show the plan to the user and ask to go ahead.", plan=(_TEXT, "The plan, in Markdown")
    ),
    "AskUserQuestion": _tool(
        "Ask the user to choose between options.",
        "questions",
        questions=_items(
            question=(_TEXT, "The question"),
            header=(_TEXT, "A label of a word or two"),
            options=_items(label=(_TEXT, "The option"), description=(_TEXT, "What it means")),
            multiSelect=(_BOOL, "Several options may be chosen"),
        ),
    ),
    "Skill": _tool(
        "Load a skill by name.", "skill", skill=(_TEXT, "Its name"), args=(_TEXT, "Its arguments")
    ),
    "SlashCommand": _tool("Run a slash command.", "command", command=(_TEXT, "The command")),
}


def tool_schemas(
    names: Iterable[str],
    *,
    observed: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    recorded: Sequence[Any] | None = None,
    installed: InstalledTools | None = None,
) -> Toolset:
    """Return the tools to offer, sorted by name, and the source of their schemas.

    Args:
        names: tools seen in use; :data:`CORE` is added.
        observed: inputs seen for each tool, for those that the registry lacks.
        recorded: tool dictionaries of the recorded request, Anthropic or OpenAI form.
            Where there are any, they are the whole answer.
        installed: parameters from the user's installation; they go before the registry's,
            whose descriptions stay.
    """
    if recorded:
        tools = [tool for tool in map(_openai_form, recorded) if tool]
        if tools:
            return Toolset(tools, "recorded")
    tools = []
    sources: Counter[str] = Counter()
    for name in sorted(set(names) | set(CORE)):
        entry = REGISTRY.get(name)
        if installed and name in installed.parameters:
            description = entry["description"] if entry else f"The tool {name}."
            entry = {"description": description, "parameters": installed.parameters[name]}
            sources[installed.source] += 1
        elif entry is None:
            entry = infer((observed or {}).get(name, ()))
            sources["inferred"] += 1
        tools.append({"type": "function", "function": {"name": name, **entry}})
    parts = [] if installed and sources[installed.source] == len(tools) else [REGISTRY_VERSION]
    if installed and sources[installed.source]:
        parts.insert(0, f"{installed.source}:{sources[installed.source]}")
    if sources["inferred"]:
        parts.append(f"inferred:{sources['inferred']}")
    return Toolset(tools, "+".join(parts))


def session_tools(
    states: Sequence[SessionState], installed: Sequence[InstalledTools] = ()
) -> dict[str, Toolset]:
    """Choose the tools of each session, the same for all its states.

    One set for a session keeps the start of every request equal, which is what the
    provider's prompt cache needs. States must be all the states of their sessions.

    Args:
        states: of any number of sessions.
        installed: sets to choose from by each session's first version.
    """
    names: dict[str, set[str]] = {}
    inputs: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    recorded: dict[str, list[Any]] = {}
    versions: dict[str, str] = {}
    seen: set[int] = set()
    for state in states:
        session = state.session_id
        if version := getattr(state, "version", None):
            versions.setdefault(session, version)
        used = names.setdefault(session, set())
        known = inputs.setdefault(session, {})
        if state.tools:
            recorded.setdefault(session, state.tools)
        for call in state.action.tool_calls:
            used.add(call.name)
            known.setdefault(call.name, []).append(call.arguments)
        for message in state.messages:
            # Prefixes of a session share their message objects.
            if id(message) in seen:
                continue
            seen.add(id(message))
            content = message.get("content")
            for block in content if isinstance(content, list) else []:
                if isinstance(block, dict) and block.get("type") == "tool_use":
                    used.add(str(block.get("name", "")))
    return {
        session: tool_schemas(
            {name for name in used if name},
            observed=inputs[session],
            recorded=recorded.get(session),
            installed=nearest(list(installed), versions.get(session)),
        )
        for session, used in names.items()
    }


def infer(uses: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a schema from observed inputs: keys and JSON types, no values."""
    keys = sorted({key for use in uses for key in use})
    properties: dict[str, Any] = {}
    for key in keys:
        kinds = {_json_type(use[key]) for use in uses if key in use}
        properties[key] = {"type": kinds.pop()} if len(kinds) == 1 else {}
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if len(uses) >= MIN_USES_FOR_REQUIRED:
        required = [key for key in keys if all(key in use for use in uses)]
        if required:
            schema["required"] = required
    return {"description": "Parameters inferred from use.", "parameters": schema}


def _json_type(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    for kind, name in ((str, "string"), (int, "integer"), (float, "number"), (list, "array")):
        if isinstance(value, kind):
            return name
    return "null" if value is None else "object"


def _openai_form(tool: Any) -> dict[str, Any] | None:
    if not isinstance(tool, Mapping):
        return None
    function = tool.get("function")
    if isinstance(function, Mapping) and isinstance(function.get("name"), str):
        return {"type": "function", "function": dict(function)}
    if not isinstance(tool.get("name"), str):
        return None
    parameters = tool.get("input_schema") or {"type": "object", "properties": {}}
    entry = {"name": tool["name"], "description": str(tool.get("description") or "")}
    return {"type": "function", "function": {**entry, "parameters": dict(parameters)}}
