"""Which commit carries an edit, and which of its lines are alive at each horizon after it."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Literal, NamedTuple

import msgspec

from composer_pipeline.survival.repository import Ancestry, FileText, Repository, Touch
from composer_pipeline.survival.session_edits import Edit

#: The horizons: the commit that carries an edit, later commits of its file, days, the last look.
HORIZONS = ("commit", "1", "5", "20", "7d", "30d", "today")
_COMMITS = {"1": 1, "5": 5, "20": 20}
_DAYS = {"7d": 7, "30d": 30}
DAY = 86_400
#: A commit counts as the one that followed an edit within so many days.
WINDOW_DAYS = 14
#: A clock may be so many seconds off.
_SLACK = 2
#: Commits that are looked at for one edit.
_CANDIDATES = 40

How = Literal["named", "trailer", "lines", "time"]
#: How sure a match is, by how it was made; "time" is the first commit of the file after the edit.
SURE: Mapping[str, float] = {"named": 0.99, "trailer": 0.99, "lines": 0.97, "time": 0.8}


class Fate(NamedTuple):
    """What became of an edit's lines at one horizon."""

    status: Literal["known", "pending", "unknown"]
    alive: frozenset[int] = frozenset()  # indices of `Edit.lines`
    why: str = ""  # where it is not known
    commit: str = ""
    time: int = 0  # of that commit


class Followed(msgspec.Struct, gc=False):
    """An edit with its fates by horizon, and how its commit was found."""

    edit: Edit
    fates: dict[str, Fate]
    how: str = ""
    sure: float = 0.0
    path: str = ""
    blob: str = ""  # the file as committed
    repository: str = ""  # its hash

    @staticmethod
    def unknown(edit: Edit, why: str) -> "Followed":
        """Return an edit of which nothing is known."""
        return Followed(edit, dict.fromkeys(HORIZONS, Fate("unknown", why=why)))

    def reasons(self, horizon: str, later: "LaterEdits") -> tuple[int, int]:
        """Return how many gone lines a later edit of the session took out, and one of another."""
        fate = self.fates[horizon]
        own = others = 0
        for at, line in enumerate(self.edit.lines):
            if at not in fate.alive:
                sessions = later.removed(self, line, fate.time)
                own += self.edit.session_id in sessions
                others += bool(sessions) and self.edit.session_id not in sessions
        return own, others


class LaterEdits:
    """When edits of a repository's files added and removed each line."""

    def __init__(self, edits: Iterable[tuple[str, Edit]]) -> None:
        self._added: dict[tuple[str, bytes], list[float]] = defaultdict(list)
        self._removed: dict[tuple[str, bytes], list[tuple[float, str]]] = defaultdict(list)
        for path, edit in edits:
            for line in edit.lines:
                self._added[path, line].append(edit.time)
            for line in edit.removed:
                self._removed[path, line].append((edit.time, edit.session_id))

    def added_between(self, path: str, line: bytes, first: float, last: float) -> bool:
        """Return True if an edit after ``first`` and up to ``last`` added a line."""
        return any(first < time <= last for time in self._added.get((path, line), ()))

    def removed(self, found: Followed, line: bytes, last: float) -> set[str]:
        """Return the sessions of edits that removed a line after an edit and up to ``last``."""
        known = self._removed.get((found.path, line), ())
        return {session for time, session in known if found.edit.time < time <= last + _SLACK}


