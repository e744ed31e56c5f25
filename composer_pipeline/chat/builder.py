"""Chat messages in order, every call answered exactly once.

Belongs here: building them block by block. Does not belong here: whole states and replies
(``chat.messages``).
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from composer_pipeline.actions import ERROR_PREFIX

INTERRUPTED = "[no result: interrupted]"


ORPHAN_PREFIX = "[tool result without call] "


def short_name(name: str) -> str:
    """Return a tool name that every provider accepts: ``[a-zA-Z0-9_-]{1,64}``.

    A name that has to change ends in a hash of the original, so two never collide.
    """
    clean = re.sub(r"[^a-zA-Z0-9_-]", "_", name)
    if clean == name and 0 < len(name) <= 64:
        return name
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
        """Add what the agent said and called; open calls are answered first."""
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
        """Add results of calls, and what the user said after them."""
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
        return chat_call(wire, name, arguments if isinstance(arguments, dict) else {})

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
        content = message.get("content") or []
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
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
