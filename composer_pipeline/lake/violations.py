"""What must never be true of the tables, whatever wrote them.

Belongs here: one query an invariant, over the views of a lake, that returns the ids which
break it. Does not belong here: whether rows went from stage to stage
(``preferences.quality.row_accounting``) and what is done about a violation.
"""

from collections import Counter
from collections.abc import Iterable

import pyarrow.parquet as pq

from composer_pipeline.lake.store import Lake
from composer_pipeline.lake.tables import spec_of


def wrong_columns(lake: Lake, table: str, days: Iterable[str] | None, **keys: str) -> list[str]:
    """Return what is wrong with the columns of a table's partitions; footers alone are read.

    A column that an older version did not know yet is not missed.

    Args:
        lake: the lake.
        table: one of its tables.
        days: only these days; all partitions when ``None``.
        keys: fixed partition keys, for example ``teacher``.
    """
    known = spec_of(table).schema
    found = []
    for part in _parts(lake, table, days, keys):
        with lake.open(lake.path(table, **part).removeprefix(lake.root + "/")) as file:
            schema = pq.read_schema(file)
        where = "/".join([table, *part.values()])
        for field in schema:
            if field.name not in known.names:
                found.append(f"{where}: {field.name} is no column")
            elif field.type != known.field(field.name).type:
                found.append(f"{where}: {field.name} is {field.type}")
    return found


def doubled_rows(lake: Lake, table: str, days: Iterable[str] | None, **keys: str) -> list[str]:
    """Return the keys that stand in two rows of a table's partitions; as :func:`wrong_columns`."""
    spec = spec_of(table)
    found = []
    for part in _parts(lake, table, days, keys):
        columns = [name for name in spec.key if name in spec.schema.names]
        rest = {name: value for name, value in part.items() if name != "day"}
        at = [part["day"]] if "day" in part else None
        rows = lake.read(table, days=at, columns=columns, **rest).select(columns).to_pylist()
        counted = Counter(tuple(map(str, row.values())) for row in rows)
        found += [" ".join(row) for row, count in counted.items() if count > 1]
    return found


def _parts(
    lake: Lake, table: str, days: Iterable[str] | None, keys: dict[str, str]
) -> list[dict[str, str]]:
    wanted = None if days is None else set(days)
    return [
        part
        for part in lake.partitions(table, **keys)
        if wanted is None or part.get("day") in wanted
    ]


def doubled_states(lake: Lake) -> list[str]:
    """Return the state ids that stand in two rows, over all days."""
    return _ids(lake, "SELECT state_id FROM states GROUP BY state_id HAVING count(*) > 1")


def incomplete_prefixes(lake: Lake) -> list[str]:
    """Return states whose chain is too short, and chains that lack a message."""
    return _ids(
        lake,
        """
        SELECT s.state_id FROM states s LEFT JOIN chains c USING (chain_id, day)
        WHERE s.n_messages + CAST(s.action IS NULL AS INT) > coalesce(len(c.messages), 0)
        UNION ALL
        SELECT u.chain_id FROM (SELECT chain_id, day, unnest(messages) AS n FROM chains) u
        ANTI JOIN messages m USING (n, day)
        """,
    )


def pairs_without_difference(lake: Lake) -> list[str]:
    """Return the pairs that prefer an action to itself."""
    return _ids(
        lake,
        "SELECT pair_id FROM pairs WHERE CAST(chosen AS VARCHAR) = CAST(rejected AS VARCHAR)",
    )


def groups_in_two_splits(lake: Lake) -> list[str]:
    """Return the groups and sessions that are in two splits, over all configs of the dataset."""
    return _ids(
        lake,
        """
        WITH every AS (
          SELECT group_id, session_id, split FROM dataset_pairs
          UNION ALL SELECT group_id, session_id, split FROM dataset_groups
          UNION ALL SELECT group_id, session_id, split FROM dataset_successes
          UNION ALL SELECT group_id, session_id, split FROM dataset_hints)
        SELECT group_id FROM every GROUP BY group_id HAVING count(DISTINCT split) > 1
        UNION SELECT session_id FROM every GROUP BY session_id HAVING count(DISTINCT split) > 1
        """,
    )


def _ids(lake: Lake, sql: str) -> list[str]:
    return [str(row[0]) for row in lake.query(sql)]
