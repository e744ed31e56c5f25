"""The stage that asks git what became of each edit, and writes the table ``outcomes``.

A day is looked at again while it is young: when a repository of its sessions has changed, when the
time for a first commit is over, and when the last horizon in days is. What was known once stays
known where it no longer can be, as when a clone was deleted.
"""

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
from pydantic import BaseModel, ConfigDict, Field
from zstandard import ZstdDecompressor, ZstdError

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.config_file import read_model
from composer_pipeline.errors import InputError
from composer_pipeline.lake.provenance import (
    Derivation,
    FileStamps,
    StaleDays,
    recorded,
    stale_days,
)
from composer_pipeline.lake.store import Lake
from composer_pipeline.redaction.redact import json_redactor
from composer_pipeline.redaction.vault import HashedValues, known_values
from composer_pipeline.reports import Progress, Report
from composer_pipeline.states.load import load_states
from composer_pipeline.survival.follow import HORIZONS, WINDOW_DAYS, Followed, Follower
from composer_pipeline.survival.repository import (
    Repository,
    RepositoryProblem,
    find_repository,
    refs_of,
)
from composer_pipeline.survival.session_edits import Edit, SessionEdits, session_edits
from composer_pipeline.traces.archive import blob_name, open_archived
from composer_pipeline.traces.content_store import Redactor
from composer_pipeline.traces.parse import analyse
from composer_pipeline.traces.records import decode_any, encode
from composer_pipeline.versions import OUTCOMES_VERSION, REDACTION_VERSION

Row = dict[str, Any]
#: Bytes at the start of a session file in which its folder is looked for.
_HEAD = 64 << 10
_CWD = re.compile(rb'"cwd"\s*:\s*("(?:[^"\\]|\\.)*")')
#: A region that was committed is as long as the agent's, or so many times longer.
_LONGER, _CHARS = 4, 400


