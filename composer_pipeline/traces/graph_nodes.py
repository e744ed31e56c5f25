"""What the turn graph is made of: parts of messages, calls, nodes, notes, recorded requests.

The structs are not tracked by the garbage collector: none of them refers to what
refers to it, and a long session has hundreds of thousands of them.
"""

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from composer_pipeline.actions import ToolCall
from composer_pipeline.files import mapping, text
from composer_pipeline.tool_names import PATCH, TOOLS, VARIOUS, translate, translate_result
from composer_pipeline.traces.content_store import ContentStore
from composer_pipeline.traces.records import Record, RequestRecord, Usage, decode_any

#: In place of a node: the record is transparent. In place of a record or a piece: none.
TRANSPARENT = -1
ABSENT = -1

_MAX_TOKENS = 2**60

NodeKind = Literal["response", "human", "compact_summary"]
PartKind = Literal["text", "tool_use", "tool_result", "other"]
#: Version, session and folder of a record.
RecordContext = tuple[str | None, str | None, str | None]


class Part(msgspec.Struct, gc=False):
    """One block of a message."""

    kind: PartKind
    piece: int  # in the content store: a text, a result's text, a call's input, or the block
    id: str = ""
    name: str = ""
    flag: bool = False  # an erroneous result, or an input in the form that the model emitted


class Call(Part, gc=False, kw_only=True):
    """One ``tool_use`` block of a response and its outcome; properties decode at each access.

    Where another agent made the call, ``tool``, ``steps``, ``result`` and ``error`` say it in
    Claude Code's terms (:mod:`composer_pipeline.tool_names`).
    """

    contents: ContentStore
    node: int = TRANSPARENT  # the response that owns it
    answer: int = ABSENT  # piece of the first result
    answer_failed: bool = False
    failure: int = ABSENT  # piece of the first result that is an error
    begun_by: "Call | None" = None  # of a look at a command that goes on: the call that began it
    goes_on: bool = False  # the result shows a command before its end

    @property
    def input(self) -> Any:
        """The arguments, redacted."""
        return self.contents.load(self.piece)

    @property
    def tool(self) -> str:
        """The tool; of a patch in a command, the first that it stands for."""
        tool = TOOLS.get(self.name, self.name)
        patched = tool == "Bash" != self.name and PATCH in self.contents.get(self.piece)
        return self.steps[0].name if patched or self.name in VARIOUS else tool

    @property
    def steps(self) -> tuple[ToolCall, ...]:
        """What the call does."""
        return translate(self.own)

    @property
    def own(self) -> ToolCall:
        """The call as its agent made it; arguments that are no object are left out."""
        return ToolCall(self.name, mapping(self.input), self.id)

    @property
    def answered(self) -> bool:
        """Whether any result was recorded."""
        return self.answer != ABSENT

    @property
    def failed(self) -> bool:
        """Whether any result is an error."""
        return self.failure != ABSENT

    @property
    def result(self) -> str | None:
        """The text of the first result."""
        return None if self.answer == ABSENT else self._shown(self.answer)

    @property
    def error(self) -> str | None:
        """The text of the first result that is an error."""
        return None if self.failure == ABSENT else self._shown(self.failure)

    def _shown(self, piece: int) -> str:
        text = str(self.contents.load(piece))
        if self.name not in TOOLS:
            return text
        return translate_result(self.own, text, failed=self.failed)

    def take(self, result: Part) -> None:
        """Note a result; the first one counts, and the first one that is an error."""
        if self.answer == ABSENT:
            self.answer, self.answer_failed = result.piece, result.flag
        if result.flag and self.failure == ABSENT:
            self.failure = result.piece


class Note(msgspec.Struct, gc=False):
    """A transparent record that the model saw: meta, an interruption, an attachment."""

    kind: str
    parts: tuple[Part, ...] = ()
    rendered: bool = False
    renders_as: Literal["user", "assistant"] = "user"


