"""The flat text columns of pairs that data-juicer judges, and mapped texts put back.

A mapper changes prose: the ``content`` of a field's messages. The arguments of a tool call
are an action, and an edit whose ``old_string`` lost a space no longer applies, so no
operator ever changes them.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from composer_pipeline.errors import InputError

#: Columns that a recipe may name.
COLUMNS = (
    "pair_id",
    "state_key",
    "prompt_tail_text",
    "chosen_text",
    "rejected_text",
    "chosen_prose",
    "pair_text",
    "rejected_prose",
    "prompt_text",
)

#: Columns whose texts a mapper may change -> the field of the pair behind each.
MAPPED = {
    "chosen_text": "chosen",
    "chosen_prose": "chosen",
    "rejected_text": "rejected",
    "rejected_prose": "rejected",
    "prompt_text": "prompt",
}

#: Columns of ``pairs`` that the flat columns are made of.
SOURCE = ("pair_id", "prompt", "chosen", "rejected", "tools")

#: What ``pair_text`` is made of.
PAIR_PARTS = ("state_key", "chosen_text", "rejected_text")

TAIL_CHARS = 2000


class Messages:
    """One message column: each distinct message decoded, rendered and hashed once."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        lengths = [chunk.value_lengths().fill_null(0).to_numpy() for chunk in column.chunks]
        flat = [chunk.flatten().storage for chunk in column.chunks]
        self._ends = np.cumsum(np.concatenate([np.zeros(0, np.int64), *lengths]), dtype=np.int64)
        encoded = pa.chunked_array(flat, pa.string()).dictionary_encode().unify_dictionaries()
        self._codes = np.concatenate(
            [np.zeros(0, np.int64)]
            + [chunk.indices.fill_null(-1).to_numpy() for chunk in encoded.chunks]
        ).astype(np.int64)
        values = encoded.chunks[0].dictionary if encoded.num_chunks else pa.array([], pa.string())
        self._raw: list[bytes] = values.cast(pa.binary()).to_pylist()
        self._message: list[dict[str, Any] | None] = [None] * len(self._raw)
        self._text: list[str | None] = [None] * len(self._raw)
        self._hash: list[bytes] = []
        #: Digest of a message as read -> its JSON after mappers, if they changed it.
        self.changed: dict[bytes, str] = {}
        self._original: dict[int, bytes] = {}

    def codes(self, row: int) -> list[int]:
        """Return the numbers of a row's messages, in order; -1 is a null message."""
        low = self._ends[row - 1] if row else 0
        codes: list[int] = self._codes[low : self._ends[row]].tolist()
        return codes

    def message(self, code: int) -> dict[str, Any]:
        """Return one message in its current state."""
        found = self._message[code]
        if found is None:
            found = self._message[code] = json.loads(self._raw[code])
        return found

    def text(self, code: int) -> str:
        """Return one message in its current state as text."""
        found = self._text[code]
        if found is None:
            found = self._text[code] = _message_text(self.message(code))
        return found

    def action(self, row: int) -> str:
        """Return the text that operators judge: prose, then each call as name and arguments."""
        return "\n".join(text for code in self.codes(row) if (text := self.text(code)))

    def tail(self, row: int, limit: int | None) -> str:
        """Return the last ``limit`` characters of a row's messages, or all of them."""
        parts: list[str] = []
        length = 0
        for code in reversed(self.codes(row)):
            parts.append(self.text(code))
            length += len(parts[-1]) + 1
            if limit is not None and length > limit:
                break
        text = "\n".join(reversed(parts))
        return text if limit is None else text[-limit:]

    def called(self, row: int) -> bool:
        """Return True if a row calls a tool."""
        return _called(self.message(code) for code in self.codes(row))

    def digests(self, row: int) -> list[bytes]:
        """Return the current hash of each of a row's messages."""
        if not self._hash:
            self._hash = [_digest(raw) for raw in self._raw]
        return [self._hash[code] for code in self.codes(row) if code >= 0]

    def null_row(self) -> int | None:
        """Return the first row with a null message, if any."""
        places = np.flatnonzero(self._codes < 0)
        return int(np.searchsorted(self._ends, places[0], side="right")) if places.size else None

    def change(self, codes: Iterable[int], texts: dict[str, str]) -> set[int]:
        """Put mapped texts in place of message contents; return the messages that changed."""
        touched = set()
        for code in codes:
            message = self.message(code)
            content = message.get("content")
            new = replaced(content, texts)
            if new == content:
                continue
            touched.add(code)
            raw = _json({**message, "content": new})
            original = self._original.setdefault(code, _digest(self._raw[code]))
            self.changed[original] = raw
            self._raw[code] = raw.encode()
            self._message[code] = self._text[code] = None
            if self._hash:
                self._hash[code] = _digest(self._raw[code])
        return touched


