"""Which replies may vote on a state, and why the others may not.

Belongs here: the reason of every reply that is kept out. Does not belong here: a reply by
itself (``preferences.agreement.reply``), whose model a name is
(``preferences.agreement.lineage``) and the vote (``preferences.agreement.vote``). Nothing is
lost: a reply is a voter, a control, or excluded with a reason, and the three add up.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from composer_pipeline.actions import Action
from composer_pipeline.preferences.agreement.languages import language_of
from composer_pipeline.preferences.agreement.reply import Reply

#: Arguments in which a call speaks to somebody, by tool.
_PROSE = {"AskUserQuestion": "questions", "ExitPlanMode": "plan", "Task": "prompt",
          "Agent": "prompt"}  # fmt: skip
_USER_TEXTS, _USER_CHARS = 4, 4000


@dataclass(frozen=True)
class Excluded:
    """A usable reply that may not vote: ``kind`` is ``empty`` or ``other_language``."""

    teacher: str
    family: str
    model: str
    kind: str
    detail: str = ""


def screen(
    messages: Sequence[Mapping[str, Any]], own: Action, replies: Iterable[Reply]
) -> tuple[list[Reply], list[Excluded]]:
    """Keep out replies that are empty or speak a language nobody in the talk speaks.

    Only words to the user or to another agent count: a text, a question, a plan, a prompt.
    Files and commands may hold any language, and the text before a call is cosmetic.

    Args:
        messages: the prefix, Anthropic-shaped.
        own: the agent's action.
        replies: usable replies.
    """
    kept: list[Reply] = []
    out: list[Excluded] = []
    spoken: frozenset[str] | None = None
    for reply in replies:
        who = (reply.teacher, reply.family, reply.model)
        if not reply.action.tool_calls and not reply.action.text.strip():
            out.append(Excluded(*who, "empty", "the reply has neither text nor a tool call"))
            continue
        language = language_of(words) if (words := prose_of(reply.action)) else ""
        if language:
            if spoken is None:
                spoken = _spoken(messages, own)
            if spoken and language not in spoken:
                detail = f"the reply is in {language}, the session in {', '.join(sorted(spoken))}"
                out.append(Excluded(*who, "other_language", detail))
                continue
        kept.append(reply)
    return kept, out


def prose_of(action: Action) -> str:
    """Return what an action says to the user or to another agent."""
    if not action.tool_calls:
        return action.text
    said = [
        call.arguments.get(_PROSE[call.name]) for call in action.tool_calls if call.name in _PROSE
    ]
    return " ".join(str(part) for part in said if part)


def _spoken(messages: Sequence[Mapping[str, Any]], own: Action) -> frozenset[str]:
    """Return the languages of the user's last texts and of the agent's action."""
    said: list[str] = []
    for message in reversed(messages):
        if len(said) == _USER_TEXTS:
            break
        if message.get("role") == "user" and (text := _user_text(message.get("content"))):
            said.append(text[:_USER_CHARS])
    found = {language_of(text) for text in said} | {language_of(own.text)}
    return frozenset(found - {""})


def _user_text(content: object) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    parts = [b.get("text") for b in content if isinstance(b, Mapping) and b.get("type") == "text"]
    plain = [p for p in parts if isinstance(p, str) and not p.lstrip().startswith("<")]
    return "\n".join(plain)
