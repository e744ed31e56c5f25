"""Selection: reads all rows that could be in the dataset, and decides which are and in which split.

Sessions are left out because they were withdrawn, because nobody consented, or because they work
on a public benchmark; pairs because they repeat another, or because of the terms of an answer.
"""

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import pyarrow as pa

from composer_pipeline.chat.tools import Toolsets
from composer_pipeline.dataset.consent import Consent, Terms, project_of
from composer_pipeline.dataset.files import Pieces
from composer_pipeline.dataset.rows import (
    DayInputs,
    Digests,
    answers_of_day,
    digest,
    pair_row,
    reply_rows,
    session_rows,
    window_row,
)
from composer_pipeline.dataset.splits import (
    SPLITS,
    VALIDATION,
    SessionKey,
    SessionLinks,
    groups,
    overlaps,
    split_of,
)
from composer_pipeline.errors import ComposerError
from composer_pipeline.lake.schema import TABLES
from composer_pipeline.lake.store import Lake
from composer_pipeline.lake.withdrawn import Withdrawn
from composer_pipeline.preferences.contamination import (
    Benchmarks,
    contaminated_sessions,
    is_dropped,
)
from composer_pipeline.preferences.eligibility import (
    Reply,
    read_replies,
    reply_costs,
    usable_replies,
)
from composer_pipeline.preferences.pairs import drop
from composer_pipeline.preferences.rules import PreferenceRules
from composer_pipeline.reports import Progress
from composer_pipeline.states.fates import fates_of
from composer_pipeline.states.load import StatesOnDemand
from composer_pipeline.states.state import TraceState, draw
from composer_pipeline.training.windows import RowCutter

#: From this many repositories on, a repository is in one split.
REPOSITORIES = 5
#: Rows of normalised pairs that are decoded at a time.
_BATCH = 16
_SIDES = ("tools", "chosen", "rejected")

Row = dict[str, Any]
#: Usable replies by state.
Replies = Mapping[str, Sequence[Reply]]


class Exclusion(NamedTuple):
    """Why a session is left out: the operator in ``drops``, the statistic, and its value."""

    op: str
    stat: str
    value: str


class Barred:
    """Sessions that must not be published, whatever they hold: withdrawn, or without consent."""

    def __init__(self, lake: Lake, consent: Consent | None = None) -> None:
        self._withdrawn, self._consent = Withdrawn(lake), consent
        self._project = project_of(lake) if consent or self._withdrawn.names_folders else {}

    def exclusion(self, session_id: str) -> Exclusion | None:
        """Return why a session must not be published; ``None`` where it may."""
        project = self._project.get(session_id, "")
        if self._withdrawn.session(session_id) or self._withdrawn.folder(project):
            return Exclusion("withdrawn", "tombstone", "withdrawn")
        if self._consent is not None and not self._consent.allows(project):
            value = "not among the repositories of the consent file"
            return Exclusion("consent", "repository", value)
        return None

    def reason(self, session_id: str) -> str:
        """Return why a session must not be published, as text; empty where it may."""
        found = self.exclusion(session_id)
        return found.value if found else ""


class Selection:
    """Collects the evidence on sessions over all days, and decides which are left out.

    Evidence of one day holds for the whole session. What the vote recorded counts too, so that
    a list of benchmarks that became shorter since lets nothing in.
    """

    def __init__(self, lake: Lake, rules: PreferenceRules, consent: Consent | None = None) -> None:
        self.barred = Barred(lake, consent)
        self._rules, self.min_survival = rules.contamination, rules.min_survival
        self._benchmarks = Benchmarks.of_rules(rules)
        self._evidence: dict[str, set[str]] = defaultdict(set)
        for row in lake.rows("votes", columns=["session_id", "contamination"]):
            self._evidence[row["session_id"]].update(row["contamination"] or ())

    def add(self, states: Iterable[TraceState]) -> None:
        """Collect the evidence in the states of a session, with their messages."""
        for session, found in contaminated_sessions(states, self._benchmarks).items():
            self._evidence[session].update(found)

    def exclusion(self, session_id: str) -> Exclusion | None:
        """Return why a session is left out; ``None`` where it stays."""
        if barred := self.barred.exclusion(session_id):
            return barred
        found = sorted(self._evidence.get(session_id, ()))
        if not is_dropped(found, self._rules):
            return None
        return Exclusion("contamination", "evidence", "; ".join(found))


