"""Bytes to records: split lines, decode the envelope, salvage what a line still holds.

Belongs here: everything that can be wrong with the bytes of a session file (glued
objects, truncated tails, comments, NULs, lone surrogates, fields of a wrong type).
Does not belong here: what a record means (``traces.reading.contents``) or how records hang
together (``traces.graph.turns``).

The fast path decodes each line into a typed envelope and, where its blocks are of common
kinds, a typed message; 42 % of the bytes of real files are fields that nobody needs, and
msgspec skips them without building objects. A message of another shape stays undecoded.
A line that fails is decoded object by object. Nothing in a file is fatal: text that
cannot be decoded is counted.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from composer_pipeline.traces.reading.decoding import COMMON, UNREADABLE, decode_typed, undecoded
from composer_pipeline.traces.reading.envelopes import KNOWN_TYPES, Record, RequestRecord
from composer_pipeline.traces.reading.raw_json import BROKEN
from composer_pipeline.traces.reading.salvage import REQUESTS, salvage

_PLAIN = KNOWN_TYPES - REQUESTS


_decode_request = msgspec.json.Decoder(RequestRecord).decode


class LineStats(msgspec.Struct):
    """What reading the lines of one file showed.

    ``complete_bytes`` is the offset behind the last line that held a complete record:
    where an incremental reader resumes when the tail was still being written.
    """

    bytes: int = 0
    lines: int = 0
    bad_lines: int = 0
    glued_lines: int = 0
    records: int = 0
    last_line_bad: bool = False
    complete_bytes: int = 0
    unknown_types: Counter[str] = msgspec.field(default_factory=Counter)


def read_records(lines: Iterable[bytes], stats: LineStats) -> Iterator[Record]:  # noqa: C901  one loop over records, for speed
    """Yield the records of a file in file order and count into ``stats``.

    The undecoded parts of a record are views of its line: read them before the next
    record, or copy them, so that no line is held longer than needed. :func:`message_of`
    reads the message.

    Args:
        lines: the file split at newline bytes, newlines kept (a binary file is one).
        stats: receives the counts; complete when the iterator is exhausted.
    """
    # One function, for speed: it runs for each of up to millions of lines.
    size = count = records = complete = 0
    decode, plain, common = decode_typed, _PLAIN, COMMON
    last_line_bad = stats.last_line_bad
    record: Record
    message: Any
    try:
        for line in lines:
            if not size and line.startswith(b"\xef\xbb\xbf"):
                size, line = 3, line[3:]
            size += len(line)
            try:
                record = decode(line)
                if (message := record.message) is not None and type(message.content) is list:
                    for block in message.content:
                        if block.type not in common:
                            record = undecoded(line)
                            break
            except BROKEN:
                record = undecoded(line)
            if record is UNREADABLE:
                if not line or line.isspace():
                    continue
                count += 1
                found, clean = salvage(line)
                stats.glued_lines += clean and len(found) > 1
                stats.bad_lines += not clean
                last_line_bad = not clean and not line.endswith(b"\n")
                if found and not last_line_bad:
                    complete = size
                for record in found:
                    records += 1
                    if record.type not in KNOWN_TYPES:
                        stats.unknown_types[record.type or ""] += 1
                    yield record
                continue
            count += 1
            records += 1
            complete = size
            last_line_bad = False
            if record.type not in plain:
                if record.type in REQUESTS:
                    record = _decode_request(line)
                else:
                    stats.unknown_types[record.type or ""] += 1
            yield record
    finally:
        stats.last_line_bad = last_line_bad
        stats.bytes += size
        stats.lines += count
        stats.records += records
        stats.complete_bytes = complete
