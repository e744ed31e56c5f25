"""The rollout files of Codex CLI."""

import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import zstandard

from composer_pipeline.files import mapping_at, mappings
from composer_pipeline.traces.records import LineStats, PlainBlock, Record, blake
from composer_pipeline.traces.source import (
    Conversation,
    TraceSource,
    call_block,
    content_blocks,
    content_text,
    first_object,
    home,
    objects,
    result_block,
    text_or_none,
    total,
)

Item = dict[str, Any]

#: What a rollout's lines are; those that no model sees are silent.
TYPES = frozenset({
    "session_meta", "turn_context", "response_item", "event_msg", "compacted",
    "inter_agent_communication", "token_usage_record",
})  # fmt: skip
_SILENT_TYPES = frozenset({
    "world_state", "inter_agent_communication_metadata", "realtime_item", "retained_context",
    "security_risk_score", "dynamic_tools_updated",
})  # fmt: skip

_CALLS = frozenset({"function_call", "custom_tool_call", "local_shell_call", "tool_search_call"})
_OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output", "tool_search_output"})
_ENCRYPTED = frozenset({"compaction", "context_compaction", "compaction_summary"})
# Searches and images that the provider makes come without a result; tools are no message.
_SILENT_ITEMS = frozenset({
    "web_search_call", "image_generation_call", "additional_tools", "configuration_update",
    "compaction_trigger", "ghost_snapshot", "other",
})  # fmt: skip

_TURNS = frozenset({"task_started", "turn_started", "task_complete", "turn_complete"})
_ENDINGS = frozenset({"item_completed", "patch_apply_end", "mcp_tool_call_end", "exec_command_end"})
_SILENT_EVENTS = re.compile(
    r"(?:agent|background|collab|dynamic_tool_call|guardian|hook|image_generation|mcp_startup|model"
    r"|plan|safety|sub_agent|thread_(?:goal|name|settings)|turn_(?:diff|moderation)|undo|web_search)"
    r".*|context_compacted|deprecation_notice|(?:entered|exited)_review_mode|(?:stream_)?error"
    r"|item_started|shutdown_complete|user_message|view_image_tool_call|warning"
)

# What Codex itself tells the model in the role of the user.
_CONTEXT = re.compile(
    r"\s*(?:# AGENTS\.md instructions|<(?:environment_context|user_instructions|INSTRUCTIONS"
    r"|permissions instructions|collaboration_mode|skills?|skills_instructions|user_shell_command"
    r"|turn_aborted|subagent_notification|goal_context|codex_internal_context|recommended_plugins"
    r"|additional_context|multiagent_context|hook_prompt|agent_message_board_notification"
    r"|legacy_\w+)\b)"
)

# The exit code stands among the header lines of an output, or at the end of older JSON.
_EXIT_CODE = re.compile(
    r"(?:(?!Output:)[^\n]*\n){0,6}?(?:Exit code: |Process exited with code )(-?\d+)\b"
)
_METADATA = re.compile(r'"metadata": ?\{"exit_code": ?(-?\d+)\b')
# How the answers begin that Codex gives in place of a tool, and those of a script that failed.
_FAILED = re.compile(
    r"(?:Wall time: .*\n)?(?:Script failed|apply_patch verification failed|aborted by user|err: "
    r"|(?:patch|exec command) rejected by user|user (?:rejected|cancelled) MCP tool call"
    r"|unsupported (?:custom tool )?call: |failed to parse |exec_command failed|write_stdin failed"
    r"|tool call error: |execution error: |failed in sandbox|Rejected\(|unable to )"
)


def _answered_by(item: Item) -> list[PlainBlock]:
    """Return the blocks of an item that the model made; a call without an id is none."""
    kind = item.get("type")
    if kind not in _CALLS:
        return content_blocks(item.get("content"))
    call_id = text_or_none(item.get("call_id")) or text_or_none(item.get("id"))
    if call_id is None:
        return []
    name = text_or_none(item.get("name")) or kind.removesuffix("_call")
    if space := text_or_none(item.get("namespace")):
        name = f"{space}{name}" if space.endswith("__") else f"{space}.{name}"
    given = item.get("arguments", item.get("input", item.get("action")))
    if kind == "local_shell_call" and isinstance(given, dict):
        given = {key: value for key, value in given.items() if key != "type" and value is not None}
    return [call_block(call_id, name, given, encoded=kind == "function_call")]