class Repositories(BaseModel):
    """The file of repositories: those that sessions worked in under another path."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    repositories: Annotated[list[str], Field(min_length=1)]


def read_repositories(file: str | Path) -> tuple[str, ...]:
    """Return the folders that a file names under ``repositories``, relative to it; none without.

    Raises:
        InputError: the file is missing or wrong.
    """
    if not file:
        return ()
    path = Path(file).expanduser()
    found = read_model(path, "file of repositories", Repositories)
    folders = (Path(name).expanduser() for name in found.repositories)
    return tuple(str((path.parent / folder).resolve()) for folder in folders)


@dataclass(frozen=True)
class OutcomesReport(Report):
    """What was followed.

    Attributes:
        days: days that were looked at.
        states: responses with an edit whose lines can be followed.
        known: those whose commit was found, or whose file was committed without them.
        gone: those with less than half of their lines in that commit.
        by_reason: the others, by reason.
        repositories: repositories that were read.
        problems: what could not be read, in one sentence each.
    """

    days: list[str] = field(default_factory=list)
    states: int = 0
    known: int = 0
    gone: int = 0
    by_reason: dict[str, int] = field(default_factory=dict)
    repositories: int = 0
    problems: list[str] = field(default_factory=list)


def evaluate_outcomes(
    lake: Lake,
    *,
    days: Iterable[str] | None = None,
    repositories: Sequence[str] = (),
    now: datetime | None = None,
    progress: Progress | None = None,
) -> OutcomesReport:
    """Write the partitions of ``outcomes`` of some days from the archive and from git.

    Nothing is written to a repository and nothing is fetched. The only text that is stored is
    ``committed_action``, redacted.

    Args:
        lake: reads ``raw_files``, ``states`` and the archive.
        days: ``YYYY-MM-DD``; all days with states when ``None``.
        repositories: folders to look in for sessions whose own is not, or no longer, a repository.
        now: the time of the look; horizons after it are pending.
        progress: called after each session file that is read and each day that is written.

    Raises:
        InputError: a repository that is named is none.
        StorageError: the lake is not writable.
    """
    chosen = lake.chosen_days("states", days)
    find_repository.cache_clear()
    moment = now or datetime.now(UTC)
    named = _named(repositories)
    stamps = FileStamps(lake)
    derivations = {
        d.keys["day"]: d for d in outcome_derivations(lake, repositories, moment, chosen)
    }
    sources = _Sources(lake, chosen, progress)
    found = _Looked(sources, named, moment)
    found.run()
    counts, why = Counter[str](), Counter[str]()
    for done, day in enumerate(chosen, start=1):
        with recorded(lake, derivations[day], stamps):
            for row in _write_day(lake, day, found, sources):
                known = row["status"] == "known"
                counts.update(states=1, known=known)
                counts["gone"] += known and 2 * row["alive"] < row["lines"]
                why.update([] if known else [row["why"]])
        if progress:
            progress("outcomes", done, len(chosen))
    return OutcomesReport(
        days=chosen,
        states=counts["states"],
        known=counts["known"],
        gone=counts["gone"],
        by_reason=dict(sorted(why.items())),
        repositories=found.repositories,
        problems=sorted(found.problems | sources.problems),
    )


def _named(folders: Sequence[str]) -> list[str]:
    found = []
    for folder in folders:
        if not Path(folder).is_dir() or not (repository := find_repository(folder)):
            raise InputError(f"repository {folder}: no git repository is there")
        found.append(repository)
    return found


# -- what is up to date ---------------------------------------------------------------


def outcome_derivations(
    lake: Lake, repositories: Sequence[str], now: datetime, days: Iterable[str]
) -> Iterator[Derivation]:
    """Yield what each day's outcomes are made from; a settled day does not look at git."""
    refs: dict[str, str] = {}
    for day in days:
        settings = {"outcomes": OUTCOMES_VERSION, "redaction": str(REDACTION_VERSION)}
        age = (now.date() - date.fromisoformat(day)).days
        # The day ends at its midnight, and a commit follows up to the window later.
        thresholds = (WINDOW_DAYS + 1, WINDOW_DAYS + 32)
        settings["age"] = str(sum(age > limit for limit in thresholds))
        if age <= thresholds[-1]:
            mine = {find for folder in (*_folders(lake, day), *repositories)
                    if (find := _quietly(folder))}  # fmt: skip
            for repository in mine - refs.keys():
                refs[repository] = _refs(repository)
            seen = "\0".join(sorted(f"{one} {refs[one]}" for one in mine))
            settings["git"] = _hash(seen)
        inputs = [(table, {"day": day}) for table in ("states", "raw_files")]
        yield Derivation("outcomes", {"day": day}, inputs, settings)


def _quietly(folder: str) -> str:
    try:
        return find_repository(folder)
    except RepositoryProblem:
        return ""


def _refs(repository: str) -> str:
    try:
        return refs_of(repository)
    except RepositoryProblem as problem:
        return problem.reason


def stale_outcomes(
    lake: Lake,
    *,
    repositories: Sequence[str] = (),
    now: datetime | None = None,
    ignore: Sequence[str] = (),
) -> StaleDays:
    """Return the days to look at again: young ones whose repositories changed, and new ones."""
    find_repository.cache_clear()  # this process may have asked before
    moment = now or datetime.now(UTC)
    every = outcome_derivations(lake, repositories, moment, lake.days("states"))
    return stale_days(lake, "outcomes", every, ignore=ignore, absent="not asked yet")


def _folders(lake: Lake, day: str) -> set[str]:
    """Return the folders of a day's sessions, from the start of each file."""
    found = set()
    for row in lake.rows("raw_files", days=[day], columns=["sha256", "pieces"]):
        first, *_ = row["pieces"] or [row["sha256"]]
        # The look names a file that is gone or damaged.
        with suppress(FileNotFoundError, ZstdError), lake.open(blob_name(first)) as file:
            head = ZstdDecompressor().stream_reader(file, read_across_frames=True).read(_HEAD)
            if cwd := _CWD.search(head):
                found.add(str(decode_any(cwd[1])))
    return found


