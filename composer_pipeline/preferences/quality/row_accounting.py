"""Where every row went: what comes into a stage goes on or is in the ledger of drops.

Belongs here: finding rows that a stage lost, doubled or made up, from the lake's tables
alone. Does not belong here: the stages. Nothing here trusts a report of theirs.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from composer_pipeline.lake import Lake


@dataclass(frozen=True)
class Leak:
    """A row that is not accounted for: its stage, its id, and what is wrong with it."""

    stage: str
    row_id: str
    what: str


#: Stage to (rows that come in, rows that go out) as SQL of (id, where, day).
_STAGES: dict[str, tuple[str, str]] = {
    # Every archived file of a trajectory was parsed, and is there with its bytes of now.
    "files": (
        "SELECT DISTINCT day || ' ' || sha256 AS id, day FROM raw_files"
        " WHERE NOT starts_with(agent_id, 'acompact')",
        "SELECT DISTINCT day || ' ' || sha256 AS id, 'sessions' AS place, day, sha256 AS why"
        " FROM sessions",
    ),
    # Every error turn that tells something has a hint.
    "hints": (
        "SELECT state_id AS id, day FROM states WHERE trim(hint) <> ''"
        " AND coalesce(error_kind, '') NOT IN ('cancelled', 'sibling_cancelled', 'sibling')",
        "SELECT state_id AS id, 'hints' AS place, day, source AS why FROM hints",
    ),
    # Every state is in the table of votes, with a reason.
    "votes": (
        "SELECT state_id AS id, day FROM states",
        "SELECT state_id AS id, 'votes' AS place, day, reason AS why FROM votes",
    ),
    # Every vote for a pair is a pair, or dropped by a rule.
    "pairs": (
        "SELECT state_id AS id, day FROM votes WHERE reason = 'pair'",
        "SELECT state_id AS id, 'pairs' AS place, day, tier AS why FROM pairs UNION ALL"
        " SELECT state_id, 'drops', day, op FROM drops WHERE stage = 'pairs'",
    ),
    "normalize": (
        "SELECT pair_id AS id, day FROM pairs",
        "SELECT pair_id AS id, 'normalized_pairs' AS place, day, recipe AS why"
        " FROM normalized_pairs UNION ALL"
        " SELECT pair_id, 'drops', day, op FROM drops WHERE stage = 'normalize'",
    ),
    "dataset": (
        "SELECT pair_id AS id, day FROM normalized_pairs",
        "SELECT pair_id AS id, 'dataset_pairs' AS place, day, recipe AS why FROM dataset_pairs"
        " UNION ALL SELECT pair_id, 'drops', day, op FROM drops WHERE stage = 'dataset'"
        # Rows of the other tables are no pairs, and a pair without a window is a pair.
        " AND (NOT contains(step, ':dataset_') OR ends_with(step, ':dataset_pairs'))",
    ),
}


def leaks(lake: Lake, stage: str, days: Iterable[str] | None = None) -> list[Leak]:
    """Return the rows of a stage that are not accounted for, by id.

    Args:
        lake: the lake.
        stage: ``files`` (archived files to sessions), ``hints`` (error turns to hints), ``votes``
            (states to votes), ``pairs`` (votes to pairs), ``normalize`` (pairs to
            normalised pairs) or ``dataset`` (normalised pairs to the dataset).
        days: only these days; all when ``None``.

    A row leaks when it comes in and is nowhere after, is in two places, came in twice, has no
    reason, or goes out without having come in.
    """
    rows_in, rows_out = _STAGES[stage]
    wanted = None if days is None else sorted(set(days))
    only = "TRUE" if wanted is None else "list_contains(?, day)"
    sql = f"""
        WITH came AS (SELECT id, count(*) AS n FROM ({rows_in}) WHERE {only} GROUP BY id),
        went AS (
          SELECT id, count(*) AS n, string_agg(place, ' and ' ORDER BY place) AS places,
                 count(nullif(why, '')) AS reasons
          FROM ({rows_out}) WHERE {only} GROUP BY id)
        SELECT coalesce(came.id, went.id), CASE
          WHEN went.id IS NULL THEN 'is lost'
          WHEN came.id IS NULL THEN 'came from nowhere, and is in ' || places
          WHEN came.n > 1 THEN 'came in ' || came.n || ' times'
          WHEN went.n > 1 THEN 'is in ' || places
          ELSE 'has no reason' END
        FROM came FULL JOIN went ON came.id = went.id
        WHERE came.id IS NULL OR went.id IS NULL OR came.n > 1 OR went.n > 1 OR went.reasons < 1
        ORDER BY 1
    """
    parameters = [] if wanted is None else [wanted, wanted]
    return [Leak(stage, str(row_id), what) for row_id, what in lake.query(sql, parameters)]
