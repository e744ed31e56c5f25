"""Actions without what does not matter: defaults, cosmetics, spelling of paths.

Belongs here: the canonical form of a tool call and of an action, the class of a tool, and
whether a call changes anything. Does not belong here: how close two forms are
(``preferences.levels``) and how shell lines are read (``preferences.shell``).
"""

import json
import re
import unicodedata
from collections.abc import Mapping
from typing import Any

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.preferences import shell
from composer_pipeline.preferences.shell import Place

#: Read's default window, in lines.
READ_LIMIT = 2000

_CLASSES = {
    "read": ("Read", "NotebookRead", "TaskOutput", "BashOutput"),
    "search": ("Grep", "Glob", "LS"),
    "edit": ("Edit", "MultiEdit", "Write", "NotebookEdit"),
    "run": ("Bash",),
    "plan": ("TodoWrite", "EnterPlanMode", "ExitPlanMode"),
    "ask": ("AskUserQuestion",),
}
_CLASS_OF = {name: kind for kind, names in _CLASSES.items() for name in names}

#: Arguments that change only what is shown or said, by tool.
_COSMETIC = {
    "Bash": {"description", "timeout"},
    "Task": {"description"},
    "TaskOutput": {"timeout"},
    "TaskCreate": {"activeForm"},
}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "Bash": {"run_in_background": False},
    "Task": {"run_in_background": False},
    "Edit": {"replace_all": False},
    "Read": {"offset": 1, "limit": READ_LIMIT},
    "Grep": {"path": ".", "output_mode": "files_with_matches", "-i": False, "multiline": False},
    "Glob": {"path": "."},
    "LS": {"path": "."},
}
_PATHS = {"file_path", "notebook_path", "path"}
_FILE_TOOLS = {
    "Read",
    "Write",
    "Edit",
    "MultiEdit",
    "NotebookEdit",
    "NotebookRead",
    *_CLASSES["search"],
}
_CHANGING_VERB = re.compile(
    r"(^|[_-])(create|update|delete|remove|merge|post|click|write|add|set|edit|insert|send|upload"
    r"|move|rename|close|execute|fill|type|submit|push|save|drop|publish|assign)([_-]|$)"
)
_TOLD_TO_CHANGE = re.compile(
    r"\b(fix|implement|write|edit|change|refactor|add|remove|delete|rename|update|create|modify"
    r"|migrate|install|commit)\b",
    re.IGNORECASE,
)
_TOLD_NOT_TO = re.compile(
    r"\b(do not|don't|never|without)\b[^.]*\b(chang|edit|modif|writ)\w*|\bread[- ]only\b",
    re.IGNORECASE,
)


def tool_name(name: str) -> str:
    """Return the tool's name; ``Agent`` is ``Task``."""
    return "Task" if name == "Agent" else name


def class_of(name: str) -> str:
    """Return read, search, edit, run, plan or ask, or the tool itself for other tools."""
    name = tool_name(name)
    if name in _CLASS_OF:
        return _CLASS_OF[name]
    return "plan" if name.startswith("Task") else name


def text_kind(text: str) -> str:
    """Return ask when the text's last paragraph asks something, else finish."""
    last = text.strip().rsplit("\n\n", 1)[-1].rstrip("*_ \n")
    return "ask" if last.endswith("?") else "finish"


def whole_text(text: str) -> str:
    """Normalise a whole file, command, prompt or text: NFC, LF, no final newline."""
    return unicodedata.normalize("NFC", text).replace("\r\n", "\n").rstrip("\n")


def canonical_args(call: ToolCall, place: Place) -> dict[str, Any]:
    """Return the arguments that matter, with defaults dropped and paths resolved.

    Bash's command becomes its parsed form; ``TodoWrite`` keeps statuses and their number.
    """
    name = tool_name(call.name)
    args = {k: v for k, v in call.arguments.items() if v is not None}
    for key in _COSMETIC.get(name, ()):
        args.pop(key, None)
    if name in _FILE_TOOLS:
        for key in _PATHS & set(args):
            if isinstance(args[key], str):
                args[key] = place.path(args[key])
    if name == "Read" and isinstance(args.get("offset"), int):
        args["offset"] = max(1, args["offset"])
    if name == "Glob" and isinstance(args.get("pattern"), str):
        args = _glob(args, place)
    if name == "TodoWrite" and isinstance(args.get("todos"), list):
        args["todos"] = [t.get("status") if isinstance(t, Mapping) else t for t in args["todos"]]
    for key, default in _DEFAULTS.get(name, {}).items():
        if key in args and args[key] == default:
            del args[key]
    edits = ("old_string", "new_string", "edits")
    args = {k: v if k in edits else _text(v) for k, v in args.items()}
    if name == "Bash" and isinstance(args.get("command"), str):
        args["command"] = shell.canonical_line(args["command"], place)
    return args


def canonical_call(call: ToolCall, place: Place) -> str:
    """Return the canonical form as JSON with sorted keys."""
    return _dump([tool_name(call.name), canonical_args(call, place)])


def canonical(action: Action, place: Place) -> str:
    """Return the canonical form of an action: its calls as a multiset, or its text."""
    if action.tool_calls:
        return _dump(sorted(canonical_call(call, place) for call in action.tool_calls))
    return _dump({"text": whole_text(action.text).strip()})


def call_mutates(call: ToolCall) -> bool:
    """Say whether a call changes files, state or anything outside.

    Reads, searches, tests, checks, builds, plans and to-do lists do not.
    """
    name = tool_name(call.name)
    if name == "Bash":
        command = call.arguments.get("command")
        return not isinstance(command, str) or shell.mutates(command)
    if name == "Task":
        prompt = str(call.arguments.get("prompt", ""))
        return bool(_TOLD_TO_CHANGE.search(prompt)) and not _TOLD_NOT_TO.search(prompt)
    if name in _CLASS_OF or name.startswith("Task"):
        return class_of(name) == "edit"
    if name.startswith("mcp__"):
        verb = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.rsplit("__", 1)[-1]).lower()
        if "query" in verb:
            text = json.dumps(call.arguments, default=str)
            return bool(re.search(r"\b(insert|update|delete|drop|alter|create)\b", text, re.I))
        return bool(_CHANGING_VERB.search(verb))
    return False


def mutates(action: Action) -> bool:
    """Say whether any call of an action changes something; text never does."""
    return any(call_mutates(call) for call in action.tool_calls)


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


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=str)
