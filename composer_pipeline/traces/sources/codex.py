"""The rollout files of Codex CLI."""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from composer_pipeline.traces.records import LineStats, Record, blake, decode_any, encode
from composer_pipeline.traces.source import (
    TraceSource,
    home,
    object_of_line,
    objects,
    text_or_none,
)

Item = dict[str, Any]


def raw(value: Any) -> msgspec.Raw:
    """Return a value as an undecoded part of a record."""
    return msgspec.Raw(encode(value))


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
    """Return the block of a call; ``None`` if it has no id."""
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
    """Return the block of a result, an error if it failed or its exit code is not 0."""
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
    """The conversation of one rollout, line by line; counts unknown items into ``stats``."""

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
        """Yield the response whose items have been collected, if any."""
        if not self._blocks:
            return
        blocks, self._blocks = self._blocks, []
        calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
        spoken = "\0".join(str(block.get("text")) for block in blocks)
        self.key = f"codex:{calls[0] if calls else blake(self.key, spoken)}"
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
        """Start anew with the summary and what the replacement keeps."""
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


class Codex(TraceSource):
    """The rollout files of Codex CLI."""

    name = "codex"

    def folders(self) -> list[Path]:
        """Return the folders of the sessions and of the archived ones."""
        folder = home("CODEX_HOME", ".codex")
        return [folder / "sessions", folder / "archived_sessions"]

    def recognises(self, head: Sequence[bytes]) -> bool:
        """Return True if the first line that is an object is a rollout's."""
        for line in head:
            if (value := object_of_line(line)) is not None:
                kind = value.get("type")
                known = isinstance(kind, str) and kind in TYPES
                return known and isinstance(value.get("payload"), dict)
        return False

    def records(self, lines: Iterable[bytes], stats: LineStats) -> Iterator[Record]:
        """Yield the conversation as records; an undecodable line is counted."""
        rollout = Rollout(stats)
        for value in objects(lines, stats):
            yield from rollout.take(value)
        yield from rollout.flush()
