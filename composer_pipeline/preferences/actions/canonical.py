"""The canonical form of tool calls and actions, levels of agreement, and what changes state.

A canonical form leaves out defaults and cosmetics and spells every path in one way.
"""

import json
import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any
from urllib.parse import urlsplit

import msgspec

from composer_pipeline.actions import PATH_ARGUMENTS, Action, ToolCall
from composer_pipeline.preferences.actions import shell_meaning
from composer_pipeline.preferences.actions.shell_meaning import writes_sql
from composer_pipeline.preferences.actions.shell_parse import Place
from composer_pipeline.tool_names import TOOLS, steps_of, translate

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


def text_kind(text: str) -> str:
    """Return ``ask`` if a text ends with a question or a request to decide, else ``finish``."""
    # A list of choices may follow the question; an offer of further help is a way to finish.
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
    """Normalize a whole file, command, prompt or text: NFC, LF, no final newline."""
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
    return text.replace("\r\n", "\n").rstrip("\n")


CLASSES = {
    "read": ("Read", "NotebookRead", "TaskOutput", "BashOutput"),
    "search": ("Grep", "Glob", "LS"),
    "edit": ("Edit", "MultiEdit", "Write", "NotebookEdit"),
    "run": ("Bash",),
    "plan": ("TodoWrite", "EnterPlanMode", "ExitPlanMode"),
    "ask": ("AskUserQuestion",),
}
CLASS_OF = {name: kind for kind, names in CLASSES.items() for name in names}


def tool_name(name: str) -> str:
    """Return the tool's name as Claude Code has it; ``Agent`` is ``Task``."""
    return "Task" if name == "Agent" else TOOLS.get(name, name)


def class_of(name: str) -> str:
    """Return read, search, edit, run, plan or ask, or the tool itself for other tools."""
    name = tool_name(name)
    if name in CLASS_OF:
        return CLASS_OF[name]
    return "plan" if name.startswith("Task") else name


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
_FILE_TOOLS = {"Read", "NotebookRead", *CLASSES["edit"], *CLASSES["search"]}


def canonical_args(call: ToolCall, place: Place) -> dict[str, Any]:
    """Return the arguments that matter, without defaults, paths resolved, commands parsed."""
    name = tool_name(call.name)
    cosmetic = _COSMETIC.get(name, ())
    # Whitespace inside the strings of an edit matters; elsewhere it is spelling.
    exact = ("old_string", "new_string", "edits") if name in ("Edit", "MultiEdit") else ()
    given = {k: v for k, v in call.arguments.items() if v is not None and k not in cosmetic}
    args = {key: value if key in exact else _text(value) for key, value in given.items()}
    _resolve(name, args, place)
    defaults = _DEFAULTS.get(name, {})
    return {k: v for k, v in args.items() if k not in defaults or v != defaults[k]}


def _resolve(name: str, args: dict[str, Any], place: Place) -> None:
    """Parse commands and resolve paths, in place."""
    if name == "Bash":
        if isinstance(args.get("command"), str):
            args["command"] = shell_meaning.canonical_line(args["command"], place)
    elif name in _FILE_TOOLS:
        for key in PATH_ARGUMENTS:
            if isinstance(args.get(key), str):
                args[key] = place.path(args[key])
        if name == "Read":
            _number_window(args)
        elif name == "Glob" and isinstance(pattern := args.get("pattern"), str):
            # The folder becomes part of the pattern.
            folder = str(args.pop("path", "."))
            whole = pattern.startswith(("/", "~")) or folder == "."
            args["pattern"] = place.path(pattern if whole else f"{folder}/{pattern}")
    elif name == "TodoWrite" and isinstance(args.get("todos"), list):
        args["todos"] = [t.get("status") if isinstance(t, Mapping) else t for t in args["todos"]]


def _number_window(args: dict[str, Any]) -> None:
    for key in ("offset", "limit"):
        value = args.get(key)
        if isinstance(value, str) and value.strip().isdigit():
            args[key] = int(value)
    if isinstance(args.get("offset"), int):
        args["offset"] = max(1, args["offset"])


