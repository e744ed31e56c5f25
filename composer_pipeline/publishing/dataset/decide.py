"""Which rows stay, and in which split each session is: decided over ids and digests alone.

Belongs here: repeats, sessions that are left out, the cap on successes, groups and the proof that
nothing is in two splits. Does not belong here: what counts as evidence (``publishing.selection``),
connected components (``publishing.splits``), prompts.
"""

import hashlib
import math
from collections import Counter, defaultdict
from typing import Any

from composer_pipeline.errors import ComposerError
from composer_pipeline.lake import Lake
from composer_pipeline.preferences.pairs import drop
from composer_pipeline.publishing.dataset.gather import Gathered, Noted
from composer_pipeline.publishing.selection import Selection
from composer_pipeline.publishing.splits import SPLITS, SessionKey, groups, overlaps, split_of
from composer_pipeline.publishing.successes import at_most

Row = dict[str, Any]
#: From this many repositories on, a repository is in one split.
REPOSITORIES = 5


class Plan:
    """The decisions of a build.

    ``ledger`` has the rows of ``drops`` by day, for every day with normalised pairs.

    Args:
        lake: reads ``sessions``.
        found: the rows.
        selection: has seen all states.
        share: of the groups, in validation.

    Raises:
        ComposerError: a group, session or prompt is in two splits.
    """

    def __init__(self, lake: Lake, found: Gathered, selection: Selection, share: float) -> None:
        self.ledger: dict[str, list[Row]] = {day: [] for day in lake.days("normalized_pairs")}
        #: What is left out, by (table, day); a name is a pair's or a state's.
        self.out: dict[tuple[str, str], set[str]] = defaultdict(set)
        self._leave_out(found, selection)
        kept = [
            (table, day, row)
            for (table, day), rows in found.rows.items()
            for row in rows
            if row.name not in self.out[table, day]
        ]
        prompts = {(row.session, row.prompt) for *_, row in kept if row.prompt is not None}
        sessions = _Sessions(lake)
        links = [*prompts, *found.kinship.links(sessions.prompts)]
        self.group_of = groups(sessions.keys, links)
        names = found.kinship.repositories(sessions.folders)
        self.repository_of = {session: _hash(name) for session, name in names.items()}
        in_it = {row.session for _, _, row in kept if row.prompt is not None}
        self.names = {self.group_of[session] for session in in_it}
        # Sessions of one repository belong together, and so do those that are in a group with one.
        units = groups(sessions.keys, [*links, *names.items()])
        self.repositories = len({units[session] for session in in_it})
        self.by_repository = self.repositories >= REPOSITORIES
        unit_of = units if self.by_repository else self.group_of
        self.split_of = {
            self.group_of[session]: split_of(unit, share) for session, unit in unit_of.items()
        }
        self.counts = Counter(
            (table, self.split_of[self.group_of[row.session]]) for table, _, row in kept
        )
        self.overlaps = self._overlaps(prompts)
        for kind, count in self.overlaps.items():
            if count:
                raise ComposerError(f"dataset: {count} value(s) of {kind} are in both splits")

    def rows_of(self, table: str) -> int:
        """Return the rows of a table, in all splits."""
        return sum(self.counts[table, split] for split in SPLITS)

    def members(
        self, split: str, keys: list[tuple[str, str]]
    ) -> list[tuple[str, list[tuple[str, str]]]]:
        """Return the groups of a split, by name, each with those of the (day, session) it has."""
        by_group: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for day, session in keys:
            name = self.group_of.get(session, "")
            if self.split_of.get(name) == split:
                by_group[name].append((day, session))
        return sorted(by_group.items())

    def _leave_out(self, found: Gathered, selection: Selection) -> None:
        for (table, day), rows in sorted(found.rows.items()):
            for row in rows:
                if table == "dataset_pairs_8k":
                    if row.name in self.out["dataset_pairs", day]:
                        self.out[table, day].add(row.name)
                elif left := _why_out(table, day, row, found, selection):
                    self.out[table, day].add(row.name)
                    self.ledger.setdefault(day, []).append(left)
        for day, drops in found.answers.items():
            self.ledger.setdefault(day, []).extend(drops)
        for day, pairs in found.too_long.items():
            out = self.out["dataset_pairs", day]
            self.ledger[day] += [
                _too_long(pair, why) for pair, why in pairs if pair.name not in out
            ]
        counts = Counter(
            key[0] for key, rows in found.rows.items() for row in rows
            if row.name not in self.out[key]
        )  # fmt: skip
        own = [
            (day, row)
            for (table, day), rows in found.rows.items()
            if table == "dataset_successes"
            for row in rows
            if row.name not in self.out[table, day]
        ]
        kept = at_most(
            [row.name for _, row in own], max(counts["dataset_groups"], counts["dataset_hints"])
        )
        for day, row in own:
            if row.name not in kept:
                self.out["dataset_successes", day].add(row.name)

    def _overlaps(self, prompts: set[tuple[str, bytes]]) -> dict[str, int]:
        shared = overlaps(
            (
                self.split_of[self.group_of[session]],
                {"group_id": self.group_of[session], "session_id": session, "prompt": prompt},
            )
            for session, prompt in prompts
        )
        return shared or dict.fromkeys(("group_id", "session_id", "prompt"), 0)


def _why_out(table: str, day: str, row: Noted, found: Gathered, selection: Selection) -> Row | None:
    """Return the row of the ledger for a row that is left out."""
    if table == "dataset_pairs":
        if (day, row.name) in found.equal:
            return _drop(row, "0:chosen_equals_rejected", "chosen")
        if earlier := found.repeats.get((day, row.name)):
            return _drop(row, "1:duplicate", "pair", f"duplicate of {earlier}")
        if refused := found.refused.get((day, row.name)):
            return refused
    if why := selection.why_not(row.session):
        # A row that is no pair has its state for a name.
        state_id, _, teacher = row.name.partition("|")
        return selection.drop(
            f"{table}:{teacher}" if teacher else table, state_id, row.state_id, why
        )
    return None


def _too_long(pair: Noted, why: str) -> Row:
    return _drop(pair, "4:window:dataset_pairs_8k", "prompt", value=why)


def _drop(row: Noted, step: str, field: str, bound: str = "", *, value: str = "") -> Row:
    return drop({"pair_id": row.name, "state_id": row.state_id}, step, field, "", value, bound)


class _Sessions:
    """The sessions of a lake: their keys, working directories and first prompts by id."""

    def __init__(self, lake: Lake) -> None:
        columns = ["session_id", "agent_id", "group_id", "first_ts", "project", "first_prompt"]
        rows = lake.rows("sessions", columns=columns)
        rows.sort(key=lambda row: (row["session_id"], row["agent_id"]))
        self.keys = [
            SessionKey(
                first_ts=row["first_ts"].timestamp() if row["first_ts"] else math.inf,
                session_id=row["session_id"],
                group_id=row["group_id"] or "",
            )
            for row in rows
        ]
        self.folders: dict[str, str] = {}
        self.prompts: dict[str, str] = {}
        for row in rows:  # the main trajectory, which has no agent, comes first
            self.folders.setdefault(row["session_id"], row["project"] or "")
            self.prompts.setdefault(row["session_id"], row["first_prompt"] or "")


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
