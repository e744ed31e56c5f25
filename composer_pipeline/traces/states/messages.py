"""Turn nodes to stored messages: Anthropic-shaped, thinking removed, redacted, hashed.

Belongs here: the JSON shape of a message, its hash, the lake's ``messages`` rows. Does
not belong here: which messages form a prefix (``traces.states.extract``), and redaction, which
has happened when a piece comes out of the pool (``traces.graph.pool``).

A message is ``{"role", "content"}`` with blocks ``text``, ``tool_use``,
``tool_result``, ``image``; unknown blocks pass. The results of a response are one user
message behind it, in the order of the calls. Roles ``system`` and ``tools`` hold a
recorded system prompt (a string) and recorded tool schemas (a list). Messages are
joined from the JSON of their pieces, which is never decoded again.
"""

from collections.abc import Iterable
from typing import Any

import orjson

from composer_pipeline.traces.graph import NONE, Call, Counts, Node, Part, Pool, Trajectory
from composer_pipeline.traces.reading import blocks_of, encode, result_text, text_of
from composer_pipeline.traces.states.message_store import MessageStore

#: What the client sends for a call whose result was never recorded.
MISSING_RESULT = "[Tool result missing due to internal error]"
#: What the client sends for a result that microcompaction removed.
CLEARED_RESULT = "[Old tool result content cleared]"

_MISSING, _CLEARED = orjson.dumps(MISSING_RESULT), orjson.dumps(CLEARED_RESULT)


def dumps(value: Any) -> str:
    """Return compact JSON with key order kept; lone surrogates become U+FFFD."""
    return encode(value).decode()


class Composer:
    """Writes the messages of one trajectory into a store."""

    def __init__(self, trajectory: Trajectory, store: MessageStore) -> None:
        self.graph = trajectory
        self.pool: Pool = trajectory.pool
        self.store = store
        self._names: dict[str, bytes] = {}
        self._last: tuple[str | None, bytes] = (None, b"")

    def node(self, node: Node, cleared: frozenset[str] = frozenset()) -> tuple[int, ...]:
        """Add what a node contributes to later prefixes: no, one or two messages.

        Args:
            node: the node.
            cleared: tool ids whose results microcompaction had removed.
        """
        if node.kind != "response":
            return self._message("user", node.parts)
        said = self._message("assistant", node.parts)
        if not node.calls:
            return said
        out: list[bytes] = []
        counts: list[Counts] = []
        for call in node.calls:
            self._result(call, cleared, out, counts)
        if node.beside_results:
            self._blocks(node.beside_results, out, counts)
        return (*said, self._add("user", out, counts))

    def inserts(self, inserts: Iterable[int]) -> list[int]:
        """Add the model-visible records between two nodes, in file order."""
        found: list[int] = []
        for at in inserts:
            if (note := self.graph.notes.get(at)) is not None:
                found += self._message(note.renders_as, note.parts)
        return found

    def snapshot(self, role: str, piece: int | None) -> int | None:
        """Add a recorded system prompt or list of tools."""
        if piece is None:
            return None
        data = self.pool.get(piece)
        return self.store.add(role, [data], [self.pool.replaced.get(piece, ())])

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
            return self.store.add("system", [encode(system)], counts)
        return self.store.add(role, [b"[", b",".join(blocks), b"]"], counts)

    def action(self, node: Node) -> str:
        """Return the JSON of a response's action, as :class:`composer_pipeline.actions.Action`."""
        pool = self.pool
        texts = [pool.load(part.piece) for part in node.parts if part.kind == "text"]
        calls = []
        for call in node.calls:
            data = pool.get(call.piece)
            if data[:1] != b"{":
                data = b'{"input":%s}' % data
            name, identity = self._plain(call.name), self._plain(call.id)
            calls.append(b'{"name":%s,"arguments":%s,"id":%s}' % (name, data, identity))
        text = encode("\n\n".join(texts))
        return (b'{"text":%s,"tool_calls":[%s]}' % (text, b",".join(calls))).decode()

    def _message(self, role: str, parts: Iterable[Part]) -> tuple[int, ...]:
        out: list[bytes] = []
        counts: list[Counts] = []
        self._blocks(parts, out, counts)
        return (self._add(role, out, counts),) if out else ()

    def _add(self, role: str, blocks: list[bytes], counts: list[Counts]) -> int:
        """Add a message of blocks, each of which begins with a comma."""
        blocks[0] = b"[" + blocks[0][1:]
        blocks.append(b"]")
        return self.store.add(role, blocks, counts)

    def _blocks(self, parts: Iterable[Part], out: list[bytes], counts: list[Counts]) -> None:
        get, replaced = self.pool.get, self.pool.replaced
        for part in parts:
            kind, piece = part.kind, part.piece
            if kind == "tool_result":
                continue
            data = get(piece)
            if piece in replaced:
                counts.append(replaced[piece])
            if kind == "text":
                out += (b',{"type":"text","text":', data, b"}")
            elif kind == "tool_use":
                # The id last: that of the result comes next.
                name, identity = self._plain(part.name), self._plain(part.id)
                out.append(b',{"type":"tool_use","id":%s,"name":%s,"input":' % (identity, name))
                out += (data, b"}")
            else:
                out += (b",", data)

    def _result(
        self, call: Call, cleared: frozenset[str], out: list[bytes], counts: list[Counts]
    ) -> None:
        piece = call.answer
        out.append(b',{"type":"tool_result","tool_use_id":%s,"content":' % self._plain(call.id))
        if piece == NONE:
            out += (_MISSING, b',"is_error":true}')
            return
        if call.id in cleared:
            out.append(_CLEARED)
        else:
            out.append(self.pool.get(piece))
            if piece in self.pool.replaced:
                counts.append(self.pool.replaced[piece])
        out.append(b',"is_error":true}' if call.answer_failed else b"}")

    def _plain(self, text: str) -> bytes:
        """Return the JSON of a name or an id; those that tools make up are redacted too."""
        if text is self._last[0]:  # the id of a call, now of its result
            return self._last[1]
        if text[:6] == "toolu_" and text.isascii() and text.isidentifier():
            found = b'"%s"' % text.encode()
            self._last = (text, found)
            return found
        if (known := self._names.get(text)) is None:
            known = self._names[text] = self.pool.redacted(encode(text))
        return known
