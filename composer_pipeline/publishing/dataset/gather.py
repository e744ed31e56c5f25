"""The one pass over prompts: rows go to disk, and what decides about them is noted.

Belongs here: reading normalised pairs, states, replies and hints, day by day and session by
session. Does not belong here: the decisions (``dataset.decide``).
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

from composer_pipeline.chat import Toolsets
from composer_pipeline.lake import Lake
from composer_pipeline.preferences.pairs import usable_replies
from composer_pipeline.publishing.dataset.message_texts import Digests, digest
from composer_pipeline.publishing.dataset.pieces import Pieces
from composer_pipeline.publishing.dataset.state_rows import session_rows
from composer_pipeline.publishing.selection import Selection
from composer_pipeline.reports import Progress
from composer_pipeline.trace_states import StatesOnDemand, TraceState

Row = dict[str, Any]
_SIDES = ("prompt", "tools", "chosen", "rejected")
#: Rows of normalised pairs that are decoded at a time.
_BATCH = 16


class Noted(NamedTuple):
    """What is remembered of a row: a pair's id or its state's, and the digest of its prompt."""

    name: str
    state_id: str
    session: str
    prompt: bytes


@dataclass
class Gathered:
    """What is known of the rows once all are on disk.

    ``rows`` are those by table and day. ``repeats`` has the (day, pair id) of pairs that say what
    an earlier pair says, with its id; ``equal`` those whose two sides are equal.
    """

    rows: dict[tuple[str, str], list[Noted]] = field(default_factory=lambda: defaultdict(list))
    repeats: dict[tuple[str, str], str] = field(default_factory=dict)
    equal: set[tuple[str, str]] = field(default_factory=set)
    first: dict[bytes, str] = field(default_factory=dict)

    def note(self, table: str, day: str, row: Row, prompt: bytes) -> None:
        """Take in a row that went to disk."""
        name = row.get("pair_id") or row["state_id"]
        self.rows[table, day].append(Noted(name, row["state_id"], row["session_id"], prompt))


def gather(lake: Lake, pieces: Pieces, selection: Selection, progress: Progress | None) -> Gathered:
    """Write every row that could be in the dataset to ``pieces``.

    The selection is shown all states of the days that have replies or hints.
    """
    found, digests = Gathered(), Digests()
    days = sorted(set(lake.days("replies")) | set(lake.days("hints")))
    every = sorted({*days, *lake.days("normalized_pairs")})
    for done, day in enumerate(every, start=1):
        _pairs(lake, day, pieces, found, digests)
        if day in days:
            _states(lake, day, pieces, found, digests, selection)
        if progress:
            progress("dataset", done, len(every))
    pieces.flush()
    return found


def _pairs(lake: Lake, day: str, pieces: Pieces, found: Gathered, digests: Digests) -> None:
    """Add the pairs of a day.

    Normalisation removes repeats inside a day; those across days are removed here. The
    earliest stays: of one day that with the least id.
    """
    seen: dict[bytes, list[str]] = defaultdict(list)
    for table, _ in lake.batches("normalized_pairs", None, _BATCH, day=day):
        for row in table.to_pylist():
            prompt = digests.of_prompt(row["prompt"])
            sides = [digests.of_columns(row, [name]) for name in _SIDES[1:]]
            if sides[1] == sides[2]:
                found.equal.add((day, row["pair_id"]))
            else:
                seen[digest([prompt, *sides])].append(row["pair_id"])
            pieces.add("dataset_pairs", day, {**row, "day": day})
            found.note("dataset_pairs", day, row, prompt)
    for key, names in seen.items():
        first = found.first.setdefault(key, min(names))
        for name in names:
            if name != first:
                found.repeats[day, name] = first


def _states(
    lake: Lake,
    day: str,
    pieces: Pieces,
    found: Gathered,
    digests: Digests,
    selection: Selection,
) -> None:
    replies = usable_replies(lake, day)
    hints = {row["state_id"]: row for row in lake.rows("hints", days=[day])}
    if not replies and not hints:
        return
    held = StatesOnDemand(lake, [day])
    tools = Toolsets(lake, held.states)
    for states in _sessions(held):
        selection.look_at(states)
        for table, row in session_rows(states, tools, replies, hints):
            pieces.add(table, day, row)
            found.note(table, day, row, digests.of_prompt(row["prompt"]))


def _sessions(held: StatesOnDemand) -> Iterator[list[TraceState]]:
    """Yield the states of each session, whole."""
    ordered = sorted(held.states, key=lambda state: state.session_id)
    for session, rows in groupby(ordered, key=lambda state: state.session_id):
        yield [held.whole(row.day, session, row.state_id) for row in rows]
