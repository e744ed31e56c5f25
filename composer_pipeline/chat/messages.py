"""An Anthropic-shaped prefix as OpenAI chat messages, and replies back as actions.

Belongs here: the invariants that make a converted prefix valid for every provider, the
neutral system prompt, names and ids on the wire. Does not belong here: which tools are
offered (``chat.tools``) and how a body is sent (``replay.provider.client``).

Two forms. *Chat form* keeps tool arguments as objects; the lake and TRL use it. *Wire form*
(:func:`wire_messages`) has them as JSON text, as the API wants them. Both keep the recorded
key order, because prompt caches and the request hash need the same bytes every time.

What is changed on the way is counted in :attr:`Conversion.flags`:

* every call is answered exactly once, right after it: ``synthetic_result`` for a call that
  was interrupted, ``orphan_result`` for a result without a call (it becomes user text);
* ``tool_error``: the result's text starts with :data:`ERROR_PREFIX`;
* ``image_dropped``, ``block_dropped``: a placeholder or nothing stands for the block;
* ``text_after_call``: text that followed a call was moved before it;
* ``ends_with_assistant``: the agent spoke twice in a row;
* ``action_in_prefix``: the prefix holds the action itself and must not be sent.

Thinking is dropped without a flag: its signatures mean nothing to another family, and its
text would contaminate the vote.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import orjson

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.trace_states import TraceState

#: Part of every reply's provenance; raise it when the converted bytes change.
CONVERTER_VERSION = "1"

ERROR_PREFIX = "[tool error] "
INTERRUPTED = "[no result: interrupted]"
ORPHAN_PREFIX = "[tool result without call] "

SYSTEM_TEMPLATE_VERSION = "template@1"
SYSTEM_TEMPLATE = (
    "You are a coding agent that works in a user's repository through tools.\n"
    "Do the next step of the task: call the tools that it needs, or answer in text when the"
    " task is done or you need to ask.\n"
    "Working directory: {cwd}\n"
    "Platform: unknown"
)


class Conversion(msgspec.Struct, frozen=True):
    """A prefix in chat form.

    ``tool_names`` maps the names on the wire to the recorded ones; ``flags`` counts what
    had to be changed; ``system_source`` is ``recorded`` or the template's version.
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    tool_names: dict[str, str]
    flags: dict[str, int]
    system_source: str
    version: str = CONVERTER_VERSION


def to_chat(state: TraceState, *, tools: Sequence[Mapping[str, Any]] = ()) -> Conversion:
    """Convert a state's prefix to chat messages, system prompt first.

    Args:
        state: the state.
        tools: tool schemas in OpenAI form, with recorded names.
    """
    builder = _Builder()
    for message in _merge_roles(state.messages):
        if message["role"] == "assistant":
            builder.assistant(message["content"])
        else:
            builder.user(message["content"])
    builder.close_calls({})
    if any(call.id and call.id in builder.seen for call in state.action.tool_calls):
        builder.flags["action_in_prefix"] += 1
    if builder.messages and builder.messages[-1]["role"] == "assistant":
        builder.flags["ends_with_assistant"] += 1
    if state.system:
        system, source = state.system, "recorded"
    else:
        # The session's own folder: the working directory of one response may move, and
        # would end the provider's prompt cache with it.
        system = SYSTEM_TEMPLATE.format(cwd=state.project or state.cwd or "unknown")
        source = SYSTEM_TEMPLATE_VERSION
    offered = [_renamed(tool) for tool in tools]
    recorded = builder.names | {str(tool["function"]["name"]) for tool in tools}
    names = {short_name(name): name for name in sorted(recorded)}
    return Conversion(
        messages=[{"role": "system", "content": system}, *builder.messages],
        tools=offered,
        tool_names=names,
        flags=dict(builder.flags),
        system_source=source,
    )


def action_message(action: Action) -> dict[str, Any]:
    """Return an action in chat form, rendered action-only.

    The text is left out where there are calls, so that a preference pair compares what was
    done and not how it was announced. Calls are numbered; recorded ids leak nothing.
    """
    if not action.tool_calls:
        return {"role": "assistant", "content": action.text}
    calls = [
        _call(f"call_{n}", call.name, call.arguments) for n, call in enumerate(action.tool_calls)
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def wire_messages(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return chat-form messages as the API wants them.

    Arguments become JSON text, empty content beside calls becomes null, and the tool name,
    which only chat templates read, is left out of tool messages.
    """
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
    """Read a reply's message as an action, with recorded tool names.

    Args:
        message: ``choices[0].message`` of a reply.
        tool_names: :attr:`Conversion.tool_names`, to undo shortened names.

    Raises:
        ValueError: no text and no call, or arguments that are not a JSON object.
    """
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


def short_name(name: str) -> str:
    """Return a tool name that every provider accepts: ``[a-zA-Z0-9_-]{1,64}``.

    A name that has to change ends in a hash of the original, so two never collide.
    """
    clean = re.sub(r"[^a-zA-Z0-9_-]", "_", name)
    if clean == name and 0 < len(name) <= 64:
        return name
    return f"{clean[:55]}_{hashlib.blake2b(name.encode(), digest_size=4).hexdigest()}"


class _Builder:
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
        arguments = block.get("input")
        return _call(wire, name, arguments if isinstance(arguments, dict) else {})

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


def _merge_roles(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    merged: list[dict[str, Any]] = []
    for message in messages:
        content = message.get("content") or []
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
        role = "assistant" if message.get("role") == "assistant" else "user"
        if merged and merged[-1]["role"] == role:
            merged[-1]["content"] = merged[-1]["content"] + blocks
        else:
            merged.append({"role": role, "content": blocks})
    return merged


def _call(wire_id: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    function = {"name": short_name(name), "arguments": arguments}
    return {"id": wire_id, "type": "function", "function": function}


def _json_text(arguments: Any) -> str:
    try:
        return orjson.dumps(arguments).decode()
    except TypeError:  # an integer beyond 64 bits, which JSON allows
        return json.dumps(arguments, separators=(",", ":"), ensure_ascii=False)


def _renamed(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = {**tool["function"], "name": short_name(str(tool["function"]["name"]))}
    return {"type": "function", "function": function}


def _content_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = [p.get("text") for p in content if isinstance(p, dict) and p.get("type") == "text"]
        return "".join(part for part in parts if isinstance(part, str))
    return ""
