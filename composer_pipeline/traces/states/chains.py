"""The chains of one trajectory: which messages a state saw, and how chains share them.

Belongs here: chains of the turn graph and of recorded requests. Does not belong here: the
columns of a state (``traces.states.extract``), the JSON of a message
(``traces.states.messages``).

A chain is the messages of one path from a root to a leaf. It is named by the file and
by the node at which its path leaves the chains before it, so that a growing file keeps
its chain names. A state refers to a chain and to the number of messages before it.
After a microcompaction earlier results read differently; such states get chains of
their own.
"""

from array import array
from collections.abc import Iterable

from composer_pipeline.traces.graph import Trajectory
from composer_pipeline.traces.states.identity import blake
from composer_pipeline.traces.states.messages import Composer

_UNSAID = 255


class Chains:
    """The chains of one trajectory.

    ``chains`` maps a chain's id to numbers of messages. Of each node, ``chain_of`` is its
    chain, empty where no state needs one, and ``before`` the length of its prefix there.

    Args:
        trajectory: its turn graph.
        compose: writes its messages.
        file: what names its file: path and agent.
    """

    def __init__(self, trajectory: Trajectory, compose: Composer, file: tuple[str, str]) -> None:
        self.graph = trajectory
        self.compose = compose
        self.file = file
        nodes = trajectory.nodes
        self.chains: dict[str, list[int]] = {}
        self.chain_of = [""] * len(nodes)
        self.before = array("i", [0]) * len(nodes)
        # The messages of each node, once composed: how many, and which.
        self._counts = bytearray(b"\xff") * len(nodes)
        self._numbers = array("i", [0]) * (2 * len(nodes))
        for (start, cleared), members in self._groups().items():
            if any(nodes[number].is_state for number in members):
                self._build(start, cleared, members)

    def _groups(self) -> dict[tuple[int, frozenset[str]], list[int]]:
        """Return the nodes of each chain: those with one start and the same cleared results."""
        nodes = self.graph.nodes
        # Nearly every node has one child: an array of those, and a list for the others.
        child = array("i", [-1]) * len(nodes)
        others: dict[int, list[int]] = {}
        roots: list[int] = []
        for number, node in enumerate(nodes):
            if node.parent is None:
                roots.append(number)
            elif child[node.parent] < 0:
                child[node.parent] = number
            else:
                others.setdefault(node.parent, []).append(number)
        # Depth first, so that a chain continues with the first child of each node.
        stack = [(root, root) for root in reversed(roots)]
        groups: dict[tuple[int, frozenset[str]], list[int]] = {}
        while stack:
            number, start = stack.pop()
            groups.setdefault((start, nodes[number].cleared), []).append(number)
            for branch in reversed(others.get(number, ())):
                stack.append((branch, branch))
            if child[number] >= 0:
                stack.append((child[number], start))
        return groups

    def _build(self, start: int, cleared: frozenset[str], members: list[int]) -> None:
        nodes = self.graph.nodes
        tokens = [*self.file, nodes[start].key]
        if nodes[start].origin is not None and (parent := nodes[start].parent) is not None:
            tokens.append(f"kept below {nodes[parent].key}")
        chain_id = blake(*tokens, *sorted(cleared))
        numbers: list[int] = []
        wanted = set(members)
        for number in self.graph.path_to(members[-1]):
            if inserts := nodes[number].inserts:
                numbers += self.compose.inserts(inserts)
            if number in wanted:
                self.chain_of[number], self.before[number] = chain_id, len(numbers)
            numbers += self._said(number, cleared)
        self.chains[chain_id] = numbers

    def _said(self, number: int, cleared: frozenset[str]) -> Iterable[int]:
        node = self.graph.nodes[number]
        if cleared and any(call.id in cleared for call in node.calls):
            return self.compose.node(node, cleared)
        number = number if node.origin is None else node.origin
        count, at = self._counts[number], 2 * number
        if count == _UNSAID:
            said = self.compose.node(node)
            count = self._counts[number] = len(said)
            self._numbers[at : at + count] = array("i", said)
        return self._numbers[at : at + count]

    def requests(self) -> dict[int, tuple[str, int, int | None]]:
        """Build the chains of recorded requests: chain, length and system of each state.

        A request that only adds to its base goes on in the base's chain.
        """
        if not self.graph.requests or not self.graph.request_of:
            return {}
        wanted = set(self.graph.request_of.values())
        where: dict[str, tuple[str, int, int | None]] = {}
        # For each message of a chain's requests: the length of the chain behind it.
        marks_of: dict[str, list[int]] = {}
        for name in self.graph.requests.order(wanted):
            base, keep, added = self.graph.requests.parts(name)
            chain_id, system, kept = "", None, 0
            if base is not None:
                chain_id, _, system = where[base]
                kept = marks_of[chain_id][keep - 1] if keep else 0
            if not chain_id or keep < len(marks_of[chain_id]):
                before, marks = self.chains.get(chain_id, []), marks_of.get(chain_id, [])
                chain_id = blake("request", *self.file, name)
                self.chains[chain_id] = before[:kept]
                marks_of[chain_id] = marks[:keep]
            chain = self.chains[chain_id]
            for role, content, piece in added:
                number = self.compose.sent(role, content, piece)
                if role == "system":
                    system = number
                elif number is not None:
                    chain.append(number)
                marks_of[chain_id].append(len(chain))
            where[name] = (chain_id, len(chain), system)
        return {
            number: where[name]
            for number, name in self.graph.request_of.items()
            if name in where and where[name][1]
        }
