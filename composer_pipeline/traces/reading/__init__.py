"""Bytes to records: whose logs a file holds, its lines, and what one record says.

Does not belong here: how records relate to each other (``traces.graph``).
"""

from composer_pipeline.traces.reading.contents import (
    GRAPH_TYPES,
    Block,
    blocks_of,
    parse_time,
    result_text,
    text_of,
    user_kind,
)
from composer_pipeline.traces.reading.decoding import embedded_record, message_of
from composer_pipeline.traces.reading.envelopes import (
    EMPTY,
    KNOWN_TYPES,
    Message,
    Record,
    RequestRecord,
    Usage,
)
from composer_pipeline.traces.reading.raw_json import decode_any, decode_text, encode, trimmed
from composer_pipeline.traces.reading.records import LineStats, read_records
from composer_pipeline.traces.reading.sources import SOURCES, read_any

__all__ = [
    "EMPTY",
    "GRAPH_TYPES",
    "KNOWN_TYPES",
    "SOURCES",
    "Block",
    "LineStats",
    "Message",
    "Record",
    "RequestRecord",
    "Usage",
    "blocks_of",
    "decode_any",
    "decode_text",
    "embedded_record",
    "encode",
    "message_of",
    "parse_time",
    "read_any",
    "read_records",
    "result_text",
    "text_of",
    "trimmed",
    "user_kind",
]