# -- reading --------------------------------------------------------------------------


class _Sources:
    """The edits of some days' sessions, and of later ones, which may have changed their lines."""

    def __init__(self, lake: Lake, days: Sequence[str], progress: Progress | None) -> None:
        #: Message id to (state id, session id, day), of the days asked for.
        self.states: dict[str, tuple[str, str, str]] = {}
        self.edits: list[Edit] = []
        self.commits: dict[str, list[tuple[float, str]]] = defaultdict(list)
        self.prompts: dict[str, list[float]] = defaultdict(list)
        self.rows: dict[str, list[Row]] = defaultdict(list)  # of raw_files, by session
        self.problems: set[str] = set()
        columns = ["message_id", "state_id", "session_id"]
        for row in lake.rows("states", days=days, columns=columns):
            self.states[row["message_id"]] = row["state_id"], row["session_id"], row["day"]
        every = lake.days("raw_files")
        later = [day for day in every if days and day >= min(days)]
        files = lake.rows("raw_files", days=later)
        seen: set[tuple[str, str]] = set()
        for done, row in enumerate(files, start=1):
            try:
                with open_archived(lake, row) as lines:
                    self._take(session_edits(lines, row["session_id"]), row, seen)
            except InputError as error:  # a damaged file; the rest goes on
                self.problems.add(str(error))
            if progress:
                progress("session files", done, len(files))

    def _take(self, found: SessionEdits, row: Row, seen: set[tuple[str, str]]) -> None:
        session = row["session_id"]
        self.rows[session].append(row)
        self.commits[session] += found.commits
        self.prompts[session] += found.prompts
        for edit in found.edits:
            if (edit.call_id, edit.path) not in seen:  # a fork repeats the records before it
                seen.add((edit.call_id, edit.path))
                self.edits.append(edit)