class Rollout:
    """The conversation of one rollout, line by line."""

    def __init__(self, stats: LineStats) -> None:
        self.conversation = Conversation(stats)
        self._thread = ""
        self._system = ""
        self._model = ""
        # The response that is being read; it ends where what follows belongs to another one.
        self._blocks: list[PlainBlock] = []
        self._results: list[PlainBlock] = []
        self._begun: str | None = None
        self._item_id: str | None = None
        self._sampled: Any = None  # how much of the history it saw, in newer files
        self._tokens: tuple[int | None, int | None] = (None, None)
        self._counted = False  # its tokens were told, hence it is complete
        self._key = ""
        self._total: Any = None
        self._has_records = False  # of tokens, which come in place of events
        self._open: dict[str, None] = {}  # calls that have no result yet
        self._failed: set[str] = set()  # calls that an event says failed
        self._nested_failed = False  # a call that a script made did
        # Where each turn of the user began: the record before it, and the fidelity there.
        self._turns: list[tuple[str | None, str | None]] = []
        self._before_context: tuple[str | None] | None = None
        self._interrupted = False
        # Lines that belong to the rollout that this one was forked from.
        self._copying = False
        self._own_from: int | None = None
        self._n_copied = 0

    def take(self, line: Item) -> Iterator[Record]:
        """Take one line; yield the records that it completes."""
        kind, payload = text_or_none(line.get("type")), line.get("payload")
        if kind in _SILENT_TYPES:
            return
        if not isinstance(payload, dict) or kind not in TYPES:
            self.conversation.unknown(kind)
            return
        if self._own_from is not None:
            yield from self._count_ordinal(line.get("ordinal"))
        self.conversation.time = text_or_none(line.get("timestamp")) or self.conversation.time
        if kind == "event_msg":
            yield from self._event(payload)
        elif kind == "response_item":
            yield from self._item(payload, mapping_at(line, "metadata"))
        elif kind == "token_usage_record":
            self._has_records = True
            self._count(payload.get("usage"))
        elif kind == "compacted":
            yield from self._compacted(payload)
        else:
            yield from self._boundary(kind, payload)

    def _abort(self) -> Iterator[Record]:
        """Yield what Codex answers for calls that never ended."""
        unanswered, self._open = self._open, {}
        for call_id in unanswered:
            yield self.conversation.user([result_block(call_id, "aborted", failed=True)])

    def flush(self) -> Iterator[Record]:
        """Yield the response that is being read and its results, if any."""
        conversation = self.conversation
        if self._blocks:
            yield from self._abort()
            blocks, self._blocks = self._blocks, []
            calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
            spoken = "\0".join(str(block.get("text")) for block in blocks)
            name = next(iter(calls), None) or self._item_id or blake(self._key, spoken)
            self._key = f"codex:{self._thread}:{name}"
            now, conversation.time = conversation.time, self._begun
            yield self._answer(blocks, copied=self._copying)
            conversation.time = now
            self._open = dict.fromkeys(calls)
        for result in self._results:
            self._open.pop(result["tool_use_id"], None)
            yield conversation.user([result])
            self._before_context = None
        self._results, self._tokens, self._counted = [], (None, None), False

    def _answer(self, blocks: list[PlainBlock], *, copied: bool) -> Record:
        self._n_copied += copied
        self._before_context = None
        return self.conversation.assistant(
            f"{self._key}:copy{self._n_copied}" if copied else self._key,
            blocks,
            model=self._model,
            tokens=self._tokens,
            copied=copied,
        )

    # -- sessions and turns --------------------------------------------------------------

    def _boundary(self, kind: str, payload: Item) -> Iterator[Record]:
        yield from self.flush()
        if kind == "session_meta":
            yield from self._meta(payload)
        elif kind == "turn_context":
            self._model = text_or_none(payload.get("model")) or self._model
            self.conversation.cwd = text_or_none(payload.get("cwd")) or self.conversation.cwd
            self._turn_of(payload)
        else:
            yield from self._agent_message(payload.get("content"))

    def _meta(self, payload: Item) -> Iterator[Record]:
        conversation = self.conversation
        thread = text_or_none(payload.get("id")) or text_or_none(payload.get("session_id")) or ""
        if conversation.session:  # of the rollout whose lines are repeated, or of a resumption
            self._copying |= thread != self._thread
            return
        self._thread = thread
        conversation.session = text_or_none(payload.get("session_id")) or _parent(payload) or thread
        conversation.agent_id = thread if conversation.session != thread else None
        conversation.version = text_or_none(payload.get("cli_version"))
        conversation.cwd = text_or_none(payload.get("cwd"))
        conversation.time = conversation.time or text_or_none(payload.get("timestamp"))
        if system := text_or_none(mapping_at(payload, "base_instructions").get("text")):
            self._system = system
            yield conversation.snapshot(system)
        own_from = payload.get("subagent_history_start_ordinal")
        if base := mapping_at(payload, "history_base"):
            own_from = base.get("end_ordinal_exclusive")
            conversation.last = f"{thread}:base"  # a record that is not there: repaired
        self._own_from = own_from if isinstance(own_from, int) else None

    def _count_ordinal(self, ordinal: Any) -> Iterator[Record]:
        """Tell the lines of the rollout that this one was forked from by their number."""
        if isinstance(ordinal, int) and ordinal < (self._own_from or 0):
            if not self._copying:
                self.conversation.last = None
            self._copying = True
        else:
            yield from self.flush()
            self._copying, self._own_from = False, None

    def _turn_of(self, payload: Item) -> None:
        """End the repeated lines at a turn that is younger than this rollout."""
        turn = text_or_none(payload.get("turn_id")) or ""
        if self._own_from is None and not (len(turn) == 36 and turn < self._thread):
            self._copying = False  # both names are UUIDs that sort by time

    def _event(self, event: Item) -> Iterator[Record]:
        kind = text_or_none(event.get("type"))
        if kind == "token_count":
            info = mapping_at(event, "info")
            if info and info.get("total_token_usage") != self._total:
                self._total = info.get("total_token_usage")
                if not self._has_records:
                    self._count(info.get("last_token_usage"))
        elif kind in _ENDINGS:
            self._note_failure(mapping_at(event, "item") if kind == "item_completed" else event)
        elif kind in _TURNS:
            yield from self.flush()
            self._turn_of(event)
        elif kind == "turn_aborted":
            yield from self.flush()
            if event.get("reason") == "interrupted" and not self._interrupted:
                yield self.conversation.interrupt("")
            self._interrupted = False
        elif kind == "thread_rolled_back":
            yield from self.flush()
            self._roll_back(event.get("num_turns"))
        elif not _SILENT_EVENTS.fullmatch(kind or ""):
            self.conversation.unknown(f"event_msg/{kind}")

    def _count(self, usage: Any) -> None:
        """Take the tokens of the response that is being read."""
        if isinstance(usage, dict) and (self._blocks or self._results):
            self._tokens = total(usage, "input_tokens"), total(usage, "output_tokens")
            self._counted = True

    def _note_failure(self, ended: Item) -> None:
        """Note a call that failed by what an event says of its end."""
        name = text_or_none(ended.get("call_id")) or text_or_none(ended.get("id")) or ""
        result = mapping_at(ended, "result")
        answer = mapping_at(result, "Ok")
        failed = (
            ended.get("status") in ("failed", "declined")
            or ended.get("success") is False
            or ended.get("exit_code") not in (None, 0)
            or "Err" in result
            or True in (answer.get("isError"), answer.get("is_error"))
        )
        if failed and name.startswith("exec-"):
            self._nested_failed = True
        elif failed:
            self._failed.add(name)

    def _roll_back(self, count: Any) -> None:
        """Go back to where the last turns of the user began; the first one bounds it."""
        if isinstance(count, int) and count > 0 and self._turns:
            at = max(0, len(self._turns) - count)
            self.conversation.last, self.conversation.fidelity = self._turns[at]
            self._before_context, self._open = None, {}
            del self._turns[at:]

    # -- items ---------------------------------------------------------------------------

    def _item(self, item: Item, about: Item) -> Iterator[Record]:
        kind = text_or_none(item.get("type"))
        sampled = about.get("sampled_through_sequence")
        if kind in _OUTPUTS:
            yield from self._output(item)
        elif kind == "reasoning":
            if self._is_next(sampled):
                yield from self.flush()
        elif kind in _CALLS or (kind == "message" and item.get("role") == "assistant"):
            if about.get("compaction_output") is not True:  # its prompt is not recorded
                yield from self._collect(item, sampled)
        elif kind == "message":
            yield from self.flush()
            yield from self._message(item)
        elif kind == "agent_message":
            yield from self.flush()
            yield from self._agent_message(item.get("content"))
        elif kind in _ENCRYPTED:
            yield from self.flush()
            self._forget(item)
        elif kind not in _SILENT_ITEMS:
            self.conversation.unknown(f"response_item/{kind}")

    def _is_next(self, sampled: Any) -> bool:
        """Return True if an item of the model belongs to another response than those before it."""
        if self._blocks and sampled is not None and self._sampled is not None:
            return bool(sampled != self._sampled)
        return self._counted or bool(self._results)

    def _collect(self, item: Item, sampled: Any) -> Iterator[Record]:
        if self._is_next(sampled):
            yield from self.flush()
        blocks = _answered_by(item)
        if blocks and not self._blocks:
            self._begun, self._sampled = self.conversation.time, sampled
            self._item_id = text_or_none(item.get("id"))
        self._blocks += blocks

    def _output(self, item: Item) -> Iterator[Record]:
        """Keep a result until its response ends; one without a call is only context."""
        result = self._output_of(item)
        if result["tool_use_id"]:
            self._results.append(result)
        elif result["content"]:
            yield from self.flush()
            yield self.conversation.user(result["content"], is_meta=True)

    def _output_of(self, item: Item) -> PlainBlock:
        """Return the block of a result, an error if it failed or its exit code is not 0."""
        call_id = text_or_none(item.get("call_id")) or ""
        if not call_id and item["type"] == "tool_search_output" and self._blocks:
            call_id = self._blocks[-1].get("id", "")  # a search that the provider ran
        output = item.get("output", item.get("tools"))
        failed = call_id in self._failed
        if isinstance(output, dict):
            failed |= output.get("success") is False
            output = output.get("content", output.get("output"))
        if item["type"] == "tool_search_output":
            text = json.dumps(output, ensure_ascii=False)
        else:
            text = content_text(output)
        if item["type"] == "custom_tool_call_output" or text.startswith("Script "):
            failed, self._nested_failed = failed or self._nested_failed, False
        found = _EXIT_CODE.match(text)
        if found is None and text.startswith('{"output":'):
            found = _METADATA.search(text, len(text) - 200)
        failed |= found is not None and int(found[1]) != 0
        return result_block(call_id, text, failed=failed or _FAILED.match(text) is not None)

    def _is_system(self, item: Item) -> bool:
        """Return True for the system prompt, which newer models are sent as a message."""
        return item.get("role") == "developer" and content_text(item.get("content")) == self._system

    def _message(self, item: Item) -> Iterator[Record]:
        """Yield a message that is not the model's: a prompt, or what Codex adds."""
        blocks = content_blocks(item.get("content"))
        text = content_text(item.get("content"))
        if not blocks or self._is_system(item):
            return
        if item.get("role") == "user" and not _CONTEXT.match(text):
            yield from self._abort()
            yield self._prompt(blocks, is_meta=None)
            return
        if item.get("role") == "user" or text.lstrip().startswith("<"):
            self._before_context = self._before_context or (self.conversation.last,)
        else:
            self._before_context = None  # a client's instructions stay
        if text.lstrip().startswith("<turn_aborted>"):
            self._interrupted = True
            yield self.conversation.interrupt(text)
        else:
            yield self.conversation.user(blocks, is_meta=True)

    def _agent_message(self, content: Any) -> Iterator[Record]:
        """Yield what another agent says: a subagent's prompt, else context that begins a turn."""
        if blocks := content_blocks(content):
            yield self._prompt(blocks, is_meta=self.conversation.agent_id is None)
        for part in mappings(content):
            self._forget(part)

    def _prompt(self, blocks: list[PlainBlock], *, is_meta: bool | None) -> Record:
        """Return what begins a turn; the context that Codex put before it goes with a rollback."""
        before = (self._turns and self._before_context) or (self.conversation.last,)
        self._turns.append((*before, self.conversation.fidelity))
        self._before_context, self._interrupted = None, False
        return self.conversation.user(blocks, is_meta=is_meta)

    # -- compactions ---------------------------------------------------------------------

    def _forget(self, item: Item) -> None:
        """Note that nobody can read a part of the context, if it is encrypted."""
        if item.get("encrypted_content"):
            self.conversation.fidelity = "compacted_encrypted"

    def _compacted(self, payload: Item) -> Iterator[Record]:
        """Start anew with what the replacement keeps, and the summary."""
        summary = text_or_none(payload.get("message")) or ""
        if len(self._blocks) == 1 and summary.endswith(self._blocks[0].get("text", "\0")):
            self._blocks = []  # the response that made the summary; its prompt is not recorded
        yield from self.flush()
        self._before_context, self._open = None, {}
        kept = payload.get("replacement_history")
        # Older files name the summary alone; the prompts that Codex kept too are not told.
        self.conversation.fidelity = None if isinstance(kept, list) else "repaired"
        yield self.conversation.compaction()
        for item in mappings(kept):
            if not self._is_system(item):
                yield from self._kept(item, summary)
        if summary and not isinstance(kept, list):
            yield self.conversation.user(summary, is_compact_summary=True)

    def _kept(self, item: Item, summary: str) -> Iterator[Record]:
        """Yield an item that a compaction keeps: no prompt, and no state."""
        kind, blocks = text_or_none(item.get("type")), content_blocks(item.get("content"))
        if kind in _ENCRYPTED:
            self._forget(item)
        elif kind in _OUTPUTS:
            yield self.conversation.user([self._output_of(item)])
        elif kind in _CALLS or item.get("role") == "assistant":
            if blocks := _answered_by(item):
                yield self._answer(blocks, copied=True)
        elif blocks and summary == content_text(item.get("content")):
            yield self.conversation.user(blocks, is_compact_summary=True)
        elif blocks:
            yield self.conversation.user(blocks, is_meta=True)


