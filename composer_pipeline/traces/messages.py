"""Turn nodes to stored messages: Anthropic-shaped, thinking removed, redacted, hashed.

A message is ``{"role", "content"}`` with blocks ``text``, ``tool_use``, ``tool_result``,
``image``; unknown blocks pass. The results of a response are one user message after it, in the
order of the calls. Roles ``system`` and ``tools`` hold a recorded system prompt (a string) and
recorded tool schemas (a list). Messages are joined from the JSON of their pieces, which is never
decoded again.
"""

import hashlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from composer_pipeline.lake.parquet import column, numbers, utf8
from composer_pipeline.lake.schema import MESSAGES
from composer_pipeline.redaction.user_rules import redaction_version
from composer_pipeline.traces.content_store import Replacements
from composer_pipeline.traces.graph_nodes import ABSENT, Call, Node, Part
from composer_pipeline.traces.records import blake, blocks_of, encode, result_text, text_of
from composer_pipeline.traces.trajectory import Trajectory

_HEADS = {
    role: b'{"role":"%s","content":' % role.encode()
    for role in ("user", "assistant", "system", "tools")
}

#: Decoded bytes of messages that wait for one write.
_BATCH_BYTES = 4 << 20
Write = Callable[[pa.Table], None]


class MessageStore:
    """The distinct redacted messages of one partition, numbered in the order of arrival.

    ``write`` receives the rows in batches; only hashes stay in memory. ``counts`` adds up
    redactions by kind, once for each distinct message.
    """

    def __init__(self, write: Write | None = None) -> None:
        self.counts: Counter[str] = Counter()
        self.hashes: list[bytes] = []
        self._number: dict[bytes, int] = {}
        self._write = write
        self._rows: list[tuple[bytes, str, bytes, int]] = []
        self._waiting = 0

    def add(self, role: str, content: Sequence[bytes], counts: Iterable[Replacements] = ()) -> int:
        """Store a message given as pieces of JSON, with their replacements; return its number."""
        text = b"".join((_HEADS[role], *content, b"}"))
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
        """Pass the waiting rows to the writer."""
        rows, self._rows, self._waiting = self._rows, [], 0
        if self._write is None or not rows:
            return
        first = len(self.hashes) - len(rows)
        digests, roles, texts, replaced = zip(*rows, strict=True)
        text = utf8(texts)
        self._write(
            pa.Table.from_arrays(
                [
                    column([digest.hex() for digest in digests], pa.string()),
                    column(roles, pa.string()),
                    text,
                    pc.utf8_length(text),
                    numbers(replaced, pa.int32()),
                    numbers([redaction_version()] * len(rows), pa.int32()),
                    numbers(range(first, len(self.hashes)), pa.int32()),
                ],
                schema=MESSAGES.schema,
            )
        )


#: What the client sends for a call whose result was never recorded.
MISSING_RESULT = "[Tool result missing due to internal error]"
#: What the client sends for a result that microcompaction removed.
CLEARED_RESULT = "[Old tool result content cleared]"

_MISSING, _CLEARED = orjson.dumps(MISSING_RESULT), orjson.dumps(CLEARED_RESULT)


