"""What the tools of other agents are called in Claude Code: one table of tools and arguments.

Labels, comparisons and rewards are written for Claude Code's tools. A call of another agent's tool
is read as the same call of those, and its result as Claude Code would show it.
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from difflib import SequenceMatcher
from typing import Any

import msgspec

from composer_pipeline.actions import ToolCall, apply_edits, chat_calls

Arguments = dict[str, Any]

_NAMES = {
    "Bash": "bash shell local_shell shell_command exec_command write_stdin exec functions.exec"
    " run_shell_command execute_bash terminal bash_command swe_agent_action powershell Shell",
    "Read": "read read_file view view_image",
    "Edit": "edit replace apply_patch patch str_replace_editor file_editor",
    "Write": "write write_file create",
    "Grep": "grep grep_search search_file_content",
    "Glob": "glob find",
    "LS": "ls list list_directory",
    "Task": "task invoke_agent spawn_agent multi_agent_v1.spawn_agent multi_agent_v2.spawn_agent"
    " collaboration.spawn_agent agents.spawn_agent",
    "TodoWrite": "todowrite write_todos update_plan",
    "WebFetch": "webfetch web_fetch",
    "WebSearch": "websearch web_search google_web_search",
}
#: Claude Code's tools that change a file by its text, and those that start a subagent.
EDITS = frozenset({"Edit", "MultiEdit", "Write", "NotebookEdit"})
AGENTS = frozenset({"Task", "Agent"})
#: The name that another agent gives a tool, and Claude Code's name of it.
TOOLS = {name: tool for tool, names in _NAMES.items() for name in names.split()}
#: Tools that do one thing or another, as their arguments say.
VARIOUS = frozenset({"str_replace_editor", "file_editor", "exec", "functions.exec"})
_PATCHES = frozenset({"apply_patch", "patch"})
#: A shell command with these words may edit files with a patch.
PATCH = b"*** Begin Patch"

_FILE = {"path": "file_path", "filePath": "file_path", "absolute_path": "file_path"}
_FOLDER = {"dir_path": "path"}
_ARGUMENTS: dict[str, dict[str, str]] = {
    "Bash": {"cmd": "command", "keystrokes": "command", "chars": "command",
             "raw_action": "command", "is_background": "run_in_background"},
    "Read": {**_FILE, "start_line": "offset"},
    "Edit": {**_FILE, "oldText": "old_string", "oldString": "old_string", "old_str": "old_string",
             "newText": "new_string", "newString": "new_string", "new_str": "new_string",
             "replaceAll": "replace_all", "allow_multiple": "replace_all"},
    "Write": {**_FILE, "file_text": "content"},
    "Grep": {**_FOLDER, "include": "glob", "include_pattern": "glob", "ignoreCase": "-i"},
    "Glob": _FOLDER,
    "LS": _FOLDER,
    "Task": {"message": "prompt", "agent_type": "subagent_type", "agent_name": "subagent_type"},
    "TodoWrite": {"plan": "todos"},
}  # fmt: skip
#: The only arguments that matter, where others say how to run or why.
_KEPT = {
    "Bash": {"command", "run_in_background", "session_id"},
    "Edit": {"file_path", "old_string", "new_string", "replace_all", "edits"},
    "Write": {"file_path", "content"},
}
_COMMANDS = {"view": "Read", "create": "Write"}  # of an editor with a `command`


def translate(call: ToolCall) -> tuple[ToolCall, ...]:
    """Return what a call does as calls of Claude Code's tools; the call itself if it is unknown.

    A patch becomes edits, one call for each file; a working directory becomes ``cd``.
    """
    tool, given = TOOLS.get(call.name), call.arguments
    if tool is None:
        return (call,)
    if tool == "Bash" and call.name in VARIOUS and isinstance(given.get("input"), str):
        steps = tuple(_of_script(given["input"]))
    elif tool == "Bash":
        steps = tuple(_of_shell(_renamed(tool, given), given))
    elif call.name in _PATCHES:
        steps = tuple(_of_patch(_patch_in(given), ""))
    else:
        if call.name in VARIOUS:
            tool = _COMMANDS.get(str(given.get("command")), tool)
        steps = (_of_file_tool(tool, _renamed(tool, given), given),)
    return tuple(ToolCall(step.name, step.arguments, call.id) for step in steps) or (call,)


def steps_of(calls: Iterable[ToolCall]) -> Iterator[ToolCall]:
    """Yield what calls do, as :func:`translate`."""
    return (step for call in calls for step in translate(call))


def chat_steps(message: Mapping[str, Any]) -> Iterator[ToolCall]:
    """Yield what the calls of a message in chat form do, as :func:`translate`."""
    return steps_of(ToolCall(*call) for call in chat_calls(message))


def _renamed(tool: str, given: Mapping[str, Any]) -> Arguments:
    names, kept = _ARGUMENTS.get(tool, {}), _KEPT.get(tool)
    renamed = {names.get(name, name): value for name, value in given.items()}
    return {k: v for k, v in renamed.items() if kept is None or k in kept}


def _of_file_tool(tool: str, args: Arguments, given: Mapping[str, Any]) -> ToolCall:
    if tool == "Read":
        args.pop("command", None)
        view = args.pop("view_range", None)
        first, last = view if isinstance(view, list) and len(view) == 2 else (
            args.get("offset"), args.pop("end_line", None))  # fmt: skip
        if isinstance(first, int):
            args["offset"] = first
        if isinstance(last, int) and last > 0:
            args["limit"] = last - (first if isinstance(first, int) else 1) + 1
    elif tool == "Edit" and given.get("command") == "insert":
        args = {"file_path": args.get("file_path"), "new_string": args.get("new_string")}
    elif tool == "Edit" and isinstance(args.get("edits"), list):
        edits = [_renamed(tool, e) for e in args["edits"] if isinstance(e, Mapping)]
        path = {"file_path": args.get("file_path")}
        if len(edits) != 1:
            return ToolCall("MultiEdit", {**path, "edits": edits})
        args = {**path, **edits[0]}
    return ToolCall(tool, args)


# -- commands ------------------------------------------------------------------------

_SHELLS = frozenset({"bash", "sh", "zsh"})
_DOCUMENT = re.compile(
    r"(?:\bcd\s+(?P<folder>\S+)\s*&&\s*)?\bapply_?patch\s*<<-?\s*(['\"]?)(?P<word>\w+)\2[ \t]*\n"
    r"(?P<patch>.*?)\n(?P=word)[ \t]*(?:\n|$)",
    re.DOTALL,
)


def _of_shell(args: Arguments, given: Mapping[str, Any]) -> Iterator[ToolCall]:
    """Yield the command and the edits of the patches that it applies."""
    command = args.get("command")
    folders = (given.get(key) for key in ("workdir", "working_directory", "dir_path"))
    folder = next((str(folder) for folder in folders if folder), "")
    if isinstance(command, list):
        words = [str(word) for word in command]
        if words[:1] in (["apply_patch"], ["applypatch"]):
            yield from _of_patch(words[-1], folder)
            return
        script = len(words) == 3 and words[0].rpartition("/")[2] in _SHELLS
        command = words[2] if script and words[1] in ("-c", "-lc") else shlex.join(words)
    if not isinstance(command, str):
        yield ToolCall("Bash", args)
        return
    steps: list[ToolCall] = []
    for match in _DOCUMENT.finditer(command) if "*** Begin Patch" in command else ():
        folder = _below(folder, match["folder"] or "").rstrip("/")
        steps += _of_patch(match["patch"], folder)
    rest = _DOCUMENT.sub("", command) if steps else command
    if rest.strip() or not steps:
        rest = f"cd {shlex.quote(folder)} && {rest}" if folder else rest
        yield ToolCall("Bash", {**args, "command": rest})
    yield from steps


_STRING = r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|`(?:[^`\\]|\\.)*`"
#: A call in JavaScript, and its strings by name.
_IN_SCRIPT = re.compile(rf"\btools\.(\w+)\(\s*(?:\{{((?:{_STRING}|[^\"'`{{}}])*)\}})?", re.DOTALL)
_NAMED = re.compile(rf"['\"]?(\w+)['\"]?\s*:\s*({_STRING})", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def _of_script(script: str) -> Iterator[ToolCall]:
    """Yield the calls of tools that a script in JavaScript makes with literal arguments."""
    for name, named in _IN_SCRIPT.findall(script):
        if name == "apply_patch":
            text = re.match(_STRING, script[max(script.find("*** Begin Patch"), 1) - 1 :])
            yield from _of_patch(_unescaped(text[0]) if text else "", "")
        elif name in TOOLS and name not in VARIOUS:
            given = {key: _unescaped(value) for key, value in _NAMED.findall(named)}
            yield from translate(ToolCall(name, given))


def _unescaped(literal: str) -> str:
    return _ESCAPED.sub(lambda m: {"n": "\n", "t": "\t"}.get(m[1], m[1]), literal[1:-1])


# -- patches -------------------------------------------------------------------------

_SECTION = re.compile(r"^\*\*\* (Add|Update|Delete) File: (.*)\n?", re.MULTILINE)
_MOVE = re.compile(r"^\*\*\* Move to: (.*)\n?", re.MULTILINE)
_HUNK = re.compile(r"^@@.*\n?", re.MULTILINE)
_WHOLE_PATCH = re.compile(r"\*\*\* Begin Patch\n.*\*\*\* End Patch", re.DOTALL)


def _patch_in(given: Mapping[str, Any]) -> str:
    """Return the patch among a call's arguments; empty if there is none."""
    values = (value for value in given.values() if isinstance(value, str))
    return next((value for value in values if "*** Begin Patch" in value), "")