class Node(msgspec.Struct, gc=False):
    """A turn: one response with its results, one human prompt, or one compact summary."""

    kind: NodeKind
    key: str
    first: int  # position of its first record
    timestamp: str | None = None  # of the first record, as `context` and `forked`
    context: RecordContext = (None, None, None)
    forked: bool = False
    parts: Sequence[Part] = ()
    calls: tuple[Call, ...] = ()
    beside_results: tuple[Part, ...] = ()
    models: tuple[str, ...] = ()
    input_tokens: int | None = None
    output_tokens: int | None = None
    parent: int | None = None  # the contracted parent
    inserts: Sequence[int] = ()  # the model-visible records between the parent and this node
    crossed_repair: bool = False  # that walk bridged a dangling parent
    depth: int = 0  # nodes before this one
    repaired: bool = False  # any node of the prefix crossed a repair
    # tool ids of the prefix whose results microcompaction removed
    cleared: frozenset[str] = frozenset()
    origin: int | None = None  # of the copy of a node that a compaction preserved
    attached: bool = False  # the prefix has a text that the client is known to have sent
    copied: bool = False  # a response that is context only
    fidelity: str | None = None  # of the state, as its source says it
    is_state: bool = False  # a response with an owned tool call or text that is not blank

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


class UuidIndex(dict[int, int]):
    """Positions of records by the hash of their uuid.

    Python's hash of a text takes half the memory of the text. Of a long file only the last records
    are in the dictionary, since nearly every parent is a recent record; the others are in sorted
    arrays (``old``). :meth:`find` looks everywhere, ``get`` only among the last ones.
    """

    RECENT = 1 << 15

    def __init__(self) -> None:
        self.old: list[tuple[array[int], array[int]]] = []

    def find(self, key: int) -> int | None:
        """Return the position for a hash."""
        found = self.get(key)
        if found is None:
            for keys, positions in reversed(self.old):
                at = bisect_left(keys, key)
                if at < len(keys) and keys[at] == key:
                    return positions[at]
        return found

    def settle(self) -> None:
        """Move all to the arrays."""
        keys = sorted(self)
        self.old.append((array("q", keys), array("i", (self[key] for key in keys))))
        self.clear()


_ROLES = ("user", "assistant", "system")


class Requests:
    """The recorded API requests of one file.

    A request holds the messages it adds and where the rest comes from, so that memory is
    linear in the file.
    """

    def __init__(self, contents: ContentStore) -> None:
        self._contents = contents
        self._blobs: dict[str, int] = {}
        self._given: dict[str, tuple[str | None, int, tuple[str, ...]]] = {}

    def __bool__(self) -> bool:
        return bool(self._given)

    def take(self, record: RequestRecord) -> None:
        """Note a request or a blob; anything malformed is ignored."""
        if record.type == "api-request-blob":
            name, message = text(decode_any(record.hash)), decode_any(record.message)
            if name and name not in self._blobs and _is_message(message):
                self._blobs[name] = self._contents.put([message["role"], message["content"]])
            return
        base, keep, tail = map(decode_any, (record.base, record.keep, record.tail))
        name = text(decode_any(record.id))
        if not name or name in self._given or not isinstance(tail, list):
            return
        hashes = tuple(item for item in tail if isinstance(item, str))
        if len(hashes) < len(tail):
            return
        if base is None and keep in (None, 0):
            self._given[name] = (None, 0, hashes)
        elif isinstance(base, str) and type(keep) is int and keep >= 0:
            self._given[name] = (base, keep, hashes)

    def order(self, wanted: set[str]) -> list[str]:
        """Return the requests that resolve and that ``wanted`` needs, each after its base."""
        known: dict[str, int] = {}  # the number of messages; -1 where it does not resolve
        for name in wanted:
            path: dict[str, None] = {}
            at: str | None = name
            while at is not None and at not in known and at in self._given and at not in path:
                path[at] = None
                at = self._given[at][0]
            for item in reversed(path):
                base, keep, tail = self._given[item]
                length = 0 if base is None else known.get(base, -1)
                whole = length >= keep and all(digest in self._blobs for digest in tail)
                known[item] = keep + len(tail) if whole else -1
        return [name for name, length in known.items() if length > 0]

    def parts(self, name: str) -> tuple[str | None, int, list[tuple[str, Any, int]]]:
        """Return the base, how much of it is kept, and the (role, content, piece) added."""
        base, keep, tail = self._given[name]
        pieces = [self._blobs[digest] for digest in tail]
        return base, keep, [(*self._contents.load(piece), piece) for piece in pieces]


def request_of(record: Record) -> str | None:
    """Return the request that an assistant's record names."""
    value = decode_any(record.request_ref)
    if isinstance(value, dict):
        value = value.get("id")
    return value if isinstance(value, str) and value else None


def _is_message(value: Any) -> bool:
    if not isinstance(value, dict) or value.get("role") not in _ROLES:
        return False
    return isinstance(value.get("content"), (str, list))
