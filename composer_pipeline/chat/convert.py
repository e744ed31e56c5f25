"""States as chat messages, with every call answered exactly once, and replies as actions."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jsonschema
import msgspec
import orjson
import referencing
import referencing.exceptions

from composer_pipeline.actions import ERROR_PREFIX, Action, ToolCall, validator_of
from composer_pipeline.files import mapping_at
from composer_pipeline.states.state import TraceState, blocks_of
from composer_pipeline.versions import CONVERTER_VERSION

INTERRUPTED = "[no result: interrupted]"
ORPHAN_PREFIX = "[tool result without call] "


def short_name(name: str) -> str:
    """Return a tool name that every provider accepts: ``[a-zA-Z0-9_-]{1,64}``."""
    clean = re.sub(r"[^a-zA-Z0-9_-]", "_", name)
    if clean == name and 0 < len(name) <= 64:
        return name
    # The hash keeps two changed names apart.
    return f"{clean[:55]}_{hashlib.blake2b(name.encode(), digest_size=4).hexdigest()}"


class Builder:
    """Emits chat messages in order and keeps every call answered exactly once."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.flags: Counter[str] = Counter()
        self.names: set[str] = set()
        self.seen: set[str] = set()
        self._pending: list[tuple[str, str, str]] = []  # recorded id, wire id, wire name
        self._calls = 0
        self._images = 0

    def assistant(self, blocks: list[Any]) -> None:
        """Add the agent's text and calls; open calls are answered first."""
        self.close_calls({})
        texts: list[str] = []
        calls: list[dict[str, Any]] = []
        for block in blocks:
            kind = block.get("type") if isinstance(block, dict) else None
            if kind == "text":
                if calls and str(block.get("text", "")).strip():
                    self.flags["text_after_call"] += 1
                texts.append(str(block.get("text", "")))
            elif kind == "tool_use":
                calls.append(self._open_call(block))
            elif kind not in ("thinking", "redacted_thinking"):
                self.flags["block_dropped"] += 1
        text = "\n\n".join(t for t in texts if t.strip())
        if not text and not calls:
            return
        last = self.messages[-1] if self.messages else None
        if last and last["role"] == "assistant" and not last.get("tool_calls"):
            self.messages.pop()
            text = "\n\n".join(t for t in (last["content"], text) if t)
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if calls:
            message["tool_calls"] = calls
        self.messages.append(message)

    def user(self, blocks: list[Any]) -> None:
        """Add results of calls, and the user's text after them."""
        results: dict[str, str] = {}
        texts: list[str] = []
        open_ids = {recorded for recorded, _, _ in self._pending}
        for block in blocks:
            kind = block.get("type") if isinstance(block, dict) else None
            if kind == "text":
                texts.append(str(block.get("text", "")))
            elif kind == "tool_result":
                recorded = str(block.get("tool_use_id", ""))
                content = self._result_text(block)
                if recorded in open_ids and recorded not in results:
                    results[recorded] = content
                else:
                    self.flags["orphan_result"] += 1
                    texts.append(ORPHAN_PREFIX + content)
            elif kind == "image":
                texts.append(self._image())
            else:
                self.flags["block_dropped"] += 1
                texts.append(f"[{kind or 'unknown'} block]")
        self.close_calls(results)
        text = "\n\n".join(t for t in texts if t.strip())
        if not text:
            return
        last = self.messages[-1] if self.messages else None
        if last and last["role"] == "user":
            self.messages[-1] = {"role": "user", "content": f"{last['content']}\n\n{text}"}
        else:
            self.messages.append({"role": "user", "content": text})

    def close_calls(self, results: Mapping[str, str]) -> None:
        """Answer every open call, in the order of the calls."""
        for recorded, wire, name in self._pending:
            content = results.get(recorded)
            if content is None:
                self.flags["synthetic_result"] += 1
                content = INTERRUPTED
            self.messages.append(
                {"role": "tool", "tool_call_id": wire, "name": name, "content": content}
            )
        self._pending = []

    def _open_call(self, block: dict[str, Any]) -> dict[str, Any]:
        recorded, name = str(block.get("id", "")), str(block.get("name", ""))
        wire = f"call_{self._calls}"
        self._calls += 1
        self.names.add(name)
        self.seen.add(recorded)
        self._pending.append((recorded, wire, short_name(name)))
        return chat_call(wire, name, mapping_at(block, "input"))

    def _result_text(self, block: dict[str, Any]) -> str:
        content = block.get("content", "")
        parts = [content] if isinstance(content, str) else []
        for item in content if isinstance(content, list) else []:
            kind = item.get("type") if isinstance(item, dict) else None
            if kind == "text":
                parts.append(str(item.get("text", "")))
            elif kind == "image":
                parts.append(self._image())
            else:
                self.flags["block_dropped"] += 1
                parts.append(f"[{kind or 'unknown'} block]")
        text = "\n".join(parts)
        if block.get("is_error") is True:
            self.flags["tool_error"] += 1
            return ERROR_PREFIX + text
        return text

    def _image(self) -> str:
        self._images += 1
        self.flags["image_dropped"] += 1
        return f"[image {self._images}]"


