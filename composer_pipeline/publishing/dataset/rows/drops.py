"""The ledgers of all stages as rows of the dataset.

Belongs here: rows of ``dataset_drops``. Does not belong here: why a row was dropped.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from composer_pipeline.lake import SCHEMA_VERSION, Lake

Row = dict[str, Any]


def drop_rows(
    lake: Lake, stage: str, ledger: Mapping[str, Sequence[Row]]
) -> Iterator[tuple[str, Row]]:
    """Yield (day, row) of what earlier stages and this one left out.

    Rows whose state is not in the lake any more belong to no session, and are passed over.

    Args:
        lake: reads ``drops`` and the names of ``states``.
        stage: this one, whose partitions are about to be replaced.
        ledger: its rows by day.
    """
    earlier = {
        (part["day"], part["stage"]) for part in lake.partitions("drops") if part["stage"] != stage
    }
    for day in sorted({*(day for day, _ in earlier), *ledger}):
        rows = [
            {**row, "stage": name}
            for of_day, name in sorted(earlier)
            if of_day == day
            for row in lake.rows("drops", days=[day], stage=name)
        ]
        rows += [{**row, "stage": stage} for row in ledger.get(day, ())]
        session_of = _sessions(lake, day, {row["state_id"] for row in rows})
        for row in sorted(rows, key=lambda row: (row["stage"], row["pair_id"], row["step"])):
            if row["state_id"] in session_of:
                about = {"day": day, "schema_version": SCHEMA_VERSION}
                yield day, {**row, **about, "session_id": session_of[row["state_id"]]}


def _sessions(lake: Lake, day: str, states: set[str]) -> dict[str, str]:
    if not states:
        return {}
    table = lake.read("states", days=[day], columns=["state_id", "session_id"])
    columns = (table[name].to_pylist() for name in ("state_id", "session_id"))
    return {name: session for name, session in zip(*columns, strict=True) if name in states}
