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
from collections.abc import Iterable

from composer_pipeline.redaction import user_names
from composer_pipeline.traces.graph.nodes import (
    NONE,
    TRANSPARENT,
    Note,
    Part,
    Where,
)
from composer_pipeline.traces.graph.pool import Pool
from composer_pipeline.traces.graph.responses import Responses, object_of
from composer_pipeline.traces.graph.sent_requests import Requests
from composer_pipeline.traces.graph.side_records import SideRecords
from composer_pipeline.traces.graph.subagents import Sidechains
from composer_pipeline.traces.graph.uuid_index import UuidIndex
from composer_pipeline.traces.reading import (
    GRAPH_TYPES,
    Record,
    RequestRecord,
    decode_any,
    decode_text,
    message_of,
    user_kind,
)

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
