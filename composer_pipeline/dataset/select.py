"""Which sessions are in no table of the dataset: decided once, for every table and export.

Belongs here: the sessions that are left out because they were withdrawn, because nobody consented,
or because they work on a public benchmark, and the ledger rows of what that removes. Does not
belong here: what counts as evidence (``preferences.pairs``), repeats of pairs
(``publishing.dataset``), terms of single answers (``publishing.terms``).
"""

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

import pyarrow as pa

from composer_pipeline.chat.tools import Toolsets
from composer_pipeline.dataset.consent import Consent, Terms, project_of
from composer_pipeline.dataset.files import Pieces
from composer_pipeline.dataset.rows import (
    Asked,
    Digests,
    Lengths,
    answers_of_day,
    at_most,
    digest,
    pair_row,
    reply_rows,
    session_rows,
    window_row,
)
from composer_pipeline.dataset.splits import SPLITS, Kinship, SessionKey, groups, overlaps, split_of
from composer_pipeline.errors import ComposerError
from composer_pipeline.lake.schema import TABLES
from composer_pipeline.lake.store import Lake
from composer_pipeline.lake.withdrawn import Withdrawn
from composer_pipeline.preferences.contamination import Benchmarks, contaminated_sessions, is_strong
from composer_pipeline.preferences.pairs import cost_of_states, drop, usable_replies
from composer_pipeline.preferences.rules import PreferenceRules
from composer_pipeline.reports import Progress
from composer_pipeline.states.load import StatesOnDemand
from composer_pipeline.states.state import TraceState
from composer_pipeline.training.windows import RowCutter

Row = dict[str, Any]


class Why(NamedTuple):
    """Why a session is left out: the operator of the ledger, what was looked at, what it said."""

    op: str
    stat: str
    value: str


class Barred:
    """Sessions that must not be published, whatever is in them: withdrawn, or without consent.

    Args:
        lake: has the tombstones and the sessions' repositories.
        consent: whose repositories alone may be published; every one where there is none.

    Raises:
        InputError: the list of tombstones is damaged.
    """

    def __init__(self, lake: Lake, consent: Consent | None = None) -> None:
        self._withdrawn, self._consent = Withdrawn(lake), consent
        self._project = project_of(lake) if consent or self._withdrawn.names_folders else {}

    def why_not(self, session_id: str) -> Why | None:
        """Return why a session must not be published."""
        project = self._project.get(session_id, "")
        if self._withdrawn.session(session_id) or self._withdrawn.folder(project):
            return Why("withdrawn", "tombstone", "withdrawn")
        if self._consent is not None and not self._consent.allows(project):
            return Why("consent", "repository", "not among the repositories of the consent file")
        return None

    def said(self, session_id: str) -> str:
        """Return why a session must not be published, as a text; empty where it may."""
        why = self.why_not(session_id)
        return why.value if why else ""


class Selection:
    """Gathers what is known of sessions, over all days, and says which are left out.

    Evidence of one day holds for the whole session. What the vote has recorded counts too, so
    that nothing is let in because a list of benchmarks became shorter since.

    Args:
        lake: reads the evidence in ``votes``.
        rules: the preference recipe; its ``contamination`` decides.
        consent: whose repositories alone may be published; every one where there is none.

    ``barred`` says which sessions must not be named at all.

    Raises:
        InputError: a list of benchmarks is wrong, or that of tombstones damaged.
    """

    def __init__(self, lake: Lake, rules: PreferenceRules, consent: Consent | None = None) -> None:
        self.barred = Barred(lake, consent)
        self._rules = rules.contamination
        self._benchmarks = Benchmarks.of_rules(rules)
        self._evidence: dict[str, set[str]] = {}
        for row in lake.rows("votes", columns=["session_id", "contamination"]):
            if row["contamination"]:
                self._evidence.setdefault(row["session_id"], set()).update(row["contamination"])

    def look_at(self, states: Iterable[TraceState]) -> None:
        """Take in the states of a day, with their messages."""
        for session, found in contaminated_sessions(states, self._benchmarks).items():
            self._evidence.setdefault(session, set()).update(found)

    def why_not(self, session_id: str) -> Why | None:
        """Return why a session is left out; ``None`` where it stays."""
        if barred := self.barred.why_not(session_id):
            return barred
        found = sorted(self._evidence.get(session_id, ()))
        action = self._rules.evidence if is_strong(found) else self._rules.by_name
        if not found or action != "drop":
            return None
        return Why("contamination", "evidence", "; ".join(found))

    def drop(self, table: str, name: str, state_id: str, why: Why) -> Row:
        """Return the ledger row of a row that is left out.

        Args:
            table: its table.
            name: a pair's id; a row that is no pair has its state for a name, which has one row
                in each table.
            state_id: its state.
            why: of :meth:`why_not`.
        """
        named = {"pair_id": name, "state_id": state_id}
        return drop(named, f"2:{why.op}:{table}", "session", why.stat, why.value, "")


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