class RowKey(NamedTuple):
    """A row's key, state and session, and the digest of its prompt if it has one."""

    name: str
    state_id: str
    session: str
    prompt: bytes | None


def name_of(table: str, row: Mapping[str, Any]) -> str:
    """Return the key of a row in its table and day."""
    return "|".join(row[key] for key in TABLES[table].key)


class Gathering:
    """The pass over a lake that writes every row that could be in the dataset to ``pieces``.

    Attributes:
        rows: the keys of all rows, by (table, day).
        repeats: (day, pair id) to the id of an earlier pair with the same content.
        equal: (day, pair id) of pairs whose two sides are equal.
        refused: (day, pair id) to the drop of a pair whose terms forbid training.
        answers: the drops of single answers whose terms forbid training, by day.
        too_long: the pairs without a window, and why, by day.
        links: what sessions have in common.
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
        self._selection, self._terms, self._cutter = selection, terms, cutter
        self._digests = Digests()
        self._first: dict[bytes, str] = {}
        self.rows: dict[tuple[str, str], list[RowKey]] = defaultdict(list)
        self.repeats: dict[tuple[str, str], str] = {}
        self.equal: set[tuple[str, str]] = set()
        self.refused: dict[tuple[str, str], Row] = {}
        self.answers: dict[str, list[Row]] = defaultdict(list)
        self.too_long: dict[str, list[tuple[RowKey, str]]] = defaultdict(list)
        self.links = SessionLinks()

    def run(self, progress: Progress | None) -> None:
        """Read every day."""
        tables = ("normalized_pairs", "replies", "hints", "outcomes")
        days = sorted({day for table in tables for day in self._lake.days(table)})
        for done, day in enumerate(days, start=1):
            bought = read_replies(self._lake, day)
            replies = usable_replies(bought)
            self._pairs(day, replies)
            self._states(day, replies, reply_costs(bought))
            if progress:
                progress("dataset", done, len(days))
        self._pieces.flush()
        pa.default_memory_pool().release_unused()  # the tables are read in other sizes

    def _add(self, table: str, day: str, row: Row) -> None:
        self._pieces.add(table, day, row)
        prompt = self._digests.of_prompt(row["prompt"]) if "prompt" in row else None
        self._note(table, day, row, prompt)

    def _note(self, table: str, day: str, row: Row, prompt: bytes | None) -> None:
        key = RowKey(name_of(table, row), row["state_id"], row["session_id"], prompt)
        self.rows[table, day].append(key)

    def _pairs(self, day: str, replies: Replies) -> None:
        """Add the pairs of a day.

        Normalisation removes repeats within a day; those across days are removed here. The
        earliest stays: within a day the one with the lowest id.
        """
        seen: dict[bytes, list[str]] = defaultdict(list)
        for table, _ in self._lake.batches("normalized_pairs", None, _BATCH, day=day):
            for row in table.to_pylist():
                prompt = self._digests.of_prompt(row["prompt"])
                sides = [self._digests.of_prompt(row[name] or ()) for name in _SIDES]
                if sides[1] == sides[2]:
                    self.equal.add((day, row["pair_id"]))
                else:
                    seen[digest([prompt, *sides])].append(row["pair_id"])
                self._note("dataset_pairs", day, row, prompt)
                pair, refused = self._terms.of_pair(row, replies.get(row["state_id"], ()))
                if refused:
                    self.refused[day, refused["pair_id"]] = refused
                if pair:
                    whole = pair_row(pair, day, self._cutter)
                    self._pieces.add("dataset_pairs", day, whole)
                    if self._cutter is not None:
                        self._window(day, whole, self._cutter)
        for key, names in seen.items():
            first = self._first.setdefault(key, min(names))
            self.repeats.update(((day, name), first) for name in names if name != first)

    def _window(self, day: str, pair: Row, cutter: RowCutter) -> None:
        row, why = window_row(pair, cutter)
        if why:
            key = RowKey(pair["pair_id"], pair["state_id"], pair["session_id"], None)
            self.too_long[day].append((key, why))
        else:
            self._add("dataset_pairs_8k", day, row)

    def _states(self, day: str, replies: Replies, costs: Mapping[str, int]) -> None:
        """Add the rows of a day's states, and show them to the selection and the links."""
        hints = {row["state_id"]: row for row in self._lake.rows("hints", days=[day])}
        fates = fates_of(self._lake, day)
        if not (replies or hints or fates):
            return
        held = StatesOnDemand(self._lake, [day], kept=0)
        tools = Toolsets(self._lake, held.states)
        inputs = DayInputs(replies, costs, hints, tools, self._selection.min_survival)
        answers = answers_of_day(self._lake, day)
        drops = self.answers[day]
        for states in _sessions(held):
            self._selection.add(states)
            self.links.add(states)
            for table, row in session_rows(states, inputs, self._terms, self._cutter, drops):
                self._add(table, day, row)
            for row in reply_rows(states, answers, self._terms, drops):
                self._add("dataset_replies", day, row)


