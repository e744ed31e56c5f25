"""One file as a graph of turns.

Belongs here: what the graph is asked for: paths, states, branch points, the active path.
Does not belong here: how records become nodes (``traces.graph.collect``), how nodes find their
parents (``traces.graph.links``), how a node is written as messages (``traces.states.messages``).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from composer_pipeline.traces.graph.collect import Collector
from composer_pipeline.traces.graph.links import Linker
from composer_pipeline.traces.graph.nodes import Node
from composer_pipeline.traces.graph.pool import Pool, Redactor
from composer_pipeline.traces.graph.walk import Walk
from composer_pipeline.traces.reading import Block, Record, text_of

#: Tools whose calls start a subagent.
_STARTS_AGENTS = frozenset({"Task", "Agent"})


@dataclass(slots=True)
class Subagent:
    """A subagent that the file embeds, and the call of the file that started it, if known."""

    trajectory: "Trajectory"
    parent_call: str | None


class Trajectory:
    """The turn graph of one file.

    Reads the records once and keeps of each what the graph needs; texts go to ``pool``.
    ``notes`` are the transparent records that the model saw, by position. ``sidechains``
    are the subagents whose records the file embeds, by agent id; they share the pool.

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
        read = Collector(Pool(redactor), subagent=subagent, sidechains=True)
        read.read(records)
        read.finish()
        self._link(read)

    def _link(self, read: Collector) -> None:
        walk = Walk(read)
        Linker(walk).run()
        self.subagent = read.subagent
        self.nodes = read.nodes
        self.notes = read.sides.notes
        self.pool = read.pool
        self.types = read.types
        self.versions = read.versions
        self.session_ids = read.session_ids
        self.agent_ids = read.agent_ids
        self.first_time = read.first_time
        self.last_time = read.last_time
        self.first_cwd = read.first_cwd
        self.compactions = read.sides.compactions
        self.synthetic = read.responses.synthetic
        self.snapshots = read.sides.snapshots
        self.requests = read.requests
        self.request_of = read.responses.request_of
        self.dangling = walk.dangling()
        self._parts = read.responses.parts
        self._active = walk.active()
        self.sidechains: dict[str, Subagent] = {}
        found = read.sidechains.found if read.sidechains else {}
        calls = self.agent_calls() if found else {}
        for name in sorted(found):
            side = found.pop(name)  # what reading needed is freed, one after the other
            embedded = Trajectory.__new__(Trajectory)
            embedded._link(side.records)
            call = side.parent_call or calls.get(embedded.first_prompt())
            self.sidechains[name] = Subagent(embedded, call)

    def first_prompt(self) -> str:
        """Return the text of the first human turn; empty where there is none."""
        first = next((node for node in self.nodes if node.kind == "human"), None)
        return text_of(self.content_of(first)) if first is not None else ""

    def agent_calls(self) -> dict[str, str]:
        """Return prompt -> id of the calls that start subagents; the first of equal prompts."""
        found: dict[str, str] = {}
        for node in self.nodes:
            for call in node.calls:
                given = call.input if call.name in _STARTS_AGENTS else None
                prompt = given.get("prompt") if isinstance(given, dict) else None
                if isinstance(prompt, str) and prompt:
                    found.setdefault(prompt, call.id)
        return found

    def content_of(self, node: Node) -> list[Block]:
        """Return the blocks of a node's own parts, redacted; decoded at each call."""
        return [self._parts.block_of(part) for part in node.parts]

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

    def was_interrupted(self, node: Node) -> bool:
        """Say whether the user interrupted between the node's parent and the node."""
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
        return node.timestamp, text_of(self.content_of(node))

    def states(self) -> list[int]:
        """Return the numbers of the nodes that are states, in file order."""
        return [number for number, node in enumerate(self.nodes) if node.is_state]

    def response_keys(self) -> set[str]:
        """Return the message ids of the responses."""
        return {n.key for n in self.nodes if n.kind == "response" and n.origin is None}

    def state_keys(self) -> set[str]:
        """Return the message ids of the states."""
        return {n.key for n in self.nodes if n.is_state}
