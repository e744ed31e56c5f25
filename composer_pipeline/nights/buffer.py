"""The replay buffer: which old rows a night trains on beside its new ones.

Drawing follows Efraimidis and Spirakis (2006): a row of weight w has the key ``u ** (1 / w)`` with
a uniform u, and the largest keys are taken. Here u is a hash of state and night, so that a night
always chooses the same rows, and every row has its turn; the weight halves with age.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import date
from math import log

import pyarrow as pa
import pyarrow.compute as pc

from composer_pipeline.lake.schema import DATASETS
from composer_pipeline.lake.store import Lake
from composer_pipeline.nights.rules import Buffer
from composer_pipeline.states.state import draw


@dataclass(frozen=True, slots=True)
class StateRow:
    """One state of the dataset, whatever tables it has rows in."""

    state_id: str
    session_id: str
    repository: str
    day: str
    split: str


def dataset_states(lake: Lake, night: str) -> dict[str, StateRow]:
    """Return the states of the dataset up to a night, by id."""
    columns = ["state_id", "session_id", "repository", "day"]
    return {
        row["state_id"]: StateRow(**row)
        for table in DATASETS
        for row in lake.read(table, columns=columns).to_pylist()
        if row["day"] <= night
    }


def mix(
    new: Iterable[StateRow], old: Iterable[StateRow], night: str, rules: Buffer
) -> tuple[list[StateRow], list[StateRow]]:
    """Return the new rows and the old rows of a night."""
    per_session: Counter[str] = Counter()
    chosen = _capped(sorted(new, key=lambda row: draw(row.state_id)), per_session, rules)
    wanted = round(rules.old_share / (1 - rules.old_share) * len(chosen))
    ranked = _capped(sorted(old, key=lambda row: _key(row, night, rules)), per_session, rules)
    several = len({row.repository for row in ranked}) > 1
    most = max(1, int(rules.per_project * wanted)) if several else wanted
    of_project: Counter[str] = Counter()
    taken: list[StateRow] = []
    for row in ranked:
        if len(taken) < wanted and of_project[row.repository] < most:
            of_project[row.repository] += 1
            taken.append(row)
    return chosen, taken


def write_mix(lake: Lake, target: Lake, states: Collection[str]) -> dict[str, int]:
    """Write the training rows of some states as a dataset of their own; return rows by table."""
    counts, wanted = {}, pa.array(sorted(states), pa.string())
    for table in DATASETS:
        writer, counts[table] = target.writer(table, split="train"), 0
        try:
            for batch, _ in lake.batches(table, None, 64, split="train"):
                rows = _of_states(batch, wanted)
                counts[table] += len(rows)
                writer.write(rows)
            writer.commit()
        finally:
            writer.discard()
    return counts


def _of_states(rows: pa.Table, states: pa.Array) -> pa.Table:
    return rows.filter(pc.is_in(rows["state_id"], value_set=states))


def _capped(rows: Iterable[StateRow], per_session: Counter[str], rules: Buffer) -> list[StateRow]:
    kept = []
    for row in rows:
        if per_session[row.session_id] < rules.per_session:
            per_session[row.session_id] += 1
            kept.append(row)
    return kept


def _key(row: StateRow, night: str, rules: Buffer) -> float:
    age = (date.fromisoformat(night) - date.fromisoformat(row.day)).days
    uniform = (int(draw(f"{night} {row.state_id}")[0], 16) + 1) / (2**64 + 1)
    # The largest u ** (1 / w) first, without leaving the range of a float.
    return -log(uniform) * 2 ** (age / rules.half_life_days)
