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

    ``path`` are its nodes in the tree of the session, ``parts`` the JSON of its messages, of
    which the first ``settled`` are those of every longer prompt of the chain. ``size`` counts the
    bytes of all parts with the commas between them. ``has_action``: the prefix holds the action
    itself and is not sent.
    """

    state: "TraceState"
    toolset: Toolset
    path: list[int]
    parts: list[bytes]
    settled: int
    size: int
    has_action: bool
    line: "_Line"


class _Line:
    """One chain as it grows, with one set of tools."""

    def __init__(self, root: int) -> None:
        self.chain = GrowingChain()
        self.head: Any = None  # the system message, another one after a restart
        self.root = root
        self.path: list[int] = []
        self.parts: list[bytes] = []
        self.hashes: dict[str, _Hashes] = {}


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
        parts = outline.parts
        if hashes.fed < outline.settled:
            more = _joined(parts[hashes.fed : outline.settled], bool(hashes.fed))
            for running in hashes.running:
                running.update(more)
            hashes.fed = outline.settled
        rest = _joined(parts[hashes.fed :], bool(hashes.fed))
        found = []
        for running, (_, tail) in zip(hashes.running, self.names, strict=True):
            ending = running.copy()
            ending.update(rest + tail)
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
        #: Bytes of the pieces from the root to a node, the node included; and of the node.
        self.reach: list[int] = []
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
            line.head, line.path, line.parts, line.hashes = messages[0], [], [], {}
        settled = line.chain.settled
        self._extend(line.path, line.parts, line.root, messages[: max(settled, len(line.parts))])
        path, parts = list(line.path), list(line.parts)
        self._extend(path, parts, line.root, messages)
        size = sum(map(len, parts)) + len(parts) - 1
        return Outline(
            state, toolset, [line.root, *path], parts, len(line.parts), size, has_action, line
        )

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

    def _extend(
        self, path: list[int], parts: list[bytes], root: int, messages: Sequence[dict[str, Any]]
    ) -> None:
        """Add to a path what of the messages is not in it yet."""
        at = path[-1] if path else root
        for message in messages[len(path) :]:
            known = self._parts.get(id(message))
            if known is None:  # the message is kept, so that no other gets its address
                known = message, orjson.dumps(wire_messages([message])[0])
                self._parts[id(message)] = known
            at = self._node(at, known[1])
            path.append(at)
            parts.append(known[1])

    def _node(self, parent: int, data: bytes) -> int:
        key = (parent, data)
        found = self._nodes.get(key)
        if found is None:
            found = self._nodes[key] = len(self._nodes)
            self.reach.append((self.reach[parent] if parent >= 0 else 0) + len(data))
        return found


def _joined(parts: Sequence[bytes], goes_on: bool) -> bytes:
    return (b"," if goes_on and parts else b"") + b",".join(parts)
