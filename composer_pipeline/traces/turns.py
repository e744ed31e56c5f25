"""Records to turn nodes: the contraction that makes the conversation graph correct.

Belongs here: which records form one response, which node is the parent of which,
roots, repairs, branch points, the active path, what compaction keeps. Does not belong
here: how a node is written as messages (``traces.messages``).

Every record maps to a turn node or is transparent. A response owns all its segments
and the records of its tool results, wherever they are in the file; human prompts and
compact summaries are their own nodes. The parent of a node is the first different
node on the walk along ``parentUuid`` from the node's first record. What the model saw
besides (meta records, interrupts, rendered attachments) hangs on the edge between two
nodes as ``inserts``.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from composer_pipeline.traces.pool import Pool, Redactor
from composer_pipeline.traces.reader import (
    EMPTY,
    Message,
    Record,
    RequestRecord,
    Usage,
    decode_any,
    decode_message,
)
from composer_pipeline.traces.records import (
    GRAPH_TYPES,
    Block,
    UserKind,
    blocks_of,
    result_text,
    text_of,
    user_kind,
)
from composer_pipeline.traces.redaction import user_names
from composer_pipeline.traces.requests import Requests, reference

TRANSPARENT = -1
NodeKind = Literal["response", "human", "compact_summary"]

_THINKING = ("thinking", "redacted_thinking")
_MAX_TOKENS = 2**60
_OUTSIDE = ("meta", "interrupt", "local_command", "task_notification")


class Part(msgspec.Struct, gc=False):
    """One block of a message; its content is piece ``piece`` of the pool.

    The piece of a ``text`` or ``tool_result`` is a string, that of a ``tool_use`` its
    input, that of any other block the block. ``flag`` marks an erroneous result, or an
    input that the model is known to have emitted in this form.
    """

    kind: Literal["text", "tool_use", "tool_result", "other"]
    piece: int
    id: str = ""
    name: str = ""
    flag: bool = False


class Entry(msgspec.Struct, gc=False):
    """What the graph keeps of a record; ``previous`` is the main record before it."""

    type: str
    uuid: str
    parent_uuid: str | None
    timestamp: str | None
    previous: int
    subtype: str | None = None
    logical_parent_uuid: str | None = None
    session_id: str | None = None
    version: str | None = None
    cwd: str | None = None
    is_sidechain: bool = False
    forked: bool = False
    rendered: bool = False
    renders_as: Literal["user", "assistant"] = "user"
    parts: tuple[Part, ...] = ()


@dataclass(slots=True)
class Call:
    """One ``tool_use`` block of a response, with what the trace knows of its outcome.

    ``input``, ``result`` and ``error`` are decoded from the pool at each access.
    """

    id: str
    name: str
    part: Part
    pool: Pool
    answer: Part | None = None
    failure: Part | None = None

    @property
    def input(self) -> Any:
        """The arguments, redacted."""
        return self.pool.load(self.part.piece)

    @property
    def result(self) -> Block | None:
        """The first result, as a ``tool_result`` block whose content is a string."""
        return self._block(self.answer)

    @property
    def error(self) -> Block | None:
        """The first result that is an error."""
        return self._block(self.failure)

    def _block(self, part: Part | None) -> Block | None:
        if part is None:
            return None
        block = {
            "type": "tool_result",
            "tool_use_id": self.id,
            "content": self.pool.load(part.piece),
        }
        return {**block, "is_error": True} if part.flag else block


@dataclass(slots=True)
class Node:
    """A turn: one response with its results, one human prompt, or one compact summary.

    ``parent`` is the contracted parent, ``inserts`` the model-visible records between
    it and this node, ``crossed_repair`` whether that walk bridged a dangling parent;
    ``depth`` counts the nodes before this one and ``repaired`` and ``cleared`` (tool
    ids whose results microcompaction removed) are accumulated over the whole prefix.
    ``origin`` is set on the copy of a node that a compaction preserved.
    """

    kind: NodeKind
    key: str
    first: int
    parts: list[Part] = field(default_factory=list)
    calls: dict[str, Call] = field(default_factory=dict)
    beside_results: tuple[Part, ...] = ()
    models: tuple[str, ...] = ()
    input_tokens: int | None = None
    output_tokens: int | None = None
    parent: int | None = None
    inserts: Sequence[int] = ()
    crossed_repair: bool = False
    depth: int = 0
    repaired: bool = False
    cleared: frozenset[str] = frozenset()
    origin: int | None = None

    @property
    def is_state(self) -> bool:
        """A response with an owned tool call or text that is not blank."""
        if self.kind != "response" or self.origin is not None:
            return False
        return bool(self.calls) or any(part.kind == "text" for part in self.parts)


@dataclass(slots=True)
class _Boundary:
    """A compaction that kept messages: copies of ``kept`` hang below ``anchor``."""

    at: int
    anchor: int
    kept: list[int]
    landing: dict[int, int] = field(default_factory=dict)
    tail: int = TRANSPARENT


class Contents(Mapping[int, list[Block]]):
    """The content blocks of user records by position, redacted, decoded at each access."""

    def __init__(self, trajectory: "Trajectory") -> None:
        self._of = trajectory

    def __getitem__(self, at: int) -> list[Block]:
        if at not in self._of.kinds:
            raise KeyError(at)
        return [self._of.block_of(part) for part in self._of.records[at].parts]

    def __iter__(self) -> Iterator[int]:
        return iter(self._of.kinds)

    def __len__(self) -> int:
        return len(self._of.kinds)


class _Index(dict[int, int]):
    """Positions of records by the hash of their uuid.

    Python's hash of a text takes half the memory of the text. Of a long file only the
    last records are in the dictionary; the others are in sorted arrays (``old``), because
    nearly every parent is a recent record. :meth:`find` looks everywhere, ``get`` only
    among the last ones.
    """

    RECENT = 1 << 16

    def __init__(self) -> None:
        self.old: list[tuple[array[int], array[int]]] = []

    def find(self, key: int) -> int | None:
        """Return the position for a hash."""
        found = self.get(key)
        if found is None:
            for keys, positions in reversed(self.old):
                at = bisect_left(keys, key)
                if at < len(keys) and keys[at] == key:
                    return positions[at]
        return found

    def settle(self) -> None:
        """Move all to the arrays."""
        keys = sorted(self)
        self.old.append((array("q", keys), array("i", (self[key] for key in keys))))
        self.clear()


class Trajectory:
    """The turn graph of one file.

    Reads the records once and keeps of each what the graph needs; texts go to ``pool``.
    A record that no walk along the graph needs leaves only its uuid, as another name for
    the record before it: progress, embedded sidechains, further segments of a response,
    results right behind their call.

    Args:
        records: the records of the file, in file order.
        subagent: the file is a subagent transcript, whose records all carry
            ``isSidechain`` and ``agentId``; in a main file such records are no turns.
        redactor: applied to all content; ``None`` where only the graph is asked for.
    """

    def __init__(
        self,
        records: Iterable[Record],
        *,
        subagent: bool = False,
        redactor: Redactor | None = None,
    ) -> None:
        self.subagent = subagent
        self.pool = Pool(redactor)
        self.records: list[Entry] = []
        self.contents = Contents(self)
        self.kinds: dict[int, UserKind] = {}
        self.nodes: list[Node] = []
        self.node_of: list[int] = []
        self.versions: set[str] = set()
        self.session_ids: dict[str, None] = {}
        self.agent_ids: dict[str, None] = {}
        self.first_time: str | None = None
        self.last_time: str | None = None
        self.first_cwd: str | None = None
        self.types: dict[str, int] = {}
        self.compactions = 0
        self.dangling = 0
        self.snapshots: list[tuple[int, int | None, int | None]] = []
        self._index = _Index()
        self._last_main = TRANSPARENT
        self._cwds: set[str] = set()
        self._where: tuple[str | None, str | None, str | None] = (None, None, None)
        self._names: dict[str, str] = {}
        self._active: set[int] = set()
        self._responses: dict[str, int] = {}
        self._owner: dict[str, int] = {}
        self._order: dict[int, list[tuple[int, list[Part]]]] = {}
        self._told: set[int] = set()
        self._late: list[tuple[int, int, tuple[Part, ...]]] = []
        self.requests = Requests(self.pool.put, self.pool.load)
        self.request_of: dict[int, str] = {}
        self._count = 0
        self._last_turn = (0, TRANSPARENT)
        self._metadata: dict[int, Any] = {}
        self._clears: dict[int, frozenset[str]] = {}
        take = self._take
        for record in records:
            take(record)
        self._finish_nodes()
        self._kept = self._boundaries()
        self._link()
        self._accumulate()
        self._active = self._find_active()
        self.dangling = sum(
            e.parent_uuid is not None
            and (not e.is_sidechain or subagent)
            and self._index.find(hash(e.parent_uuid)) is None
            for e in self.records
        )
        self._index = _Index()
        for used in (self._owner, self._responses, self._told):
            used.clear()

    # -- records ---------------------------------------------------------------

    def _take(self, record: Record) -> None:
        agent_id, uuid = record.agent_id, record.uuid
        version, session_id, cwd = where = (record.version, record.session_id, record.cwd)
        if where != self._where:
            self._where = where = self._placed(version, session_id, cwd)
        version, session_id, cwd = self._where
        if agent_id:
            self.agent_ids.setdefault(agent_id)
        if record.timestamp:
            self.first_time = self.first_time or record.timestamp
            self.last_time = record.timestamp
        kind = record.type or ""
        kind = self._names.setdefault(kind, kind)
        self.types[kind] = self.types.get(kind, 0) + 1
        if kind[:4] == "api-" and isinstance(record, RequestRecord):
            self.requests.take(record)
        if uuid is None:
            return
        index = self._index
        identity = hash(uuid)
        if identity in index or (index.old and index.find(identity) is not None):
            return
        if len(index) >= index.RECENT:
            index.settle()
        self._count += 1
        main = kind in GRAPH_TYPES and (
            self.subagent or (record.is_sidechain is not True and agent_id is None)
        )
        name = record.parent_uuid
        parent = None
        if name is not None:
            parent = index.get(hash(name))
            if parent is None and index.old:
                parent = index.find(hash(name))
        at = len(self.records)
        number = TRANSPARENT
        parts: tuple[Part, ...] = ()
        if main and kind == "assistant":
            number = self._take_assistant(at, record, uuid)
        elif main and kind == "user":
            number, parts = self._take_user(at, record)
        if number != TRANSPARENT:
            self._last_turn = (self._count, at)
        if parent is not None:
            skipped = not main or kind == "progress"
            if skipped or (number != TRANSPARENT and self.node_of[parent] == number):
                index[identity] = parent
                self.kinds.pop(at, None)
                if main:
                    self._last_main = parent
                if number != TRANSPARENT:
                    self._last_turn = (self._count, parent)
                return
        index[identity] = at
        entry = Entry(
            kind,
            uuid,
            name,
            record.timestamp,
            self._last_main,
            record.subtype,
            record.logical_parent_uuid,
            session_id,
            version,
            cwd,
            record.is_sidechain is True,
            parts=parts,
        )
        self.records.append(entry)
        self.node_of.append(number)
        if not main:
            return
        self._last_main = at
        if kind == "assistant":
            entry.forked = record.forked_from is not EMPTY and bool(decode_any(record.forked_from))
        elif kind == "user":
            if self.kinds[at] in ("human", "compact_summary"):
                node_kind: Any = self.kinds[at]
                self.node_of[at] = self._new_node(node_kind, uuid, at)
                self._last_turn = (self._count, at)
        elif kind == "attachment":
            self._take_attachment(at, entry, record)
        elif record.subtype == "compact_boundary":
            self.compactions += kind == "system"
            self._metadata[at] = decode_any(record.compact_metadata)
        elif record.subtype == "microcompact_boundary":
            metadata = decode_any(record.microcompact_metadata)
            metadata = _object(metadata or decode_any(record.compact_metadata))
            ids = metadata.get("compactedToolIds")
            ids = ids if isinstance(ids, list) else []
            self._clears[at] = frozenset(i for i in ids if isinstance(i, str))

    def _placed(self, *where: str | None) -> tuple[str | None, str | None, str | None]:
        """Note a version, a session and a folder that differ from the record before."""
        version, session_id, cwd = (None if text is None else self._intern(text) for text in where)
        if version is not None:
            self.versions.add(version)
        if session_id:
            self.session_ids.setdefault(session_id)
        if cwd and cwd not in self._cwds:
            self._cwds.add(cwd)
            self.pool.know(user_names(cwd))
            self.first_cwd = self.first_cwd or cwd
        return version, session_id, cwd

    def _intern(self, text: str) -> str:
        return self._names.setdefault(text, text)

    def _take_assistant(self, at: int, record: Record, uuid: str) -> int:
        """Add a segment to its response; return the response's node."""
        raw = record.message
        # Once a call's input is normalised, its true form is beside the message.
        fast = decode_message(raw) if record.wire_tool_inputs is EMPTY else None
        message: dict[str, Any] = {}
        if fast is not None:
            key, model, usage = fast.id, fast.model, fast.usage
        else:
            message = _object(decode_any(raw))
            key, model = _text(message.get("id")), _text(message.get("model"))
            usage = _usage(message.get("usage"))
        if model == "<synthetic>" or record.is_api_error_message is True:
            return TRANSPARENT
        key = key or uuid
        number = self._responses.get(key)
        if number is None:
            number = self._responses[key] = self._new_node("response", key, at)
        node = self.nodes[number]
        if record.request_ref is not EMPTY and (name := reference(record)):
            self.request_of.setdefault(number, name)
        if model is not None and model not in node.models:
            node.models += (self._intern(model),)
        if usage is not None:
            _count_usage(node, usage)
        if fast is not None:
            parts = self._fast_parts(fast)
        else:
            wire = _object(decode_any(record.wire_tool_inputs))
            parts = self._parts(message.get("content"), wire)
        if (index := record.api_block_index) is not None or number in self._order:
            self._order.setdefault(number, []).append((-1 if index is None else index, []))
        if parts:
            self._add_parts(number, node, parts, record.timestamp)
        return number

    def _add_parts(
        self, number: int, node: Node, parts: Iterable[Part], timestamp: str | None
    ) -> None:
        told = []
        ordered = self._order[number][-1][1] if number in self._order else None
        for part in parts:
            if part.kind == "tool_use":
                if self._owner.setdefault(part.id, number) != number:
                    continue
                if (known := node.calls.get(part.id)) is not None:
                    if part.flag:
                        known.part.piece = part.piece
                    continue
                node.calls[part.id] = Call(part.id, part.name, part, self.pool)
            else:
                # A bug of /branch writes records twice under new uuids.
                mark = hash((number, timestamp, part.kind, self.pool.get(part.piece)))
                if mark in self._told:
                    continue
                told.append(mark)
            node.parts.append(part)
            if ordered is not None:
                ordered.append(part)
        self._told.update(told)

    def _fast_parts(self, message: Message) -> tuple[Part, ...]:
        parts = []
        put = self.pool.put_raw
        for block in message.content:
            kind: Any = block.type
            if kind == "tool_use":
                if block.id is not None:
                    piece = put(block.input) if block.input is not EMPTY else self.pool.put(None)
                    parts.append(Part(kind, piece, block.id, self._intern(block.name or "")))
            elif kind == "tool_result":
                piece = self.pool.put_text(block.content)
                if piece < 0:
                    piece = self.pool.put(result_text({"content": decode_any(block.content)}))
                error = block.is_error is True
                parts.append(Part(kind, piece, str(block.tool_use_id), "", error))
            elif (
                kind == "text"
                and not _is_blank(block.text)
                and (piece := self.pool.put_text(block.text)) >= 0
            ):
                parts.append(Part(kind, piece))
        return tuple(parts)

    def _parts(self, content: Any, wire: dict[str, Any]) -> tuple[Part, ...]:
        """Keep the blocks that the model saw; thinking and blank text are dropped."""
        parts = []
        for block in blocks_of(content):
            kind = block.get("type")
            if kind == "tool_use":
                call_id = block.get("id")
                if isinstance(call_id, str):
                    name = self._intern(str(block.get("name") or ""))
                    piece = self.pool.put(wire.get(call_id, block.get("input")))
                    parts.append(Part(kind, piece, call_id, name, call_id in wire))
            elif kind == "tool_result":
                piece = self.pool.put(result_text(block))
                error = block.get("is_error") is True
                parts.append(Part(kind, piece, str(block.get("tool_use_id")), "", error))
            elif kind == "text":
                text = block.get("text")
                if isinstance(text, str) and text.strip():
                    parts.append(Part(kind, self.pool.put(text)))
            elif kind in ("image", "document"):
                parts.append(Part("other", self.pool.put({"type": kind})))
            elif kind not in _THINKING:
                parts.append(Part("other", self.pool.put(block)))
        return tuple(parts)

    def _take_user(self, at: int, record: Record) -> tuple[int, tuple[Part, ...]]:
        """Classify a user record; return the node whose results it holds, and its parts."""
        fast = decode_message(record.message)
        if fast is not None and any(block.type == "tool_result" for block in fast.content):
            self.kinds[at] = "tool_result"
            return self._take_results(at, self._fast_parts(fast))
        content = _object(decode_any(record.message)).get("content")
        kind = self.kinds[at] = user_kind(record, content)
        parts = self._parts(content, {})
        return self._take_results(at, parts) if kind == "tool_result" else (TRANSPARENT, parts)

    def _take_results(self, at: int, parts: tuple[Part, ...]) -> tuple[int, tuple[Part, ...]]:
        owner = TRANSPARENT
        for part in parts:
            if part.kind == "tool_result":
                number = self._owner.get(part.id, TRANSPARENT)
                if number == TRANSPARENT:
                    continue
                owner = number if owner == TRANSPARENT else owner
                call = self.nodes[number].calls[part.id]
                part.id = call.id  # one string for both
                call.answer = call.answer or part
                if part.flag:
                    call.failure = call.failure or part
        if owner == TRANSPARENT:
            self._late.append((self._count, at, parts))
            return owner, ()
        beside = tuple(part for part in parts if part.kind != "tool_result")
        self.nodes[owner].beside_results += beside
        return owner, ()

    def _take_attachment(self, at: int, entry: Entry, record: Record) -> None:
        attachment = decode_any(record.attachment)
        attachment = attachment if isinstance(attachment, dict) else {}
        text = record.rendered
        if text is not None:
            entry.rendered = True
            entry.renders_as = "assistant" if record.rendered_role == "assistant" else "user"
        elif attachment.get("type") == "queued_command":
            text = text_of(attachment.get("prompt"))
        if text is not None:
            entry.parts = self._parts(text, {})
        if attachment.get("type") == "prompt_snapshot":
            system, tools = attachment.get("systemPrompt"), attachment.get("tools")
            if isinstance(system, list):
                system = "\n\n".join(text_of([part]) for part in system)
            before = self.snapshots[-1] if self.snapshots else (at, None, None)
            self.snapshots.append(
                (
                    at,
                    self.pool.put(system) if isinstance(system, str) and system else before[1],
                    self.pool.put(tools) if isinstance(tools, list) and tools else before[2],
                )
            )

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

    # -- nodes -----------------------------------------------------------------

    def _new_node(self, kind: NodeKind, key: str, first: int) -> int:
        self.nodes.append(Node(kind, key, first))
        return len(self.nodes) - 1

    def _finish_nodes(self) -> None:
        """Sort blocks that carry their position, and attach results that came too early."""
        for number, segments in self._order.items():
            node = self.nodes[number]
            if sum(len(parts) for _, parts in segments) < len(node.parts):
                continue  # earlier segments have no position
            if any(index < 0 for index, _ in segments):
                continue
            node.parts = [part for _, parts in sorted(segments, key=_position) for part in parts]
            calls = (part.id for part in node.parts if part.kind == "tool_use")
            node.calls = {call_id: node.calls[call_id] for call_id in calls}
        late, self._late = self._late, []
        for count, at, parts in late:
            number, _ = self._take_results(at, parts)
            if number != TRANSPARENT:
                self.node_of[at] = number
                self._last_turn = max(self._last_turn, (count, at))
        self._late.clear()

    # -- links -----------------------------------------------------------------

    def _parent_record(self, at: int) -> tuple[int | None, bool]:
        """Return the record before ``at`` on its chain, and whether that was a repair."""
        parent = self.records[at].parent_uuid
        if parent is None:
            return None, False
        found = self._index.find(hash(parent))
        if found is not None:
            return found, False
        return self._previous_main(at), True

    def _previous_main(self, at: int) -> int | None:
        previous = self.records[at].previous
        return None if previous == TRANSPARENT else previous

    def _boundaries(self) -> list[_Boundary]:
        """Find compactions that preserved messages, and add the copies of those."""
        found = [self._boundary(at, metadata) for at, metadata in self._metadata.items()]
        return [boundary for boundary in found if boundary is not None]

    def _boundary(self, at: int, metadata: Any) -> _Boundary | None:
        if not isinstance(metadata, dict):
            return None
        messages, segment = metadata.get("preservedMessages"), metadata.get("preservedSegment")
        messages = messages if isinstance(messages, dict) else {}
        segment = segment if isinstance(segment, dict) else {}
        anchor = self._index.find(
            hash(str(messages.get("anchorUuid") or segment.get("anchorUuid")))
        )
        uuids = messages.get("uuids")
        if isinstance(uuids, list):
            named = [(self._index.find(hash(u)), u) for u in uuids if isinstance(u, str)]
            kept = [at for at, u in named if at is not None and self.records[at].uuid == u]
        else:
            kept = self._segment(segment.get("headUuid"), segment.get("tailUuid"))
        if anchor is None or not kept or self.node_of[anchor] == TRANSPARENT:
            return None
        boundary = _Boundary(at, anchor, kept)
        last = self.node_of[anchor]
        inserts: list[int] = []
        for record in kept:
            origin = self.node_of[record]
            if origin == TRANSPARENT:
                inserts += [record] if self.is_visible(record) else []
            elif self.nodes[last].origin != origin:
                copy = self._copy(origin)
                self.nodes[copy].parent, self.nodes[copy].inserts = last, inserts
                last, inserts = copy, []
            boundary.landing[record] = last
        boundary.tail = last
        return boundary

    def _segment(self, head: Any, tail: Any) -> list[int]:
        first, at = self._index.find(hash(str(head))), self._index.find(hash(str(tail)))
        walked: list[int] = []
        while first is not None and at is not None and at not in walked:
            walked.append(at)
            if at == first:
                return walked[::-1]
            at = self._parent_record(at)[0]
        return []

    def _copy(self, origin: int) -> int:
        node = self.nodes[origin]
        copy = Node(node.kind, node.key, node.first, node.parts, node.calls)
        copy.beside_results, copy.origin = node.beside_results, origin
        self.nodes.append(copy)
        return len(self.nodes) - 1

    def _landing(self, at: int, parent: int) -> int:
        """Return the node of ``parent`` as ``at`` sees it: a copy, behind a compaction."""
        for boundary in reversed(self._kept):
            if at <= boundary.at:
                continue
            if parent < boundary.at and parent in boundary.landing:
                return boundary.landing[parent]
            if parent == boundary.anchor:
                return boundary.tail
        return self.node_of[parent]

    def _link(self) -> None:
        for number, node in enumerate(self.nodes):
            if node.origin is None:
                self._link_node(number, node)

    def _link_node(self, number: int, node: Node) -> None:
        at = node.first
        name = self.records[at].parent_uuid
        parent = None if name is None else self._index.find(hash(name))
        if parent is not None and not self._kept:
            # The usual case: the record before is a turn's only or first one.
            target = self.node_of[parent]
            if target not in (TRANSPARENT, number) and self.nodes[target].first == parent:
                node.parent = target
                return
        seen = {at}
        inserts: list[int] = []
        target = TRANSPARENT
        while True:
            parent, repaired = self._parent_record(at)
            if target == TRANSPARENT:
                node.crossed_repair |= repaired
            if parent is None or parent in seen:
                break
            landed = self._landing(at, parent)
            seen.add(parent)
            at = parent
            if target == TRANSPARENT:
                if landed not in (TRANSPARENT, number):
                    target = landed
            elif landed not in (TRANSPARENT, target):
                break
            if self.node_of[at] == TRANSPARENT and self.is_visible(at):
                inserts.append(at)
            # Records between the segments of the parent belong before this node too.
            if target != TRANSPARENT and at == self.nodes[target].first:
                break
        node.parent = None if target == TRANSPARENT else target
        node.inserts = tuple(sorted(inserts))

    def is_visible(self, at: int) -> bool:
        """Say whether a transparent record is text that the model saw, or changes it."""
        entry = self.records[at]
        if entry.type == "user":
            return self.kinds.get(at) in _OUTSIDE
        return bool(entry.parts) or entry.rendered or at in self._clears

    def _accumulate(self) -> None:
        """Compute what a node inherits from its prefix; break cycles of broken files."""
        done = [False] * len(self.nodes)
        for start in range(len(self.nodes)):
            path: list[int] = []
            on_path: set[int] = set()
            at: int | None = start
            while at is not None and not done[at]:
                if at in on_path:
                    self.nodes[path[-1]].parent = None
                    break
                path.append(at)
                on_path.add(at)
                at = self.nodes[at].parent
            for number in reversed(path):
                node = self.nodes[number]
                node.repaired = node.crossed_repair
                node.cleared = frozenset()
                if self._clears:
                    cleared = [self._clears.get(at, frozenset()) for at in node.inserts]
                    node.cleared = node.cleared.union(*cleared)
                if node.parent is not None:
                    before = self.nodes[node.parent]
                    node.depth = before.depth + 1
                    node.repaired |= before.repaired
                    node.cleared |= before.cleared
                done[number] = True

    # -- what the graph says -----------------------------------------------------

    def path_to(self, number: int) -> list[int]:
        """Return the nodes from the root to ``number``, both included."""
        path = []
        at: int | None = number
        while at is not None:
            path.append(at)
            at = self.nodes[at].parent
        return path[::-1]

    def active_nodes(self) -> set[int]:
        """Return the nodes on the path from the last turn back to the start.

        Compaction boundaries are walked through by ``logicalParentUuid``, else by the
        previous main record; a context reset ends the path.
        """
        return self._active

    def _find_active(self) -> set[int]:
        active: set[int] = set()
        at: int | None = self._last_turn[1]
        if at == TRANSPARENT:
            return active
        seen: set[int] = set()
        while at is not None:
            number = self.node_of[at]
            if number != TRANSPARENT and number not in active:
                active.add(number)
                at = self.nodes[number].first
            if at in seen:
                break
            seen.add(at)
            parent = self._parent_record(at)[0]
            record = self.records[at]
            if record.parent_uuid is None and record.subtype == "compact_boundary":
                logical = self._index.find(hash(record.logical_parent_uuid or ""))
                parent = logical if logical is not None else self._previous_main(at)
            at = parent
        return active

    def branch_points(self) -> int:
        """Count nodes with two or more distinct children that are states or prompts."""
        children: dict[int, list[int]] = {}
        for number, node in enumerate(self.nodes):
            if node.parent is None or node.origin is not None:
                continue
            if node.is_state or node.kind == "human":
                children.setdefault(node.parent, []).append(number)
        found = [numbers for numbers in children.values() if len(numbers) > 1]
        return sum(len({self._child_key(number) for number in numbers}) > 1 for numbers in found)

    def _child_key(self, number: int) -> Any:
        node = self.nodes[number]
        if node.kind != "human":
            return number
        return self.records[node.first].timestamp, text_of(self.contents[node.first])

    def states(self) -> list[int]:
        """Return the numbers of the nodes that are states, in file order."""
        return [number for number, node in enumerate(self.nodes) if node.is_state]

    def response_keys(self) -> set[str]:
        """Return the message ids of the responses."""
        return {n.key for n in self.nodes if n.kind == "response" and n.origin is None}

    def state_keys(self) -> set[str]:
        """Return the message ids of the states."""
        return {n.key for n in self.nodes if n.is_state}


def _count_usage(node: Node, usage: Usage) -> None:
    """Take the maximum over segments: each line repeats the usage of the response."""
    read = usage.input_tokens or 0
    read += (usage.cache_creation_input_tokens or 0) + (usage.cache_read_input_tokens or 0)
    if abs(read) < _MAX_TOKENS:
        node.input_tokens = max(node.input_tokens or 0, read)
    if abs(written := usage.output_tokens or 0) < _MAX_TOKENS:
        node.output_tokens = max(node.output_tokens or 0, written)


def _position(segment: tuple[int, list[Part]]) -> int:
    return segment[0]


def _usage(value: Any) -> Usage | None:
    if not isinstance(value, dict):
        return None
    given = {name: value.get(name) for name in Usage.__struct_fields__}
    return Usage(**{name: n if isinstance(n, int) else None for name, n in given.items()})


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _is_blank(raw: msgspec.Raw) -> bool:
    start = bytes(memoryview(raw)[:2]) if raw is not EMPTY else b""
    if start[:1] == b'"' and start[1:] not in (b"", b'"', b"\\") and b" " < start[1:] < b"\x7f":
        return False
    text = decode_any(raw)
    return not (isinstance(text, str) and text.strip())
