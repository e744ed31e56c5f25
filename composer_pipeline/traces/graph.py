"""Records to turn nodes: which records form one response, one prompt, one summary.

Belongs here: what is kept of a record, and which node it maps to. Does not belong here:
which node is the parent of which (``traces.graph.links``).

Human prompts and compact summaries are nodes of their own, responses are put together in
``traces.graph.responses``; everything else is transparent. Of a record that a walk along
the graph can meet there are four numbers, in arrays. A record that no walk needs leaves
only its uuid, as another name for the record before it: progress, embedded sidechains,
further segments of a response, results right behind their call.
"""

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from composer_pipeline.files import text
from composer_pipeline.redaction.people import user_names
from composer_pipeline.traces.content_store import Pool
from composer_pipeline.traces.contents import GRAPH_TYPES, text_of, user_kind
from composer_pipeline.traces.graph_nodes import (
    NONE,
    TRANSPARENT,
    Call,
    Node,
    NodeKind,
    Note,
    Part,
    PartMaker,
    Requests,
    UuidIndex,
    Where,
    reference,
)
from composer_pipeline.traces.records import (
    EMPTY,
    Message,
    Record,
    RequestRecord,
    Usage,
    decode_any,
    decode_text,
    embedded_record,
    message_of,
)


class Responses:
    """The nodes of one file, of which the responses are put together here.

    ``synthetic`` counts the responses that the client made up itself; they are no nodes.

    Args:
        pool: receives the contents.
        names: one object for each name of a model or a tool.
    """

    def __init__(self, pool: Pool, names: dict[str, str]) -> None:
        self.nodes: list[Node] = []
        self.request_of: dict[int, str] = {}
        self.synthetic = 0
        self.parts = PartMaker(pool, names)
        self._pool = pool
        self._names = names
        self._responses: dict[str, int] = {}
        self._calls: dict[str, Call] = {}
        self._order: dict[int, list[tuple[int, list[Part]]]] = {}
        self._told: set[int] = set()

    def new_node(self, kind: NodeKind, key: str, first: int, record: Record, where: Where) -> Node:
        """Add a node that begins with ``record``, at position ``first``."""
        node = Node(kind, key, first, record.timestamp, where)
        self.nodes.append(node)
        return node

    def take(self, at: int, record: Record, uuid: str, where: Where) -> int:
        """Add a segment to its response; return the response's node."""
        fast = message_of(record)
        given = {} if fast is not None else object_of(decode_any(record.message))
        head = fast or Message(
            id=text(given.get("id")),
            model=text(given.get("model")),
            usage=_usage(given.get("usage")),
        )
        model = head.model
        if model == "<synthetic>" or record.is_api_error_message is True:
            self.synthetic += 1
            return TRANSPARENT
        key = head.id or uuid
        number = self._responses.get(key)
        if number is None:
            number = self._responses[key] = len(self.nodes)
            node = self.new_node("response", key, at, record, where)
            node.parts = []
            node.forked = record.forked_from is not EMPTY and bool(decode_any(record.forked_from))
        else:
            node = self.nodes[number]
        if record.request_ref is not EMPTY and (name := reference(record)):
            self.request_of.setdefault(number, name)
        if model is not None and model not in node.models:
            node.models += (self._names.setdefault(model, model),)
        if head.usage is not None:
            node.count(head.usage)
        # Once a call's input is normalised, its true form is beside the message.
        wire = None
        if record.wire_tool_inputs is not EMPTY:
            wire = object_of(decode_any(record.wire_tool_inputs))
        if fast is not None:
            parts = self.parts.of_message(fast, wire)
        else:
            parts = self.parts.of_content(given.get("content"), wire or {})
        if parts:
            parts = self._add_parts(number, node, parts, record.timestamp)
        if (index := record.api_block_index) is not None or number in self._order:
            self._order.setdefault(number, []).append((-1 if index is None else index, parts))
        return number

    def _add_parts(
        self, number: int, node: Node, parts: list[Part], timestamp: str | None
    ) -> list[Part]:
        """Add the parts of a segment that are no repetitions; return those."""
        told: list[int] = []
        kept: list[Part] = []
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
                mark = hash((number, timestamp, part.kind, self._pool.get(part.piece)))
                if mark in self._told:
                    continue
                told.append(mark)
            kept.append(part)
        self._told.update(told)
        whole: Any = node.parts  # a list until the end of the file
        whole += kept
        return kept

    def take_results(self, parts: list[Part]) -> tuple[int, list[Part]]:
        """Give results to their calls; return the response, or all parts where it is unknown."""
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
        """Sort blocks that carry their position, and settle what each response is."""
        for number, segments in self._order.items():
            node = self.nodes[number]
            if sum(len(parts) for _, parts in segments) < len(node.parts):
                continue  # earlier segments have no position
            if any(index < 0 for index, _ in segments):
                continue
            node.parts = [part for _, parts in sorted(segments, key=_position) for part in parts]
        for node in self.nodes:
            own = node.parts = tuple(node.parts)
            if node.kind == "response":
                node.calls = tuple([part for part in own if type(part) is Call])
                node.is_state = bool(node.calls) or any(p.kind == "text" for p in own)
        self._calls = {}
        self._responses = {}
        self._told = set()
        self._order = {}


