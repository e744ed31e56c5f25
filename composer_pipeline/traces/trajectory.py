"""The turn graph of one file: parents of turn nodes, and what nodes inherit from their prefixes.

The parent of a node is the first different node on the walk along ``parentUuid`` from the
node's first record. What the model saw besides (meta records, interrupts, rendered attachments)
hangs on the edge between two nodes as ``inserts``.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from composer_pipeline.files import mapping_at
from composer_pipeline.tool_names import AGENTS
from composer_pipeline.traces.content_store import ContentStore, Redactor
from composer_pipeline.traces.graph import UNRESOLVED, Collector
from composer_pipeline.traces.graph_nodes import ABSENT, TRANSPARENT, Call, Node
from composer_pipeline.traces.records import Record


@dataclass(slots=True)
class _Boundary:
    """A compaction that kept messages: copies of ``kept`` hang below ``anchor``."""

    at: int
    anchor: int
    kept: list[int]
    landing: dict[int, int] = field(default_factory=dict)
    tail: int = TRANSPARENT


class Linker:
    """Links the nodes of one file; adds copies of nodes that compactions kept."""

    def __init__(self, read: Collector) -> None:
        self.read = read
        self.nodes = read.nodes
        self._find = read.index.find
        found = [self._boundary(at, metadata) for at, metadata in read.compacted.items()]
        self.kept = [boundary for boundary in found if boundary is not None]

    def dangling(self) -> int:
        """Count records whose parent is not in the file."""
        unresolved = self.read.unresolved
        return sum(self._find(unresolved[at]) is None for at in self.read.dangling_at)

    def parent(self, at: int) -> tuple[int | None, bool]:
        """Return the record before ``at`` on its chain, and whether that was a repair."""
        parent = self.read.parents[at]
        if parent >= 0:
            return parent, False
        if parent == UNRESOLVED:
            found = self._find(self.read.unresolved[at])
            return (found, False) if found is not None else (self._previous_main(at), True)
        return None, False

    def _previous_main(self, at: int) -> int | None:
        previous = self.read.previous[at]
        return None if previous == TRANSPARENT else previous

    def is_visible(self, at: int) -> bool:
        """Return True if a transparent record is text that the model saw, or changes it."""
        return at in self.read.notes or at in self.read.clears

    def _boundary(self, at: int, metadata: Any) -> _Boundary | None:
        """Find what a compaction preserved, and add copies of it."""
        if not isinstance(metadata, dict):
            return None
        messages = mapping_at(metadata, "preservedMessages")
        segment = mapping_at(metadata, "preservedSegment")
        anchor = self._find(hash(str(messages.get("anchorUuid") or segment.get("anchorUuid"))))
        uuids = messages.get("uuids")
        if isinstance(uuids, list):
            kept = self._named(uuids)
        else:
            kept = self._segment(segment.get("headUuid"), segment.get("tailUuid"))
        if anchor is None or not kept or self.read.node_of[anchor] == TRANSPARENT:
            return None
        return self._copied(_Boundary(at, anchor, kept))

    def _copied(self, boundary: _Boundary) -> _Boundary:
        """Add copies of what a compaction kept, one below the other."""
        node_of, nodes = self.read.node_of, self.nodes
        last = node_of[boundary.anchor]
        inserts: list[int] = []
        for record in boundary.kept:
            origin = node_of[record]
            if origin == TRANSPARENT:
                inserts += [record] if self.is_visible(record) else []
            elif nodes[last].origin != origin:
                copy = msgspec.structs.replace(
                    nodes[origin],
                    origin=origin,
                    is_state=False,
                    parent=last,
                    inserts=tuple(inserts),
                )
                last, inserts = len(nodes), []
                nodes.append(copy)
            boundary.landing[record] = last
        boundary.tail = last
        return boundary

    def _named(self, uuids: list[Any]) -> list[int]:
        found = [(self._find(hash(u)), hash(u)) for u in uuids if isinstance(u, str)]
        # Not those that are only another name for a record.
        identities = self.read.identities
        return [at for at, name in found if at is not None and identities[at] == name]

    def _segment(self, head: Any, tail: Any) -> list[int]:
        first, at = self._find(hash(str(head))), self._find(hash(str(tail)))
        walked: dict[int, None] = {}
        while first is not None and at is not None and at not in walked:
            walked[at] = None
            if at == first:
                return list(walked)[::-1]
            at = self.parent(at)[0]
        return []

    def landing(self, at: int, parent: int) -> int:
        """Return the node of ``parent`` as ``at`` sees it: a copy, after a compaction."""
        for boundary in reversed(self.kept):
            if at <= boundary.at:
                continue
            if parent < boundary.at and parent in boundary.landing:
                return boundary.landing[parent]
            if parent == boundary.anchor:
                return boundary.tail
        return self.read.node_of[parent]

    def active(self) -> set[int]:
        """Return the nodes on the path from the last turn back to the start."""
        active: set[int] = set()
        at: int | None = self.read.last_turn
        if at == ABSENT:
            return active
        seen: set[int] = set()
        while at is not None:
            number = self.read.node_of[at]
            if number != TRANSPARENT and number not in active:
                active.add(number)
                at = self.nodes[number].first
            if at in seen:
                break
            seen.add(at)
            parent = self.parent(at)[0]
            if at in self.read.boundaries:
                logical = self._find(self.read.boundaries[at])
                parent = logical if logical is not None else self._previous_main(at)
            at = parent
        return active

    def run(self) -> None:
        """Set the parents of all nodes and what they inherit from their prefixes."""
        for number, node in enumerate(self.nodes):
            if node.origin is None and not self._link_to_neighbour(number, node):
                self._link(number, node)
        self._accumulate()

    def _link_to_neighbour(self, number: int, node: Node) -> bool:
        """Link in the usual case: the record before is its turn's only or first one."""
        parent = self.read.parents[node.first]
        if parent < 0 or self.kept:
            return False
        target = self.read.node_of[parent]
        if target in (TRANSPARENT, number) or self.nodes[target].first != parent:
            return False
        node.parent = target
        return True

    def _link(self, number: int, node: Node) -> None:
        """Walk back to the parent, and through it to its first record."""
        # What stands between its segments, such as a note beside a result, was seen before this
        # node too.
        at, node_of = node.first, self.read.node_of
        seen = {at}
        inserts: list[int] = []
        target = TRANSPARENT
        while True:
            parent, repaired = self.parent(at)
            if target == TRANSPARENT:
                node.crossed_repair |= repaired
            if parent is None or parent in seen:
                break
            landed = self.landing(at, parent)
            seen.add(parent)
            at = parent
            if target == TRANSPARENT:
                if landed not in (TRANSPARENT, number):
                    target = landed
            elif landed not in (TRANSPARENT, target):
                break
            if node_of[at] == TRANSPARENT and self.is_visible(at):
                inserts.append(at)
            if target != TRANSPARENT and at == self.nodes[target].first:
                break
        node.parent = None if target == TRANSPARENT else target
        node.inserts = tuple(sorted(inserts))

    def _accumulate(self) -> None:
        """Compute what a node inherits from its prefix; break cycles of broken files."""
        nodes = self.nodes
        done = bytearray(len(nodes))
        for start, node in enumerate(nodes):
            if node.parent is None or done[node.parent]:
                if not done[start]:
                    self._inherit(node)
                    done[start] = True
                continue
            path: list[int] = []
            on_path: set[int] = set()
            at: int | None = start
            while at is not None and not done[at]:
                if at in on_path:
                    nodes[path[-1]].parent = None
                    break
                path.append(at)
                on_path.add(at)
                at = nodes[at].parent
            for number in reversed(path):
                self._inherit(nodes[number])
                done[number] = True

    def _inherit(self, node: Node) -> None:
        node.repaired = node.crossed_repair
        if node.inserts and (clears := self.read.clears):
            node.cleared = frozenset().union(*(clears.get(at, ()) for at in node.inserts))
        if node.inserts:
            notes = self.read.notes
            node.attached = any(at in notes and notes[at].rendered for at in node.inserts)
        if node.parent is not None:
            before = self.nodes[node.parent]
            node.depth = before.depth + 1
            node.repaired |= before.repaired
            node.attached |= before.attached
            if before.cleared:
                node.cleared |= before.cleared


