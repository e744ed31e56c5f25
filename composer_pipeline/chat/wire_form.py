"""One message on the wire: an action as a message, chat form as wire form, a reply as an action.

Belongs here: what a provider's API takes and gives. Does not belong here: whole prefixes
(``chat.messages``) and how a body is sent (``replay.provider.client``).

*Chat form* keeps tool arguments as objects; the lake and TRL use it. *Wire form* has them as
JSON text, as the API wants them. Both keep the recorded key order, because prompt caches and
the request hash need the same bytes every time.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.chat.builder import chat_call


def action_message(action: Action) -> dict[str, Any]:
    """Return an action in chat form, rendered action-only.

    The text is left out where there are calls, so that a preference pair compares what was
    done and not how it was announced. Calls are numbered; recorded ids leak nothing.
    """
    if not action.tool_calls:
        return {"role": "assistant", "content": action.text}
    calls = [
        chat_call(f"call_{n}", call.name, call.arguments)
        for n, call in enumerate(action.tool_calls)
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
