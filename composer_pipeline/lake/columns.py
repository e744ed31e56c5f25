"""Arrow arrays from Python lists, built from their buffers.

Belongs here: the types of the lake's columns. Does not belong here: tables and files
(``lake.store``).

``pyarrow.array`` asks whether its argument is a pandas object and imports pandas for that:
half a second and 50 MB that a parse does not need. Building the buffers is also faster.
"""

from array import array
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import accumulate, chain
from typing import Any

import pyarrow as pa

_NUMBERS = {pa.int32(): "i", pa.int64(): "q", pa.float64(): "d", pa.uint8(): "B"}
_MOMENT = pa.timestamp("us", tz="UTC")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MOST_BYTES = 2**31 - 1


def column(values: Sequence[Any], kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Return an Arrow array of Python values; ``None`` is null.

    Lone surrogates, which have no place in Parquet, become U+FFFD.

    Args:
        values: one value for each row.
        kind: the type; text, bytes, numbers, flags, UTC timestamps and lists of those are built
            here, anything else by pyarrow, which then loads pandas.
    """
    if kind == pa.string():
        return _strings(values)
    if kind in _NUMBERS:
        return _numbers(values, kind)
    if kind == pa.bool_():
        present = [value is not None for value in values]
        return _from_buffers(kind, len(values), present, [_bits(map(bool, values))])
    if kind == _MOMENT:
        present = [value is not None for value in values]
        ticks = array("q", [0 if v is None else (v - _EPOCH) // _MICROSECOND for v in values])
        return _from_buffers(kind, len(values), present, [pa.py_buffer(ticks)])
    if kind == pa.binary() and sum(map(len, filter(None, values))) <= _MOST_BYTES:
        present = [value is not None for value in values]
        filled = [value or b"" for value in values]
        data = pa.py_buffer(b"".join(filled))
        return _from_buffers(kind, len(values), present, [_offsets(filled), data])
    if pa.types.is_list(kind) and kind.value_type in (pa.string(), pa.int32(), pa.bool_()):
        present = [value is not None for value in values]
        filled = [() if value is None else value for value in values]
        items = column(list(chain.from_iterable(filled)), kind.value_type)
        if isinstance(items, pa.Array):
            return _from_buffers(kind, len(values), present, [_offsets(filled)], [items])
    return pa.array(values, kind)


def utf8(values: Sequence[bytes]) -> pa.Array:
    """Return a text column of encoded values.

    Raises:
        pyarrow.ArrowInvalid: a value is not UTF-8.
    """
    buffers = [None, _offsets(values), pa.py_buffer(b"".join(values))]
    found = pa.Array.from_buffers(pa.string(), len(values), buffers)
    found.validate(full=True)
    return found


def constant(value: str, length: int) -> pa.Array:
    """Return a text column that has the same value in each row."""
    return _strings([value] * length)


def numbers(values: Iterable[int], kind: pa.DataType) -> pa.Array:
    """Return a column of numbers, none of them missing."""
    data = array(_NUMBERS[kind], values)
    return pa.Array.from_buffers(kind, len(data), [None, pa.py_buffer(data)])


def _strings(values: Sequence[str | None]) -> pa.Array | pa.ChunkedArray:
    present = [value is not None for value in values]
    filled: Sequence[Any] = values if all(present) else [value or "" for value in values]
    joined = "".join(filled)
    if joined.isascii():
        data = joined.encode()
    else:
        filled = [_encoded(value) for value in filled]
        data = b"".join(filled)
    if len(data) > _MOST_BYTES:
        return pa.array(values, pa.string())
    return _from_buffers(pa.string(), len(values), present, [_offsets(filled), pa.py_buffer(data)])


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def _numbers(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    present = [value is not None for value in values]
    if not all(present):
        values = [0 if value is None else value for value in values]
    data = pa.py_buffer(array(_NUMBERS[kind], values))
    return _from_buffers(kind, len(values), present, [data])


def _from_buffers(
    kind: pa.DataType,
    length: int,
    present: list[bool],
    buffers: list[pa.Buffer],
    children: list[pa.Array] | None = None,
) -> pa.Array:
    missing = present.count(False)
    valid = _bits(present) if missing else None
    return pa.Array.from_buffers(kind, length, [valid, *buffers], missing, children=children)


def _offsets(values: Iterable[Any]) -> pa.Buffer:
    return pa.py_buffer(array("i", accumulate(map(len, values), initial=0)))


def _bits(flags: Iterable[bool]) -> pa.Buffer:
    data = bytes(flags)
    whole = pa.Array.from_buffers(pa.uint8(), len(data), [None, pa.py_buffer(data)])
    return whole.cast(pa.bool_()).buffers()[1]
