"""Arguments of a call without what does not matter: defaults, cosmetics, spelling of paths.

Belongs here: the tables of each tool's arguments, and their canonical form. Does not belong
here: calls and actions (``preferences.actions.canonical``) and how shell lines are read
(``preferences.actions.shell.lines``).
"""

from collections.abc import Mapping
from typing import Any

from composer_pipeline.actions import PATH_ARGUMENTS, ToolCall
from composer_pipeline.preferences.actions.shell import lines as shell
from composer_pipeline.preferences.actions.shell.lines import Place
from composer_pipeline.preferences.actions.text_kinds import whole_text
from composer_pipeline.preferences.actions.tool_classes import (
    CLASSES,
    tool_name,
)

#: Read's default window, in lines.
READ_LIMIT = 2000
#: Arguments that change only what is shown or said, by tool.
_COSMETIC = {
    "Bash": {"description", "timeout"},
    "Task": {"description"},
    "TaskOutput": {"timeout"},
    "TaskCreate": {"activeForm"},
}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "Bash": {"run_in_background": False},
    "Task": {"run_in_background": False, "subagent_type": "general-purpose"},
    "Edit": {"replace_all": False},
    "NotebookEdit": {"edit_mode": "replace"},
    "Read": {"offset": 1, "limit": READ_LIMIT},
    "Grep": {"path": ".", "output_mode": "files_with_matches", "-i": False, "multiline": False},
    "Glob": {"path": "."},
    "LS": {"path": "."},
}
_NO_DEFAULTS: dict[str, Any] = {}
_EDITS = {"Edit", "MultiEdit"}
_EDIT_STRINGS = frozenset({"old_string", "new_string", "edits"})
_FILE_TOOLS = {
    "Read",
    "Write",
    "Edit",
    "MultiEdit",
    "NotebookEdit",
    "NotebookRead",
    *CLASSES["search"],
}


def canonical_args(call: ToolCall, place: Place) -> dict[str, Any]:
    """Return the arguments that matter, with defaults dropped and paths resolved.

    Bash's command becomes its parsed form; ``TodoWrite`` keeps statuses and their number.
    """
    name = tool_name(call.name)
    cosmetic = _COSMETIC.get(name, ())
    # Blanks and line ends inside the strings of an edit count; elsewhere they are spelling.
    exact = _EDIT_STRINGS if name in _EDITS else frozenset[str]()
    given = {k: v for k, v in call.arguments.items() if v is not None and k not in cosmetic}
    args = {key: value if key in exact else _text(value) for key, value in given.items()}
    args = _of_tool(name, args, place)
    defaults = _DEFAULTS.get(name, _NO_DEFAULTS)
    return {k: v for k, v in args.items() if k not in defaults or v != defaults[k]}


def _of_tool(name: str, args: dict[str, Any], place: Place) -> dict[str, Any]:
    """Return arguments in the one spelling of their tool: commands parsed, paths resolved."""
    if name == "Bash":
        if isinstance(args.get("command"), str):
            args["command"] = shell.canonical_line(args["command"], place)
    elif name in _FILE_TOOLS:
        for key in PATH_ARGUMENTS:
            if isinstance(args.get(key), str):
                args[key] = place.path(args[key])
        if name == "Read":
            _lines(args)
        elif name == "Glob" and isinstance(args.get("pattern"), str):
            args = _glob(args, place)
    elif name == "TodoWrite" and isinstance(args.get("todos"), list):
        args["todos"] = [t.get("status") if isinstance(t, Mapping) else t for t in args["todos"]]
    return args


def _lines(args: dict[str, Any]) -> None:
    """Make a Read's window numbers, counted from 1."""
    for key in ("offset", "limit"):
        value = args.get(key)
        if isinstance(value, str) and value.strip().isdigit():
            args[key] = int(value)
    if isinstance(args.get("offset"), int):
        args["offset"] = max(1, args["offset"])


def _text(value: Any) -> Any:
    """Normalise every string of a value."""
    if isinstance(value, str):
        return whole_text(value)
    if isinstance(value, list):
        return [_text(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _text(item) for key, item in value.items()}
    return value


def _glob(args: dict[str, Any], place: Place) -> dict[str, Any]:
    """Fold the folder into the pattern, so that both spellings are one."""
    folder = str(args.get("path", "."))
    pattern = str(args["pattern"])
    full = pattern if pattern.startswith(("/", "~")) or folder == "." else f"{folder}/{pattern}"
    return {**{k: v for k, v in args.items() if k != "path"}, "pattern": place.path(full)}