def _sessions(held: StatesOnDemand) -> Iterator[list[TraceState]]:
    """Yield the states of each session, whole."""
    ordered = sorted(held.states, key=lambda state: state.session_id)
    for session, rows in groupby(ordered, key=lambda state: state.session_id):
        yield [held.whole(row.day, session, row.state_id) for row in rows]


class SplitPlan:
    """The decisions of a build, after a gathering and with the selection that it informed.

    ``drops`` are rows of that table by day, for every day with normalised pairs. ``share`` is the
    share in validation of the units that ``by`` names: ``repository``, ``session`` (its group), or
    whichever suits. Raises ComposerError if a group, session or prompt is in two splits.
    """

    def __init__(
        self, lake: Lake, found: Gathering, selection: Selection, share: float, by: str = ""
    ) -> None:
        self.drops: dict[str, list[Row]] = {day: [] for day in lake.days("normalized_pairs")}
        #: The names of the rows that are left out, by (table, day).
        self.out: dict[tuple[str, str], set[str]] = defaultdict(set)
        self._leave_out(found, selection)
        kept = list(self._kept(found))
        prompts = {(row.session, row.prompt) for *_, row in kept if row.prompt is not None}
        keys, folders, first_prompts, self.agent_of = _session_columns(lake)
        links = [*prompts, *found.links.links(first_prompts)]
        self.group_of = groups(keys, links)
        names = found.links.repositories(folders)
        self.repository_of = {session: _hash(name) for session, name in names.items()}
        sessions = {session for session, _ in prompts}
        self.names = {self.group_of[session] for session in sessions}
        # Sessions of one repository belong together, and so do those in a group with one of them.
        units = groups(keys, [*links, *names.items()])
        self.repositories = len({units[session] for session in sessions})
        chosen = by or ("repository" if self.repositories >= REPOSITORIES else "session")
        self.by_repository = chosen == "repository"
        unit_of = units if self.by_repository else self.group_of
        self.split_of = {
            self.group_of[session]: split_of(unit, share) for session, unit in unit_of.items()
        }
        held_out = {unit_of[s] for s in sessions if self.split_of[self.group_of[s]] == VALIDATION}
        #: Repositories or groups in validation, and all of them.
        self.units = len(held_out), len({unit_of[session] for session in sessions})
        self.counts = Counter(
            (table, self.split_of[self.group_of[row.session]]) for table, _, row in kept
        )
        self.overlaps = self._overlaps(prompts)
        for kind, count in self.overlaps.items():
            if count:
                raise ComposerError(f"dataset: {count} value(s) of {kind} are in both splits")

    def rows_of(self, table: str) -> int:
        """Return the rows of a table in all splits."""
        return sum(self.counts[table, split] for split in SPLITS)

    def members(
        self, split: str, keys: list[tuple[str, str]]
    ) -> list[tuple[str, list[tuple[str, str]]]]:
        """Return the groups of a split by name, each with its own of the (day, session) keys."""
        by_group: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for day, session in keys:
            name = self.group_of.get(session, "")
            if self.split_of.get(name) == split:
                by_group[name].append((day, session))
        return sorted(by_group.items())

    def _kept(self, found: Gathering) -> Iterator[tuple[str, str, RowKey]]:
        for (table, day), rows in found.rows.items():
            out = self.out[table, day]
            yield from ((table, day, row) for row in rows if row.name not in out)

    def _leave_out(self, found: Gathering, selection: Selection) -> None:
        for (table, day), rows in sorted(found.rows.items()):
            for row in rows:
                if table == "dataset_pairs_8k":
                    if row.name in self.out["dataset_pairs", day]:
                        self.out[table, day].add(row.name)
                elif dropped := _drop_of(table, day, row, found, selection):
                    self.out[table, day].add(row.name)
                    self.drops.setdefault(day, []).append(dropped)
        for day, drops in found.answers.items():
            self.drops.setdefault(day, []).extend(drops)
        for day, pairs in found.too_long.items():
            out = self.out["dataset_pairs", day]
            self.drops[day] += [
                _drop(pair, "4:window:dataset_pairs_8k", "prompt", value=why)
                for pair, why in pairs
                if pair.name not in out
            ]
        # No more successes than groups or hints, chosen by a hash of their ids.
        counts = Counter(table for table, *_ in self._kept(found))
        limit = max(counts["dataset_groups"], counts["dataset_hints"])
        own = [(day, row.name) for table, day, row in self._kept(found)
               if table == "dataset_successes"]  # fmt: skip
        kept = {name for _, name in sorted(draw(name) for _, name in own)[:limit]}
        for day, name in own:
            if name not in kept:
                self.out["dataset_successes", day].add(name)

    def _overlaps(self, prompts: set[tuple[str, bytes]]) -> dict[str, int]:
        shared = overlaps(
            (
                self.split_of[self.group_of[session]],
                {"group_id": self.group_of[session], "session_id": session, "prompt": prompt},
            )
            for session, prompt in prompts
        )
        return shared or dict.fromkeys(("group_id", "session_id", "prompt"), 0)


