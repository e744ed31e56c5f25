"""The tools of each agent and their schemas, as data: names and arguments as the agent has them."""

from typing import Any

REGISTRY_VERSION = "registry@1"


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


_CLAUDE_CODE: dict[str, dict[str, Any]] = {
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

_RUN = "Run a shell command."
_READ = "Read a file."
_WRITE = "Write a file, or replace all of it."
_REPLACE = "Replace an exact text of a file, which occurs once."
_COMMAND, _FILE = (_TEXT, "The command line"), (_TEXT, "Path of the file")
_CONTENT, _PATTERN = (_TEXT, "All of the file"), (_TEXT, "Regular expression")
_GLOB, _FOLDER = (_TEXT, "Glob pattern"), (_TEXT, "Folder to search")
_OLD, _NEW = _EDIT.values()
_FIRST, _MOST = (_INT, "First line"), (_INT, "At most so many lines")

#: Agent -> its tools. Of agents other than Claude Code, those that most actions use.
REGISTRY: dict[str, dict[str, dict[str, Any]]] = {
    "claude-code": _CLAUDE_CODE,
    "codex": {
        "exec_command": _tool(
            _RUN, "cmd", cmd=_COMMAND, workdir=(_TEXT, "Folder to run it in"),
            yield_time_ms=(_INT, "Milliseconds to wait for output"),
            max_output_tokens=(_INT, "Output beyond it is cut"),
        ),
        "write_stdin": _tool(
            "Write to a running command, or wait for its output.", "session_id",
            session_id=(_INT, "The command"), chars=(_TEXT, "What to write"),
        ),
        "apply_patch": _tool(
            "Change files by a patch between *** Begin Patch and *** End Patch.", "input",
            input=(_TEXT, "The patch"),
        ),
    },
    "pi": {
        "read": _tool(_READ, "path", path=_FILE, offset=_FIRST, limit=_MOST),
        "bash": _tool(_RUN, "command", command=_COMMAND, timeout=(_INT, "Seconds")),
        "edit": _tool(
            "Replace exact texts of a file, each of which occurs once.", "path edits", path=_FILE,
            edits=_items(oldText=_OLD, newText=_NEW),
        ),
        "write": _tool(_WRITE, "path content", path=_FILE, content=_CONTENT),
    },
    "opencode": {
        "read": _tool(_READ, "filePath", filePath=_FILE, offset=_FIRST, limit=_MOST),
        "bash": _tool(
            _RUN, "command", command=_COMMAND, workdir=(_TEXT, "Folder to run it in"),
            timeout=(_INT, "Milliseconds"),
        ),
        "edit": _tool(
            _REPLACE, "filePath oldString newString", filePath=_FILE, oldString=_OLD,
            newString=_NEW, replaceAll=(_BOOL, "Every occurrence"),
        ),
        "write": _tool(_WRITE, "filePath content", filePath=_FILE, content=_CONTENT),
        "glob": _tool("Find files by name.", "pattern", pattern=_GLOB, path=_FOLDER),
        "grep": _tool(
            "Search file contents.", "pattern", pattern=_PATTERN, path=_FOLDER, include=_GLOB
        ),
    },
    "gemini": {
        "read_file": _tool(
            _READ, "file_path", file_path=_FILE, start_line=_FIRST, end_line=(_INT, "Last line")
        ),
        "run_shell_command": _tool(
            _RUN, "command", command=_COMMAND, description=(_TEXT, "What it does"),
            dir_path=(_TEXT, "Folder to run it in"),
        ),
        "replace": _tool(
            _REPLACE, "file_path instruction old_string new_string", file_path=_FILE,
            instruction=(_TEXT, "What the change is for"), old_string=_OLD, new_string=_NEW,
        ),
        "write_file": _tool(_WRITE, "file_path content", file_path=_FILE, content=_CONTENT),
        "glob": _tool("Find files by name.", "pattern", pattern=_GLOB, dir_path=_FOLDER),
        "grep_search": _tool(
            "Search file contents.", "pattern", pattern=_PATTERN, dir_path=_FOLDER,
            include_pattern=_GLOB,
        ),
        "list_directory": _tool("List a folder.", "dir_path", dir_path=(_TEXT, "The folder")),
    },
    "copilot": {
        "view": _tool(
            _READ, "path", path=_FILE,
            view_range={"type": "array", "items": {"type": _INT}},
        ),
        "bash": _tool(
            _RUN, "command description", command=_COMMAND, description=(_TEXT, "What it does")
        ),
        "edit": _tool(_REPLACE, "path", path=_FILE, old_str=_OLD, new_str=_NEW),
        "create": _tool("Write a new file.", "path file_text", path=_FILE, file_text=_CONTENT),
        "glob": _tool("Find files by name.", "pattern", pattern=_GLOB, paths={}),
        "grep": _tool("Search file contents.", "pattern", pattern=_PATTERN, paths={}, glob=_GLOB),
    },
}  # fmt: skip
#: Agent -> what a session is offered whose tools are not recorded, besides the tools it used.
CORE = {agent: tuple(tools) for agent, tools in REGISTRY.items()} | {
    "claude-code": ("Bash", "Edit", "Glob", "Grep", "Read", "Write")
}