class _Looked:
    """What git says of the edits, repository by repository."""

    def __init__(self, sources: _Sources, named: Sequence[str], now: datetime) -> None:
        self._sources, self._named, self._now = sources, named, now
        self.problems: set[str] = set()
        self.repositories = 0
        #: Day to state id to its rows, one a horizon.
        self.days: dict[str, dict[str, list[Row]]] = defaultdict(dict)
        #: Day to state id to its edits that were committed otherwise, with the text of then.
        self.committed: dict[str, dict[str, list[tuple[Edit, str]]]] = defaultdict(dict)

    def run(self) -> None:
        """Look at every edit of the days asked for."""
        groups, elsewhere = self._by_repository(), list[Edit]()
        for folder in sorted(set(groups) - {"", *self._named}):
            elsewhere += self._in(folder, groups[folder])
        elsewhere += groups[""]
        for folder in self._named:
            elsewhere = self._in(folder, [*groups.get(folder, ()), *elsewhere])
        for edit in elsewhere:
            self._nothing(edit, "no_repository")

    def _in(self, folder: str, edits: list[Edit]) -> list[Edit]:
        """Follow edits in a repository; return those that do not belong there."""
        if not edits:
            return []
        try:
            with closing(Repository(folder)) as repository:
                mine = [edit for edit in edits if repository.relative(edit.path)[0]]
                done = self._follow(repository, mine)
                self.repositories += 1
        except RepositoryProblem as problem:
            self._unread(edits, problem)
            return []
        wanted = self._sources.states
        return [
            edit for edit in edits
            if edit.message_id in wanted and edit.lines and (edit.call_id, edit.path) not in done
        ]  # fmt: skip

    def _by_repository(self) -> dict[str, list[Edit]]:
        """Return the edits by the repository of their file; ``""`` where there is none."""
        groups: dict[str, list[Edit]] = defaultdict(list)
        for edit in self._sources.edits:
            folder = edit.path.rpartition("/")[0]
            try:
                groups[find_repository(folder) if folder else ""].append(edit)
            except RepositoryProblem as problem:
                self._unread([edit], problem)
        return groups

    def _unread(self, edits: Iterable[Edit], problem: RepositoryProblem) -> None:
        self.problems.add(str(problem))
        for edit in edits:
            self._nothing(edit, problem.reason)

    def _nothing(self, edit: Edit, why: str) -> None:
        if edit.message_id in self._sources.states and edit.lines:
            self._add([Followed.unknown(edit, why)], None)

    def _follow(self, repository: Repository, edits: Sequence[Edit]) -> set[tuple[str, str]]:
        """Follow edits in their repository; return the call and path of each that is there."""
        if repository.cut_at:
            self.problems.add(
                f"repository {repository.folder} is shallow: nothing is known of edits before"
                f" {datetime.fromtimestamp(repository.cut_at, UTC):%Y-%m-%d}"
            )
        follower = Follower(repository, edits, self._sources.commits, self._now.timestamp())
        name = _hash(repository.identity())
        by_state: dict[str, list[Followed]] = defaultdict(list)
        done: set[tuple[str, str]] = set()
        for found in follower.run(self._sources.states.keys()):
            done.add((found.edit.call_id, found.edit.path))
            if not found.edit.lines:
                continue  # the file had them before
            found.repository = name
            by_state[found.edit.message_id].append(found)
            if (text := self._as_committed(repository, found)) is not None:
                state_id, _, day = self._sources.states[found.edit.message_id]
                self.committed[day].setdefault(state_id, []).append((found.edit, text))
        for parts in by_state.values():
            self._add(parts, follower)
        return done

    def _as_committed(self, repository: Repository, found: Followed) -> str | None:
        """Return the new string of an edit as it was committed, before the user said more."""
        edit, fate = found.edit, found.fates["commit"]
        if edit.region is None or fate.status != "known" or len(fate.alive) == len(edit.lines):
            return None
        prompts = self._sources.prompts[edit.session_id]
        if any(edit.time < prompt <= fate.time for prompt in prompts):
            return None
        return region_of(edit, repository, found.blob)

    def _add(self, parts: Sequence[Followed], follower: Follower | None) -> None:
        state_id, session, day = self._sources.states[parts[0].edit.message_id]
        known = self.days[day].get(state_id)
        rows = [
            _row(state_id, session, horizon, parts, follower, self._now) for horizon in HORIZONS
        ]
        if known is not None:  # a response that edits files of two repositories
            rows = [_both(a, b) for a, b in zip(known, rows, strict=True)]
        self.days[day][state_id] = rows


def region_of(edit: Edit, repository: Repository, blob: str) -> str | None:
    """Return what stands in a committed file in the place of an edit's new string.

    The lines around it must be there, each outermost one once; else, and where the text is equal,
    there is nothing to return.
    """
    text, region = repository.text(blob), edit.region
    if isinstance(text, str) or region is None:
        return None
    raw = text.data.decode("utf-8", "replace").split("\n")
    lines = [line.strip().encode() for line in raw]
    first, last = region.above[0], region.below[-1]
    if lines.count(first) != 1 or lines.count(last) != 1:
        return None
    begin = lines.index(first) + len(region.above)
    end = lines.index(last) - len(region.below) + 1
    if tuple(lines[begin - len(region.above) : begin]) != region.above or begin > end:
        return None
    if tuple(lines[end : end + len(region.below)]) != region.below:
        return None
    inner = "\n".join(line.removesuffix("\r") for line in raw[begin:end])
    fits = inner.startswith(region.head) and inner.endswith(region.tail)
    longest = max(_CHARS, _LONGER * len(region.text))
    if not fits or len(inner) > longest or len(inner) < len(region.head) + len(region.tail):
        return None
    if inner.split() == region.text.split():
        return None
    return inner[len(region.head) : len(inner) - len(region.tail)]


# -- rows -----------------------------------------------------------------------------


