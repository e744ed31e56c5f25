"""Which rows a replica trains on.

Belongs here: the split of rows between slots. Does not belong here: reading rows. No torch.
"""

from composer_pipeline.errors import InputError


def shard(
    n_rows: int, *, slot: int, replicas: int, start_round: int = 1, rows_per_round: int = 0
) -> list[int]:
    """Return the row numbers of one slot, in the order it trains on them.

    Slot ``s`` has the rows ``i`` with ``i mod replicas == s``. A replica that starts at a
    later round begins where that round begins (modulo its rows), so the data follow the
    round and not the number of steps that the process itself has made.

    Args:
        n_rows: rows of the whole training split.
        slot: 0-based slot.
        replicas: M.
        start_round: 1-based first round that the process trains.
        rows_per_round: rows that one replica reads in a round; 0 disables the rotation.

    Raises:
        InputError: the slot gets no row.
    """
    rows = list(range(slot, n_rows, replicas))
    if not rows:
        raise InputError(
            f"{n_rows} training rows are too few for {replicas} DiLoCo replicas: "
            f"slot {slot} has none"
        )
    start = (start_round - 1) * rows_per_round % len(rows)
    return rows[start:] + rows[:start]
