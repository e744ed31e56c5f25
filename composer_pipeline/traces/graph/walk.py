"""The walk along ``parentUuid``: what stands before a record, as the model saw it.

Belongs here: repairs of dangling parents, what a compaction preserved, the active path.
Does not belong here: parents of nodes (``traces.graph.links``).

Behind a compaction that kept messages, the model saw these again below the summary, while
their records stay where they were: as parts of the history before. They are therefore
copied, and a walk that comes from behind the compaction lands on the copies.
"""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from composer_pipeline.traces.graph.collect import UNRESOLVED, Collector
from composer_pipeline.traces.graph.nodes import NONE, TRANSPARENT


@dataclass(slots=True)
class _Boundary:
    """A compaction that kept messages: copies of ``kept`` hang below ``anchor``."""

    at: int
    anchor: int
    kept: list[int]
    landing: dict[int, int] = field(default_factory=dict)
    tail: int = TRANSPARENT


class Walk:
    """Walks over the records of one file.

    Args:
        read: the file, read to its end. Copies of nodes that compactions kept are added.
    """

    def __init__(self, read: Collector) -> None:
        self.read = read
        self._find = read.index.find
        found = [self._boundary(at, metadata) for at, metadata in read.sides.compacted.items()]
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
        """Say whether a transparent record is text that the model saw, or changes it."""
        return at in self.read.sides.notes or at in self.read.sides.clears

    def _boundary(self, at: int, metadata: Any) -> _Boundary | None:
        """Find what a compaction preserved, and add copies of it."""
        if not isinstance(metadata, dict):
            return None
        messages, segment = metadata.get("preservedMessages"), metadata.get("preservedSegment")
        messages = messages if isinstance(messages, dict) else {}
        segment = segment if isinstance(segment, dict) else {}
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
        node_of, nodes = self.read.node_of, self.read.nodes
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
        """Return the node of ``parent`` as ``at`` sees it: a copy, behind a compaction."""
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
        if at == NONE:
            return active
        seen: set[int] = set()
        while at is not None:
            number = self.read.node_of[at]
            if number != TRANSPARENT and number not in active:
                active.add(number)
                at = self.read.nodes[number].first
            if at in seen:
                break
            seen.add(at)
            parent = self.parent(at)[0]
            if at in self.read.boundaries:
                logical = self._find(self.read.boundaries[at])
                parent = logical if logical is not None else self._previous_main(at)
            at = parent
        return active