def _of_patch(patch: str, folder: str) -> Iterator[ToolCall]:
    """Yield the edits of a patch in the form of Codex."""
    _, *parts = _SECTION.split(patch.replace("\r\n", "\n").partition("*** End Patch")[0])
    for what, name, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        path = _below(folder, name.strip())
        if what == "Delete":
            yield ToolCall("Bash", {"command": shlex.join(["rm", path])})
        elif what == "Add":
            lines = [line[1:] for line in body.split("\n") if line.startswith("+")]
            yield ToolCall("Write", {"file_path": path, "content": "\n".join(lines) + "\n"})
        else:
            if move := _MOVE.search(body):
                target = _below(folder, move[1].strip())
                yield ToolCall("Bash", {"command": shlex.join(["mv", path, target])})
                path, body = target, _MOVE.sub("", body)
            edits = [edit for hunk in _HUNK.split(body) if (edit := _hunk(hunk))]
            if len(edits) == 1:
                yield ToolCall("Edit", {"file_path": path, **edits[0]})
            elif edits:
                yield ToolCall("MultiEdit", {"file_path": path, "edits": edits})


def _below(folder: str, path: str) -> str:
    return f"{folder}/{path}" if folder and not path.startswith("/") else path


def _hunk(text: str) -> dict[str, str]:
    """Return a hunk as an edit; without old text where it only says what to insert."""
    lines = [line for line in text.removesuffix("\n").split("\n") if not line.startswith("*** ")]
    old = [line[1:] for line in lines if line[:1] != "+"]
    new = [line[1:] for line in lines if line[:1] != "-"]
    if old == new:
        return {}
    added = {"new_string": "\n".join(new)}
    return {"old_string": "\n".join(old), **added} if any(old) else added


