"""The tools of Claude Code and their schemas, as data."""

from typing import Any

REGISTRY_VERSION = "registry@1"


#: Offered in every session whose tools are not recorded.
CORE = ("Bash", "Edit", "Glob", "Grep", "Read", "Write")


_TEXT, _INT, _BOOL = "string", "integer", "boolean"


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
