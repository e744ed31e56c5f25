"""Records to turn nodes: which records form one response, one prompt, one summary.

Belongs here: what is kept of a record, and which node it maps to. Does not belong here:
which node is the parent of which (``traces.graph.links``).

A response owns all its segments and the records of its tool results, wherever they are
in the file; human prompts and compact summaries are their own nodes; everything else is
transparent. Of a record that a walk along the graph can meet there are four numbers, in
arrays. A record that no walk needs leaves only its uuid, as another name for the record
before it: progress, embedded sidechains, further segments of a response, results right
behind their call.
"""

from array import array
from collections.abc import Iterable
from typing import Any

from composer_pipeline.redaction.text import user_names
from composer_pipeline.traces.graph.content_blocks import PartMaker
from composer_pipeline.traces.graph.nodes import (
    NONE,
    TRANSPARENT,
    Call,
    Node,
    NodeKind,
    Note,
    Part,
    Where,
)
from composer_pipeline.traces.graph.pool import Pool
from composer_pipeline.traces.graph.sent_requests import Requests, reference
from composer_pipeline.traces.graph.subagents import Sidechains
from composer_pipeline.traces.graph.uuid_index import UuidIndex
from composer_pipeline.traces.reading.contents import GRAPH_TYPES, text_of, user_kind
from composer_pipeline.traces.reading.decoding import message_of
from composer_pipeline.traces.reading.envelopes import EMPTY, Record, RequestRecord, Usage
from composer_pipeline.traces.reading.raw_json import decode_any, decode_text

#: In ``parents``, in place of a position: a name that is not known yet, or never.
UNRESOLVED = -2


