"""Items of a Codex rollout to content blocks: texts, calls, their outputs.

Belongs here: rules that look at one item. Does not belong here: which items form a
response (``traces.reading.codex_rollout``).
"""

import hashlib
import re
from typing import Any

import msgspec

from composer_pipeline.traces.reading.raw_json import decode_any, encode

Item = dict[str, Any]


def raw(value: Any) -> msgspec.Raw:
    """Return a value as an undecoded part of a record."""
    return msgspec.Raw(encode(value))


def text_or_none(value: Any) -> str | None:
    """Return a text that is not empty; ``None`` for anything else."""
    return value if isinstance(value, str) and value else None


def hash_of(*parts: str) -> str:
    """Return a stable name for some texts."""
    data = "\0".join(parts).encode("utf-8", "replace")
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def texts_of(content: Any) -> list[Item]:
    """Return the blocks of a message's content; images become placeholders."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content.strip() else []
    blocks: list[Item] = []
    for part in content if isinstance(content, list) else []:
        if not isinstance(part, dict):
            continue
        if isinstance(part.get("text"), str):
            blocks.append({"type": "text", "text": part["text"]})
        elif part.get("type") == "input_image":
            blocks.append({"type": "image"})
    return blocks


def call_of(item: Item) -> Item | None:
    """Return the block of a call; ``None`` where it has no id."""
    call_id = text_or_none(item.get("call_id")) or text_or_none(item.get("id"))
    if call_id is None:
        return None
    name = text_or_none(item.get("name")) or "local_shell"
    given = item.get("arguments", item.get("input", item.get("action")))
    if isinstance(given, str):
        decoded = None
        if item.get("type") == "function_call":
            decoded = decode_any(given.encode("utf-8", "surrogatepass"))
        given = decoded if isinstance(decoded, dict) else {"input": given}
    if item.get("type") == "local_shell_call" and isinstance(given, dict):
        given = {key: value for key, value in given.items() if key != "type" and value is not None}
    arguments = given if isinstance(given, dict) else {}
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def output_of(item: Item) -> Item:
    """Return the block of a result, an error where it failed or its exit code is not 0."""
    output, failed = item.get("output"), False
    if isinstance(output, dict):
        failed = output.get("success") is False
        output = output.get("content", output.get("output"))
    if isinstance(output, list):
        output = "\n".join(str(block.get("text", "[image]")) for block in texts_of(output))
    text = output if isinstance(output, str) else ""
    code = 0
    if text.startswith("{"):
        text, code = _unwrapped(text)
    elif exited := _EXITED.match(text):
        code = int(exited[1])
    block: Item = {"type": "tool_result", "tool_use_id": item.get("call_id"), "content": text}
    return {**block, "is_error": True} if failed or code else block


_EXITED = re.compile(r"(?:Exit code: |Process exited with code )([0-9]{1,9})\b")


def _unwrapped(text: str) -> tuple[str, int]:
    """Return the text and the exit code inside ``{"output": ..., "metadata": ...}``."""
    value = decode_any(text.encode("utf-8", "surrogatepass"))
    metadata = value.get("metadata") if isinstance(value, dict) else None
    if not isinstance(metadata, dict) or not isinstance(value.get("output"), str):
        return text, 0
    code = metadata.get("exit_code")
    if not isinstance(code, int) or code == 0:
        return str(value["output"]), 0
    return f"Exit code {code}\n{value['output']}", code