def _row(
    state_id: str, session: str, horizon: str, parts: Sequence[Followed],
    follower: Follower | None, now: datetime,
) -> Row:  # fmt: skip
    """Return the row of a state at a horizon, from all edits of which it is known."""
    known = [part for part in parts if part.fates[horizon].status == "known"]
    fates = [part.fates[horizon] for part in known]
    first = (known or parts)[0]
    fate = first.fates[horizon]
    reasons = [part.reasons(horizon, follower.later) for part in known] if follower else []
    return {
        "state_id": state_id,
        "session_id": session,
        "horizon": horizon,
        "status": fate.status,
        "why": fate.why or None,
        "lines": sum(len(part.edit.lines) for part in known or parts),
        "alive": sum(len(fate.alive) for fate in fates) if known else None,
        "by_session": sum(own for own, _ in reasons) if known else None,
        "by_others": sum(others for _, others in reasons) if known else None,
        "commit": fate.commit or None,
        "how": first.how or None,
        "sure": first.sure or None,
        "seconds": round(fate.time - first.edit.time) if known else None,
        "repository": first.repository or None,
        "committed_action": None,
        "looked_at": now,
    }


_SUMS = ("lines", "alive", "by_session", "by_others")


def _both(one: Row, other: Row) -> Row:
    """Return the row of a state whose edits went to two repositories."""
    if one["status"] != "known" or other["status"] != "known":
        return one if one["status"] == "known" else other
    return one | {name: one[name] + other[name] for name in _SUMS}


def _write_day(lake: Lake, day: str, found: _Looked, sources: _Sources) -> list[Row]:
    """Write a day's partition, if it differs; return the row of each state at its commit."""
    before = {(row["state_id"], row["horizon"]): row for row in lake.rows("outcomes", days=[day])}
    rows, first = [], []
    actions = _committed_actions(lake, day, found, sources)
    for state_id, mine in sorted(found.days.pop(day, {}).items()):
        mine[0]["committed_action"] = actions.get(state_id)
        kept = [_kept(before.get((state_id, row["horizon"])), row) for row in mine]
        rows += kept
        first.append(kept[0])
    same = [{**row, "looked_at": None, "day": day} for row in rows]
    if not before or same != [{**row, "looked_at": None} for row in before.values()]:
        lake.write("outcomes", rows, day=day)
    return first


def _kept(before: Row | None, now: Row) -> Row:
    """Return the new row of a state and horizon, or the one before if only that is known."""
    if before is None or before["status"] != "known" or now["status"] == "known":
        return now
    return {name: before[name] for name in now}


def _committed_actions(lake: Lake, day: str, found: _Looked, sources: _Sources) -> dict[str, str]:
    """Return state id to its action with an edit as it was committed, redacted."""
    wanted = found.committed[day]
    if not wanted:
        return {}
    hashed, redact = HashedValues.of(lake), json_redactor()
    known: dict[str, frozenset[Any]] = {}  # by session
    actions = {}
    for state in load_states(lake, days=[day], state_ids=wanted):
        (edit, text), *more = wanted[state.state_id]
        if more or (better := _replaced(state.action, edit.call_id, text)) is None:
            continue
        if (session := state.session_id) not in known:
            files = (_known(lake, row, hashed) for row in sources.rows[session])
            known[session] = frozenset().union(*files)
        data = encode(msgspec.to_builtins(better))
        values = known[session] | known_values(hashed.find(data))
        actions[state.state_id] = redact([data], values)[0].data.decode()
    return actions


def _known(lake: Lake, row: Row, hashed: HashedValues) -> frozenset[Any]:
    """Return what redaction finds in a session file, to be removed wherever it stands."""
    with open_archived(lake, row) as lines:
        graph, _, _ = analyse(
            lines, subagent=bool(row["agent_id"]), redactor=Redactor(json_redactor(), hashed)
        )
    return graph.contents.names


def _replaced(action: Action, call_id: str, text: str) -> Action | None:
    calls = [
        ToolCall(call.name, {**call.arguments, "new_string": text}, call.id)
        if call.id == call_id and "new_string" in call.arguments
        else call
        for call in action.tool_calls
    ]
    changed = Action(action.text, tuple(calls))
    return changed if changed != action else None


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