class Collector:
    """The nodes of one file, before they are linked.

    Positions count the records that are kept. ``parents`` has the position of each one's
    parent, ``NONE``, or ``UNRESOLVED`` for a uuid in ``unresolved``; ``previous`` the main
    record before it; ``node_of`` its node; ``identities`` the hash of its uuid.

    Args:
        subagent: as for :class:`composer_pipeline.traces.graph.turns.Trajectory`.
        pool: receives the contents.
        sidechains: keep the sidechains that the file embeds, each in a collector.
    """

    def __init__(self, pool: Pool, *, subagent: bool = False, sidechains: bool = False) -> None:
        self.subagent = subagent
        self.pool = pool
        self.sidechains: Sidechains[Collector] | None = None
        if sidechains:
            self.sidechains = Sidechains(lambda: Collector(pool, subagent=True))
        self.nodes: list[Node] = []
        self.notes: dict[int, Note] = {}
        self.parents = array("i")
        self.previous = array("i")
        self.node_of = array("i")
        self.identities = array("q")
        self.unresolved: dict[int, int] = {}
        self.dangling_at: list[int] = []
        self.index = UuidIndex()
        self.types: set[str] = set()
        self.versions: set[str] = set()
        self.session_ids: dict[str, None] = {}
        self.agent_ids: dict[str, None] = {}
        self.first_time: str | None = None
        self.last_time: str | None = None
        self.first_cwd: str | None = None
        self.compactions = 0
        self.synthetic = 0
        self.boundaries: dict[int, int] = {}
        self.metadata: dict[int, Any] = {}
        self.clears: dict[int, frozenset[str]] = {}
        self.snapshots: list[tuple[int, int | None, int | None]] = []
        self.requests = Requests(self.pool.put, self.pool.load)
        self.request_of: dict[int, str] = {}
        self.last_turn = (0, TRANSPARENT)
        self._last_main = TRANSPARENT
        self._count = 0
        self._names: dict[str, str] = {}
        self._cwds: set[str] = set()
        self._where: Where = (None, None, None)
        self.parts = PartMaker(self.pool, self._names)
        self._responses: dict[str, int] = {}
        self._calls: dict[str, Call] = {}
        self._order: dict[int, list[tuple[int, list[Part]]]] = {}
        self._told: set[int] = set()
        self._late: list[tuple[int, int, list[Part]]] = []

    def read(self, records: Iterable[Record]) -> None:
        """Take records, in file order. Call :meth:`finish` behind the last one."""
        # One loop over local names: it runs for each of up to millions of lines.
        index, get, find = self.index, self.index.get, self.index.find
        old, recent = self.index.old, self.index.RECENT
        parents, node_of, types = self.parents, self.node_of, self.types
        version, session_id, cwd = self._where
        first_time, last_time = self.first_time, self.last_time
        subagent, last_main, count = self.subagent, self._last_main, self._count
        sidechains = self.sidechains
        for record in records:
            kind, agent_id = record.type or "", record.agent_id
            if record.cwd != cwd or record.version != version or record.session_id != session_id:
                version, session_id, cwd = record.version, record.session_id, record.cwd
                self._placed(version, session_id, cwd)
            if agent_id:
                self.agent_ids.setdefault(agent_id)
            if (timestamp := record.timestamp) is not None and timestamp:
                last_time = timestamp
                first_time = first_time or timestamp
            if kind not in types:
                types.add(kind)
            if type(record) is RequestRecord:
                self.requests.take(record)
            if (uuid := record.uuid) is None:
                continue
            identity = hash(uuid)
            if identity in index or (old and find(identity) is not None):
                continue
            if len(index) >= recent:
                index.settle()
            count += 1
            main = (agent_id is None and record.is_sidechain is not True) or subagent
            parent = NONE
            if (name := record.parent_uuid) is not None:
                found = get(hash(name))
                if found is None and old:
                    found = find(hash(name))
                parent = UNRESOLVED if found is None else found
            if sidechains is not None and (kind == "progress" or not main):
                sidechains.take(record, main, uuid)
            main = main and kind in GRAPH_TYPES
            if parent >= 0 and (kind == "progress" or not main):
                index[identity] = parent
                if main:
                    last_main = parent
                continue
            at, number = len(parents), TRANSPARENT
            late: list[Part] = []
            if main and kind == "assistant":
                number = self._take_assistant(at, record, uuid)
            elif main and kind == "user":
                number, late = self._take_user(at, record, uuid)
            if number != TRANSPARENT:
                if parent >= 0 and node_of[parent] == number:
                    index[identity] = last_main = parent
                    self.last_turn = (count, parent)
                    continue
                self.last_turn = (count, at)
            index[identity] = at
            parents.append(parent)
            self.previous.append(last_main)
            node_of.append(number)
            self.identities.append(identity)
            if parent == UNRESOLVED:
                self.unresolved[at] = hash(name)
                if record.is_sidechain is not True or subagent:
                    self.dangling_at.append(at)
            if record.subtype == "compact_boundary" and parent == NONE:
                self.boundaries[at] = hash(record.logical_parent_uuid or "")
            if not main:
                continue
            last_main = at
            if late:
                self._late.append((count, at, late))
            elif kind == "attachment":
                self._take_attachment(at, record)
            elif record.subtype is not None and kind not in ("assistant", "user"):
                self._take_boundary(at, kind, record)
        self.first_time, self.last_time = first_time, last_time
        self._last_main, self._count = last_main, count

    def _placed(self, version: str | None, session_id: str | None, cwd: str | None) -> None:
        """Note a version, a session and a folder that differ from the record before."""
        names = self._names
        self._where = tuple(  # type: ignore[assignment]
            None if text is None else names.setdefault(text, text)
            for text in (version, session_id, cwd)
        )
        version, session_id, cwd = self._where
        if version is not None:
            self.versions.add(version)
        if session_id:
            self.session_ids.setdefault(session_id)
        if cwd and cwd not in self._cwds:
            self._cwds.add(cwd)
            self.pool.know(user_names(cwd))
            self.first_cwd = self.first_cwd or cwd

    def _new_node(self, kind: NodeKind, key: str, first: int, record: Record) -> Node:
        node = Node(kind, key, first, record.timestamp, self._where)
        self.nodes.append(node)
        return node

    # -- responses ---------------------------------------------------------------

    def _take_assistant(self, at: int, record: Record, uuid: str) -> int:
        """Add a segment to its response; return the response's node."""
        fast = message_of(record)
        message: dict[str, Any] = {}
        if fast is not None:
            key, model, usage = fast.id, fast.model, fast.usage
        else:
            message = _object(decode_any(record.message))
            key, model = _text(message.get("id")), _text(message.get("model"))
            usage = _usage(message.get("usage"))
        if model == "<synthetic>" or record.is_api_error_message is True:
            self.synthetic += 1
            return TRANSPARENT
        key = key or uuid
        number = self._responses.get(key)
        if number is None:
            number = self._responses[key] = len(self.nodes)
            node = self._new_node("response", key, at, record)
            node.parts = []
            node.forked = record.forked_from is not EMPTY and bool(decode_any(record.forked_from))
        else:
            node = self.nodes[number]
        if record.request_ref is not EMPTY and (name := reference(record)):
            self.request_of.setdefault(number, name)
        if model is not None and model not in node.models:
            node.models += (self._names.setdefault(model, model),)
        if usage is not None:
            node.count(usage)
        # Once a call's input is normalised, its true form is beside the message.
        wire = None
        if record.wire_tool_inputs is not EMPTY:
            wire = _object(decode_any(record.wire_tool_inputs))
        if fast is not None:
            parts = self.parts.of_message(fast, wire)
        else:
            parts = self.parts.of_content(message.get("content"), wire or {})
        ordered = None
        if (index := record.api_block_index) is not None or number in self._order:
            ordered = list[Part]()
            self._order.setdefault(number, []).append((-1 if index is None else index, ordered))
        if parts:
            self._add_parts(number, node, parts, record.timestamp, ordered)
        return number

    def _add_parts(
        self,
        number: int,
        node: Node,
        parts: list[Part],
        timestamp: str | None,
        ordered: list[Part] | None,
    ) -> None:
        """Add the parts of a segment that are no repetitions."""
        told = []
        kept: Any = node.parts
        for part in parts:
            if isinstance(part, Call):
                known = self._calls.setdefault(part.id, part)
                if known is not part:
                    if part.flag and known.node == number:
                        known.piece = part.piece
                    continue
                part.node = number
            else:
                # A bug of /branch writes records twice under new uuids.
                mark = hash((number, timestamp, part.kind, self.pool.get(part.piece)))
                if mark in self._told:
                    continue
                told.append(mark)
            kept.append(part)
            if ordered is not None:
                ordered.append(part)
        if told:
            self._told.update(told)

    # -- user records --------------------------------------------------------------

    def _take_user(self, at: int, record: Record, uuid: str) -> tuple[int, list[Part]]:
        """Return a user record's node; results without one come back for later."""
        message = message_of(record)
        if message is None:
            content = _object(decode_any(record.message)).get("content")
            parts = self.parts.of_content(content, {})
        else:
            content = message.content
            if type(content) is list:
                for block in content:
                    if block.type == "tool_result":
                        return self._take_results(self.parts.of_message(message))
                texts = [decode_text(b.text) for b in content if b.type == "text"]
                content = [{"type": "text", "text": text} for text in texts]
            parts = self.parts.of_message(message)
        kind = user_kind(record, content)
        if kind == "tool_result":
            return self._take_results(parts)
        if kind == "human" or kind == "compact_summary":
            self._new_node(kind, uuid, at, record).parts = tuple(parts)
            return len(self.nodes) - 1, []
        self.notes[at] = Note(kind, tuple(parts))
        return TRANSPARENT, []

    def _take_results(self, parts: list[Part]) -> tuple[int, list[Part]]:
        owner = TRANSPARENT
        beside = []
        for part in parts:
            if part.kind != "tool_result":
                beside.append(part)
            elif (call := self._calls.get(part.id)) is not None:
                owner = call.node if owner == TRANSPARENT else owner
                call.take(part)
        if owner == TRANSPARENT:
            return owner, parts
        if beside:
            self.nodes[owner].beside_results += tuple(beside)
        return owner, []

    # -- other records ---------------------------------------------------------------

    def _take_attachment(self, at: int, record: Record) -> None:
        attachment = _object(decode_any(record.attachment))
        text, rendered = record.rendered, record.rendered is not None
        if not rendered and attachment.get("type") == "queued_command":
            text = text_of(attachment.get("prompt"))
        parts = () if text is None else tuple(self.parts.of_content(text, {}))
        if parts or rendered:
            as_assistant = rendered and record.rendered_role == "assistant"
            role: Any = "assistant" if as_assistant else "user"
            self.notes[at] = Note("attachment", parts, rendered, role)
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

    def _take_boundary(self, at: int, kind: str, record: Record) -> None:
        if record.subtype == "compact_boundary":
            self.compactions += kind == "system"
            self.metadata[at] = decode_any(record.compact_metadata)
        elif record.subtype == "microcompact_boundary":
            metadata = decode_any(record.microcompact_metadata)
            metadata = _object(metadata or decode_any(record.compact_metadata))
            ids = metadata.get("compactedToolIds")
            ids = ids if isinstance(ids, list) else []
            self.clears[at] = frozenset(i for i in ids if isinstance(i, str))

    # -- the end of the file ---------------------------------------------------------

    def finish(self) -> None:
        """Sort blocks that carry their position, and attach results that came too early."""
        if self.sidechains is not None:
            self.sidechains.finish()
        for number, segments in self._order.items():
            node = self.nodes[number]
            if sum(len(parts) for _, parts in segments) < len(node.parts):
                continue  # earlier segments have no position
            if any(index < 0 for index, _ in segments):
                continue
            node.parts = [part for _, parts in sorted(segments, key=_position) for part in parts]
        for count, at, parts in self._late:
            number, _ = self._take_results(parts)
            if number != TRANSPARENT:
                self.node_of[at] = number
                self.last_turn = max(self.last_turn, (count, at))
        for node in self.nodes:
            own = node.parts = tuple(node.parts)
            if node.kind == "response":
                node.calls = tuple([part for part in own if type(part) is Call])
                node.is_state = bool(node.calls) or any(p.kind == "text" for p in own)
        self._calls = {}
        self._responses = {}
        self._told = set()
        self._order = {}
        self._late = []


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
