"""What a table is, and the types and columns that several tables share.

Belongs here: ``TableSpec`` and the making of a schema. Does not belong here: any table.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

JSON_LIST = pa.list_(pa.json_())
TIMESTAMP = pa.timestamp("us", tz="UTC")
TEXT, FLAG, INT32, INT64, FLOAT = pa.string(), pa.bool_(), pa.int32(), pa.int64(), pa.float64()
STRINGS = pa.list_(pa.string())

#: The columns that name a state.
STATE_ID = {
    "state_id": (TEXT, "hash of (session id, message id); stable across harvests"),
    "session_id": (TEXT, "Claude Code session"),
}


@dataclass(frozen=True)
class TableSpec:
    """A table: its name, its row key, the keys of its path, and its columns.

    ``compact`` tables have many small partitions that only this project reads: their
    files lack the Arrow schema, the page index and most statistics. The row groups of ``grouped``
    tables are those that the writer's pieces ask for, and their pages are not cut by content: where
    rows that go together go, the bytes of the others stay as they were.
    """

    name: str
    description: str
    key: tuple[str, ...]
    partition_keys: tuple[str, ...]
    schema: pa.Schema
    compact: bool = False
    grouped: bool = False

    def description_of(self, column: str) -> str:
        """Return the description of a column, or an empty string."""
        metadata = self.schema.field(column).metadata or {}
        return bytes(metadata.get(b"description", b"")).decode()


def schema_of(columns: Mapping[str, tuple[pa.DataType, str]]) -> pa.Schema:
    """Return a schema of columns: name to (type, description)."""
    return pa.schema(
        [
            pa.field(name, kind, metadata={"description": text})
            for name, (kind, text) in columns.items()
        ]
    )