def _parent(meta: Item) -> str | None:
    """Return the thread that started a subagent, of a rollout that does not name its root."""
    started = mapping_at(mapping_at(meta.get("source"), "subagent"), "thread_spawn")
    return text_or_none(started.get("parent_thread_id"))


# -- rollouts that begin inside another one ----------------------------------------------

_ORDINAL = re.compile(rb'\{"timestamp":"[^"]*","ordinal":(\d+)')
_THREAD = re.compile(r"[0-9a-f-]{36}")  # no name of a file may hold anything else


def _lines(file: Path) -> Iterator[bytes]:
    with file.open("rb") as raw:
        if file.suffix != ".zst":
            yield from raw
            return
        unpacked = zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)
        yield from io.BufferedReader(unpacked)


def _base_of(first: bytes) -> tuple[str, int, int] | None:
    """Return the thread a rollout was forked from, and where its lines end: ordinal and byte."""
    meta = first_object([first]) if b'"history_base"' in first else {}
    base = mapping_at(mapping_at(meta, "payload"), "history_base")
    thread = str(base.get("thread_id"))
    ordinal, offset = base.get("end_ordinal_exclusive"), base.get("end_byte_offset")
    if isinstance(ordinal, int) and isinstance(offset, int) and _THREAD.fullmatch(thread):
        return thread, ordinal, offset
    return None