def _position(segment: tuple[int, list[Part]]) -> int:
    return segment[0]


def _usage(value: Any) -> Usage | None:
    if not isinstance(value, dict):
        return None
    given = {name: value.get(name) for name in Usage.__struct_fields__}
    return Usage(**{name: n if isinstance(n, int) else None for name, n in given.items()})


def object_of(value: Any) -> dict[str, Any]:
    """Return a decoded object; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


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


class Reads(Protocol):
    """What takes the records of one subagent."""

    def read(self, records: Iterable[Record]) -> None:
        """Take records, in file order."""
        ...

    def finish(self) -> None:
        """Know that there are no more."""
        ...


_Reads = TypeVar("_Reads", bound=Reads)


@dataclass(slots=True)
class Sidechain(Generic[_Reads]):
    """The records of one subagent.

    ``parent_call`` is the call that started it, where the file says so; ``last`` is the
    uuid of its last record, ``known`` are the hashes of all.
    """

    records: _Reads
    parent_call: str | None = None
    last: str | None = None
    known: set[int] = field(default_factory=set)


class Sidechains(Generic[_Reads]):
    """The subagents of one file, by agent id.

    Args:
        new: makes what takes the records of one of them.
    """

    def __init__(self, new: Callable[[], _Reads]) -> None:
        self.found: dict[str, Sidechain[_Reads]] = {}
        self._new = new
        self._name_of: dict[int, str] = {}

    def take(self, record: Record, main: bool, uuid: str) -> None:
        """Give a record to its subagent, if it has one.

        Args:
            record: a progress record, or one outside the main trajectory.
            main: it is one of the main trajectory.
            uuid: its uuid.
        """
        inner = embedded_record(record) if record.type == "progress" else None
        if inner is not None and inner.agent_id is not None:
            name, call = inner.agent_id, record.parent_tool_use_id
            inner.parent_uuid = self.found[name].last if name in self.found else None
        elif not main and record.is_sidechain is True and record.type in GRAPH_TYPES:
            inner, call, above = record, None, record.parent_uuid
            known = self._name_of.get(hash(above)) if above is not None else None
            name = record.agent_id or known or f"sidechain-{uuid}"
            if above is not None and known is None and name not in self.found:
                return
            self._name_of[hash(uuid)] = name
        else:
            return
        side = self.found.get(name)
        if side is None:
            side = self.found[name] = Sidechain(self._new(), call)
        if inner.uuid is not None and hash(inner.uuid) not in side.known:
            side.known.add(hash(inner.uuid))
            side.last = inner.uuid
            side.records.read((inner,))

    def finish(self) -> None:
        """Finish all."""
        for side in self.found.values():
            side.records.finish()


#: In ``parents``, in place of a position: a name that is not known yet, or never.
UNRESOLVED = -2


class Collector:
    """The nodes of one file, before they are linked.

    Positions count the records that are kept. ``parents`` has the position of each one's
    parent, ``NONE``, or ``UNRESOLVED`` for a uuid in ``unresolved``; ``previous`` the main
    record before it; ``node_of`` its node; ``identities`` the hash of its uuid.

    Args:
        subagent: as for :class:`composer_pipeline.traces.trajectory.Trajectory`.
        pool: receives the contents.
        sidechains: keep the sidechains that the file embeds, each in a collector.
    """

    def __init__(self, pool: Pool, *, subagent: bool = False, sidechains: bool = False) -> None:
        self.subagent = subagent
        self.pool = pool
        self.sidechains: Sidechains[Collector] | None = None
        if sidechains:
            self.sidechains = Sidechains(lambda: Collector(pool, subagent=True))
        self._names: dict[str, str] = {}
        self.responses = Responses(pool, self._names)
        self.sides = SideRecords(self.responses.parts)
        self.nodes = self.responses.nodes
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
        self.boundaries: dict[int, int] = {}
        self.requests = Requests(self.pool.put, self.pool.load)
        self.last_turn = NONE
        self._last_main = TRANSPARENT
        self._cwds: set[str] = set()
        self._where: Where = (None, None, None)
        self._late: list[tuple[int, list[Part]]] = []

    def read(self, records: Iterable[Record]) -> None:  # noqa: C901  one loop over local names, for speed
        """Take records, in file order. Call :meth:`finish` behind the last one."""
        # One loop over local names, for speed: it runs for each of up to millions of lines.
        # Only what has a uuid is in the graph; what no walk can meet leaves a name alone.
        index, get, find = self.index, self.index.get, self.index.find
        old, recent = self.index.old, self.index.RECENT
        parents, node_of, types = self.parents, self.node_of, self.types
        version, session_id, cwd = self._where
        first_time, last_time = self.first_time, self.last_time
        subagent, last_main = self.subagent, self._last_main
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
                number = self.responses.take(at, record, uuid, self._where)
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
            if record.subtype == "compact_boundary" and parent == NONE:
                self.boundaries[at] = hash(record.logical_parent_uuid or "")
            if not main:
                continue
            last_main = at
            if late:
                self._late.append((at, late))
            elif kind == "attachment":
                self.sides.take_attachment(at, record)
            elif record.subtype is not None and kind not in ("assistant", "user"):
                self.sides.take_boundary(at, kind, record)
        self.first_time, self.last_time = first_time, last_time
        self._last_main = last_main

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

    def _take_user(self, at: int, record: Record, uuid: str) -> tuple[int, list[Part]]:
        """Return a user record's node; results without one come back for later."""
        message, parts_of = message_of(record), self.responses.parts
        if message is None:
            content = object_of(decode_any(record.message)).get("content")
            parts = parts_of.of_content(content, {})
        else:
            content = message.content
            if type(content) is list:
                for block in content:
                    if block.type == "tool_result":
                        return self.responses.take_results(parts_of.of_message(message))
                texts = [decode_text(b.text) for b in content if b.type == "text"]
                content = [{"type": "text", "text": text} for text in texts]
            parts = parts_of.of_message(message)
        kind = user_kind(record, content)
        if kind == "tool_result":
            return self.responses.take_results(parts)
        if kind == "human" or kind == "compact_summary":
            node = self.responses.new_node(kind, uuid, at, record, self._where)
            node.parts = tuple(parts)
            return len(self.nodes) - 1, []
        self.sides.notes[at] = Note(kind, tuple(parts))
        return TRANSPARENT, []

    def finish(self) -> None:
        """Attach results that came before their calls, and finish the subagents."""
        if self.sidechains is not None:
            self.sidechains.finish()
        # The calls stand behind them in the file, and so does the end of the active path.
        for at, parts in self._late:
            number, _ = self.responses.take_results(parts)
            if number != TRANSPARENT:
                self.node_of[at] = number
        self._late = []
        self.responses.finish()
