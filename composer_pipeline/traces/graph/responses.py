"""Records to responses: the segments of one, its calls, and the results of these.

Belongs here: what a response is made of, which parts of it are repetitions. Does not
belong here: prompts and other records (``traces.graph.collect``).

A response owns all its segments and the records of its tool results, wherever they are
in the file: results are attached by the id of their call, never by their parent.
"""

from typing import Any

from composer_pipeline.json_values import text
from composer_pipeline.traces.graph.content_blocks import PartMaker
from composer_pipeline.traces.graph.nodes import (
    TRANSPARENT,
    Call,
    Node,
    NodeKind,
    Part,
    Where,
)
from composer_pipeline.traces.graph.pool import Pool
from composer_pipeline.traces.graph.sent_requests import reference
from composer_pipeline.traces.reading import EMPTY, Message, Record, Usage, decode_any, message_of


class Responses:
    """The nodes of one file, of which the responses are put together here.

    ``synthetic`` counts the responses that the client made up itself; they are no nodes.

    Args:
        pool: receives the contents.
        names: one object for each name of a model or a tool.
    """

    def __init__(self, pool: Pool, names: dict[str, str]) -> None:
        self.nodes: list[Node] = []
        self.request_of: dict[int, str] = {}
        self.synthetic = 0
        self.parts = PartMaker(pool, names)
        self._pool = pool
        self._names = names
        self._responses: dict[str, int] = {}
        self._calls: dict[str, Call] = {}
        self._order: dict[int, list[tuple[int, list[Part]]]] = {}
        self._told: set[int] = set()

    def new_node(self, kind: NodeKind, key: str, first: int, record: Record, where: Where) -> Node:
        """Add a node that begins with ``record``, at position ``first``."""
        node = Node(kind, key, first, record.timestamp, where)
        self.nodes.append(node)
        return node

    def take(self, at: int, record: Record, uuid: str, where: Where) -> int:
        """Add a segment to its response; return the response's node."""
        fast = message_of(record)
        given = {} if fast is not None else object_of(decode_any(record.message))
        head = fast or Message(
            id=text(given.get("id")),
            model=text(given.get("model")),
            usage=_usage(given.get("usage")),
        )
        model = head.model
        if model == "<synthetic>" or record.is_api_error_message is True:
            self.synthetic += 1
            return TRANSPARENT
        key = head.id or uuid
        number = self._responses.get(key)
        if number is None:
            number = self._responses[key] = len(self.nodes)
            node = self.new_node("response", key, at, record, where)
            node.parts = []
            node.forked = record.forked_from is not EMPTY and bool(decode_any(record.forked_from))
        else:
            node = self.nodes[number]
        if record.request_ref is not EMPTY and (name := reference(record)):
            self.request_of.setdefault(number, name)
        if model is not None and model not in node.models:
            node.models += (self._names.setdefault(model, model),)
        if head.usage is not None:
            node.count(head.usage)
        # Once a call's input is normalised, its true form is beside the message.
        wire = None
        if record.wire_tool_inputs is not EMPTY:
            wire = object_of(decode_any(record.wire_tool_inputs))
        if fast is not None:
            parts = self.parts.of_message(fast, wire)
        else:
            parts = self.parts.of_content(given.get("content"), wire or {})
        if parts:
            parts = self._add_parts(number, node, parts, record.timestamp)
        if (index := record.api_block_index) is not None or number in self._order:
            self._order.setdefault(number, []).append((-1 if index is None else index, parts))
        return number

    def _add_parts(
        self, number: int, node: Node, parts: list[Part], timestamp: str | None
    ) -> list[Part]:
        """Add the parts of a segment that are no repetitions; return those."""
        told: list[int] = []
        kept: list[Part] = []
        for part in parts:
            if isinstance(part, Call):
                known = self._calls.setdefault(part.id, part)
                if known is not part:
                    if part.flag and known.node == number:
                        known.piece = part.piece
                    continue
                part.node = number
            else:
                # A bug of /branch writes records twice under new uuids.
                mark = hash((number, timestamp, part.kind, self._pool.get(part.piece)))
                if mark in self._told:
                    continue
                told.append(mark)
            kept.append(part)
        self._told.update(told)
        whole: Any = node.parts  # a list until the end of the file
        whole += kept
        return kept

    def take_results(self, parts: list[Part]) -> tuple[int, list[Part]]:
        """Give results to their calls; return the response, or all parts where it is unknown."""
        owner = TRANSPARENT
        beside = []
        for part in parts:
            if part.kind != "tool_result":
                beside.append(part)
            elif (call := self._calls.get(part.id)) is not None:
                owner = call.node if owner == TRANSPARENT else owner
                call.take(part)
        if owner == TRANSPARENT:
            return owner, parts
        if beside:
            self.nodes[owner].beside_results += tuple(beside)
        return owner, []

    def finish(self) -> None:
        """Sort blocks that carry their position, and settle what each response is."""
        for number, segments in self._order.items():
            node = self.nodes[number]
            if sum(len(parts) for _, parts in segments) < len(node.parts):
                continue  # earlier segments have no position
            if any(index < 0 for index, _ in segments):
                continue
            node.parts = [part for _, parts in sorted(segments, key=_position) for part in parts]
        for node in self.nodes:
            own = node.parts = tuple(node.parts)
            if node.kind == "response":
                node.calls = tuple([part for part in own if type(part) is Call])
                node.is_state = bool(node.calls) or any(p.kind == "text" for p in own)
        self._calls = {}
        self._responses = {}
        self._told = set()
        self._order = {}


def _position(segment: tuple[int, list[Part]]) -> int:
    return segment[0]


def _usage(value: Any) -> Usage | None:
    if not isinstance(value, dict):
        return None
    given = {name: value.get(name) for name in Usage.__struct_fields__}
    return Usage(**{name: n if isinstance(n, int) else None for name, n in given.items()})


def object_of(value: Any) -> dict[str, Any]:
    """Return a decoded object; an empty one for anything else."""
    return value if isinstance(value, dict) else {}