def _drop_of(
    table: str, day: str, row: RowKey, found: Gathering, selection: Selection
) -> Row | None:
    """Return the row of ``drops`` for a row that is left out."""
    if table == "dataset_pairs":
        if (day, row.name) in found.equal:
            return _drop(row, "0:chosen_equals_rejected", "chosen")
        if earlier := found.repeats.get((day, row.name)):
            return _drop(row, "1:duplicate", "pair", bound=f"duplicate of {earlier}")
        if refused := found.refused.get((day, row.name)):
            return refused
    if why := selection.exclusion(row.session):
        # A row that is not a pair is named after its state, and a reply after its teacher too.
        name, _, teacher = row.name.partition("|")
        step = f"2:{why.op}:{table}:{teacher}" if teacher else f"2:{why.op}:{table}"
        return _drop(row._replace(name=name), step, "session", why.stat, why.value)
    return None


def _drop(
    row: RowKey, step: str, field: str, stat: str = "", value: str = "", bound: str = ""
) -> Row:
    return drop({"pair_id": row.name, "state_id": row.state_id}, step, field, stat, value, bound)


def _session_columns(
    lake: Lake,
) -> tuple[list[SessionKey], dict[str, str], dict[str, str], dict[str, str]]:
    """Return the keys of all sessions; their folders, first prompts and agents by id."""
    columns = ["session_id", "agent_id", "group_id", "first_ts", "project", "first_prompt", "agent"]
    rows = lake.rows("sessions", columns=columns)
    rows.sort(key=lambda row: (row["session_id"], row["agent_id"]))
    keys, folders, prompts, agents = [], dict[str, str](), dict[str, str](), dict[str, str]()
    for row in rows:  # the main trajectory, which has no agent, comes first
        first_ts = row["first_ts"].timestamp() if row["first_ts"] else math.inf
        keys.append(SessionKey(first_ts, row["session_id"], row["group_id"] or ""))
        folders.setdefault(row["session_id"], row["project"] or "")
        prompts.setdefault(row["session_id"], row["first_prompt"] or "")
        agents.setdefault(row["session_id"], row["agent"])
    return keys, folders, prompts, agents


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