def merge_roles(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return messages with blocks, one for each run of a role."""
    merged: list[dict[str, Any]] = []
    for message in messages:
        blocks = blocks_of(message)
        role = "assistant" if message.get("role") == "assistant" else "user"
        if merged and merged[-1]["role"] == role:
            merged[-1]["content"] = merged[-1]["content"] + blocks
        else:
            merged.append({"role": role, "content": blocks})
    return merged


def chat_call(wire_id: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return a call in chat form."""
    function = {"name": short_name(name), "arguments": arguments}
    return {"id": wire_id, "type": "function", "function": function}


SYSTEM_TEMPLATE_VERSION = "template@1"
SYSTEM_TEMPLATE = (
    "You are a coding agent that works in a user's repository through tools.\n"
    "Do the next step of the task: call the tools that it needs, or answer in text when the"
    " task is done or you need to ask.\n"
    "Working directory: {cwd}\n"
    "Platform: unknown"
)


class Conversion(msgspec.Struct, frozen=True):
    """A prefix in chat form."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    #: The names on the wire -> the recorded ones.
    tool_names: dict[str, str]
    #: Counts of what had to be changed.
    flags: dict[str, int]
    #: ``recorded`` or the version of the template.
    system_source: str
    version: str = CONVERTER_VERSION


def to_chat(state: TraceState, *, tools: Sequence[Mapping[str, Any]] = ()) -> Conversion:
    """Convert a state's prefix to chat messages, system prompt first."""
    builder = Builder()
    for message in merge_roles(state.messages):
        _feed(builder, message)
    builder.close_calls({})
    if any(call.id and call.id in builder.seen for call in state.action.tool_calls):
        builder.flags["action_in_prefix"] += 1
    if builder.messages and builder.messages[-1]["role"] == "assistant":
        builder.flags["ends_with_assistant"] += 1
    system, source = system_message(state)
    recorded = builder.names | {str(tool["function"]["name"]) for tool in tools}
    names = {short_name(name): name for name in sorted(recorded)}
    return Conversion(
        messages=[{"role": "system", "content": system}, *builder.messages],
        tools=offered_tools(tools),
        tool_names=names,
        flags=dict(builder.flags),
        system_source=source,
    )


def system_message(state: TraceState) -> tuple[str, str]:
    """Return the system prompt of a state, and where it is from."""
    if state.system:
        return state.system, "recorded"
    # The session's own folder: the working directory of one response may move, and
    # would end the provider's prompt cache with it.
    text = SYSTEM_TEMPLATE.format(cwd=state.project or state.cwd or "unknown")
    return text, SYSTEM_TEMPLATE_VERSION


def offered_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return tools with names that every provider accepts."""
    return [
        {
            "type": "function",
            "function": {**tool["function"], "name": short_name(str(tool["function"]["name"]))},
        }
        for tool in tools
    ]


def action_message(action: Action) -> dict[str, Any]:
    """Return an action in chat form, its text left out where there are calls."""
    # A preference pair compares what was done, not how it was announced. Recorded ids leak nothing:
    # calls are numbered.
    if not action.tool_calls:
        return {"role": "assistant", "content": action.text}
    calls = [
        chat_call(f"call_{n}", call.name, call.arguments)
        for n, call in enumerate(action.tool_calls)
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def wire_messages(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return chat-form messages as the API wants them."""
    # Only chat templates read the tool name of tool messages.
    wire: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "tool":
            wire.append({k: v for k, v in message.items() if k != "name"})
        elif message.get("tool_calls"):
            calls = [
                {
                    "id": call["id"],
                    "type": "function",
                    "function": {
                        "name": call["function"]["name"],
                        "arguments": _json_text(call["function"]["arguments"]),
                    },
                }
                for call in message["tool_calls"]
            ]
            content = message.get("content") or None
            wire.append({"role": "assistant", "content": content, "tool_calls": calls})
        else:
            wire.append(dict(message))
    return wire


def parse_reply_message(
    message: Mapping[str, Any], tool_names: Mapping[str, str] | None = None
) -> Action:
    """Read a reply's message as an action, with recorded tool names."""
    names = tool_names or {}
    calls = []
    for call in message.get("tool_calls") or []:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise ValueError("a tool call has no function name")
        raw = function.get("arguments")
        try:
            arguments = orjson.loads(raw or "{}") if isinstance(raw, str | None) else raw
        except orjson.JSONDecodeError as error:
            raise ValueError(f"arguments of {function['name']} are not JSON") from error
        if not isinstance(arguments, dict):
            raise ValueError(f"arguments of {function['name']} are not a JSON object")
        name = function["name"]
        calls.append(ToolCall(names.get(name, name), arguments, str(call.get("id") or "")))
    text = _content_text(message.get("content")).strip()
    if not calls and not text:
        raise ValueError("the reply has neither text nor a tool call")
    return Action(text=text, tool_calls=tuple(calls))


def _json_text(arguments: Any) -> str:
    try:
        return orjson.dumps(arguments).decode()
    except TypeError:  # an integer beyond 64 bits, which JSON allows
        return json.dumps(arguments, separators=(",", ":"), ensure_ascii=False)


def _content_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = [p.get("text") for p in content if isinstance(p, dict) and p.get("type") == "text"]
        return "".join(part for part in parts if isinstance(part, str))
    return ""


def prompt_hash(prompt: Sequence[Mapping[str, Any]]) -> str:
    """Return the hash of a prompt's messages, the system message included."""
    text = json.dumps(prompt, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


class GrowingChain:
    """Converts the states of one chain, best in the order of their lengths."""

    def __init__(self) -> None:
        self._restart("")

    def _restart(self, system: str) -> None:
        self._system = {"role": "system", "content": system}
        self._builder = Builder()
        #: Messages of the chain that are in the builder for good.
        self._fed = 0

    @property
    def settled(self) -> int:
        """How many messages at the beginning stay the same, however the chain goes on."""
        # A text that follows is joined to the last message.
        return max(1, len(self._builder.messages))

    def at(self, state: TraceState) -> tuple[list[dict[str, Any]], bool]:
        """Return ``to_chat(state).messages``, and whether the prefix holds the action itself."""
        system = system_message(state)[0]
        messages = state.messages
        if len(messages) < self._fed or system != self._system["content"]:
            self._restart(system)
        rest = messages[self._fed :]
        merged = merge_roles(rest)
        for message in merged[:-1]:
            _feed(self._builder, message)
        # What follows in the chain may belong to the last message of this prefix.
        self._fed += len(rest) - _last_run(rest)
        builder = _copy(self._builder)
        for message in merged[-1:]:
            _feed(builder, message)
        builder.close_calls({})
        own = any(
            call.id and (call.id in builder.seen or call.id in self._builder.seen)
            for call in state.action.tool_calls
        )
        return [self._system, *builder.messages], own


def _feed(builder: Builder, message: dict[str, Any]) -> None:
    if message["role"] == "assistant":
        builder.assistant(message["content"])
    else:
        builder.user(message["content"])


def _last_run(messages: list[dict[str, Any]]) -> int:
    """Return how many messages at the end become one."""
    agent = [message.get("role") == "assistant" for message in messages]
    count = 0
    while count < len(agent) and agent[-1 - count] == agent[-1]:
        count += 1
    return count


def _copy(builder: Builder) -> Builder:
    """Return a builder that continues from here, with counts of its own."""
    twin = Builder()
    twin.messages = list(builder.messages)
    twin._pending = list(builder._pending)
    twin._calls, twin._images = builder._calls, builder._images
    return twin


class ArgumentCheck:
    """Checks a call's arguments by the schema that was offered."""

    def __init__(self, tools: Iterable[Mapping[str, Any]]) -> None:
        self.names: dict[str, str] = {}
        self._validators: dict[str, Any] = {}
        for tool in tools:
            function = tool["function"]
            name = str(function["name"])
            self.names[short_name(name)] = name
            validator = validator_of(function.get("parameters"))
            if validator is not None:
                self._validators[name] = validator

    def problem(self, call: ToolCall) -> str:
        """Return why a call would be refused, without any of its values, or nothing."""
        validator = self._validators.get(call.name)
        if validator is None:
            return ""
        try:
            error = jsonschema.exceptions.best_match(validator.iter_errors(call.arguments))
        except referencing.exceptions.Unresolvable:
            return ""
        return _describe(call.name, error) if error else ""


def _describe(tool: str, error: jsonschema.ValidationError) -> str:
    """Describe an error by the schema, never by the value: replies may hold private text."""
    path = ".".join(str(part) for part in error.absolute_path)
    of = f"{tool}: {path}" if path else tool
    if error.validator == "required":
        missing = [key for key in error.validator_value if key not in error.instance]
        return f"{of} without {missing[0]}" if missing else f"{of} without an argument"
    if error.validator == "type":
        return f"{of} is not of type {error.validator_value}"
    return f"{of} breaks the rule {error.validator}"
