"""Turn nodes to stored messages: Anthropic-shaped, thinking removed, redacted, hashed.

Belongs here: the JSON shape of a message, its hash, the lake's ``messages`` rows. Does
not belong here: which messages form a prefix (``traces.states``), and redaction, which
has happened when a piece comes out of the pool (``traces.pool``).

A message is ``{"role", "content"}`` with blocks ``text``, ``tool_use``,
``tool_result``, ``image``; unknown blocks pass. The results of a response are one user
message behind it, in the order of the calls. Roles ``system`` and ``tools`` hold a
recorded system prompt (a string) and recorded tool schemas (a list). Messages are
joined from the JSON of their pieces, which is never decoded again.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from composer_pipeline.lake.schemas import MESSAGES
from composer_pipeline.traces.pool import Counts, Pool, encode
from composer_pipeline.traces.records import blocks_of, text_of
from composer_pipeline.traces.records import result_text as result_text
from composer_pipeline.traces.redaction_rules import redaction_version
from composer_pipeline.traces.turns import Call, Node, Part, Trajectory

#: What the client sends for a call whose result was never recorded.
MISSING_RESULT = "[Tool result missing due to internal error]"
#: What the client sends for a result that microcompaction removed.
CLEARED_RESULT = "[Old tool result content cleared]"

#: Decoded bytes of messages that wait for one write.
_BATCH_BYTES = 4 << 20

Write = Callable[[pa.Table], None]


def dumps(value: Any) -> str:
    """Return compact JSON with key order kept; lone surrogates become U+FFFD."""
    return encode(value).decode()


class MessageStore:
    """Distinct redacted messages of one partition, numbered in the order they came.

    Args:
        write: receives the rows in batches; only hashes stay in memory.

    ``counts`` adds up redactions by kind, once for each distinct message.
    """

    def __init__(self, write: Write | None = None) -> None:
        self.counts: Counter[str] = Counter()
        self.hashes: list[bytes] = []
        self._number: dict[bytes, int] = {}
        self._write = write
        self._rows: list[tuple[bytes, str, bytes, int]] = []
        self._waiting = 0

    def add(self, role: str, content: bytes, counts: Iterable[Counts] = ()) -> int:
        """Keep a message; return its number.

        Args:
            role: user, assistant, system or tools.
            content: the JSON of its content.
            counts: what redaction replaced in its pieces.
        """
        text = b'{"role":"%s","content":%s}' % (role.encode(), content)
        digest = hashlib.blake2b(text, digest_size=16).digest()
        number = self._number.get(digest)
        if number is not None:
            return number
        number = self._number[digest] = len(self.hashes)
        self.hashes.append(digest)
        replaced = 0
        for kinds in counts:
            for kind, count in kinds:
                self.counts[kind] += count
                replaced += count
        self._rows.append((digest, role, text, replaced))
        self._waiting += len(text)
        if self._waiting > _BATCH_BYTES:
            self.flush()
        return number

    def flush(self) -> None:
        """Hand the waiting rows to the writer."""
        rows, self._rows, self._waiting = self._rows, [], 0
        if self._write is None or not rows:
            return
        first = len(self.hashes) - len(rows)
        text = pa.array([row[2] for row in rows], pa.string())
        self._write(
            pa.Table.from_arrays(
                [
                    pa.array([row[0].hex() for row in rows], pa.string()),
                    pa.array([row[1] for row in rows], pa.string()),
                    text,
                    pc.utf8_length(text),
                    pa.array([row[3] for row in rows], pa.int32()),
                    pa.array([redaction_version()] * len(rows), pa.int32()),
                    pa.array(range(first, len(self.hashes)), pa.int32()),
                ],
                schema=MESSAGES.schema,
            )
        )


class Composer:
    """Writes the messages of one trajectory into a store."""

    def __init__(self, trajectory: Trajectory, store: MessageStore) -> None:
        self.graph = trajectory
        self.pool: Pool = trajectory.pool
        self.store = store
        self._names: dict[str, bytes] = {}

    def node(self, node: Node, cleared: frozenset[str] = frozenset()) -> tuple[int, ...]:
        """Add what a node contributes to later prefixes: no, one or two messages.

        Args:
            node: the node.
            cleared: tool ids whose results microcompaction had removed.
        """
        if node.kind != "response":
            return self._message("user", self.graph.records[node.first].parts)
        said = self._message("assistant", node.parts)
        if not node.calls:
            return said
        blocks: list[bytes] = []
        counts: list[Counts] = []
        for call in node.calls.values():
            blocks.append(self._result(call, cleared, counts))
        blocks += self._blocks(node.beside_results, counts)
        return (*said, self.store.add("user", b"[%s]" % b",".join(blocks), counts))

    def inserts(self, inserts: Iterable[int]) -> list[int]:
        """Add the model-visible records between two nodes, in file order."""
        numbers: list[int] = []
        for at in inserts:
            entry = self.graph.records[at]
            numbers += self._message(entry.renders_as, entry.parts)
        return numbers

    def snapshot(self, role: str, piece: int | None) -> int | None:
        """Add a recorded system prompt or list of tools."""
        if piece is None:
            return None
        data = self.pool.get(piece)
        return self.store.add(role, data, [self.pool.replaced.get(piece, ())])

    def sent(self, role: str, content: Any, piece: int) -> int | None:
        """Add a message of a recorded request, in the shape of all other messages.

        ``piece`` is the pool's number of the message.
        """
        counts = [self.pool.replaced.get(piece, ())]
        blocks = []
        for block in blocks_of(content):
            kind = block.get("type")
            if kind in ("thinking", "redacted_thinking"):
                continue
            if kind == "text":
                text = block.get("text")
                if not isinstance(text, str) or not text.strip():
                    continue
                block = {"type": "text", "text": text}
            elif kind == "tool_use":
                block = {name: block.get(name) for name in ("type", "id", "name", "input")}
            elif kind == "tool_result":
                failed = {"is_error": True} if block.get("is_error") is True else {}
                call, text = block.get("tool_use_id"), result_text(block)
                block = {"type": kind, "tool_use_id": call, "content": text, **failed}
            elif kind in ("image", "document"):
                block = {"type": kind}
            blocks.append(encode(block))
        if not blocks:
            return None
        if role == "system":
            system = "\n\n".join(text_of([block]) for block in blocks_of(content))
            return self.store.add("system", encode(system), counts)
        return self.store.add(role, b"[%s]" % b",".join(blocks), counts)

    def action(self, node: Node) -> str:
        """Return the JSON of a response's action, as :class:`composer_pipeline.actions.Action`."""
        pool = self.pool
        texts = [pool.load(part.piece) for part in node.parts if part.kind == "text"]
        calls = []
        for call in node.calls.values():
            data = pool.get(call.part.piece)
            if data[:1] != b"{":
                data = b'{"input":%s}' % data
            name, identity = self._plain(call.name), self._plain(call.id)
            calls.append(b'{"name":%s,"arguments":%s,"id":%s}' % (name, data, identity))
        text = encode("\n\n".join(texts))
        return (b'{"text":%s,"tool_calls":[%s]}' % (text, b",".join(calls))).decode()

    def _message(self, role: str, parts: Iterable[Part]) -> tuple[int, ...]:
        counts: list[Counts] = []
        blocks = self._blocks(parts, counts)
        if not blocks:
            return ()
        return (self.store.add(role, b"[%s]" % b",".join(blocks), counts),)

    def _blocks(self, parts: Iterable[Part], counts: list[Counts]) -> list[bytes]:
        blocks = []
        for part in parts:
            if part.kind == "tool_result":
                continue
            data = self.pool.get(part.piece)
            if replaced := self.pool.replaced.get(part.piece):
                counts.append(replaced)
            if part.kind == "text":
                data = b'{"type":"text","text":%s}' % data
            elif part.kind == "tool_use":
                name, identity = self._plain(part.name), self._plain(part.id)
                data = b'{"type":"tool_use","id":%s,"name":%s,"input":%s}' % (identity, name, data)
            blocks.append(data)
        return blocks

    def _result(self, call: Call, cleared: frozenset[str], counts: list[Counts]) -> bytes:
        identity = self._plain(call.id)
        block = b'{"type":"tool_result","tool_use_id":%s,"content":%s%s}'
        if call.answer is None:
            return block % (identity, orjson.dumps(MISSING_RESULT), b',"is_error":true')
        if call.id in cleared:
            data = orjson.dumps(CLEARED_RESULT)
        else:
            data = self.pool.get(call.answer.piece)
            if replaced := self.pool.replaced.get(call.answer.piece):
                counts.append(replaced)
        return block % (identity, data, b',"is_error":true' if call.answer.flag else b"")

    def _plain(self, text: str) -> bytes:
        """Return the JSON of a name or an id; those that tools make up are redacted too."""
        if text[:6] == "toolu_" and text.isidentifier() and text.isascii():
            return b'"%s"' % text.encode()
        if (known := self._names.get(text)) is None:
            known = self._names[text] = self.pool.redacted(encode(text))
        return known
