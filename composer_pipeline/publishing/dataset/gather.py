"""The one pass over prompts: rows go to disk, and what decides about them is noted.

Belongs here: reading normalised pairs, states, replies and hints, day by day and session by
session. Does not belong here: the decisions (``dataset.decide``).
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

import pyarrow as pa

from composer_pipeline.chat import Toolsets
from composer_pipeline.lake import TABLES, Lake
from composer_pipeline.preferences.pairs import cost_of_states, usable_replies
from composer_pipeline.publishing.dataset.kinship import Kinship
from composer_pipeline.publishing.dataset.pieces import Pieces
from composer_pipeline.publishing.dataset.rows import (
    Asked,
    Digests,
    Lengths,
    answers_of_day,
    digest,
    pair_row,
    reply_rows,
    session_rows,
    window_row,
)
from composer_pipeline.publishing.selection import Selection
from composer_pipeline.publishing.terms import Terms
from composer_pipeline.reports import Progress
from composer_pipeline.trace_states import StatesOnDemand, TraceState
from composer_pipeline.training.windows import RowCutter

Row = dict[str, Any]
_SIDES = ("tools", "chosen", "rejected")
#: Rows of normalised pairs that are decoded at a time.
_BATCH = 16


class Noted(NamedTuple):
    """What is remembered of a row: its key, and the digest of its prompt where it has one."""

    name: str
    state_id: str
    session: str
    prompt: bytes | None


def name_of(table: str, row: Mapping[str, Any]) -> str:
    """Return the key of a row in its table and day."""
    return "|".join(row[key] for key in TABLES[table].key)


@dataclass
class Gathered:
    """What is known of the rows once all are on disk.

    ``rows`` are those by table and day. ``repeats`` has the (day, pair id) of pairs that say what
    an earlier pair says, with its id; ``equal`` those whose two sides are equal; ``refused`` the
    ledger rows of those whose terms do not allow training. ``answers`` has such rows of single
    answers, by day; ``too_long`` has the pairs without a window, and why.
    """

    rows: dict[tuple[str, str], list[Noted]] = field(default_factory=lambda: defaultdict(list))
    repeats: dict[tuple[str, str], str] = field(default_factory=dict)
    equal: set[tuple[str, str]] = field(default_factory=set)
    refused: dict[tuple[str, str], Row] = field(default_factory=dict)
    answers: dict[str, list[Row]] = field(default_factory=lambda: defaultdict(list))
    too_long: dict[str, list[tuple[Noted, str]]] = field(default_factory=lambda: defaultdict(list))
    first: dict[bytes, str] = field(default_factory=dict)
    kinship: Kinship = field(default_factory=Kinship)

    def note(self, table: str, day: str, row: Row, prompt: bytes | None) -> None:
        """Take in a row that went to disk."""
        name = name_of(table, row)
        self.rows[table, day].append(Noted(name, row["state_id"], row["session_id"], prompt))


class Gathering:
    """The pass over a lake.

    Args:
        lake: read.
        pieces: get every row that could be in the dataset.
        selection: is shown all states of the days that have replies or hints.
        terms: say which answers may be trained on.
        cutter: cuts prompts to a window and counts tokens; without one there are no windows.
    """

    def __init__(
        self,
        lake: Lake,
        pieces: Pieces,
        selection: Selection,
        terms: Terms,
        cutter: RowCutter | None,
    ) -> None:
        self._lake, self._pieces = lake, pieces
        self._selection, self._terms = selection, terms
        self._digests, self._lengths = Digests(), Lengths(cutter)
        self._cutter = cutter
        self.found = Gathered()

    def run(self, progress: Progress | None) -> Gathered:
        """Read every day, and return what is known then."""
        days = sorted(set(self._lake.days("replies")) | set(self._lake.days("hints")))
        every = sorted({*days, *self._lake.days("normalized_pairs")})
        for done, day in enumerate(every, start=1):
            self._pairs(day)
            if day in days:
                self._states(day)
            if progress:
                progress("dataset", done, len(every))
        self._pieces.flush()
        pa.default_memory_pool().release_unused()  # the tables are read in other sizes
        return self.found

    def _pairs(self, day: str) -> None:
        """Add the pairs of a day.

        Normalisation removes repeats inside a day; those across days are removed here. The
        earliest stays: of one day that with the least id.
        """
        found, digests = self.found, self._digests
        seen: dict[bytes, list[str]] = defaultdict(list)
        for table, _ in self._lake.batches("normalized_pairs", None, _BATCH, day=day):
            for row in table.to_pylist():
                prompt = digests.of_prompt(row["prompt"])
                sides = [digests.of_prompt(row[name] or ()) for name in _SIDES]
                if sides[1] == sides[2]:
                    found.equal.add((day, row["pair_id"]))
                else:
                    seen[digest([prompt, *sides])].append(row["pair_id"])
                found.note("dataset_pairs", day, row, prompt)
                kept, refused = self._terms.of_pairs(day, [row])
                found.refused.update(((day, drop["pair_id"]), drop) for drop in refused)
                for pair in kept:
                    whole = pair_row(pair, day, self._lengths)
                    self._pieces.add("dataset_pairs", day, whole)
                    if self._cutter is not None:
                        self._window(day, whole, self._cutter)
        for key, names in seen.items():
            first = found.first.setdefault(key, min(names))
            found.repeats.update(((day, name), first) for name in names if name != first)

    def _window(self, day: str, pair: Row, cutter: RowCutter) -> None:
        """Add a pair whose prompt is cut, or the reason why it cannot be."""
        row, why = window_row(pair, cutter, self._lengths)
        if why:
            name = Noted(pair["pair_id"], pair["state_id"], pair["session_id"], None)
            self.found.too_long[day].append((name, why))
        else:
            self._pieces.add("dataset_pairs_8k", day, row)
            prompt = self._digests.of_prompt(row["prompt"])
            self.found.note("dataset_pairs_8k", day, row, prompt)

    def _states(self, day: str) -> None:
        """Add what the states of a day make."""
        replies = usable_replies(self._lake, day)
        hints = {row["state_id"]: row for row in self._lake.rows("hints", days=[day])}
        if not replies and not hints:
            return
        asked = Asked(replies, cost_of_states(self._lake, day), hints, self._terms)
        answers = answers_of_day(self._lake, day)
        held = StatesOnDemand(self._lake, [day], kept=0)
        tools = Toolsets(self._lake, held.states)
        refused = self.found.answers[day]
        for states in _sessions(held):
            self._selection.look_at(states)
            self.found.kinship.look_at(states)
            for table, row in session_rows(states, tools, asked, self._lengths, refused):
                self._pieces.add(table, day, row)
                self.found.note(table, day, row, self._digests.of_prompt(row["prompt"]))
            for row in reply_rows(states, answers, self._terms, refused):
                self._pieces.add("dataset_replies", day, row)
                self.found.note("dataset_replies", day, row, None)


def _sessions(held: StatesOnDemand) -> Iterator[list[TraceState]]:
    """Yield the states of each session, whole."""
    ordered = sorted(held.states, key=lambda state: state.session_id)
    for session, rows in groupby(ordered, key=lambda state: state.session_id):
        yield [held.whole(row.day, session, row.state_id) for row in rows]
