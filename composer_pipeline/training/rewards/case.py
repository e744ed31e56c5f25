"""What is known of a state when an answer to it is graded.

Belongs here: collecting it from a row of ``dataset_groups``, as plain JSON that travels with the
group. Does not belong here: grading (``training.rewards.parts``).
"""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from composer_pipeline.actions import ERROR_PREFIX
from composer_pipeline.edits import apply_edits, unnumbered
from composer_pipeline.training.rewards.match import calls_of

Message = dict[str, Any]
#: Tools that change one file by its text.
EDITS = frozenset({"Edit", "MultiEdit", "Write"})
#: Tools that may change any file.
_ANY_FILE = frozenset({"Bash", "Task", "Agent"})


class Case(msgspec.Struct, frozen=True, omit_defaults=True):
    """A state as its parts of the reward see it; only what they ask for is filled.

    ``consensus`` is the teachers' action; ``votes`` are the teachers' distinct actions with how
    many gave each; ``recorded`` is the agent's own action and ``failed`` whether its result was an
    error (``None``: not known); ``tools`` are the tools offered, without descriptions; ``errors``
    the calls of the prompt that failed, as :func:`call_key`; ``files`` path to text, as far as the
    prompt shows it.
    """

    consensus: Message
    votes: list[tuple[Message, int]] = []
    recorded: Message | None = None
    failed: bool | None = None
    tools: list[dict[str, Any]] = []
    errors: list[str] = []
    files: dict[str, str] = {}

    def to_json(self) -> str:
        """Return it as compact JSON."""
        return msgspec.json.encode(self).decode()

    @staticmethod
    def from_json(text: str) -> "Case":
        """Read :meth:`to_json`'s form."""
        return msgspec.json.decode(text, type=Case)


def case_of(
    parts: Collection[str],
    consensus: Message,
    answers: Sequence[tuple[str, Message]],
    row: Mapping[str, Any],
    failed: bool | None = None,
) -> Case:
    """Return what the named parts need of a row.

    Args:
        parts: names of ``training.rewards.parts.PARTS``.
        consensus: the teachers' action, in the template's form.
        answers: who answered (``agent`` or a teacher's name) and the answer, in the same form.
        row: ``prompt`` and ``tools`` of ``dataset_groups``.
        failed: whether the agent's own action ended in an error.
    """
    agent = next((message for who, message in answers if who == "agent"), None)
    edited = {
        str(arguments.get("file_path")) for name, arguments in calls_of(consensus) if name in EDITS
    }
    known = known_files(row["prompt"]) if "edit" in parts and edited else {}
    return Case(
        consensus,
        votes=_votes(answers) if "votes" in parts else [],
        recorded=agent if "outcome" in parts else None,
        failed=failed if "outcome" in parts else None,
        tools=[_schema(tool) for tool in row["tools"] or []] if "validity" in parts else [],
        errors=failed_calls(row["prompt"]) if "repeat" in parts else [],
        files={path: text for path, text in known.items() if path in edited},
    )


def _votes(answers: Sequence[tuple[str, Message]]) -> list[tuple[Message, int]]:
    """Return the teachers' distinct answers with how many gave each; the agent has no vote."""
    votes: dict[str, tuple[Message, int]] = {}
    for who, message in answers:
        if who != "agent":
            key = json.dumps([calls_of(message), message.get("content")], sort_keys=True)
            votes[key] = (message, votes.get(key, (message, 0))[1] + 1)
    return list(votes.values())


def _schema(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool without its description, which is most of it."""
    function = tool["function"]
    kept = {"name": function["name"], "parameters": function.get("parameters")}
    return {"type": "function", "function": kept}


def call_key(name: str, arguments: Mapping[str, Any]) -> str:
    """Return a call as text, the same for the same name and arguments."""
    return json.dumps([name, arguments], sort_keys=True)


def failed_calls(prompt: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the calls of a chat prompt whose result was an error, each once."""
    return list(dict.fromkeys(
        call_key(name, arguments) for name, arguments, text in _called(prompt)
        if text.startswith(ERROR_PREFIX)
    ))  # fmt: skip


def known_files(prompt: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return path to text of the files that a chat prompt shows whole and nothing may have changed.

    A Read without limits and a Write show a file, edits that apply keep it known. A command or
    another agent makes every file unknown: stricter than what comparing teachers asks
    (``preferences.actions.file_knowledge``), which reads the command.
    """
    known: dict[str, str] = {}
    for name, arguments, text in _called(prompt):
        path = str(arguments.get("file_path"))
        if name in _ANY_FILE:
            known.clear()
        elif text.startswith(ERROR_PREFIX):
            continue
        elif name == "Read" and not (arguments.get("offset") or arguments.get("limit")):
            known[path] = unnumbered(text) or ""
        elif name == "Write" or (name in EDITS and path in known):
            known[path] = apply_edits(known.get(path, ""), name, arguments) or ""
        if not known.get(path):
            known.pop(path, None)
    return known


def _called(prompt: Sequence[Mapping[str, Any]]) -> list[tuple[str, dict[str, Any], str]]:
    """Return name, arguments and result of each answered call, in the order of the results."""
    asked: dict[str, tuple[str, dict[str, Any]]] = {}
    out = []
    for message in prompt:
        for call, named in zip(message.get("tool_calls") or (), calls_of(message), strict=True):
            asked[str(call.get("id"))] = named
        if message["role"] == "tool" and str(message.get("tool_call_id")) in asked:
            name, arguments = asked[str(message["tool_call_id"])]
            out.append((name, arguments, str(message.get("content") or "")))
    return out
