"""Records to turn nodes: which records form one response, one prompt, one summary.

Human prompts and compact summaries are nodes of their own, the segments of a response are
merged; everything else is transparent. Of a record that a walk along the graph can meet there
are four numbers, in arrays. A record that no walk needs leaves only its uuid, as another name
for the record before it: progress, embedded sidechains, further segments of a response, results
right after their call.
"""

from array import array
from collections.abc import Iterable
from operator import itemgetter
from typing import Any

from composer_pipeline.files import mapping, text
from composer_pipeline.redaction.people import user_names
from composer_pipeline.traces.content_store import ContentStore
from composer_pipeline.traces.graph_nodes import (
    ABSENT,
    TRANSPARENT,
    Call,
    Node,
    NodeKind,
    Note,
    Part,
    RecordContext,
    Requests,
    UuidIndex,
    request_of,
)
from composer_pipeline.traces.records import (
    EMPTY,
    GRAPH_TYPES,
    AgentRecord,
    Message,
    Record,
    RequestRecord,
    Usage,
    blocks_of,
    decode_any,
    embedded_record,
    message_of,
    plain_content,
    result_text,
    text_of,
    user_kind,
)


class Responses:
    """The nodes of one file; merges the segments of its responses.

    ``synthetic`` counts the responses that the client itself made up; they are not nodes.
    ``names`` has one object for each name of a model or a tool.
    """

    def __init__(self, contents: ContentStore, names: dict[str, str]) -> None:
        self.nodes: list[Node] = []
        self.request_of: dict[int, str] = {}
        self.synthetic = 0
        self._contents = contents
        self._names = names
        self._responses: dict[str, int] = {}
        self._calls: dict[str, Call] = {}
        self._order: dict[int, list[tuple[int, list[Part]]]] = {}
        self._known_parts: set[int] = set()

    def new_node(
        self, kind: NodeKind, key: str, first: int, record: Record, context: RecordContext
    ) -> Node:
        """Add a node that begins with ``record``, at position ``first``."""
        node = Node(kind, key, first, record.timestamp, context)
        if type(record) is AgentRecord:
            node.copied, node.fidelity = record.copied, record.fidelity
        self.nodes.append(node)
        return node

    def take(self, at: int, record: Record, uuid: str, context: RecordContext) -> int:
        """Add a segment to its response; return the response's node."""
        if (head := message_of(record)) is not None:
            content = plain_content(head)
        else:
            given = mapping(decode_any(record.message))
            content, usage = given.get("content"), _usage(given.get("usage"))
            head = Message(id=text(given.get("id")), model=text(given.get("model")), usage=usage)
        model = head.model
        if model == "<synthetic>" or record.is_api_error_message is True:
            self.synthetic += 1
            return TRANSPARENT
        key = head.id or uuid
        number = self._responses.get(key)
        if number is None:
            number = self._responses[key] = len(self.nodes)
            node = self.new_node("response", key, at, record, context)
            node.parts = []
            node.forked = record.forked_from is not EMPTY and bool(decode_any(record.forked_from))
        else:
            node = self.nodes[number]
        if record.request_ref is not EMPTY and (name := request_of(record)):
            self.request_of.setdefault(number, name)
        if model is not None and model not in node.models:
            node.models += (self._names.setdefault(model, model),)
        if head.usage is not None:
            node.count(head.usage)
        # Once a call's input is normalised, its true form is beside the message.
        wire = None
        if record.wire_tool_inputs is not EMPTY:
            wire = mapping(decode_any(record.wire_tool_inputs))
        if parts := self.parts_of(content, wire):
            parts = self._add_parts(number, node, parts, record.timestamp)
        if (index := record.api_block_index) is not None or number in self._order:
            self._order.setdefault(number, []).append((-1 if index is None else index, parts))
        return number

    def parts_of(self, content: Any, wire: dict[str, Any] | None = None) -> list[Part]:
        """Store the blocks of a message, without thinking; ``wire`` has inputs as emitted."""
        wire = wire or {}
        parts: list[Part] = []
        put = self._contents.put
        for block in blocks_of(content):
            kind = block.get("type")
            if kind == "tool_use":
                call_id = block.get("id")
                if isinstance(call_id, str):
                    name = str(block.get("name") or "")
                    name = self._names.setdefault(name, name)
                    piece = put(wire.get(call_id, block.get("input")))
                    known = call_id in wire
                    parts.append(
                        Call("tool_use", piece, call_id, name, known, contents=self._contents)
                    )
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
            elif kind not in ("thinking", "redacted_thinking"):
                parts.append(Part("other", put(block)))
        return parts

    def _add_parts(
        self, number: int, node: Node, parts: list[Part], timestamp: str | None
    ) -> list[Part]:
        """Add the parts of a segment that are not repetitions; return those."""
        added: list[int] = []
        kept: list[Part] = []
        for part in parts:
            if isinstance(part, Call):
                if node.copied:
                    self._calls.pop(part.id, None)  # what it answered before stays answered
                known = self._calls.setdefault(part.id, part)
                if known is not part:
                    if part.flag and known.node == number:
                        known.piece = part.piece
                    continue
                part.node = number
            else:
                # A bug of /branch writes records twice under new uuids.
                mark = hash((number, timestamp, part.kind, self._contents.get(part.piece)))
                if mark in self._known_parts:
                    continue
                added.append(mark)
            kept.append(part)
        self._known_parts.update(added)
        whole: Any = node.parts  # a list until the end of the file
        whole += kept
        return kept

    def take_results(self, parts: list[Part]) -> tuple[int, list[Part]]:
        """Give results to their calls; return the response, or all parts if it is unknown."""
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

    def finish(self) -> None:
        """Sort blocks that carry their position, and decide what each response is."""
        for number, segments in self._order.items():
            node = self.nodes[number]
            if sum(len(parts) for _, parts in segments) < len(node.parts):
                continue  # earlier segments have no position
            if any(index < 0 for index, _ in segments):
                continue
            segments.sort(key=itemgetter(0))
            node.parts = [part for _, parts in segments for part in parts]
        for node in self.nodes:
            own = node.parts = tuple(node.parts)
            if node.kind == "response":
                node.calls = tuple([part for part in own if type(part) is Call])
                spoken = bool(node.calls) or any(p.kind == "text" for p in own)
                node.is_state = spoken and not node.copied
        self._calls, self._responses, self._known_parts, self._order = {}, {}, set(), {}


