"""Which sessions hold the first states of a run that takes only so many.

Belongs here: that order, decided on columns, before a state of any other session is loaded.
Does not belong here: loading (``trace_states.on_demand``) and the questions about a state
(``replay.questions``, which has the same order for the states of these sessions).
"""

from collections.abc import Callable, Collection

import pyarrow as pa
import pyarrow.compute as pc

from composer_pipeline.lake import column


def sessions_of_first(
    number: int,
    rows: pa.Table,
    *,
    sessions: Collection[str] | None,
    admits: Callable[[str], bool],
    only_on_active_path: bool,
) -> set[str]:
    """Return the sessions of the first states: failed actions first, then by time and id.

    Args:
        number: how many states.
        rows: ``states`` with the columns that are read here, days in order; of a state that is
            in it twice the last row counts.
        sessions: only states of these sessions; all when ``None``.
        admits: whether states of a project may be asked.
        only_on_active_path: leave out abandoned branches.
    """
    last = {state: at for at, state in enumerate(rows["state_id"].to_pylist())}
    if len(last) < len(rows):
        rows = rows.take(pa.array(sorted(last.values()), pa.int64()))
    projects = [name for name in pc.unique(rows["project"]).to_pylist() if admits(name)]
    kept = pc.is_in(rows["project"], value_set=column(projects, pa.string()))
    if sessions is not None:
        mine = column(list(sessions), pa.string())
        kept = pc.and_(kept, pc.is_in(rows["session_id"], value_set=mine))
    if only_on_active_path:
        kept = pc.and_(kept, rows["on_active_path"])
    rows = rows.filter(kept)
    keys = pa.table(
        {
            "fine": pc.is_null(rows["error_kind"]),
            "ts": rows["ts"],
            "state_id": rows["state_id"],
        }
    )
    order = pc.sort_indices(
        keys, sort_keys=[(name, "ascending", "at_start") for name in keys.column_names]
    )
    return set(rows["session_id"].take(order[:number]).to_pylist())
