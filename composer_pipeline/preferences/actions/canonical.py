"""Actions without what does not matter: defaults, cosmetics, spelling of paths.

Belongs here: the canonical form of a tool call and of an action, the class of a tool, and
whether a call changes anything. Does not belong here: how close two forms are
(``preferences.actions.levels``) and how shell lines are read (``preferences.actions.shell.lines``).
"""

import json
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.preferences.actions.shell import lines as shell
from composer_pipeline.preferences.actions.shell.effects import writes_sql
from composer_pipeline.preferences.actions.shell.lines import Place

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
    "Task": {"run_in_background": False, "subagent_type": "general-purpose"},
    "Edit": {"replace_all": False},
    "NotebookEdit": {"edit_mode": "replace"},
    "Read": {"offset": 1, "limit": READ_LIMIT},
    "Grep": {"path": ".", "output_mode": "files_with_matches", "-i": False, "multiline": False},
    "Glob": {"path": "."},
    "LS": {"path": "."},
}
_NO_DEFAULTS: dict[str, Any] = {}
_PATHS = ("file_path", "notebook_path", "path")
_EDITS = {"Edit", "MultiEdit"}
_EDIT_STRINGS = {"old_string", "new_string"}
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
_LOOKING_VERB = re.compile(
    r"(browser_)?(get|list|search|read|find|fetch|view|show|describe|check)(_|$)"
)
_QUERYING = re.compile(r"(^|_)(query|sql)(_|$)|^execute_sql")
_TOLD_TO_CHANGE = re.compile(
    r"\b(fix|implement|write|edit|change|refactor|add|remove|delete|rename|update|create|modify"
    r"|migrate|install|commit)\b",
    re.IGNORECASE,
)
_TOLD_NOT_TO = re.compile(
    r"\b(do not|don't|never|without)\b[^.]*\b(chang|edit|modif|writ)\w*|\bread[- ]only\b",
    re.IGNORECASE,
)


_QUESTION = ("?", "\uff1f", "\u061f")
_BLANK_LINES = re.compile(r"\n\s*\n")
_FENCED = re.compile(r"```.*?(```|$)", re.DOTALL)
_ITEM = re.compile(r"\s*([-*+\u2022]|\(?[\da-zA-Z][.)])\s")
_SENTENCE = re.compile(r"(?<=[.!?\uff1f\u061f])\s+")
_OFFER = re.compile(
    r"\b(anything else|(any|further|other|more) (other )?(questions?|help|changes|issues)"
    r"|need (any )?(more|further|anything)|if you have|if (you|anything) (need|run into))\b",
    re.IGNORECASE,
)
_REQUEST = re.compile(
    r"\b(let me know|tell me|please (confirm|choose|clarify|decide|specify|provide|tell|advise|pick"
    r"|let me know|share)|waiting for your|which (one|option) (do|would) you)\b",
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
    """Return ask when a text ends by asking something, else finish.

    It asks when its last sentence is a question or a request to decide, when a list of
    choices follows a question, or when only such a request follows a question. An offer of
    further help is a way to finish.
    """
    blocks = [b.strip() for b in _BLANK_LINES.split(_FENCED.sub("", text).strip()) if b.strip()]
    while len(blocks) > 1 and all(_ITEM.match(line) for line in blocks[-1].splitlines()):
        blocks.pop()
    last = re.sub(r"[\s*_`)\"']+$", "", blocks[-1]) if blocks else ""
    lines = last.splitlines()
    while len(lines) > 1 and _ITEM.match(lines[-1]) and not lines[-1].endswith(_QUESTION):
        lines.pop()
    sentences = [p for p in _SENTENCE.split(" ".join(lines)) if p.strip()]
    if not sentences or _OFFER.search(sentences[-1]):
        return "finish"
    if sentences[-1].rstrip("*_ :").endswith(_QUESTION) or _REQUEST.search(sentences[-1]):
        return "ask"
    return "finish"


def whole_text(text: str) -> str:
    """Normalise a whole file, command, prompt or text: NFC, LF, no final newline."""
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
    return text.replace("\r\n", "\n").rstrip("\n")


@dataclass(frozen=True)
class CanonicalCall:
    """A tool call with its canonical arguments and form (JSON with sorted keys)."""

    call: ToolCall
    name: str
    kind: str
    args: dict[str, Any]
    form: str


@dataclass(frozen=True)
class CanonicalAction:
    """An action read once: its calls, and the form of all of it."""

    action: Action
    calls: tuple[CanonicalCall, ...]
    form: str


def canonical_args(call: ToolCall, place: Place) -> dict[str, Any]:
    """Return the arguments that matter, with defaults dropped and paths resolved.

    Bash's command becomes its parsed form; ``TodoWrite`` keeps statuses and their number.
    """
    name = tool_name(call.name)
    cosmetic = _COSMETIC.get(name, ())
    edit = name in _EDITS
    args: dict[str, Any] = {}
    for key, value in call.arguments.items():
        if value is None or key in cosmetic:
            continue
        if isinstance(value, str):
            args[key] = value if edit and key in _EDIT_STRINGS else whole_text(value)
        elif isinstance(value, (list, dict)) and not (edit and key == "edits"):
            args[key] = _text(value)
        else:
            args[key] = value
    if name == "Bash":
        if isinstance(args.get("command"), str):
            args["command"] = shell.canonical_line(args["command"], place)
    elif name in _FILE_TOOLS:
        for key in _PATHS:
            if isinstance(args.get(key), str):
                args[key] = place.path(args[key])
        if name == "Read":
            _lines(args)
        elif name == "Glob" and isinstance(args.get("pattern"), str):
            args = _glob(args, place)
    elif name == "TodoWrite" and isinstance(args.get("todos"), list):
        args["todos"] = [t.get("status") if isinstance(t, Mapping) else t for t in args["todos"]]
    for key, default in _DEFAULTS.get(name, _NO_DEFAULTS).items():
        if key in args and args[key] == default:
            del args[key]
    return args


def read_call(call: ToolCall, place: Place) -> CanonicalCall:
    """Return a call with its canonical arguments and form."""
    name = tool_name(call.name)
    args = canonical_args(call, place)
    return CanonicalCall(call, name, class_of(name), args, _dump([name, args]))


def read_action(action: Action, place: Place) -> CanonicalAction:
    """Return an action with its calls read once; the form of calls is a multiset."""
    if not action.tool_calls:
        return CanonicalAction(action, (), _dump({"text": whole_text(action.text).strip()}))
    calls = tuple(read_call(call, place) for call in action.tool_calls)
    if len(calls) == 1:
        return CanonicalAction(action, calls, _dump([calls[0].form]))
    return CanonicalAction(action, calls, _dump(sorted(call.form for call in calls)))


def canonical(action: Action, place: Place) -> str:
    """Return the canonical form of an action: its calls as a multiset, or its text."""
    return read_action(action, place).form


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
        verb = verb.replace("-", "_")
        if _QUERYING.search(verb):
            return writes_sql(json.dumps(call.arguments, default=str))
        return bool(_CHANGING_VERB.search(verb)) and not _LOOKING_VERB.match(verb)
    return name in ("KillShell", "KillBash")


def mutates(action: Action) -> bool:
    """Say whether any call of an action changes something; text never does."""
    return any(call_mutates(call) for call in action.tool_calls)


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


_ENCODER = msgspec.json.Encoder(order="sorted", enc_hook=str)


def _dump(value: Any) -> str:
    try:
        return _ENCODER.encode(value).decode()
    except UnicodeEncodeError:  # a lone surrogate, which recorded text can hold
        return json.dumps(
            value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=str
        )
