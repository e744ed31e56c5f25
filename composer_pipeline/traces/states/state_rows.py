"""Rows of ``states`` on their way to Arrow.

Belongs here: the columns of a row, and batches of rows as tables. Does not belong here:
what their values are (``traces.states.extract``).
"""

from datetime import datetime

import msgspec
import pyarrow as pa

from composer_pipeline.lake import STATES, column

#: Rows that are kept as objects until they become one Arrow table.
_BATCH_ROWS = 4096


class StateRow(msgspec.Struct, kw_only=True, gc=False):
    """One row of ``states``; the fields are columns of the table."""

    state_id: str
    session_id: str
    agent_id: str
    message_id: str
    chain_id: str
    n_messages: int
    system_hash: str | None
    tools_hash: str | None
    action: str | None = None
    fidelity: str
    on_active_path: bool
    repaired: bool
    error_kind: str | None = None
    hint: str | None = None
    hint_source: str | None = None
    hint_call: int | None = None
    project: str
    cwd: str
    model: str | None
    version: str | None
    ts: datetime | None
    input_tokens: int | None
    output_tokens: int | None
    turn: int
    parser_version: str
    followed_by_error: bool
    followed_by_correction: bool
    interrupted: bool
    reverted: bool
    tests_passed: bool | None


class Rows:
    """The states of a day: objects that become Arrow tables a batch at a time."""

    def __init__(self) -> None:
        self.count = 0
        self._rows: list[StateRow] = []
        self._tables: list[pa.Table] = []

    def add(self, row: StateRow) -> None:
        """Append a row."""
        self.count += 1
        self._rows.append(row)
        if len(self._rows) == _BATCH_ROWS:
            self._flush()

    def table(self) -> pa.Table:
        """Return all rows."""
        self._flush()
        return pa.concat_tables(self._tables)

    def _flush(self) -> None:
        rows, self._rows = self._rows, []
        names = StateRow.__struct_fields__
        values = (
            zip(*map(msgspec.structs.astuple, rows), strict=True) if rows else [()] * len(names)
        )
        given = dict(zip(names, values, strict=True))
        self._tables.append(
            pa.Table.from_arrays(
                [
                    column(given[f.name], f.type)
                    if f.name in given
                    else pa.nulls(len(rows), f.type)
                    for f in STATES.schema
                ],
                schema=STATES.schema,
            )
        )
