"""Parents of turn nodes: the contraction that makes the conversation graph correct.

Belongs here: which node is the parent of which, what a node inherits from its prefix. Does
not belong here: which record stands before which (``traces.graph.walk``), and which record
belongs to which node (``traces.graph.collect``).

The parent of a node is the first different node on the walk along ``parentUuid`` from
the node's first record. What the model saw besides (meta records, interrupts, rendered
attachments) hangs on the edge between two nodes as ``inserts``.
"""

from composer_pipeline.traces.graph.nodes import TRANSPARENT, Node
from composer_pipeline.traces.graph.walk import Walk


class Linker:
    """Links the nodes of a file.

    Args:
        walk: over the file's records. The nodes are changed.
    """

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self._read = walk.read
        self._nodes = walk.read.nodes
        self._attachments = "attachment" in walk.read.types

    def run(self) -> None:
        """Set the parents of all nodes and what they inherit from their prefixes."""
        for number, node in enumerate(self._nodes):
            if node.origin is None and not self._link_to_neighbour(number, node):
                self._link(number, node)
        self._accumulate()

    def _link_to_neighbour(self, number: int, node: Node) -> bool:
        """Link in the usual case: the record before is its turn's only or first one."""
        parent = self._read.parents[node.first]
        if parent < 0 or self._walk.kept:
            return False
        target = self._read.node_of[parent]
        if target in (TRANSPARENT, number) or self._nodes[target].first != parent:
            return False
        node.parent = target
        return True

    def _link(self, number: int, node: Node) -> None:
        """Walk back to the parent, and through it to its first record.

        The walk goes on within the parent: what stands between its segments, such as a
        note beside a result, was seen before this node too.
        """
        at, node_of = node.first, self._read.node_of
        seen = {at}
        inserts: list[int] = []
        target = TRANSPARENT
        while True:
            parent, repaired = self._walk.parent(at)
            if target == TRANSPARENT:
                node.crossed_repair |= repaired
            if parent is None or parent in seen:
                break
            landed = self._walk.landing(at, parent)
            seen.add(parent)
            at = parent
            if target == TRANSPARENT:
                if landed not in (TRANSPARENT, number):
                    target = landed
            elif landed not in (TRANSPARENT, target):
                break
            if node_of[at] == TRANSPARENT and self._walk.is_visible(at):
                inserts.append(at)
            if target != TRANSPARENT and at == self._nodes[target].first:
                break
        node.parent = None if target == TRANSPARENT else target
        node.inserts = tuple(sorted(inserts))

    def _accumulate(self) -> None:
        """Compute what a node inherits from its prefix; break cycles of broken files."""
        nodes = self._nodes
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
        if node.inserts and (clears := self._read.sides.clears):
            node.cleared = frozenset().union(*(clears.get(at, ()) for at in node.inserts))
        if node.inserts and self._attachments:
            notes = self._read.sides.notes
            node.attached = any(at in notes and notes[at].rendered for at in node.inserts)
        if node.parent is not None:
            before = self._nodes[node.parent]
            node.depth = before.depth + 1
            node.repaired |= before.repaired
            node.attached |= before.attached
            if before.cleared:
                node.cleared |= before.cleared
