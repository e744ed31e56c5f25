"""What must hold of every converted prefix, written a second time from the rules alone.

The rules, in short: I1 every call is answered exactly once and at once, no call is
invented; I2 errors are marked; I3 images leave numbered placeholders; I4 text is never
lost; I5 no role speaks twice in a row; I6 thinking is never sent; I7 no empty turn; I8 call
ids say nothing; I9 names fit and come back; I10 arguments keep their order; I11 the action
is not in its own prefix; I12 nothing is cut out.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from composer_pipeline.actions import ERROR_PREFIX
from composer_pipeline.chat.convert import INTERRUPTED, ORPHAN_PREFIX, Conversion, wire_messages

_Messages = Sequence[Mapping[str, Any]]

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def broken_rules(prefix: _Messages, converted: Conversion) -> list[str]:
    """Return what is wrong with a conversion, a sentence each; empty where it is right.

    Args:
        prefix: Anthropic-shaped messages ``{role, content}``, thinking blocks allowed.
        converted: what ``to_chat`` made of them.
    """
    chat = converted.messages
    found = [] if chat and chat[0]["role"] == "system" else ["no system prompt first"]
    found += _order(chat[1:])
    found += _calls(prefix, converted)
    found += _results(prefix, chat)
    found += _texts(prefix, chat)
    found += _wire(chat)
    return found


def _order(chat: _Messages) -> Iterator[str]:
    """I1, I5, I7, I8."""
    open_ids: list[str] = []
    before = ""
    number = 0
    for position, message in enumerate(chat):
        role = message["role"]
        if role == "tool":
            if not open_ids or message["tool_call_id"] != open_ids.pop(0):
                yield f"I1: message {position} answers a call that is not the next open one"
        elif open_ids:
            yield f"I1: message {position} comes before call {open_ids[0]} is answered"
            open_ids = []
        if role == before and role != "tool":
            yield f"I5: message {position} has the role of the one before it"
        if role != "tool" and not message["content"] and not message.get("tool_calls"):
            yield f"I7: message {position} is empty"
        for call in message.get("tool_calls", ()):
            if call["id"] != f"call_{number}":
                yield f"I8: message {position} has the id {call['id']}"
            number += 1
            open_ids.append(call["id"])
        before = role
    if open_ids:
        yield f"I1: call {open_ids[0]} is never answered"


def _calls(prefix: _Messages, converted: Conversion) -> Iterator[str]:
    """I1 (no call invented, none lost), I9 and I10."""
    recorded = [
        (str(block.get("name", "")), block.get("input"))
        for block in _blocks(prefix, "assistant")
        if block.get("type") == "tool_use"
    ]
    sent = [
        call["function"] for message in converted.messages for call in message.get("tool_calls", ())
    ]
    if len(recorded) != len(sent):
        yield f"I1: {len(recorded)} calls were recorded and {len(sent)} are sent"
        return
    for (name, arguments), function in zip(recorded, sent, strict=True):
        if not _NAME.fullmatch(function["name"]):
            yield f"I9: the name {function['name']!r} is not accepted everywhere"
        if converted.tool_names.get(function["name"]) != name:
            yield f"I9: {function['name']} does not lead back to {name!r}"
        expected = arguments if isinstance(arguments, dict) else {}
        if json.dumps(function["arguments"]) != json.dumps(expected):
            yield f"I10: arguments of {function['name']} changed"


def _results(prefix: _Messages, chat: _Messages) -> Iterator[str]:
    """I1 (synthetic and orphan results) and I2."""
    answers = [message["content"] for message in chat if message["role"] == "tool"]
    said = "\n".join(m["content"] for m in chat if m["role"] == "user")
    calls = {str(b.get("id")) for b in _blocks(prefix, "assistant") if b.get("type") == "tool_use"}
    results = [b for b in _blocks(prefix, "user") if b.get("type") == "tool_result"]
    orphans = [b for b in results if str(b.get("tool_use_id", "")) not in calls]
    if said.count(ORPHAN_PREFIX) < len(orphans):
        yield f"I1: of {len(orphans)} results without a call some are not in user text"
    marked = sum(answer.startswith(ERROR_PREFIX) for answer in answers)
    marked += said.count(ORPHAN_PREFIX + ERROR_PREFIX)
    failed = sum(b.get("is_error") is True for b in results)
    if marked < failed:
        yield f"I2: {failed} results are errors and {marked} say so"
    invented = sum(answer == INTERRUPTED for answer in answers)
    answered = {str(b.get("tool_use_id", "")) for b in results} & calls
    if invented < len(calls) - len(answered):
        yield f"I1: {len(calls) - len(answered)} calls have no result, {invented} say so"


def _texts(prefix: _Messages, chat: _Messages) -> Iterator[str]:
    """I3, I4, I6 and I12: every text is there, thinking is not."""
    by_role = {
        role: "\n".join(str(m["content"]) for m in chat if m["role"] in roles)
        for role, roles in (("assistant", ("assistant",)), ("user", ("user", "tool")))
    }
    images = 0
    for role, haystack in by_role.items():
        start = 0
        for block in _blocks(prefix, role):
            kind = block.get("type")
            if kind in ("thinking", "redacted_thinking"):
                thought = str(block.get("thinking") or "").strip()
                if thought and thought in haystack:
                    yield "I6: a thought is sent"
                continue
            for text in _strings(block):
                if not text.strip():
                    continue
                at = haystack.find(text, start if role == "assistant" else 0)
                if at < 0:
                    yield f"I12: a text of {len(text)} characters is gone or out of order"
                elif role == "assistant":
                    start = at
            images += _images(block)
    everything = "\n".join(by_role.values())
    bare = [n for n in range(1, images + 1) if f"[image {n}]" not in everything]
    yield from (f"I3: image {n} left no placeholder" for n in bare)


def _wire(chat: _Messages) -> Iterator[str]:
    """I7 on the wire: null beside calls, never an empty text; arguments are JSON text."""
    for position, message in enumerate(wire_messages(chat)):
        content = message["content"]
        if content == "" and message["role"] != "tool":
            yield f"I7: wire message {position} has an empty content"
        if content is None and not message.get("tool_calls"):
            yield f"I7: wire message {position} is null without a call"
        for call in message.get("tool_calls", ()):
            if not isinstance(orjson.loads(call["function"]["arguments"]), dict):
                yield f"I10: wire message {position} has arguments that are no object"


def leaks(prefix: _Messages, call_ids: Sequence[str]) -> list[str]:
    """Return what of the action is in its own prefix (I11).

    Args:
        prefix: the state's messages.
        call_ids: recorded ids of the action's calls.
    """
    own = {call for call in call_ids if call}
    seen = {str(b.get("id")) for b in _blocks(prefix, "assistant") if b.get("type") == "tool_use"}
    seen |= {str(b.get("tool_use_id")) for b in _blocks(prefix, "user")}
    return [f"I11: call {call} of the action is in its prefix" for call in sorted(own & seen)]


def _blocks(prefix: _Messages, role: str) -> Iterator[Mapping[str, Any]]:
    for message in prefix:
        if (message.get("role") == "assistant") != (role == "assistant"):
            continue
        content = message.get("content") or []
        if isinstance(content, str):
            yield {"type": "text", "text": content}
        else:
            yield from (block for block in content if isinstance(block, Mapping))


def _strings(block: Mapping[str, Any]) -> Iterator[str]:
    if block.get("type") == "text":
        yield str(block.get("text", ""))
    elif block.get("type") == "tool_result":
        content = block.get("content", "")
        if isinstance(content, str):
            yield content
        for item in content if isinstance(content, list) else ():
            if isinstance(item, Mapping) and item.get("type") == "text":
                yield str(item.get("text", ""))


def _images(block: Mapping[str, Any]) -> int:
    if block.get("type") == "image":
        return 1
    content = block.get("content")
    if block.get("type") != "tool_result" or not isinstance(content, list):
        return 0
    return sum(isinstance(item, Mapping) and item.get("type") == "image" for item in content)