def _with_base(
    file: Path, end: int | None = None, seen: frozenset[Path] = frozenset()
) -> Iterator[bytes]:
    """Yield the lines of a rollout up to a byte; those it was forked from follow its first."""
    size, seen = 0, seen | {file}
    for line in _lines(file):
        yield line
        if not size and (base := _base_of(line)) is not None:
            found = (other for other in _rollouts(file, base[0]) if _holds(other, base))
            if (other := next(found, file)) not in seen:
                yield from _with_base(other, base[2], seen)
        size += len(line)
        if size == end:
            return


def _rollouts(file: Path, thread: str) -> Iterator[Path]:
    """Yield the rollouts of a thread beside a file, the archived ones included."""
    top = next((p for p in file.parents if p.name in ("sessions", "archived_sessions")), None)
    folders = [file.parent] if top is None else [top, *top.parent.glob("*sessions")]
    for folder in dict.fromkeys(folders):
        yield from sorted(folder.rglob(f"rollout-*{thread}*.jsonl*"))


def _holds(file: Path, base: tuple[str, int, int]) -> bool:
    """Return True if the line of a rollout that ends at a byte is the last one below an ordinal."""
    _, ordinal, offset = base
    for line in _lines(file):
        offset -= len(line)
        if offset <= 0:
            found = _ORDINAL.match(line)
            return not offset and found is not None and int(found[1]) == ordinal - 1
    return False


class Codex(TraceSource):
    """The rollout files of Codex CLI."""

    name = "codex"

    def folders(self) -> list[Path]:
        """Return the folders of the sessions and of the archived ones."""
        folder = home("CODEX_HOME", ".codex")
        return [folder / "sessions", folder / "archived_sessions"]

    def whole(self, file: Path) -> Iterator[bytes] | None:
        """Return the lines of a rollout that begins inside another one, and before them its."""
        if not file.name.startswith("rollout-"):
            return None
        try:
            return None if _base_of(next(_lines(file), b"")) is None else _with_base(file)
        except (OSError, zstandard.ZstdError):
            return None  # who opens it says so

    def recognises(self, head: Sequence[bytes]) -> bool:
        """Return True if the first line that is an object is a rollout's."""
        first = first_object(head)
        kind = text_or_none(first.get("type"))
        return kind in TYPES | _SILENT_TYPES and isinstance(first.get("payload"), dict)

    def records(self, lines: Iterable[bytes], stats: LineStats) -> Iterator[Record]:
        """Yield the conversation as records; an undecodable line is counted."""
        rollout = Rollout(stats)
        for value in objects(lines, stats):
            yield from rollout.take(value)
        yield from rollout.flush()
