"""Parents of turn nodes: the contraction that makes the conversation graph correct.

Belongs here: the walk along ``parentUuid``, repairs, what a compaction keeps, the active
path. Does not belong here: which record belongs to which node (``traces.graph.collect``).

The parent of a node is the first different node on the walk along ``parentUuid`` from
the node's first record. What the model saw besides (meta records, interrupts, rendered
attachments) hangs on the edge between two nodes as ``inserts``.
"""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from composer_pipeline.traces.graph.collect import UNRESOLVED, Collector
from composer_pipeline.traces.graph.nodes import NONE, TRANSPARENT, Node


@dataclass(slots=True)
class _Boundary:
    """A compaction that kept messages: copies of ``kept`` hang below ``anchor``."""

    at: int
    anchor: int
    kept: list[int]
    landing: dict[int, int] = field(default_factory=dict)
    tail: int = TRANSPARENT


class Linker:
    """Links the nodes of a file.

    Args:
        read: the file, read to its end. Its nodes are changed, and copies are added.
    """

    def __init__(self, read: Collector) -> None:
        self.read = read
        self.nodes = read.nodes
        self._find = read.index.find
        self._kept: list[_Boundary] = []

    def run(self) -> None:
        """Set the parents of all nodes and what they inherit from their prefixes."""
        found = [self._boundary(at, metadata) for at, metadata in self.read.metadata.items()]
        self._kept = [boundary for boundary in found if boundary is not None]
        for number, node in enumerate(self.nodes):
            if node.origin is None:
                self._link(number, node)
        self._accumulate()

    def dangling(self) -> int:
        """Count records whose parent is not in the file."""
        unresolved = self.read.unresolved
        return sum(self._find(unresolved[at]) is None for at in self.read.dangling_at)

    def _parent(self, at: int) -> tuple[int | None, bool]:
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

    # -- compactions that keep messages ------------------------------------------------

    def _boundary(self, at: int, metadata: Any) -> _Boundary | None:
        """Find what a compaction preserved, and add copies of it."""
        if not isinstance(metadata, dict):
            return None
        node_of, nodes = self.read.node_of, self.nodes
        messages, segment = metadata.get("preservedMessages"), metadata.get("preservedSegment")
        messages = messages if isinstance(messages, dict) else {}
        segment = segment if isinstance(segment, dict) else {}
        anchor = self._find(hash(str(messages.get("anchorUuid") or segment.get("anchorUuid"))))
        uuids = messages.get("uuids")
        if isinstance(uuids, list):
            named = [(self._find(hash(u)), hash(u)) for u in uuids if isinstance(u, str)]
            # Not those that are only another name for a record.
            kept = [
                at
                for at, identity in named
                if at is not None and self.read.identities[at] == identity
            ]
        else:
            kept = self._segment(segment.get("headUuid"), segment.get("tailUuid"))
        if anchor is None or not kept or node_of[anchor] == TRANSPARENT:
            return None
        boundary = _Boundary(at, anchor, kept)
        last = node_of[anchor]
        inserts: list[int] = []
        for record in kept:
            origin = node_of[record]
            if origin == TRANSPARENT:
                inserts += [record] if self._is_visible(record) else []
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

    def _segment(self, head: Any, tail: Any) -> list[int]:
        first, at = self._find(hash(str(head))), self._find(hash(str(tail)))
        walked: dict[int, None] = {}
        while first is not None and at is not None and at not in walked:
            walked[at] = None
            if at == first:
                return list(walked)[::-1]
            at = self._parent(at)[0]
        return []

    def _landing(self, at: int, parent: int) -> int:
        """Return the node of ``parent`` as ``at`` sees it: a copy, behind a compaction."""
        for boundary in reversed(self._kept):
            if at <= boundary.at:
                continue
            if parent < boundary.at and parent in boundary.landing:
                return boundary.landing[parent]
            if parent == boundary.anchor:
                return boundary.tail
        return self.read.node_of[parent]

    # -- parents -------------------------------------------------------------------

    def _link(self, number: int, node: Node) -> None:
        at, node_of = node.first, self.read.node_of
        parent: int | None = self.read.parents[at]
        if parent is not None and parent >= 0 and not self._kept:
            # The usual case: the record before is a turn's only or first one.
            target = node_of[parent]
            if target not in (TRANSPARENT, number) and self.nodes[target].first == parent:
                node.parent = target
                return
        seen = {at}
        inserts: list[int] = []
        target = TRANSPARENT
        while True:
            parent, repaired = self._parent(at)
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
            if node_of[at] == TRANSPARENT and self._is_visible(at):
                inserts.append(at)
            # Records between the segments of the parent belong before this node too.
            if target != TRANSPARENT and at == self.nodes[target].first:
                break
        node.parent = None if target == TRANSPARENT else target
        node.inserts = tuple(sorted(inserts))

    def _is_visible(self, at: int) -> bool:
        """Say whether a transparent record is text that the model saw, or changes it."""
        return at in self.read.notes or at in self.read.clears

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
        if node.parent is not None:
            before = self.nodes[node.parent]
            node.depth = before.depth + 1
            node.repaired |= before.repaired
            if before.cleared:
                node.cleared |= before.cleared

    # -- the active path -------------------------------------------------------------

    def active(self) -> set[int]:
        """Return the nodes on the path from the last turn back to the start."""
        active: set[int] = set()
        at: int | None = self.read.last_turn[1]
        if at == NONE:
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
            parent = self._parent(at)[0]
            if at in self.read.boundaries:
                logical = self._find(self.read.boundaries[at])
                parent = logical if logical is not None else self._previous_main(at)
            at = parent
        return active