def changes_of(arguments: Arguments) -> list[Arguments]:
    """Return the changes that an Edit or a MultiEdit makes."""
    listed = arguments.get("edits")
    every = listed if isinstance(listed, list) else [arguments]
    return [change for change in every if isinstance(change, dict)]


def with_change(call: ToolCall, old: str, new: str) -> Arguments | None:
    """Return a call's own arguments with another change; ``None`` where they cannot say it.

    Args:
        call: one that is one Edit or Write in Claude Code's terms.
        old: what it replaces; of a Write it does not count.
        new: what it puts there, or the whole file.
    """
    given = dict(call.arguments)
    values = {"old_string": old, "new_string": new, "content": new}
    if (call.name in _PATCHES or TOOLS.get(call.name) == "Bash") and (patch := _patch_in(given)):
        if _SECTION.search(patch) is None:  # escaped, in a script
            return None
        section = _section(patch, old, new)
        changed, found = _WHOLE_PATCH.subn(lambda _: section, patch)
        return {k: changed if v == patch else v for k, v in given.items()} if found else None
    own = given
    if isinstance(listed := given.get("edits"), list) and len(listed) == 1:
        own = dict(listed[0])
        given["edits"] = [own]
    names = _ARGUMENTS.get(TOOLS.get(call.name, ""), {}) | {"file_text": "content"}
    keys = [key for key in own if names.get(key, key) in values]
    own.update({key: values[names.get(key, key)] for key in keys})
    return given if keys else None


