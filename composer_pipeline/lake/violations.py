"""What must never be true of the tables, whatever wrote them.

Belongs here: one query an invariant, over the views of a lake, that returns the ids which
break it. Does not belong here: whether rows went from stage to stage
(``preferences.quality.row_accounting``) and what is done about a violation.
"""

from composer_pipeline.lake.store import Lake


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