def _usage(value: Any) -> Usage | None:
    if not isinstance(value, dict):
        return None
    given = {name: value.get(name) for name in Usage.__struct_fields__}
    return Usage(**{name: n if isinstance(n, int) else None for name, n in given.items()})


#: In ``parents``, in place of a position: a name that is not known yet, or never.
UNRESOLVED = -2


class Collector:
    """The nodes of one file, before they are linked.

    Positions count the records that are kept. ``parents`` has the position of each one's
    parent, ``ABSENT``, or ``UNRESOLVED`` for a uuid in ``unresolved``; ``previous`` the main
    record before it; ``node_of`` its node; ``identities`` the hash of its uuid.

    By position too: ``notes`` are the transparent records with a text that the model saw,
    ``clears`` the tool ids whose results a microcompaction removed, ``compacted`` the metadata of
    a compaction about what it kept, ``snapshots`` where a system prompt and a list of tools
    (pieces of the content store) began to hold.

    With ``embedded`` the subagents in the file get a collector each, by agent id, in
    ``sidechains``; ``parent_call`` is the call that started one, if the file says so.
    """

    def __init__(
        self, contents: ContentStore, *, subagent: bool = False, embedded: bool = False
    ) -> None:
        self.subagent = subagent
        self.contents = contents
        self.sidechains: dict[str, Collector] = {}
        self.parent_call: str | None = None
        self._embedded = embedded
        self._last_uuid: str | None = None
        self._agent_of: dict[int, str] = {}
        self._names: dict[str, str] = {}
        self.responses = Responses(contents, self._names)
        self.nodes = self.responses.nodes
        self.notes: dict[int, Note] = {}
        self.clears: dict[int, frozenset[str]] = {}
        self.compacted: dict[int, Any] = {}
        self.snapshots: list[tuple[int, int | None, int | None]] = []
        self.compactions = 0
        self.parents = array("i")
        self.previous = array("i")
        self.node_of = array("i")
        self.identities = array("q")
        self.unresolved: dict[int, int] = {}
        self.dangling_at: list[int] = []
        self.index = UuidIndex()
        self.types: set[str] = set()
        self.versions: set[str] = set()
        self.first_time: str | None = None
        self.last_time: str | None = None
        self.first_cwd: str | None = None
        self.boundaries: dict[int, int] = {}
        self.requests = Requests(contents)
        self.last_turn = ABSENT
        self._last_main = TRANSPARENT
        self._cwds: set[str] = set()
        self._context: RecordContext = (None, None, None)
        self._late: list[tuple[int, list[Part]]] = []

    def read(self, records: Iterable[Record]) -> None:  # noqa: C901  one loop over local names, for speed
        """Take records, in file order."""
        # Local names, for speed: the loop runs for each of up to millions of lines.
        # Only what has a uuid is in the graph; what no walk can meet leaves a name alone.
        index, get, find = self.index, self.index.get, self.index.find
        old, recent = self.index.old, self.index.RECENT
        parents, node_of, types = self.parents, self.node_of, self.types
        version, session_id, cwd = self._context
        first_time, last_time = self.first_time, self.last_time
        subagent, last_main = self.subagent, self._last_main
        embedded = self._embedded
        for record in records:
            kind, agent_id = record.type or "", record.agent_id
            if record.cwd != cwd or record.version != version or record.session_id != session_id:
                version, session_id, cwd = record.version, record.session_id, record.cwd
                self._placed(version, session_id, cwd)
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
            main = (agent_id is None and record.is_sidechain is not True) or subagent
            parent = ABSENT
            if (name := record.parent_uuid) is not None:
                found = get(hash(name))
                if found is None and old:
                    found = find(hash(name))
                parent = UNRESOLVED if found is None else found
            if embedded and (kind == "progress" or not main):
                self._take_sidechain(record, main, uuid)
            main = main and kind in GRAPH_TYPES
            if parent >= 0 and (kind == "progress" or not main):
                index[identity] = parent
                if main:
                    last_main = parent
                continue
            at, number = len(parents), TRANSPARENT
            late: list[Part] = []
            if main and kind == "assistant":
                number = self.responses.take(at, record, uuid, self._context)
            elif main and kind == "user":
                number, late = self._take_user(at, record, uuid)
            if number != TRANSPARENT:
                if parent >= 0 and node_of[parent] == number:
                    index[identity] = last_main = parent
                    self.last_turn = parent
                    continue
                self.last_turn = at
            index[identity] = at
            parents.append(parent)
            self.previous.append(last_main)
            node_of.append(number)
            self.identities.append(identity)
            if parent == UNRESOLVED:
                self.unresolved[at] = hash(name)
                if record.is_sidechain is not True or subagent:
                    self.dangling_at.append(at)
            if record.subtype == "compact_boundary" and parent == ABSENT:
                self.boundaries[at] = hash(record.logical_parent_uuid or "")
            if not main:
                continue
            last_main = at
            if late:
                self._late.append((at, late))
            elif kind == "attachment":
                self._take_attachment(at, record)
            elif record.subtype is not None and kind not in ("assistant", "user"):
                self._take_boundary(at, kind, record)
        self.first_time, self.last_time = first_time, last_time
        self._last_main = last_main

    def _placed(self, version: str | None, session_id: str | None, cwd: str | None) -> None:
        """Note a version, a session and a folder that differ from the record before."""
        names = self._names
        self._context = tuple(  # type: ignore[assignment]
            None if text is None else names.setdefault(text, text)
            for text in (version, session_id, cwd)
        )
        version, _, cwd = self._context
        if version is not None:
            self.versions.add(version)
        if cwd and cwd not in self._cwds:
            self._cwds.add(cwd)
            self.contents.add_names(user_names(cwd))
            self.first_cwd = self.first_cwd or cwd

    def _take_user(self, at: int, record: Record, uuid: str) -> tuple[int, list[Part]]:
        """Return a user record's node; results without one come back for later."""
        if (message := message_of(record)) is not None:
            content = plain_content(message)
        else:
            content = mapping(decode_any(record.message)).get("content")
        parts, kind = self.responses.parts_of(content), user_kind(record, content)
        if type(record) is AgentRecord:
            self.parent_call = self.parent_call or record.parent_tool_use_id
        if kind == "tool_result":
            return self.responses.take_results(parts)
        if kind == "human" or kind == "compact_summary":
            node = self.responses.new_node(kind, uuid, at, record, self._context)
            node.parts = tuple(parts)
            return len(self.nodes) - 1, []
        self.notes[at] = Note(kind, tuple(parts))
        return TRANSPARENT, []

    def _take_sidechain(self, record: Record, main: bool, uuid: str) -> None:
        """Give a record that is progress or not of the main trajectory to its subagent, if any."""
        inner = embedded_record(record) if record.type == "progress" else None
        if inner is not None and inner.agent_id is not None:
            name, call = inner.agent_id, record.parent_tool_use_id
            inner.parent_uuid = (
                self.sidechains[name]._last_uuid if name in self.sidechains else None
            )
        elif not main and record.is_sidechain is True and record.type in GRAPH_TYPES:
            inner, call, above = record, record.parent_tool_use_id, record.parent_uuid
            known = self._agent_of.get(hash(above)) if above is not None else None
            name = record.agent_id or known or f"sidechain-{uuid}"
            if above is not None and known is None and name not in self.sidechains:
                return
            self._agent_of[hash(uuid)] = name
        else:
            return
        side = self.sidechains.get(name)
        if side is None:
            side = self.sidechains[name] = Collector(self.contents, subagent=True)
            side.parent_call = call
        if inner.uuid is not None and side.index.find(hash(inner.uuid)) is None:
            side._last_uuid = inner.uuid
            side.read((inner,))

    def _take_attachment(self, at: int, record: Record) -> None:
        """Note the text of an attachment, or the prompt and the tools that it records."""
        attachment = mapping(decode_any(record.attachment))
        text, rendered = record.rendered, record.rendered is not None
        if not rendered and attachment.get("type") == "queued_command":
            text = text_of(attachment.get("prompt"))
        parts = () if text is None else tuple(self.responses.parts_of(text))
        if parts or rendered:
            as_assistant = rendered and record.rendered_role == "assistant"
            role: Any = "assistant" if as_assistant else "user"
            self.notes[at] = Note("attachment", parts, rendered, role)
        if attachment.get("type") == "prompt_snapshot":
            self._take_snapshot(at, attachment)

    def _take_snapshot(self, at: int, attachment: dict[str, Any]) -> None:
        put = self.contents.put
        system, tools = attachment.get("systemPrompt"), attachment.get("tools")
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

    def _take_boundary(self, at: int, kind: str, record: Record) -> None:
        """Note a compaction or a microcompaction."""
        if record.subtype == "compact_boundary":
            self.compactions += kind == "system"
            self.compacted[at] = decode_any(record.compact_metadata)
        elif record.subtype == "microcompact_boundary":
            metadata = decode_any(record.microcompact_metadata)
            metadata = mapping(metadata or decode_any(record.compact_metadata))
            ids = metadata.get("compactedToolIds")
            ids = ids if isinstance(ids, list) else []
            self.clears[at] = frozenset(i for i in ids if isinstance(i, str))

    def finish(self) -> None:
        """Attach results that came before their calls, and finish the subagents."""
        for side in self.sidechains.values():
            side.finish()
        # The calls come after them in the file, and so does the end of the active path.
        for at, parts in self._late:
            number, _ = self.responses.take_results(parts)
            if number != TRANSPARENT:
                self.node_of[at] = number
        self._late = []
        self.responses.finish()