class Follower:
    """Follows edits through the history of one repository, as of a time."""

    def __init__(
        self,
        repository: Repository,
        edits: Sequence[Edit],
        named: Mapping[str, Sequence[tuple[float, str]]],
        now: float,
    ) -> None:
        self._repository, self._now, self._named = repository, now, named
        self._commits = repository.commits
        self._paths = [repository.relative(edit.path) for edit in edits]
        self._edits = edits
        self.later = LaterEdits((path[0], e) for path, e in zip(self._paths, edits, strict=True))

    def run(self, wanted: Collection[str]) -> Iterator[Followed]:
        """Yield the edits of some responses, by message id, with what became of them.

        Where a repository is not at an edit's path, lines that are found in it prove the place;
        edits whose place is not proven are left out.
        """
        proven, unproven = set[str](), list[tuple[str, Edit]]()
        for (path, sure), edit in zip(self._paths, self._edits, strict=True):
            if edit.lines and edit.message_id in wanted:
                found = self._follow(edit, path, sure=sure)
                if found.fates["commit"].status != "known" and not sure:
                    unproven.append((path, edit))
                    continue
                if not sure:
                    proven.add(edit.path.removesuffix(path))
                yield found
        for path, edit in unproven:
            if edit.path.removesuffix(path) in proven:
                yield self._follow(edit, path, sure=True)

    def _follow(self, edit: Edit, path: str, *, sure: bool) -> Followed:
        touches = self._candidates(edit, path)
        if edit.whole and touches:
            edit = _without(edit, self._repository.text(touches[0].before))
        parts, why = self._parts(edit, path, touches)
        if not parts:
            shallow, first = edit.time < self._repository.cut_at, self._own_first(edit, touches)
            if first is None or shallow or why or not sure:
                return Followed(edit, self._nothing(edit, "shallow" if shallow else why))
            parts = [(first, frozenset())]
        touch, alive = parts[0]
        how: How = self._sign(edit, touch) or ("lines" if alive else "time")
        found = Followed(edit, {}, how, SURE[how], path, touch.after)
        later = [self._later(edit, touch, alive) for touch, alive in parts]
        every = frozenset[int]().union(*(alive for _, alive in parts))
        commit = self._commits[touch.commit]
        found.fates["commit"] = Fate("known", every, "", commit.hash, commit.committed)
        for horizon in HORIZONS[1:]:
            found.fates[horizon] = _joined([one.fate(horizon) for one in later])
        return found

    def _nothing(self, edit: Edit, why: str) -> dict[str, Fate]:
        young = self._now < edit.time + WINDOW_DAYS * DAY and not why
        fate = Fate("pending" if young else "unknown", why=why or "not_committed")
        return dict.fromkeys(HORIZONS, fate)

    def _candidates(self, edit: Edit, path: str) -> list[Touch]:
        """Return the commits that may carry an edit, in their order."""
        first, last = edit.time - _SLACK, edit.time + WINDOW_DAYS * DAY
        found, kept = [], set[tuple[int, ...]]()
        for touch in self._repository.touches(path):
            commit = self._commits[touch.commit]
            # An amended or rebased commit keeps the time of its author.
            time = commit.authored if commit.authored >= first else commit.committed
            if first <= time <= last:
                reachable = self._repository.ancestry_of(touch.commit, edit.branch)
                on_trunk = reachable is not None and reachable.tip == self._repository.trunk
                order = (time, not on_trunk, reachable is None, touch.commit)
                found.append((commit.authored < first, order, touch))
                if reachable is not None:
                    kept.add(commit.parents)
        found.sort(key=lambda item: item[:2])
        # A commit that no branch has gave way, when amended, to one with the same parents.
        return [
            touch
            for _, (_, _, lost, number), touch in found
            if not (lost and self._commits[number].parents in kept)
        ][:_CANDIDATES]

    def _parts(
        self, edit: Edit, path: str, touches: Sequence[Touch]
    ) -> tuple[list[tuple[Touch, frozenset[int]]], str]:
        """Return the commits that brought lines in, each with its lines; or why nothing is known.

        Lines that come with a later commit belong to the edit too, as with partial staging, unless
        somebody wrote them again in between. Lines that no commit brought and one has came with a
        merge, which the log does not show.
        """
        parts: list[tuple[Touch, frozenset[int]]] = []
        left, why = set(range(len(edit.lines))), ""
        since = max(edit.time, self._commits[touches[0].commit].authored) if touches else 0
        for merged, (at, touch) in product((False, True), enumerate(touches)):
            if not left or (merged and edit.time < self._repository.cut_at):
                break
            found, unread = self._brought(edit, touch, left, merged=merged)
            why = why or unread
            if at:
                until = self._commits[touch.commit].authored
                found = {i for i in found if not self.later.added_between(
                    path, edit.lines[i], since, until)}  # fmt: skip
            if found:
                parts.append((touch, frozenset(found)))
                left -= found
        return parts, why

    def _own_first(self, edit: Edit, touches: Sequence[Touch]) -> Touch | None:
        """Return the first commit that the session is known to have made, or that was made since.

        One that was only rebased since says nothing.
        """
        own = (touch for touch in touches if self._sign(edit, touch))
        since = edit.time - _SLACK
        made = (touch for touch in touches if self._commits[touch.commit].authored >= since)
        return next(own, next(made, None))

    def _sign(self, edit: Edit, touch: Touch) -> Literal["named", "trailer", ""]:
        """Return what ties a commit to the session: its output, or the commit's message."""
        commit = self._commits[touch.commit]
        named = self._named.get(edit.session_id, ())
        if any(commit.hash.startswith(name) and time >= edit.time for time, name in named):
            return "named"
        if edit.session_id in commit.sessions:
            return "trailer"
        checkpoint = commit.checkpoint and self._repository.session_of(commit.checkpoint)
        return "trailer" if checkpoint == edit.session_id else ""

    # -- afterwards -----------------------------------------------------------------

    def _later(self, edit: Edit, touch: Touch, alive: frozenset[int]) -> "_LaterCommits":
        """Return what comes after the commit, or after its copy on the trunk."""
        repository = self._repository
        branch = repository.ancestry_of(touch.commit, edit.branch)
        names = self._names(touch)
        if branch is None or branch.tip != repository.trunk:
            copy = self._copy(edit, touch, alive, names)
            if copy is not None:
                touch, branch = copy, repository.ancestry_of(copy.commit, edit.branch)
        return _LaterCommits(repository, edit, touch, branch, names, self._now)

    def _names(self, touch: Touch) -> set[str]:
        """Return the names that the file has had since, and the one before."""
        names, more = {touch.path_before}, [touch.path_before, touch.path]
        while more:
            name = more.pop()
            names.add(name)
            for other in self._repository.touches(name):
                if other.path_before == name and other.path not in names:
                    more.append(other.path)
        return names

    def _copy(
        self, edit: Edit, touch: Touch, alive: frozenset[int], names: Iterable[str]
    ) -> Touch | None:
        """Return the first commit that brings half of the lines to the trunk, or to a branch.

        That is the copy of a squash, a rebase or a cherry-pick. Where no branch has the commit, the
        next change of the file on the trunk will do.
        """
        here = self._repository.ancestry_of(touch.commit, edit.branch)
        if not alive and here is not None:
            return None
        begun = self._commits[touch.commit].authored - _SLACK
        found = []
        for other in {other for name in names for other in self._repository.touches(name)}:
            branch = self._repository.ancestry_of(other.commit, edit.branch)
            committed = self._commits[other.commit].committed
            if branch is not None and committed >= begun and other.commit != touch.commit:
                off_trunk = branch.tip != self._repository.trunk
                found.append(((off_trunk, committed, -other.commit), other))
        found.sort(key=lambda item: item[0])
        for (off_trunk, *_), other in found[:_CANDIDATES] if alive else ():
            if off_trunk and here is not None:
                break
            if 2 * len(self._brought(edit, other, alive)[0]) >= len(alive):
                return other
        on_trunk = (other for (off_trunk, *_), other in found if not off_trunk)
        return next(on_trunk, None) if here is None else None

    def _brought(
        self, edit: Edit, touch: Touch, wanted: Collection[int], *, merged: bool = False
    ) -> tuple[set[int], str]:
        """Return which lines a commit brings into the file, or has; or why that is not known."""
        after, before = (self._repository.text(blob) for blob in (touch.after, touch.before))
        if isinstance(after, str) or isinstance(before, str):
            return set(), after if isinstance(after, str) else str(before)
        held = holding(after, edit, wanted)
        return held if merged else held - holding(before, edit, held), ""


