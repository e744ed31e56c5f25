"""Whether a call changes files, state or anything outside.

Belongs here: every tool but the shell. Does not belong here: command lines
(``preferences.actions.shell.effects``).
"""

import json
import re

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.preferences.actions.shell import lines as shell
from composer_pipeline.preferences.actions.shell.effects import writes_sql
from composer_pipeline.preferences.actions.tool_classes import (
    CLASS_OF,
    class_of,
    tool_name,
)

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
    """Say whether any call of an action changes something; text never does."""
    return any(call_mutates(call) for call in action.tool_calls)