def _text(value: Any) -> Any:
    if isinstance(value, str):
        return whole_text(value)
    if isinstance(value, list):
        return [_text(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _text(item) for key, item in value.items()}
    return value


@dataclass(frozen=True)
class CanonicalCall:
    """A call of Claude Code's tools with its canonical arguments and form (sorted JSON)."""

    call: ToolCall
    name: str
    kind: str
    args: dict[str, Any]
    form: str


@dataclass(frozen=True)
class CanonicalAction:
    """An action with its canonical calls and the form of all of it."""

    action: Action
    calls: tuple[CanonicalCall, ...]
    form: str


def read_action(action: Action, place: Place) -> CanonicalAction:
    """Return the canonical action; its form holds the calls as a multiset, or the text."""
    if not action.tool_calls:
        return CanonicalAction(action, (), _dump({"text": whole_text(action.text).strip()}))
    calls = tuple(_canonical_call(step, place) for step in steps_of(action.tool_calls))
    return CanonicalAction(action, calls, _dump(sorted(call.form for call in calls)))


def _canonical_call(call: ToolCall, place: Place) -> CanonicalCall:
    name, args = tool_name(call.name), canonical_args(call, place)
    return CanonicalCall(call, name, class_of(name), args, _dump([name, args]))


def canonical(action: Action, place: Place) -> str:
    """Return the canonical form of an action."""
    return read_action(action, place).form


_ENCODER = msgspec.json.Encoder(order="sorted", enc_hook=str)


def _dump(value: Any) -> str:
    try:
        return _ENCODER.encode(value).decode()
    except UnicodeEncodeError:  # a lone surrogate, which recorded text can hold
        return json.dumps(
            value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=str
        )


class Level(IntEnum):
    """Levels of agreement, the finest first.

    L0: equal canonical form. L1: equal effect. L2: the same tool on the same target. L3: the same
    meaning, according to a paid judge. L4: the same class of tool. NONE: nothing of these.
    """

    L0 = 0
    L1 = 1
    L2 = 2
    L3 = 3
    L4 = 4
    NONE = 5

    @property
    def label(self) -> str:
        """Return ``L0`` … ``L4`` or ``none``."""
        return "none" if self is Level.NONE else self.name


@dataclass(frozen=True)
class Comparison:
    """The level of two calls or actions, and one phrase that says why."""

    level: Level
    why: str


def _read(x: Mapping[str, Any], y: Mapping[str, Any]) -> Comparison:
    if x.get("file_path") != y.get("file_path"):
        return Comparison(Level.L4, "reads of different files")
    if "pages" in x or "pages" in y:
        a, b, c, d = *_pages(x), *_pages(y)
    else:
        a, b, c, d = *_window(x), *_window(y)
    if max(a, c) <= min(b, d):
        return Comparison(Level.L1, "reads of the same file, lines overlap")
    return Comparison(Level.L2, "reads of the same file, other lines")


def _window(args: Mapping[str, Any]) -> tuple[int, int]:
    """Return the first and last line, both inclusive and counted from 1."""
    first, limit = args.get("offset", 1), args.get("limit", READ_LIMIT)
    if not isinstance(first, int) or not isinstance(limit, int):
        return 1, READ_LIMIT
    return first, first + limit - 1


def _pages(args: Mapping[str, Any]) -> tuple[int, int]:
    """Return the first and last page of ``"3"`` or ``"3-5"``; a whole document without pages."""
    match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", str(args.get("pages", "1-999999")))
    if match is None:
        return 0, -1
    return int(match[1]), int(match[2] or match[1])


def _grep(x: Mapping[str, Any], y: Mapping[str, Any]) -> Comparison:
    target = ("pattern", "path")
    if any(x.get(key) != y.get(key) for key in target):
        return Comparison(Level.L4, "searches for other text or in other places")
    scope = ("glob", "type", "-i", "multiline")
    if all(x.get(key) == y.get(key) for key in scope):
        return Comparison(Level.L1, "one search, shown differently")
    return Comparison(Level.L2, "same pattern and place, other scope")


def _search(x: Mapping[str, Any], y: Mapping[str, Any]) -> Comparison:
    if x.get("query") == y.get("query"):
        return Comparison(Level.L2, "one query, other sites")
    return Comparison(Level.L4, "other queries")


def _fetch(x: Mapping[str, Any], y: Mapping[str, Any]) -> Comparison:
    if _host(x.get("url")) == _host(y.get("url")):
        return Comparison(Level.L2, "pages of the same host")
    return Comparison(Level.L4, "pages of other hosts")


def _host(url: object) -> str:
    return urlsplit(str(url)).netloc.lower()


_TARGET_KEY = re.compile(r"(^|_)(id|path|file|url|uri|key|skill|name)$|(Id|Path|Uri|Url|Key|Name)$")


def other_tool(x: Mapping[str, Any], y: Mapping[str, Any]) -> Comparison:
    """Compare calls of a tool without a rule: its identifying arguments are the target."""
    keys = {key for key in {*x, *y} if _TARGET_KEY.search(key)}
    if keys and all(x.get(key) == y.get(key) for key in keys):
        return Comparison(Level.L2, f"same {', '.join(sorted(keys))}")
    return Comparison(Level.L4, "same tool, other target")


RULES: dict[str, Callable[[Mapping[str, Any], Mapping[str, Any]], Comparison]] = {
    "Read": _read,
    "Grep": _grep,
    "TodoWrite": lambda x, y: Comparison(Level.L2, "to-do lists of other statuses"),
    "WebFetch": _fetch,
    "WebSearch": _search,
}


_CHANGING_VERB = re.compile(
    r"(^|[_-])(create|update|delete|remove|merge|post|click|write|add|set|edit|insert|send|upload"
    r"|move|rename|close|execute|fill|type|submit|push|save|drop|publish|assign)([_-]|$)"
)
_LOOKING_VERB = re.compile(
    r"(browser_)?(get|list|search|read|find|fetch|view|show|describe|check)(_|$)"
)
_QUERYING = re.compile(r"(^|_)(query|sql)(_|$)|^execute_sql")
_ASKS_FOR_CHANGE = re.compile(
    r"\b(fix|implement|write|edit|change|refactor|add|remove|delete|rename|update|create|modify"
    r"|migrate|install|commit)\b",
    re.IGNORECASE,
)
_FORBIDS_CHANGE = re.compile(
    r"\b(do not|don't|never|without)\b[^.]*\b(chang|edit|modif|writ)\w*|\bread[- ]only\b",
    re.IGNORECASE,
)


def call_mutates(call: ToolCall) -> bool:
    """Return True if a call changes files, state or anything outside (tests and builds do not)."""
    return any(map(_step_mutates, translate(call)))


def _step_mutates(call: ToolCall) -> bool:
    name = tool_name(call.name)
    if name == "Bash":
        command = call.arguments.get("command")
        return not isinstance(command, str) or shell_meaning.mutates(command)
    if name == "Task":
        prompt = str(call.arguments.get("prompt", ""))
        return bool(_ASKS_FOR_CHANGE.search(prompt)) and not _FORBIDS_CHANGE.search(prompt)
    if name in CLASS_OF or name.startswith("Task"):
        return class_of(name) == "edit"
    if name.startswith("mcp__"):
        verb = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.rsplit("__", 1)[-1]).lower()
        verb = verb.replace("-", "_")
        if _QUERYING.search(verb):
            return writes_sql(json.dumps(call.arguments, default=str))
        return bool(_CHANGING_VERB.search(verb)) and not _LOOKING_VERB.match(verb)
    return name in ("KillShell", "KillBash")


def mutates(action: Action) -> bool:
    """Return True if any call of an action changes something; text never does."""
    return any(call_mutates(call) for call in action.tool_calls)
