"""A Codex rollout to records: which items are one response, what is a prompt.

Belongs here: what one line changes, and the order of records. Does not belong here: the
content of one item (``traces.reading.codex_items``) and lines that are no JSON
(``traces.reading.codex``).
"""

from collections.abc import Iterator
from typing import Any

from composer_pipeline.traces.reading.codex_items import (
    Item,
    call_of,
    hash_of,
    output_of,
    raw,
    text_or_none,
    texts_of,
)
from composer_pipeline.traces.reading.envelopes import Record
from composer_pipeline.traces.reading.records import LineStats

TYPES = frozenset({"session_meta", "turn_context", "response_item", "event_msg", "compacted"})

# Items that the interface or the provider makes, and that say nothing to train on.
_SILENT = frozenset({"reasoning", "web_search_call", "ghost_snapshot", "compaction", "other"})
_CALLS = frozenset({"function_call", "custom_tool_call", "local_shell_call"})
_OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output"})

# What Codex itself tells the model, in the role of the user.
_META = (
    "<environment_context>",
    "<user_instructions>",
    "<permissions instructions>",
    "<collaboration_mode>",
    "<skill",
    "# AGENTS.md instructions",
)

_INTERRUPT = "[Request interrupted by user]"


class Rollout:
    """The conversation of one rollout, line by line.

    Args:
        stats: receives the counts of unknown items.
    """

    def __init__(self, stats: LineStats) -> None:
        self.stats = stats
        self.session = ""
        self.version: str | None = None
        self.cwd: str | None = None
        self.model = ""
        self.time: str | None = None
        self.last: str | None = None
        self.count = 0
        self.key = ""
        self._blocks: list[Item] = []
        self._begun: str | None = None
        self._usage: Item = {}

    def take(self, line: Item) -> Iterator[Record]:
        """Take one line; yield the records that it completes."""
        kind, payload = text_or_none(line.get("type")), line.get("payload")
        if not isinstance(payload, dict) or kind not in TYPES:
            self._unknown(kind)
            return
        self.time = text_or_none(line.get("timestamp")) or self.time
        if kind == "response_item":
            yield from self._item(payload)
        elif kind == "event_msg":
            yield from self._event(payload)
        else:
            yield from self.flush()
            if kind == "session_meta":
                yield from self._meta(payload)
            elif kind == "turn_context":
                self.model = text_or_none(payload.get("model")) or self.model
                self.cwd = text_or_none(payload.get("cwd")) or self.cwd
            else:
                yield from self._compacted(payload)

    def flush(self) -> Iterator[Record]:
        """Yield the response whose items have been collected, if there is one."""
        if not self._blocks:
            return
        blocks, self._blocks = self._blocks, []
        calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
        spoken = "\0".join(str(block.get("text")) for block in blocks)
        self.key = f"codex:{calls[0] if calls else hash_of(self.key, spoken)}"
        usage, self._usage = self._usage, {}
        body = {"id": self.key, "role": "assistant", "model": self.model, "content": blocks}
        now, self.time = self.time, self._begun
        yield self._record("assistant", {**body, "usage": usage})
        self.time = now

    def _meta(self, payload: Item) -> Iterator[Record]:
        if self.session:
            return  # a fork repeats the meta line of the session that it comes from
        self.session = (
            text_or_none(payload.get("id")) or text_or_none(payload.get("session_id")) or ""
        )
        self.version = text_or_none(payload.get("cli_version"))
        self.cwd = text_or_none(payload.get("cwd"))
        self.time = self.time or text_or_none(payload.get("timestamp"))
        base = payload.get("base_instructions")
        system = text_or_none(base.get("text")) if isinstance(base, dict) else text_or_none(base)
        if system:
            snapshot = {"type": "prompt_snapshot", "systemPrompt": system}
            yield self._record("attachment", None, attachment=raw(snapshot))

    def _item(self, item: Item) -> Iterator[Record]:
        kind = text_or_none(item.get("type"))
        if kind == "message" and item.get("role") == "assistant":
            self._collect(*texts_of(item.get("content")))
        elif kind in _CALLS and (call := call_of(item)) is not None:
            self._collect(call)
        elif kind == "message":
            yield from self.flush()
            yield from self._message(item)
        elif kind in _OUTPUTS:
            yield from self.flush()
            yield self._record("user", {"role": "user", "content": [output_of(item)]})
        elif kind not in _SILENT:
            self._unknown(f"response_item/{kind}")

    def _collect(self, *blocks: Item) -> None:
        if not self._blocks:
            self._begun = self.time
        self._blocks += blocks

    def _message(self, item: Item) -> Iterator[Record]:
        blocks = texts_of(item.get("content"))
        text = "\n".join(str(block.get("text", "")) for block in blocks).lstrip()
        if text.startswith("<turn_aborted>"):
            return  # the event of the same meaning is used
        meta = item.get("role") != "user" or text.startswith(_META)
        if blocks:
            body = {"role": "user", "content": blocks}
            yield self._record("user", body, is_meta=True if meta else None)

    def _event(self, event: Item) -> Iterator[Record]:
        kind = event.get("type")
        if kind == "token_count":
            info = event.get("info")
            usage = info.get("last_token_usage") if isinstance(info, dict) else None
            if isinstance(usage, dict):
                names = ("input_tokens", "output_tokens")
                self._usage = {n: usage[n] for n in names if isinstance(usage.get(n), int)}
        elif kind == "turn_aborted":
            yield from self.flush()
            yield self._record("user", {"role": "user", "content": _INTERRUPT})
        elif kind in ("task_started", "turn_started", "task_complete", "turn_complete"):
            yield from self.flush()

    def _compacted(self, payload: Item) -> Iterator[Record]:
        """Begin anew with the summary and what the replacement keeps."""
        self.last = None
        yield self._record("system", None, subtype="compact_boundary")
        kept = payload.get("replacement_history")
        blocks: list[Item] = []
        for item in kept if isinstance(kept, list) else []:
            if isinstance(item, dict) and item.get("type", "message") == "message":
                blocks += texts_of(item.get("content"))
        summary = text_or_none(payload.get("message"))
        if summary and not any(block.get("text") == summary for block in blocks):
            blocks.append({"type": "text", "text": summary})
        blocks = blocks or [{"type": "text", "text": "[summary is not readable]"}]
        body = {"role": "user", "content": blocks}
        yield self._record("user", body, is_compact_summary=True)

    def _record(self, kind: str, message: Item | None, **fields: Any) -> Record:
        self.count += 1
        uuid = f"{self.session}:{self.count}"
        if message is not None:
            fields["message"] = raw(message)
        record = Record(
            type=kind,
            uuid=uuid,
            parent_uuid=self.last,
            session_id=self.session or None,
            timestamp=self.time,
            version=self.version,
            cwd=self.cwd,
            is_sidechain=False,
            **fields,
        )
        self.last = uuid
        return record

    def _unknown(self, kind: Any) -> None:
        self.stats.unknown_types[f"codex/{kind}"] += 1
