"""Content blocks to parts of messages, and back.

Belongs here: which blocks the model saw, and their way into the pool. Does not belong
here: which node a part belongs to (``traces.graph.collect``), and the JSON of messages
(``traces.states.messages``).
"""

from typing import Any

from composer_pipeline.traces.graph.nodes import Call, Part
from composer_pipeline.traces.graph.pool import Pool
from composer_pipeline.traces.reading import (
    Block,
    Message,
    blocks_of,
    decode_any,
    decode_text,
    result_text,
)

_THINKING = ("thinking", "redacted_thinking")


class PartMaker:
    """Makes parts of one trajectory; contents go to its pool.

    Args:
        pool: receives the contents.
        names: one object for each name of a tool.
    """

    def __init__(self, pool: Pool, names: dict[str, str]) -> None:
        self.pool = pool
        self._names = names

    def of_message(self, message: Message, wire: dict[str, Any] | None = None) -> list[Part]:
        """Keep the blocks of a decoded message; thinking and blank text are dropped.

        Args:
            message: the message.
            wire: for calls whose recorded input was normalised, what the model emitted.
        """
        parts: list[Part] = []
        put, content = self.pool.put, message.content
        if isinstance(content, str):
            return [Part("text", put(content))] if content and not content.isspace() else []
        for block in content or ():
            kind = block.type
            if kind == "text":
                text = decode_text(block.text)
                if text and not text.isspace():
                    parts.append(Part("text", put(text)))
            elif kind == "tool_use":
                if (call_id := block.id) is not None:
                    name = block.name or ""
                    name = self._names.setdefault(name, name)
                    known = wire is not None and call_id in wire
                    value = wire[call_id] if wire is not None and known else decode_any(block.input)
                    piece = put(value)
                    parts.append(Call("tool_use", piece, call_id, name, known, pool=self.pool))
            elif kind == "tool_result":
                text = decode_text(block.content)
                if text is None:
                    text = result_text({"content": decode_any(block.content)})
                error = block.is_error is True
                parts.append(Part("tool_result", put(text), str(block.tool_use_id), "", error))
        return parts

    def of_content(self, content: Any, wire: dict[str, Any]) -> list[Part]:
        """Keep the blocks of decoded content, as :meth:`of_message`.

        Args:
            content: a string or a list of blocks.
            wire: for calls whose recorded input was normalised, what the model emitted.
        """
        parts: list[Part] = []
        put = self.pool.put
        for block in blocks_of(content):
            kind = block.get("type")
            if kind == "tool_use":
                call_id = block.get("id")
                if isinstance(call_id, str):
                    name = str(block.get("name") or "")
                    name = self._names.setdefault(name, name)
                    piece = put(wire.get(call_id, block.get("input")))
                    known = call_id in wire
                    parts.append(Call("tool_use", piece, call_id, name, known, pool=self.pool))
            elif kind == "tool_result":
                piece = put(result_text(block))
                error = block.get("is_error") is True
                call_id = str(block.get("tool_use_id"))
                parts.append(Part("tool_result", piece, call_id, "", error))
            elif kind == "text":
                text = block.get("text")
                if isinstance(text, str) and text.strip():
                    parts.append(Part("text", put(text)))
            elif kind in ("image", "document"):
                parts.append(Part("other", put({"type": kind})))
            elif kind not in _THINKING:
                parts.append(Part("other", put(block)))
        return parts

    def block_of(self, part: Part) -> Block:
        """Return a part as a block."""
        value = self.pool.load(part.piece)
        if part.kind == "text":
            return {"type": "text", "text": value}
        if part.kind == "tool_result":
            block = {"type": "tool_result", "tool_use_id": part.id, "content": value}
            return {**block, "is_error": True} if part.flag else block
        if part.kind == "tool_use":
            return {"type": "tool_use", "id": part.id, "name": part.name, "input": value}
        return value if isinstance(value, dict) else {}
