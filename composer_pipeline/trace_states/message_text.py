"""Stored messages as text: what was said, called and answered.

Belongs here: words of one message. Does not belong here: folding, cutting and colouring
(``cli.views``, ``previews``).
"""

import json
from collections.abc import Mapping
from typing import Any


def blocks_of(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the blocks of a stored message."""
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def block_text(block: Mapping[str, Any]) -> str:
    """Return one block as text: said, called or answered."""
    kind = block.get("type")
    if kind == "text":
        return str(block.get("text"))
    if kind == "tool_use":
        return f"-> {block['name']} {json.dumps(block['input'], ensure_ascii=False)}"
    if kind == "tool_result":
        return f"<- {'error: ' if block.get('is_error') else ''}{block.get('content')}"
    return f"[{kind}]"
