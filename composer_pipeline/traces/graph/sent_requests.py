"""The API requests that late versions record: the prefix exactly as it was sent.

Belongs here: the records ``api-request`` and ``api-request-blob``, and putting a request
together. Does not belong here: which state a request belongs to (``traces.graph.turns``).

A request is the first ``keep`` messages of request ``base``, then the messages whose
hashes ``tail`` lists; without ``base`` it is ``tail`` alone. That reading is an inference
from the field names, so a request counts only where every part of it resolves: its base,
as many messages there as it keeps, and a blob for every hash. Any other response falls
back to the prefix that the turn graph gives.
"""

from collections.abc import Callable
from typing import Any

from composer_pipeline.traces.reading import EMPTY, Record, RequestRecord, decode_any

_ROLES = ("user", "assistant", "system")

#: Adds a message with this role and content to the store; returns its number.
AddMessage = Callable[[str, Any], int]


class Requests:
    """The requests of one file.

    A request holds the messages it adds and where the rest comes from, so that memory is
    linear in the file. ``put`` keeps a value outside of memory and ``load`` brings it back.
    """

    def __init__(self, put: Callable[[Any], int], load: Callable[[int], Any]) -> None:
        self._put, self._load = put, load
        self._blobs: dict[str, int] = {}
        self._given: dict[str, tuple[str | None, int, tuple[str, ...]]] = {}

    def __bool__(self) -> bool:
        return bool(self._given)

    def take(self, record: RequestRecord) -> None:
        """Note a request or a blob; anything malformed is passed over."""
        if record.type == "api-request-blob":
            name, message = _text(record.hash), decode_any(record.message)
            if name and name not in self._blobs and _is_message(message):
                self._blobs[name] = self._put([message["role"], message["content"]])
            return
        name, base, keep = _text(record.id), decode_any(record.base), decode_any(record.keep)
        tail = decode_any(record.tail)
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
        """Return the requests that resolve and that ``wanted`` needs, each behind its base."""
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
        """Return the base, how many messages are kept of it, and what is added.

        Each addition is a role, a content and the number under which ``put`` kept it.
        """
        base, keep, tail = self._given[name]
        pieces = [self._blobs[digest] for digest in tail]
        return base, keep, [(*self._load(piece), piece) for piece in pieces]


def reference(record: Record) -> str | None:
    """Return the request that an assistant's record names."""
    if record.request_ref is EMPTY:
        return None
    value = decode_any(record.request_ref)
    if isinstance(value, dict):
        value = value.get("id")
    return value if isinstance(value, str) and value else None


def _text(raw: Any) -> str | None:
    value = decode_any(raw)
    return value if isinstance(value, str) else None


def _is_message(value: Any) -> bool:
    if not isinstance(value, dict) or value.get("role") not in _ROLES:
        return False
    return isinstance(value.get("content"), (str, list))
