"""The questions of one session as a plan needs them: sizes, names and shared beginnings.

Belongs here: what follows from a body, without its bytes in one piece. Does not belong here:
bodies that are sent (``replay.questions``, whose result this equals), and what they cost
(``replay.plan.strategies``).

A session's prompts extend one another. Here each message is converted, serialised and hashed
once, and a prompt is a path in the tree of all prompts of its session: its tools, then its
messages. To build every body would take hours where this takes a minute.
"""

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import orjson

from composer_pipeline.chat import (
    Conversion,
    GrowingChain,
    Toolset,
    offered_tools,
    wire_messages,
)
from composer_pipeline.replay.provider import serialise
from composer_pipeline.replay.questions import Questions
from composer_pipeline.replay.teachers import Teacher

if TYPE_CHECKING:
    from composer_pipeline.trace_states import TraceState


class Outline(msgspec.Struct):
    """One state's prompt.

    ``node`` is its last piece in the tree of the session. Of the JSON of its messages the first
    ``settled`` are ``line.parts[:settled]``, which every longer prompt of the chain has too, and
    ``rest`` is what follows, commas included. ``size`` counts the bytes of both. ``has_action``:
    the prefix holds the action itself and is not sent.
    """

    state: "TraceState"
    toolset: Toolset
    node: int
    settled: int
    rest: bytes
    size: int
    has_action: bool
    line: "_Line"


class _Line:
    """One chain as it grows, with one set of tools: what no longer changes of its prompts."""

    def __init__(self, root: int) -> None:
        self.chain = GrowingChain()
        self.root = root
        self.restart(None)

    def restart(self, head: Any) -> None:
        """Begin again, with another system message."""
        self.head = head
        self.node = self.root
        self.parts: list[bytes] = []
        self.size = 0  # commas included
        self.hashes: dict[str, _Hashes] = {}
        self._last: tuple[int, int, bytes] = (0, 0, b"")

    def between(self, begin: int, end: int) -> bytes:
        """Return some parts with the commas before each; teachers ask for the same ones."""
        if self._last[:2] != (begin, end):
            self._last = begin, end, _joined(self.parts[begin:end], bool(begin))
        return self._last[2]


class _Hashes:
    """Hashes over the beginning of a chain's bodies for one teacher."""

    def __init__(self, shell: "Shell") -> None:
        self.running = [hashlib.sha256(head) for head, _ in shell.names]
        self.fed = 0


class Shell:
    """A body for a teacher without its messages.

    Args:
        questions: the questions.
        teacher: who is asked.
        session_id: of the state.
        tools: in the form in which they are offered.
    """

    def __init__(
        self, questions: Questions, teacher: Teacher, session_id: str, tools: list[dict[str, Any]]
    ) -> None:
        endpoint = questions.teacher_set.endpoint_of(teacher)
        empty = Conversion([], tools, {}, {}, "")
        request = serialise(teacher, empty, session_id, api=endpoint.api)
        self.size = len(request.body)
        #: For each name of a call: what its hash covers before and behind the messages.
        self.names = request.halves(endpoint.name, questions.caps_of(teacher))

    def keys(self, outline: Outline, teacher: str) -> tuple[str, ...]:
        """Return ``Asked.keys`` of the question about a state."""
        hashes = outline.line.hashes.get(teacher)
        if hashes is None or len(hashes.running) != len(self.names):
            hashes = outline.line.hashes[teacher] = _Hashes(self)
        if hashes.fed < outline.settled:
            more = outline.line.between(hashes.fed, outline.settled)
            for running in hashes.running:
                running.update(more)
            hashes.fed = outline.settled
        found = []
        for running, (_, tail) in zip(hashes.running, self.names, strict=True):
            ending = running.copy()
            ending.update(outline.rest)
            ending.update(tail)
            found.append(ending.hexdigest())
        return tuple(found)


class SessionOutline:
    """The tree of one session's prompts.

    Args:
        questions: the questions.
        api: of the teachers; how the tools look depends on nothing else.
    """

    def __init__(self, questions: Questions) -> None:
        self._questions = questions
        self._nodes: dict[tuple[int, bytes], int] = {}
        #: Bytes of the pieces from the root to a node, the node included; and the node before it.
        self.reach: list[int] = []
        self.parents: list[int] = []
        self._lines: dict[tuple[str, str], _Line] = {}
        self._parts: dict[int, tuple[dict[str, Any], bytes]] = {}
        self._offered: dict[str, list[dict[str, Any]]] = {}
        self._shells: dict[tuple[str, str], Shell] = {}

    def of(self, state: "TraceState") -> Outline:
        """Return one state's outline; best in the order in which a chain grows."""
        toolset = self._questions.toolset(state)
        key = (state.chain_id, toolset.digest)
        line = self._lines.get(key)
        if line is None:
            root = self._node(-1, orjson.dumps(self._tools(toolset)))
            line = self._lines[key] = _Line(root)
        messages, has_action = line.chain.at(state)
        if line.head is not messages[0]:
            line.restart(messages[0])
        settled = max(line.chain.settled, len(line.parts))
        line.node, parts = self._pieces(line.node, messages[len(line.parts) : settled])
        line.size += sum(map(len, parts)) + len(parts) - (not line.parts)
        line.parts += parts
        node, rest = self._pieces(line.node, messages[settled:])
        more = _joined(rest, bool(line.parts))
        size = line.size + len(more)
        return Outline(state, toolset, node, len(line.parts), more, size, has_action, line)

    def shell(self, outline: Outline, teacher: Teacher) -> Shell:
        """Return the teacher's body around a prompt of this session."""
        key = (teacher.name, outline.toolset.digest)
        if key not in self._shells:
            tools = self._tools(outline.toolset)
            made = Shell(self._questions, teacher, outline.state.session_id, tools)
            self._shells[key] = made
        return self._shells[key]

    def _tools(self, toolset: Toolset) -> list[dict[str, Any]]:
        if toolset.digest not in self._offered:
            self._offered[toolset.digest] = offered_tools(toolset.tools)
        return self._offered[toolset.digest]

    def _pieces(self, at: int, messages: Sequence[dict[str, Any]]) -> tuple[int, list[bytes]]:
        """Follow messages down the tree; return the last node and the JSON of each."""
        parts = []
        for message in messages:
            known = self._parts.get(id(message))
            if known is None:  # the message is kept, so that no other gets its address
                known = message, orjson.dumps(wire_messages([message])[0])
                self._parts[id(message)] = known
            at = self._node(at, known[1])
            parts.append(known[1])
        return at, parts

    def _node(self, parent: int, data: bytes) -> int:
        key = (parent, data)
        found = self._nodes.get(key)
        if found is None:
            found = self._nodes[key] = len(self._nodes)
            self.parents.append(parent)
            self.reach.append((self.reach[parent] if parent >= 0 else 0) + len(data))
        return found


def _joined(parts: Sequence[bytes], goes_on: bool) -> bytes:
    return (b"," if goes_on and parts else b"") + b",".join(parts)
