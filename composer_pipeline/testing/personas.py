"""How the simulated teachers decide: scripts, personas, and answers for unknown states.

A script maps a prefix to the agent's action and, if there is one, a better action.

========== =====================================================================
persona    decision
========== =====================================================================
careful    the better action if there is one, else the agent's
steady     the same decisions, written differently: description, key order, quotes
contrarian always the agent's action
flaky      an action that no other persona takes
========== =====================================================================

For a prefix outside the script, ``careful`` and ``steady`` take the same generic action, derived
from a hash of the prefix and the offered tools; ``contrarian`` another one.
"""

import hashlib
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import orjson

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.chat.convert import to_chat, wire_messages
from composer_pipeline.lake.store import Lake
from composer_pipeline.states.state import TraceState

PersonaName = Literal["careful", "steady", "contrarian", "flaky"]

Entry = tuple[Action, Action | None]

_FLAKY = (
    ToolCall("Bash", {"command": "git log --oneline -5", "description": "Recent commits"}),
    ToolCall("Glob", {"pattern": "**/*.md"}),
    ToolCall("Grep", {"pattern": "TODO", "output_mode": "files_with_matches"}),
    ToolCall("Bash", {"command": "du -sh .", "description": "Size of the folder"}),
)


class Script:
    """Maps a prefix, without its system message, to (the agent's action, a better one or None)."""

    def __init__(self, entries: Mapping[str, Entry] | None = None) -> None:
        self.entries = dict(entries or {})
        #: How many states it can be asked about.
        self.states = len(self.entries)

    @staticmethod
    def from_states(states: Iterable[TraceState], answers: Mapping[str, Action]) -> "Script":
        """Build a script from trace states and better actions by API message id.

        Answers are redacted like everything that a teacher sees. Of states that share a prefix (a
        rewind), the first one with an answer counts.
        """
        from composer_pipeline.redaction.redact import redact_text, redact_value

        entries: dict[str, Entry] = {}
        for state in states:
            better = answers.get(state.message_id)
            if better is not None:
                calls = [
                    ToolCall(call.name, redact_value(call.arguments)[0])
                    for call in better.tool_calls
                ]
                better = Action(redact_text(better.text)[0], tuple(calls))
            key = prefix_key(wire_messages(to_chat(state).messages))
            if key not in entries or entries[key][1] is None:
                entries[key] = (state.action, better)
        return Script(entries)

    @staticmethod
    def from_sessions(folder: str | Path, answers: Mapping[str, Action]) -> "Script":
        """Build a script from a folder of session files."""
        from composer_pipeline.states.load import load_states
        from composer_pipeline.traces.ingest import ingest

        with tempfile.TemporaryDirectory() as scratch:
            lake = Lake(scratch)
            ingest(lake, [Path(folder)])
            return Script.from_states(load_states(lake), answers)

    def decide(self, persona: PersonaName, body: Mapping[str, Any]) -> Action:
        """Return the action of a persona for a request."""
        key = prefix_key(body.get("messages") or [])
        entry = self.entries.get(key)
        if entry is None:
            return self.outside(persona, body, key)
        agent, better = entry
        if persona == "contrarian":
            return agent
        if persona == "flaky":
            return _unlike(agent, better, body)
        chosen = better or agent
        return restyled(chosen) if persona == "steady" else chosen

    def outside(self, persona: PersonaName, body: Mapping[str, Any], key: str) -> Action:
        """Return the action for a prefix that is not in the script; ``key`` is its hash."""
        salt = {"careful": "", "steady": ""}.get(persona, persona)
        action = generic_action(body, salt)
        return restyled(action) if persona == "steady" else action


def prefix_key(messages: Iterable[Mapping[str, Any]]) -> str:
    """Return the hash of wire messages without system messages."""
    rest = [message for message in messages if message.get("role") != "system"]
    return hashlib.sha256(orjson.dumps(rest)).hexdigest()


def generic_action(body: Mapping[str, Any], salt: str) -> Action:
    """Return a deterministic action for a prefix that is in no script."""
    digest = hashlib.sha256((prefix_key(body.get("messages") or []) + salt).encode()).digest()
    tools = sorted(tool["function"]["name"] for tool in body.get("tools") or [])
    known = [*_FLAKY, ToolCall("Read", {"file_path": "README.md"})]
    usable = [call for call in known if call.name in tools]
    if not usable:
        return Action(text="I need to know more before I go on.")
    return Action(tool_calls=(usable[digest[0] % len(usable)],))


def restyled(action: Action) -> Action:
    """Return the same decision in another style: a preamble, other key order and quotes."""
    calls = []
    for call in action.tool_calls:
        arguments = dict(reversed(call.arguments.items()))
        if call.name == "Bash":
            command = str(arguments.get("command", ""))
            # Double quotes expand more than single ones; swap only if nothing expands.
            if "'" in command and not any(char in command for char in '"$`\\!\n'):
                arguments["command"] = command.replace("'", '"')
            arguments["description"] = "Run the next step"
        calls.append(ToolCall(call.name, arguments))
    text = action.text if not calls else "On to the next step."
    return Action(text, tuple(calls))


def _unlike(agent: Action, better: Action | None, body: Mapping[str, Any]) -> Action:
    taken = {_shape(agent), _shape(better) if better else ()}
    start = hashlib.sha256(prefix_key(body.get("messages") or []).encode()).digest()[1]
    for step in range(len(_FLAKY)):
        action = Action(tool_calls=(_FLAKY[(start + step) % len(_FLAKY)],))
        if _shape(action) not in taken:
            return action
    return Action(text="Done.")


def _shape(action: Action) -> tuple[str, ...]:
    return tuple(
        f"{call.name} {call.arguments.get('command') or call.arguments.get('pattern')}"
        for call in action.tool_calls
    )
