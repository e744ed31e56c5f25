"""Records that are no turns but change what the model saw.

Belongs here: attachments, prompt snapshots, what compactions say of themselves. Does not
belong here: where such a record lies on a path (``traces.graph.links``).
"""

from typing import Any

from composer_pipeline.traces.graph.content_blocks import PartMaker
from composer_pipeline.traces.graph.nodes import Note
from composer_pipeline.traces.graph.responses import object_of
from composer_pipeline.traces.reading import Record, decode_any, text_of


class SideRecords:
    """Such records of one file, by position.

    ``notes`` are those with a text that the model saw, ``clears`` the tool ids whose
    results a microcompaction removed, ``compacted`` what a compaction says it kept.
    ``snapshots`` are the positions from which on a system prompt and a list of tools held
    (pieces of the pool), ``compactions`` counts the boundaries.

    Args:
        parts: makes the parts of texts; its pool receives the contents.
    """

    def __init__(self, parts: PartMaker) -> None:
        self.notes: dict[int, Note] = {}
        self.clears: dict[int, frozenset[str]] = {}
        self.compacted: dict[int, Any] = {}
        self.snapshots: list[tuple[int, int | None, int | None]] = []
        self.compactions = 0
        self._parts = parts

    def take_attachment(self, at: int, record: Record) -> None:
        """Note the text of an attachment, or the prompt and the tools that it records."""
        attachment = object_of(decode_any(record.attachment))
        text, rendered = record.rendered, record.rendered is not None
        if not rendered and attachment.get("type") == "queued_command":
            text = text_of(attachment.get("prompt"))
        parts = () if text is None else tuple(self._parts.of_content(text, {}))
        if parts or rendered:
            as_assistant = rendered and record.rendered_role == "assistant"
            role: Any = "assistant" if as_assistant else "user"
            self.notes[at] = Note("attachment", parts, rendered, role)
        if attachment.get("type") == "prompt_snapshot":
            self._take_snapshot(at, attachment)

    def _take_snapshot(self, at: int, attachment: dict[str, Any]) -> None:
        put, system, tools = (
            self._parts.pool.put,
            attachment.get("systemPrompt"),
            attachment.get("tools"),
        )
        if isinstance(system, list):
            system = "\n\n".join(text_of([part]) for part in system)
        # A snapshot names only what changed: the other one holds on.
        _, known_system, known_tools = self.snapshots[-1] if self.snapshots else (at, None, None)
        self.snapshots.append(
            (
                at,
                put(system) if isinstance(system, str) and system else known_system,
                put(tools) if isinstance(tools, list) and tools else known_tools,
            )
        )

    def take_boundary(self, at: int, kind: str, record: Record) -> None:
        """Note a compaction or a microcompaction."""
        if record.subtype == "compact_boundary":
            self.compactions += kind == "system"
            self.compacted[at] = decode_any(record.compact_metadata)
        elif record.subtype == "microcompact_boundary":
            metadata = decode_any(record.microcompact_metadata)
            metadata = object_of(metadata or decode_any(record.compact_metadata))
            ids = metadata.get("compactedToolIds")
            ids = ids if isinstance(ids, list) else []
            self.clears[at] = frozenset(i for i in ids if isinstance(i, str))