class PairColumns:
    """The flat columns of one day's pairs."""

    def __init__(self, table: pa.Table, day: str) -> None:
        self.rows = table.num_rows
        self.pair_ids: list[str] = table.column("pair_id").to_pylist()
        for name in ("pair_id", "prompt", "chosen", "rejected"):
            if table.column(name).null_count:
                row = table.column(name).is_null().index(pa.scalar(True)).as_py()
                raise InputError(
                    f"table pairs, day {day}: pair {self.pair_ids[row]} (row {row}) has null"
                    f" in column {name}"
                )
        self.fields = {name: Messages(table.column(name)) for name in SOURCE if name != "pair_id"}
        for name in ("prompt", "chosen", "rejected"):
            if (hole := self.fields[name].null_row()) is not None:
                raise InputError(
                    f"table pairs, day {day}: pair {self.pair_ids[hole]} (row {hole}) has a null"
                    f" message in column {name}"
                )

    def column(self, name: str, rows: Sequence[int]) -> list[str]:
        """Return one flat column for some rows, from the current messages."""
        prompt, chosen, rejected = (self.fields[key] for key in ("prompt", "chosen", "rejected"))
        match name:
            case "pair_id":
                return [self.pair_ids[row] for row in rows]
            case "prompt_tail_text":
                return [prompt.tail(row, TAIL_CHARS) for row in rows]
            case "prompt_text":
                return [prompt.tail(row, None) for row in rows]
            case "chosen_text" | "rejected_text":
                side = self.fields[MAPPED[name]]
                return [side.action(row) for row in rows]
            case "chosen_prose" | "rejected_prose":
                side = self.fields[MAPPED[name]]
                return ["" if side.called(row) else side.action(row) for row in rows]
            case "state_key":
                tools = self.fields["tools"]
                return [_state_key(prompt.digests(row), tools.digests(row)) for row in rows]
            case "pair_text":
                return [
                    pair_text(key, chosen.action(row), rejected.action(row))
                    for key, row in zip(self.column("state_key", rows), rows, strict=True)
                ]
        raise InputError(f"unknown column {name!r}; known: {', '.join(COLUMNS)}")

    def narrow(self, names: Iterable[str], rows: Sequence[int]) -> pa.Table:
        """Return flat columns of some rows as strings."""
        return pa.table({name: pa.array(self.column(name, rows), pa.string()) for name in names})

    def texts(self, name: str, rows: Sequence[int]) -> tuple[list[str], list[list[int]]]:
        """Return a mapper's distinct input texts, and each row's messages that have one."""
        field = self.fields[MAPPED[name]]
        texts: dict[str, None] = {}
        has: dict[int, bool] = {}
        places = []
        for row in rows:
            codes = field.codes(row)
            if name.endswith("_prose") and field.called(row):
                codes = []
            for code in codes:
                if code not in has:
                    found = contents(field.message(code).get("content"))
                    has[code] = bool(found)
                    texts.update(dict.fromkeys(found))
            places.append([code for code in codes if has[code]])
        return list(texts), places


def contents(content: Any) -> list[str]:
    """Return the non-empty texts of a message's content: a string, or a list of blocks."""
    if isinstance(content, str):
        return [content] if content else []
    if isinstance(content, list):
        return [
            block["text"]
            for block in content
            if isinstance(block, dict) and isinstance(block.get("text"), str) and block["text"]
        ]
    return []


def replaced(content: Any, texts: dict[str, str]) -> Any:
    """Return a content with each of its texts (see :func:`contents`) looked up in ``texts``."""
    if isinstance(content, str):
        return texts.get(content, content)
    if isinstance(content, list):
        return [
            {**block, "text": texts.get(block["text"], block["text"])}
            if isinstance(block, dict) and isinstance(block.get("text"), str)
            else block
            for block in content
        ]
    return content


def rewritten(column: pa.ChunkedArray, changed: dict[bytes, str]) -> pa.ChunkedArray:
    """Return a message column with changed messages (:attr:`Messages.changed`) in place."""
    chunks = []
    for chunk in column.chunks:
        flat = chunk.flatten().storage.dictionary_encode()
        raws: list[str] = flat.dictionary.to_pylist()
        new = pa.array([changed.get(_digest(raw.encode()), raw) for raw in raws], pa.string())
        lengths = chunk.value_lengths().fill_null(0).to_numpy()
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]).astype(np.int32)
        lists = pa.ListArray.from_arrays(pa.array(offsets), new.take(flat.indices))
        chunks.append(lists.cast(column.type))
    return pa.chunked_array(chunks, column.type)


def named_columns(steps: Iterable[tuple[str, dict[str, Any]]], *, every: bool) -> list[str]:
    """Return the columns that steps may read: those whose names occur in their arguments."""
    # With ``every``, some operator is the user's own and may read any column but ``prompt_text``,
    # which repeats every prompt. ``pair_text`` repeats both sides: its parts are sent instead.
    words = json.dumps([arguments for _, arguments in steps])
    names = {name for name in COLUMNS if name in words or (every and name != "prompt_text")}
    if "pair_text" in names:
        names = names - {"pair_text"} | set(PAIR_PARTS)
    return [name for name in COLUMNS if name in names or name == "pair_id"]


def _message_text(message: dict[str, Any]) -> str:
    parts = []
    if content := message.get("content"):
        parts.append(content if isinstance(content, str) else _json(content))
    for call in message.get("tool_calls") or ():
        function = call["function"]
        parts.append(f"{function['name']} {_json(function['arguments'])}")
    return "\n".join(parts)


def _called(messages: Iterable[dict[str, Any]]) -> bool:
    return any(message.get("tool_calls") for message in messages)


def pair_text(state_key: str, chosen: str, rejected: str) -> str:
    """Return the column ``pair_text`` from its parts."""
    # A JSON list: its brackets keep data-juicer's strip() away from the texts.
    return _json([state_key, chosen, rejected])


def _state_key(prompt: list[bytes], tools: list[bytes]) -> str:
    parts = [len(prompt).to_bytes(8, "big"), *prompt, *tools]
    return hashlib.blake2b(b"".join(parts), digest_size=16).hexdigest()


def _digest(raw: bytes) -> bytes:
    return hashlib.blake2b(raw, digest_size=16).digest()


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
