"""What the turn graph is made of: parts of messages, calls, nodes, notes.

Belongs here: the data of the graph, without the rules that build it. Does not belong
here: reading records into nodes (``traces.graph.collect``) and parents (``traces.graph.links``).

The structs are not tracked by the garbage collector: none of them refers to what
refers to it, and a long session has hundreds of thousands of them.
"""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from composer_pipeline.traces.graph.pool import Pool
from composer_pipeline.traces.reading import Block, Usage

#: In place of a node: the record is transparent. In place of a record or a piece: none.
TRANSPARENT = -1
NONE = -1

_MAX_TOKENS = 2**60

NodeKind = Literal["response", "human", "compact_summary"]
PartKind = Literal["text", "tool_use", "tool_result", "other"]
#: Version, session and folder of a record.
Where = tuple[str | None, str | None, str | None]


class Part(msgspec.Struct, gc=False):
    """One block of a message; its content is piece ``piece`` of the pool.

    The piece of a ``text`` or ``tool_result`` is a string, that of a ``tool_use`` its
    input, that of any other block the block. ``flag`` marks an erroneous result, or an
    input that the model is known to have emitted in this form.
    """

    kind: PartKind
    piece: int
    id: str = ""
    name: str = ""
    flag: bool = False


class Call(Part, gc=False, kw_only=True):
    """One ``tool_use`` block of a response, with what the trace knows of its outcome.

    ``node`` is the response that owns it, ``answer`` the piece of the first result,
    ``failure`` that of the first one that is an error. ``input``, ``result`` and ``error``
    are decoded from the pool at each access.
    """

    pool: Pool
    node: int = TRANSPARENT
    answer: int = NONE
    answer_failed: bool = False
    failure: int = NONE

    @property
    def input(self) -> Any:
        """The arguments, redacted."""
        return self.pool.load(self.piece)

    @property
    def answered(self) -> bool:
        """Whether any result was recorded."""
        return self.answer != NONE

    @property
    def failed(self) -> bool:
        """Whether any result is an error."""
        return self.failure != NONE

    @property
    def result(self) -> Block | None:
        """The first result, as a ``tool_result`` block whose content is a string."""
        return self._block(self.answer, self.answer_failed)

    @property
    def error(self) -> Block | None:
        """The first result that is an error."""
        return self._block(self.failure, True)

    def take(self, result: Part) -> None:
        """Note a result; the first one counts, and the first one that is an error."""
        if self.answer == NONE:
            self.answer, self.answer_failed = result.piece, result.flag
        if result.flag and self.failure == NONE:
            self.failure = result.piece

    def _block(self, piece: int, failed: bool) -> Block | None:
        if piece == NONE:
            return None
        block = {"type": "tool_result", "tool_use_id": self.id, "content": self.pool.load(piece)}
        return {**block, "is_error": True} if failed else block


class Note(msgspec.Struct, gc=False):
    """A transparent record that the model saw: meta, an interruption, an attachment."""

    kind: str
    parts: tuple[Part, ...] = ()
    rendered: bool = False
    renders_as: Literal["user", "assistant"] = "user"


class Node(msgspec.Struct, gc=False):
    """A turn: one response with its results, one human prompt, or one compact summary.

    ``first`` is the position of its first record, ``timestamp``, ``where`` and ``forked``
    are that record's. ``parent`` is the contracted parent, ``inserts`` the model-visible
    records between it and this node, ``crossed_repair`` whether that walk bridged a
    dangling parent; ``depth`` counts the nodes before this one. Accumulated over the whole
    prefix are ``repaired``, ``attached`` (a text that the client is known to have sent is in
    it) and ``cleared`` (tool ids whose results microcompaction removed). ``origin`` is set on
    the copy of a node that a compaction preserved. A response ``is_state`` with an owned
    tool call or text that is not blank.
    """

    kind: NodeKind
    key: str
    first: int
    timestamp: str | None = None
    where: Where = (None, None, None)
    forked: bool = False
    parts: Sequence[Part] = ()
    calls: tuple[Call, ...] = ()
    beside_results: tuple[Part, ...] = ()
    models: tuple[str, ...] = ()
    input_tokens: int | None = None
    output_tokens: int | None = None
    parent: int | None = None
    inserts: Sequence[int] = ()
    crossed_repair: bool = False
    depth: int = 0
    repaired: bool = False
    cleared: frozenset[str] = frozenset()
    origin: int | None = None
    attached: bool = False
    is_state: bool = False

    def count(self, usage: Usage) -> None:
        """Take the maximum over segments: each line repeats the usage of the response."""
        read = usage.input_tokens or 0
        read += (usage.cache_creation_input_tokens or 0) + (usage.cache_read_input_tokens or 0)
        if read == self.input_tokens and usage.output_tokens == self.output_tokens:
            return
        if abs(read) < _MAX_TOKENS:
            self.input_tokens = max(self.input_tokens or 0, read)
        if abs(written := usage.output_tokens or 0) < _MAX_TOKENS:
            self.output_tokens = max(self.output_tokens or 0, written)