def _section(patch: str, old: str, new: str) -> str:
    """Return a patch of the same one file with another change."""
    (what, path), *_ = _SECTION.findall(patch)
    before, after = old.split("\n"), new.split("\n")
    if what == "Add":
        before, after = [], new.removesuffix("\n").split("\n")
    lines = [f"*** {what} File: {path}", *(["@@"] if what == "Update" else [])]
    for tag, a, b, c, d in SequenceMatcher(None, before, after, False).get_opcodes():
        if tag == "equal":
            lines += [f" {line}" for line in before[a:b]]
        else:
            lines += [f"-{line}" for line in before[a:b]] + [f"+{line}" for line in after[c:d]]
    return "\n".join(["*** Begin Patch", *lines, "*** End Patch"])


# -- results -------------------------------------------------------------------------

_CODE = r"(-?\d{1,9})"
#: What agents put before and behind a command's output; each group is an exit code.
_BEFORE = re.compile(
    r"(?:<untrusted_context>\n)?(?:Process running with session ID .*\n"
    r"|Script (?:completed|failed|terminated|running .*)\n|Wall time:? .*\n"
    r"|(?:Chunk ID|Original token count|Total output lines|Command|Directory): .*\n"
    rf"|Process exited with code {_CODE}\n|Exit code: {_CODE}\n(?=Wall time)"
    rf"|<returncode>{_CODE}</returncode>\n)*(?:Output:(?: |\n)|<output>\n)?"
)
_BEHIND = re.compile(
    rf"(?:(?:\A|\n)(?:Error: \(none\)|(?:Signal|Background PIDs|Process Group PGID): .*"
    rf"|Exit Code: (?:{_CODE}|\(none\))|</output>|</untrusted_context>"
    rf"|Command exited with code {_CODE}|<(?:shellId: \S+ completed|exited) with exit code {_CODE}>"
    rf"|\[(?:Command finished|The command completed) with exit code {_CODE}\.?\]"
    rf"|\[(?:Python|Current) .*\]))+\s*\Z"
)
#: As far from the end as what stands behind an output may begin, in characters.
_TAIL = 2000
_OBJECT = re.compile(r"\{\s*\"(?:output|returncode)\"")
_NUMBERED = re.compile(r"(\d+)(?:: |\. )(.*)")
_CONTENT = re.compile(r"<content>\n(.*?)(?:\n\n\([^\n]*\))?\n</content>", re.DOTALL)
#: How agents say that they show a part of a file.
_PART = re.compile(
    r"\n\n\[(?:Showing lines|\d+ more lines) [^\n]*\]\Z"
    r"|\n\((?:Output capped at|Showing lines) [^\n]*"
    r"|\AIMPORTANT: The file content has been truncated"
)