#: How ids of agents begin whose only call writes the summary of a compaction.
COMPACTS = "acompact"


_RUNNING = re.compile(rb"Process running with session ID (\d+)")


class Trajectory:
    """The turn graph of one file.

    Reads the records once and keeps what the graph needs; texts go to ``contents``, redacted if
    there is a redactor. ``notes`` are the transparent records that the model saw, by position.
    ``sidechains`` are the subagents whose records the file embeds, by agent id; they share the
    contents, and ``parent_call`` is the call that started one, if known. In the file of a
    ``subagent`` all records carry ``isSidechain``; in a main file such records are not turns.
    """

    def __init__(
        self, records: Iterable[Record], *, subagent: bool = False, redactor: Redactor | None = None
    ) -> None:
        read = Collector(ContentStore(redactor), subagent=subagent, embedded=True)
        read.read(records)
        read.finish()
        self._link(read)

    def _link(self, read: Collector) -> None:
        linker = Linker(read)
        linker.run()
        self.subagent = read.subagent
        self.nodes = read.nodes
        self.notes = read.notes
        self.contents = read.contents
        self.types = read.types
        self.versions = read.versions
        self.first_time = read.first_time
        self.last_time = read.last_time
        self.first_cwd = read.first_cwd
        self.compactions = read.compactions
        self.synthetic = read.responses.synthetic
        self.snapshots = read.snapshots
        self.requests = read.requests
        self.request_of = read.responses.request_of
        self.dangling = linker.dangling()
        self._active = linker.active()
        self.parent_call = read.parent_call
        self._join_looks()
        self.sidechains: dict[str, Trajectory] = {}
        found = read.sidechains
        calls = self.agent_calls() if found else {}
        for name in sorted(found):
            side = Trajectory.__new__(Trajectory)
            side._link(found.pop(name))  # what reading needed is freed, one after the other
            side.parent_call = side.parent_call or calls.get(side.first_prompt())
            if side.nodes and not name.startswith(COMPACTS):
                self.sidechains[name] = side

    def _join_looks(self) -> None:
        """Find the commands of Codex that went on behind the call, and the looks at them."""
        begun: dict[str, Call] = {}
        for call in (call for node in self.nodes for call in node.calls):
            if call.name not in ("exec_command", "write_stdin"):
                continue
            if call.name == "write_stdin":
                call.begun_by = begun.get(str(call.own.arguments.get("session_id")))
            found = _RUNNING.search(self.contents.get(call.answer)) if call.answered else None
            call.goes_on = found is not None
            if found is not None:
                begun[found[1].decode()] = call.begun_by or call

    def first_prompt(self) -> str:
        """Return the text of the first human turn; empty if there is none."""
        first = next((node for node in self.nodes if node.kind == "human"), None)
        return self.text_of(first) if first is not None else ""

    def agent_calls(self) -> dict[str, str]:
        """Return prompt to id of the calls that start subagents; the first of equal prompts."""
        found: dict[str, str] = {}
        for node in self.nodes:
            for call in node.calls:
                given = call.steps[0].arguments if call.tool in AGENTS else {}
                prompt = given.get("prompt")
                if isinstance(prompt, str) and prompt:
                    found.setdefault(prompt, call.id)
        return found

    def text_of(self, node: Node) -> str:
        """Return the text of a node, redacted; decoded at each call."""
        texts = [self.contents.load(part.piece) for part in node.parts if part.kind == "text"]
        return "\n".join(texts)

    def path_to(self, number: int) -> list[int]:
        """Return the nodes from the root to ``number``, both included."""
        path = []
        at: int | None = number
        while at is not None:
            path.append(at)
            at = self.nodes[at].parent
        return path[::-1]

    def active_nodes(self) -> set[int]:
        """Return the nodes on the path from the last turn back to the start."""
        return self._active

    def was_interrupted(self, node: Node) -> bool:
        """Return True if the user interrupted between the node's parent and the node."""
        notes = self.notes
        return any(at in notes and notes[at].kind == "interrupt" for at in node.inserts)

    def branch_points(self) -> int:
        """Count nodes with two or more distinct children that are states or prompts."""
        first: dict[int, int] = {}
        children: dict[int, list[int]] = {}
        for number, node in enumerate(self.nodes):
            if node.parent is None or node.origin is not None:
                continue
            if node.kind == "human" or node.is_state:
                eldest = first.setdefault(node.parent, number)
                if eldest != number:
                    children.setdefault(node.parent, [eldest]).append(number)
        return sum(
            len({self._child_key(number) for number in numbers}) > 1
            for numbers in children.values()
        )

    def _child_key(self, number: int) -> Any:
        node = self.nodes[number]
        if node.kind != "human":
            return number
        return node.timestamp, self.text_of(node)

    def states(self) -> list[int]:
        """Return the numbers of the nodes that are states, in file order."""
        return [number for number, node in enumerate(self.nodes) if node.is_state]

    def response_keys(self) -> set[str]:
        """Return the message ids of the responses."""
        return {
            n.key for n in self.nodes if n.kind == "response" and n.origin is None and not n.copied
        }

    def state_keys(self) -> set[str]:
        """Return the message ids of the states."""
        return {n.key for n in self.nodes if n.is_state}