class _LaterCommits:
    """The commits of a file after the one that carries an edit, on one branch."""

    def __init__(
        self, repository: Repository, edit: Edit, touch: Touch, branch: Ancestry | None,
        names: Iterable[str], now: float,
    ) -> None:  # fmt: skip
        self._repository, self._edit, self._touch = repository, edit, touch
        self._branch, self._now = branch, now
        self._later: list[Touch] = []
        if branch is not None:
            every = {t for name in names for t in repository.touches(name)}
            later = [
                t for t in every
                if t.commit != touch.commit and branch.has(t.commit)
                and branch.descends(t.commit, touch.commit)
            ]  # fmt: skip
            path = touch.path
            for one in sorted(later, key=lambda t: -t.commit):
                if path in (one.path, one.path_before):
                    self._later.append(one)
                    path = one.path

    def fate(self, horizon: str) -> Fate:
        """Return which lines are alive at a horizon."""
        if self._branch is None:
            return Fate("unknown", why="rewritten")
        base, commits = self._touch.commit, self._repository.commits
        if (count := _COMMITS.get(horizon)) is not None:
            if len(self._later) < count:
                return Fate("pending", why="too_early")
            touch = self._later[count - 1]
            return self._of(touch.after, touch.commit)
        at = self._branch.tip
        if (days := _DAYS.get(horizon)) is not None:
            limit = commits[base].committed + days * DAY
            if limit > self._now:
                return Fate("pending", why="too_early")
            at = self._branch.at_time(base, limit)
        if at == base:
            return self._of(self._touch.after, base)
        path = self._touch.path
        for touch in self._later:
            if touch.path != path and self._branch.descends(at, touch.commit):
                path = touch.path
        return self._of(self._repository.blob_at(at, path), at)

    def _of(self, blob: str, commit: int) -> Fate:
        text, known = self._repository.text(blob), self._repository.commits[commit]
        if isinstance(text, str):
            return Fate("unknown", why=text)
        alive = holding(text, self._edit, range(len(self._edit.lines)))
        return Fate("known", frozenset(alive), "", known.hash, known.committed)


def holding(text: FileText, edit: Edit, wanted: Iterable[int]) -> set[int]:
    """Return which of an edit's lines, by index, a file holds, however formatted."""
    return {
        at
        for at in wanted
        if edit.lines[at] in text.lines or text.holds_reflowed(edit.text, edit.places[at])
    }


def _without(edit: Edit, before: FileText | str) -> Edit:
    """Return an edit of a whole file without the lines that the file had before."""
    if isinstance(before, str):
        return edit
    fresh = [at for at, line in enumerate(edit.lines) if line not in before.lines]
    lines, places = (tuple(of[at] for at in fresh) for of in (edit.lines, edit.places))
    return msgspec.structs.replace(edit, lines=lines, places=places)


def _joined(fates: Sequence[Fate]) -> Fate:
    """Return the fate of lines that came with several commits; all must be known."""
    for fate in fates:
        if fate.status != "known":
            return fate
    return fates[0]