def translate_result(call: ToolCall, text: str, *, failed: bool = False) -> str:
    """Return a result as Claude Code shows it: an exit code comes first, lines have numbers."""
    tool = TOOLS.get(call.name)
    if tool == "Bash" or call.name in _PATCHES:
        code, text = _of_command(text)
        return f"Exit code {code}\n{text}" if code and tool == "Bash" else text
    if tool == "Read" and not failed:
        return _with_numbers(translate(call)[0].arguments, text)
    return text


def _of_command(text: str) -> tuple[str | None, str]:
    """Return the exit code, if it is told and not 0, and the output."""
    code: Any = None
    if _OBJECT.match(text):
        code, text = _in_json(text)
    codes = [str(code)] if isinstance(code, int) else []
    if before := _BEFORE.match(text):
        text = text[before.end() :]
        codes += filter(None, before.groups())
    if behind := _BEHIND.search(text, max(0, len(text) - _TAIL)):
        told = [*filter(None, behind.groups())]
        if not (codes and told):  # where a code stands before it, one behind it was printed
            text = text[: behind.start()].removesuffix("\n")
            codes += told
    return next((code for code in codes if code != "0"), None), text


def _in_json(text: str) -> tuple[Any, str]:
    """Return the exit code and the output of a result that is an object."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None, text
    meta = value.get("metadata")
    code = meta.get("exit_code") if isinstance(meta, dict) else value.get("returncode")
    output = value.get("output")
    return (code, output) if isinstance(code, int) and isinstance(output, str) else (None, text)


def _with_numbers(args: Mapping[str, Any], text: str) -> str:
    first = args.get("offset")
    first = first if isinstance(first, int) else 1
    content = _CONTENT.search(text)
    lines = _PART.sub("", content[1] if content else text).removesuffix("\n").split("\n")
    found = [_NUMBERED.fullmatch(line) for line in lines]
    if all(m and int(m[1]) == number for number, m in enumerate(found, first)):
        lines = [m[2] for m in found if m]
    return "\n".join(f"{number}\t{line}" for number, line in enumerate(lines, first))


#: Lines of this length are shown cut off.
_CUT_OFF = 2000
#: A line of a result with its number, as Claude Code shows it.
NUMBERED = re.compile(r"^ *(\d+)[→\t](.*)$", re.MULTILINE)


def read_text(call: ToolCall, result: Any) -> str | None:
    """Return the text of the whole file that a call read; ``None`` if it shows less."""
    (step, *_) = translate(call)
    begins = step.arguments.get("offset") in (None, 0, 1)
    if not begins or step.arguments.get("limit") is not None:
        return None
    if isinstance(result, list):
        result = "\n".join(str(b.get("text", "")) for b in result if isinstance(b, Mapping))
    if not isinstance(result, str) or (call.name in TOOLS and _PART.search(result)):
        return None
    lines: list[str] = []
    for line in translate_result(call, result).split("\n"):
        match = NUMBERED.match(line)
        if match is None or int(match[1]) != len(lines) + 1:
            break
        if len(match[2]) >= _CUT_OFF:
            return None
        lines.append(match[2])
    return "\n".join(lines) + "\n" if lines and len(lines) < 2000 else None


def learn(known: dict[str, str], call: ToolCall, result: Any) -> None:
    """Keep in ``known``, by path, the texts of the whole files that a call read or wrote."""
    for step in translate(call):
        path, text = step.arguments.get("file_path"), None
        if not isinstance(path, str):
            continue
        if step.name == "Read":
            text = read_text(call, result)
        elif step.name == "Write" or (step.name in EDITS and path in known):
            text = apply_edits(known.pop(path, ""), step.name, step.arguments)
        if text is not None:
            known[path] = text