class Composer:
    """Writes the messages of one trajectory into a store."""

    def __init__(self, trajectory: Trajectory, store: MessageStore) -> None:
        self.graph = trajectory
        self.contents = trajectory.contents
        self.store = store
        self._names: dict[str, bytes] = {}
        self._last: tuple[str | None, bytes] = (None, b"")

    def node(self, node: Node, cleared: frozenset[str] = frozenset()) -> tuple[int, ...]:
        """Add what a node contributes to later prefixes, without results that were ``cleared``."""
        if node.kind != "response":
            return self._message("user", node.parts)
        message = self._message("assistant", node.parts)
        if not node.calls:
            return message
        out: list[bytes] = []
        counts: list[Replacements] = []
        for call in node.calls:
            self._result(call, cleared, out, counts)
        if node.beside_results:
            self._blocks(node.beside_results, out, counts)
        return (*message, self._add("user", out, counts))

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
        data = self.contents.get(piece)
        return self.store.add(role, [data], [self.contents.replaced.get(piece, ())])

    def request_message(self, role: str, content: Any, piece: int) -> int | None:
        """Add a message of a recorded request, ``piece`` of the store, in the usual shape."""
        counts = [self.contents.replaced.get(piece, ())]
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
        contents = self.contents
        texts = [contents.load(part.piece) for part in node.parts if part.kind == "text"]
        calls = []
        for call in node.calls:
            data = contents.get(call.piece)
            if data[:1] != b"{":
                data = b'{"input":%s}' % data
            name, identity = self._plain(call.name), self._plain(call.id)
            calls.append(b'{"name":%s,"arguments":%s,"id":%s}' % (name, data, identity))
        text = encode("\n\n".join(texts))
        return (b'{"text":%s,"tool_calls":[%s]}' % (text, b",".join(calls))).decode()

    def _message(self, role: str, parts: Iterable[Part]) -> tuple[int, ...]:
        out: list[bytes] = []
        counts: list[Replacements] = []
        self._blocks(parts, out, counts)
        return (self._add(role, out, counts),) if out else ()

    def _add(self, role: str, blocks: list[bytes], counts: list[Replacements]) -> int:
        """Add a message of blocks, each of which begins with a comma."""
        blocks[0] = b"[" + blocks[0][1:]
        blocks.append(b"]")
        return self.store.add(role, blocks, counts)

    def _blocks(self, parts: Iterable[Part], out: list[bytes], counts: list[Replacements]) -> None:
        get, replaced = self.contents.get, self.contents.replaced
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
        self, call: Call, cleared: frozenset[str], out: list[bytes], counts: list[Replacements]
    ) -> None:
        piece = call.answer
        out.append(b',{"type":"tool_result","tool_use_id":%s,"content":' % self._plain(call.id))
        if piece == ABSENT:
            out += (_MISSING, b',"is_error":true}')
            return
        if call.id in cleared:
            out.append(_CLEARED)
        else:
            out.append(self.contents.get(piece))
            if piece in self.contents.replaced:
                counts.append(self.contents.replaced[piece])
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
            known = self._names[text] = self.contents.redacted(encode(text))
        return known


def state_id_of(session_id: str, message_id: str) -> str:
    """Return the id of a state; stable across harvests, machines and parsers."""
    return blake(session_id, message_id)


_NOT_COMPOSED = 255


class Chains:
    """The chains of one trajectory: shared prefixes of its states.

    ``chains`` maps a chain's id to numbers of messages. Of each node, ``chain_of`` is its chain,
    empty if no state needs one, and ``before`` the length of its prefix there. ``file`` is what
    identifies its file: path and agent.
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
            numbers += self._messages_of(number, cleared)
        self.chains[chain_id] = numbers

    def _messages_of(self, number: int, cleared: frozenset[str]) -> Iterable[int]:
        node = self.graph.nodes[number]
        if cleared and any(call.id in cleared for call in node.calls):
            return self.compose.node(node, cleared)
        number = number if node.origin is None else node.origin
        count, at = self._counts[number], 2 * number
        if count == _NOT_COMPOSED:
            numbers = self.compose.node(node)
            count = self._counts[number] = len(numbers)
            self._numbers[at : at + count] = array("i", numbers)
        return self._numbers[at : at + count]

    def requests(self) -> dict[int, tuple[str, int, int | None]]:
        """Build the chains of recorded requests: chain, length and system of each state."""
        if not self.graph.requests or not self.graph.request_of:
            return {}
        wanted = set(self.graph.request_of.values())
        built: dict[str, tuple[str, int, int | None]] = {}
        # For each message of a chain's requests: the length of the chain after it.
        marks_of: dict[str, list[int]] = {}
        for name in self.graph.requests.order(wanted):
            base, keep, added = self.graph.requests.parts(name)
            chain_id, system, kept = "", None, 0
            if base is not None:
                chain_id, _, system = built[base]
                kept = marks_of[chain_id][keep - 1] if keep else 0
            if not chain_id or keep < len(marks_of[chain_id]):
                before, marks = self.chains.get(chain_id, []), marks_of.get(chain_id, [])
                chain_id = blake("request", *self.file, name)
                self.chains[chain_id] = before[:kept]
                marks_of[chain_id] = marks[:keep]
            chain = self.chains[chain_id]
            for role, content, piece in added:
                number = self.compose.request_message(role, content, piece)
                if role == "system":
                    system = number
                elif number is not None:
                    chain.append(number)
                marks_of[chain_id].append(len(chain))
            built[name] = (chain_id, len(chain), system)
        return {
            number: built[name]
            for number, name in self.graph.request_of.items()
            if name in built and built[name][1]
        }
