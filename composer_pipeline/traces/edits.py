"""What a session did to files: its edits in order, and which of them wrote each line.

A file is followed from what the session shows of it: whole texts that were written, exact old and
new strings, numbered lines that were read. A line that nothing shows has no owner, and neither
has one that something else may have changed since: a formatter, a subagent, git, the user.
"""

import posixpath
import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from functools import lru_cache
from heapq import merge
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import msgspec

from composer_pipeline.actions import ToolCall
from composer_pipeline.tool_names import AGENTS, EDITS, NUMBERED, changes_of
from composer_pipeline.traces.graph_nodes import Call
from composer_pipeline.traces.trajectory import Trajectory

Kind = Literal["write", "append", "edit", "shell", "read", "format", "move", "undo", "stash",
               "unstash", "commit", "switch", "agent"]  # fmt: skip


class Author(NamedTuple):
    """The call that wrote a line: number of its node, and its index there."""

    node: int
    call: int


class Change(NamedTuple):
    """An exact replacement."""

    old: str
    new: str
    everywhere: bool = False


class Event(msgspec.Struct, frozen=True, gc=False):
    """One thing that a call did to a file, or to all (``path`` is empty)."""

    kind: Kind
    author: Author
    path: str = ""
    changes: tuple[Change, ...] = ()


_QUOTED = re.compile(r"'[^']*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_PARTS = re.compile(r"&&|\|\||[;\n]|(?<![&>])&(?![&>\d])|(?<!\|)\|(?!\|)")
_HEREDOC = re.compile(
    r"(?P<head>[^\n]*?)<<-?\s*(?P<quote>['\"]?)(?P<word>\w+)(?P=quote)(?P<tail>[^\n]*)\n"
    r"(?P<body>.*?)^\s*(?P=word)\s*$",
    re.DOTALL | re.MULTILINE,
)
_TARGET = re.compile(r"(?P<op>>>?)\s*(?P<path>[^\s|&;<>()]+)")
_TEE = re.compile(r"\btee\s+(?P<flag>-a\s+)?(?P<path>[^\s|&;<>-][^\s|&;<>]*)")
_IN_PLACE = re.compile(r"^(?:sudo\s+)?(?:g?sed\b.*\s-i|perl\b.*\s-\w*i|ruby\b.*\s-\w*i)")
_MOVE = re.compile(r"^(?:git\s+)?mv\s+(?:-\w+\s+)*(?P<a>\S+)\s+(?P<b>\S+)\s*$")
_FORMAT = re.compile(
    r"\b(?:(?:gofmt|goimports|gofumpt)\s+.*-\w*w|go\s+fmt|prettier\b.*(?:--write|\s-w\b)"
    r"|eslint\b.*--fix|biome\b.*--(?:write|apply)|ruff\s+format|ruff\b.*--fix|black\b(?!.*--check)|isort\b"
    r"|cargo\s+(?:fmt|fix)|rustfmt|mix\s+format|dart\s+format|clang-format\b.*-i|golangci-lint\b.*--fix"
    r"|rubocop\b.*-[aA]\b|(?:run|task|make|just)\s+\S*(?:fmt|format|fix)\b)"
)
_GIT = re.compile(
    r"^(?:\w+=\S*\s+)*git\s+(?:(?:-C\s+\S+|-c\s+\S+|--[\w-]+)\s+)*(?P<verb>[\w-]+)(?P<rest>.*)$",
    re.DOTALL,
)
_SWITCHES = frozenset({"merge", "pull", "rebase", "cherry-pick", "switch", "am", "apply"})


def arguments_of(call: Call) -> dict[str, Any]:
    """Return the arguments of a call, as Claude Code names them."""
    return call.steps[0].arguments


def command_of(call: Call) -> str:
    """Return the command line of a call, or of the one that it looks at; empty without one."""
    command = arguments_of(call.begun_by or call).get("command")
    return command if isinstance(command, str) else ""


class Stage(NamedTuple):
    """A command of a line: its text with quoted words blanked, the whole one, what follows it."""

    bare: str
    text: str
    then: str


@lru_cache(maxsize=4096)
def stages(command: str) -> tuple[Stage, ...]:
    """Return the commands of a line in order, without the bodies of here-documents."""
    text = command
    if "<<" in command:
        text = _HEREDOC.sub(lambda m: m["head"] + " " + m["tail"], command)
    bare = _QUOTED.sub(lambda m: "'" + "_" * (len(m[0]) - 2) + "'", text)
    found: list[Stage] = []
    begin = 0
    for match in [*_PARTS.finditer(bare), None]:
        end = match.start() if match else len(bare)
        if bare[begin:end].strip():
            then = match[0] if match else ""
            found.append(Stage(bare[begin:end].strip(), text[begin:end].strip(), then))
        begin = match.end() if match else end
    return tuple(found)


def _word(text: str) -> str:
    return text.strip("'\"")


_CHANGES = frozenset({"write", "append", "edit", "shell"})
_node = attrgetter("author.node")


class Edits:
    """The events of some nodes of a trajectory, in order."""

    def __init__(self, graph: Trajectory, numbers: Iterable[int]) -> None:
        self.graph = graph
        self.events: list[Event] = []
        for number in numbers:
            node = graph.nodes[number]
            for position, call in enumerate(node.calls):
                if call.answered:
                    author = Author(number, position)
                    self.events += _events_of(call, author, node.context[2] or "")
        self._changing = [event for event in self.events if event.kind in _CHANGES]
        self._by_name: dict[str, list[int]] = defaultdict(list)
        for at, event in enumerate(self.events):
            self._by_name[posixpath.basename(event.path)].append(at)
        self._views: dict[str, tuple[FileLines, int]] = {}

    def resolve(self, file: str, before: int) -> str | None:
        """Return the one edited path that a file named in an output means, or ``None``."""
        name = posixpath.normpath(file)
        same = (self.events[at] for at in self._by_name.get(posixpath.basename(name), ()))
        named = {e.path for e in same if e.author.node < before and e.kind != "read"}
        whole = [path for path in named if path == name or path.endswith("/" + _inner(name))]
        if not whole:  # the output is relative to a folder below, or the edit was
            whole = [path for path in named if name.endswith("/" + _inner(path))]
        return whole[0] if len(whole) == 1 else None

    def lines(self, path: str, before: int) -> "FileLines":
        """Return the lines of a file as they were before a node."""
        view, done = self._views.get(path, (FileLines(), 0))
        if done and self.events[done - 1].author.node >= before:
            view, done = FileLines(), 0
        end = bisect_left(self.events, before, done, key=_node)
        # Events of all files, and those of files of this name.
        both = (self._by_name.get(name, ()) for name in {"", posixpath.basename(path)})
        for at in merge(*(rows[bisect_left(rows, done) : bisect_left(rows, end)] for rows in both)):
            self._apply(view, self.events[at], path)
        self._views[path] = view, end
        return view

    def changed_before(self, node: int) -> list[Event]:
        """Return what changed files before a node, in order."""
        return self._changing[: bisect_left(self._changing, node, key=_node)]

    def _apply(self, view: "FileLines", event: Event, path: str) -> None:
        if event.kind == "move":
            if event.path == path:
                view.become(self.lines(event.changes[0].old, event.author.node))
        elif not event.path or same_file(event.path, path):
            if event.kind == "edit":
                shown = _numbered(self._text(event), after="cat -n")
                for change in event.changes:
                    view.edit(change, event.author, shown)
            elif event.kind == "read":
                view.read(_numbered(self._text(event)), whole=bool(event.changes))
            elif event.kind in ("write", "append"):
                text = event.changes[0].new
                (view.write if event.kind == "write" else view.append)(text, event.author)
            elif event.kind in _UNSEEN:
                _UNSEEN[event.kind](view)

    def _text(self, event: Event) -> str:
        return self.graph.nodes[event.author.node].calls[event.author.call].result or ""


def _events_of(call: Call, author: Author, folder: str) -> Iterator[Event]:
    """Yield what a call did in a folder."""
    tool, failed = call.tool, call.failed
    if tool in AGENTS:
        yield Event("agent", author)
    elif tool == "Bash" or (not failed and tool in _SHOWN):
        for step in call.steps:
            if step.name == "Bash":
                command = step.arguments.get("command")
                if isinstance(command, str):
                    yield from _shell(command, author, folder, failed=failed)
            elif not failed and step.name in _SHOWN:
                yield from _file(step, author, folder)


_SHOWN = EDITS | {"Read"}


def _file(step: ToolCall, author: Author, folder: str) -> Iterator[Event]:
    given = step.arguments
    path = str(given.get("file_path") or given.get("notebook_path") or "")
    if not path:
        return
    path = path if path.startswith(("/", "~")) else _joined(folder, path)
    if step.name == "Read":
        whole = (Change("", ""),) if not (given.get("offset") or given.get("limit")) else ()
        yield Event("read", author, path, whole)
    elif step.name == "Write":
        yield Event("write", author, path, (Change("", str(given.get("content", ""))),))
    else:
        if changes := _changes(given):
            yield Event("edit", author, path, changes)
        for item in changes_of(given):
            if "old_string" not in item and "new_string" in item:  # at a line that nothing shows
                yield Event("shell", author, path, (Change("", str(item["new_string"])),))


def _shell(command: str, author: Author, folder: str, *, failed: bool) -> Iterator[Event]:
    yield from _documents(command, author, folder)
    for bare, text, then in stages(command):
        if (match := re.match(r"cd\s+(\S+)$", text)) and not failed:
            folder = _joined(folder, _word(match[1]))
        elif git := _GIT.match(bare):
            unsure = failed or then == "||"  # nobody knows whether it worked
            yield from _git(git["verb"], git["rest"].split(), author, folder, failed=unsure)
        elif not failed:
            yield from _program(bare, text, author, folder)


def _documents(command: str, author: Author, folder: str) -> Iterator[Event]:
    """Yield the files that here-documents of a command write."""
    for match in _HEREDOC.finditer(command) if "<<" in command else ():
        line = match["head"] + match["tail"]
        if target := _TEE.search(line) or _TARGET.search(line):
            found = target.groupdict()
            kind: Kind = "append" if found.get("op") == ">>" or found.get("flag") else "write"
            path = _joined(folder, _word(target["path"]))
            yield Event(kind, author, path, (Change("", match["body"].removesuffix("\n")),))


def _program(bare: str, text: str, author: Author, folder: str) -> Iterator[Event]:
    if move := _MOVE.match(text):
        source, target = (_joined(folder, _word(move[name])) for name in "ab")
        yield Event("move", author, target, (Change(source, ""),))
    elif _FORMAT.search(bare):
        yield Event("format", author)
    elif _IN_PLACE.match(bare):
        for name in text.split()[1:]:
            if re.fullmatch(r"[\w./~-]*\w\.\w+", name):
                yield Event("shell", author, _joined(folder, name), (Change("", text),))


def _git(
    verb: str, words: list[str], author: Author, folder: str, *, failed: bool
) -> Iterator[Event]:
    names = [word for word in words if not word.startswith(("-", ">", "2>"))]
    if verb == "stash":
        if names[:1] in (["pop"], ["apply"]):
            yield Event("unstash", author)
        elif not failed and names[:1] in ([], ["push"], ["save"]):
            yield Event("stash", author)
    elif failed:
        return
    elif verb == "commit":
        yield Event("commit", author)
    elif verb == "mv" and len(names) == 2:
        source, target = (_joined(folder, name) for name in names)
        yield Event("move", author, target, (Change(source, ""),))
    elif verb == "reset" and "--hard" in words:
        older = any("~" in word or "^" in word for word in names)
        yield Event("undo", author, "", _COMMITTED if older else ())
    elif verb in ("checkout", "restore"):
        yield from _checkout(verb, words, author, folder)
    elif verb in _SWITCHES and "--abort" not in words:
        yield Event("switch", author)


#: Marks an undo that reaches edits which are committed.
_COMMITTED = (Change("committed", ""),)


def _checkout(verb: str, words: list[str], author: Author, folder: str) -> Iterator[Event]:
    """Yield what `git checkout` or `git restore` did: files put back, or another branch."""
    if {"-b", "-B"} & set(words) or ("--staged" in words and "--worktree" not in words):
        return
    names = [word for word in words if not word.startswith(("-", ">", "2>"))]
    files = words[words.index("--") + 1 :] if "--" in words else names
    changes = _COMMITTED if _has_source(words) else ()
    paths = [word for word in files if word == "." or "." in posixpath.basename(word)]
    for path in paths:
        yield Event("undo", author, "" if path == "." else _joined(folder, path), changes)
    if not paths and verb == "checkout":
        yield Event("switch", author)


def _has_source(words: list[str]) -> bool:
    """Return True if a checkout takes files from another commit than HEAD."""
    before = words[: words.index("--")] if "--" in words else words[:-1]
    return any(not word.startswith("-") and word != "HEAD" for word in before) or any(
        word.startswith("--source") for word in words
    )


def _changes(given: dict[str, object]) -> tuple[Change, ...]:
    return tuple(
        Change(str(item["old_string"] or ""), str(item.get("new_string") or ""),
               bool(item.get("replace_all")))
        for item in changes_of(given) if "old_string" in item
    ) or ((Change("", str(given["new_source"])),) if "new_source" in given else ())  # fmt: skip


def _joined(folder: str, path: str) -> str:
    return posixpath.normpath(posixpath.join(folder, path)) if path else folder


def same_file(one: str, other: str) -> bool:
    """Return True if two paths are equal, or one is the end of the other."""
    if one == other:
        return True
    short, long = sorted((one, other), key=len)
    return not short.startswith(("/", "~")) and long.endswith("/" + _inner(short))


def _inner(path: str) -> str:
    """Return a path without what says where it begins; a name may begin with a dot."""
    return re.sub(r"^(?:\.{0,2}/)+", "", path)


def _numbered(text: str, after: str = "") -> dict[int, str]:
    """Return the numbered lines of a result; of the part after a phrase, if one is given."""
    if after:
        _, found, text = text.partition(after)
        if not found:
            return {}
    return {int(number): line for number, line in NUMBERED.findall(text)}


class Line(msgspec.Struct, gc=False):
    """One line of a file: its text where the session shows it, and who wrote it."""

    text: str | None = None
    author: Author | None = None


#: Longer texts are compared by their common ends only.
_COMPARED = 4000


class FileLines:
    """The lines of one file, as far as they are known.

    ``certain`` is False once something unseen may have moved or changed lines; a line that is read
    again afterwards is certain again.
    """

    def __init__(self) -> None:
        self.rows: list[Line] = []
        self.certain = True
        self.loose: list[tuple[Author, frozenset[str]]] = []  # edits at unknown places
        self._stashed: list[tuple[list[Line], bool]] = []

    def author(self, number: int, source: str = "") -> tuple[Author | None, bool]:
        """Return who wrote a line, and whether that is sure.

        With ``source``, the line as the output shows it, the line is looked for nearby where the
        text at that number is another one.
        """
        row = self.rows[number - 1] if 0 < number <= len(self.rows) else Line()
        if not source:
            return row.author, self.certain and row.text is not None
        if row.text is not None and row.text.strip() == source:
            return row.author, True
        same = [
            at for at, other in enumerate(self.rows) if other.text and other.text.strip() == source
        ]
        if len(same) == 1 or (same and len({self.rows[at].author for at in same}) == 1):
            return self.rows[same[0]].author, True
        if not same:
            for author, texts in reversed(self.loose):
                if source in texts:
                    return author, True
        return None, False

    def text(self) -> str | None:
        """Return the whole text, or ``None`` if some of it is not known for sure."""
        if not self.certain or not self.rows or any(row.text is None for row in self.rows):
            return None
        return "\n".join(row.text or "" for row in self.rows) + "\n"

    def write(self, text: str, author: Author) -> None:
        """The whole file was written."""
        lines = text.split("\n")
        if lines and lines[-1] == "":
            lines.pop()
        self.rows = self._merged(self.rows, lines, author)
        self.certain = True

    def append(self, text: str, author: Author) -> None:
        """Lines were added at the end, wherever that is."""
        added = [Line(line, author) for line in text.split("\n")]
        self.loose.append((author, distinct(text)))
        if self.rows and self.certain:
            self.rows += added

    def edit(self, change: Change, author: Author, shown: dict[int, str]) -> None:
        """Old text was replaced by new text; ``shown`` are lines of the file afterwards."""
        if not change.old:  # an empty file, or a cell
            self.write(change.new, author)
            return
        self.loose.append((author, distinct(change.new) - distinct(change.old)))
        joined = "\n".join("\0" if row.text is None else row.text for row in self.rows)
        if joined.endswith(change.old[:-1]) and change.old[-1] == "\n" == change.new[-1:]:
            change = Change(change.old[:-1], change.new[:-1], change.everywhere)
        at = joined.find(change.old)
        if at < 0:
            self._moved(change, shown, author)
            return
        while at >= 0:
            first = joined.count("\n", 0, at)
            last = first + change.old.count("\n")
            start = joined.rfind("\n", 0, at) + 1
            end = joined.find("\n", at + len(change.old))
            end = len(joined) if end < 0 else end
            text = joined[start:at] + change.new + joined[at + len(change.old) : end]
            self.rows[first : last + 1] = self._merged(
                self.rows[first : last + 1], text.split("\n") if text or change.new else [], author
            )
            joined = joined[:start] + text + joined[end:]
            at = joined.find(change.old, start + len(text)) if change.everywhere else -1

    def _moved(self, change: Change, shown: dict[int, str], author: Author) -> None:
        """An edit at an unknown place: the lines that the result shows say where it was."""
        lines = change.new.split("\n")
        numbers = sorted(shown)
        for number in numbers:
            block = [shown.get(number + i, "\0") for i in range(len(lines))]
            if [line.strip() for line in block] == [line.strip() for line in lines]:
                rows = self.rows[: number - 1]
                rows += [Line() for _ in range(number - 1 - len(rows))]
                rest = self.rows[number - 1 + change.old.count("\n") + 1 :]
                old = change.old.split("\n")
                known = [Line(text) for text in old]
                self.rows = rows + self._merged(known, lines, author) + rest
                return
        self.rows, self.certain = [], False

    def read(self, shown: dict[int, str], *, whole: bool) -> None:
        """Lines of the file were shown."""
        if not shown:
            return
        numbers = sorted(shown)
        first, last = numbers[0], numbers[-1]
        texts = [shown.get(number, "") for number in range(first, last + 1)]
        known = self.rows[first - 1 : last]
        if len(known) == len(texts) and all(
            row.text == text for row, text in zip(known, texts, strict=True)
        ):
            self.certain = self.certain or whole
            return
        if all(
            row.text is None or row.text == text for row, text in zip(known, texts, strict=False)
        ):
            rows = [
                row if row.text is not None else self._found(text)
                for row, text in zip(known, texts, strict=False)
            ]
            rows += [self._found(text) for text in texts[len(known) :]]
            moved = False
        else:
            rows, moved = self._seen(self.rows, texts), True
        self.rows += [Line() for _ in range(first - 1 - len(self.rows))]
        rest = [] if whole or moved else self.rows[last:]
        self.rows[first - 1 :] = rows + rest
        self.certain = self.certain or whole

    def _found(self, text: str) -> Line:
        """A line seen for the first time belongs to the edit at an unknown place that has it."""
        plain = text.strip()
        author = next((who for who, texts in reversed(self.loose) if plain in texts), None)
        return Line(text, author)

    def _seen(self, rows: Sequence[Line], texts: list[str]) -> list[Line]:
        """Match shown lines with known ones; what differs was not written by a known action."""
        found = [self._found(text) for text in texts]
        before = [row.text if row.text is not None else "\0" for row in rows]
        if len(before) <= _COMPARED and len(texts) <= _COMPARED:
            for one, two, size in SequenceMatcher(None, before, texts, False).get_matching_blocks():
                for i in range(size):
                    found[two + i] = rows[one + i]
        return found

    def _merged(self, rows: Sequence[Line], texts: list[str], author: Author) -> list[Line]:
        """Return the lines after a replacement: equal ones keep their author."""
        before = [row.text if row.text is not None else "\0" for row in rows]
        if len(before) > _COMPARED or len(texts) > _COMPARED:
            return [Line(text, author) for text in texts]
        found: list[Line] = []
        for tag, a, b, c, d in SequenceMatcher(None, before, texts, False).get_opcodes():
            if tag == "equal":
                found += rows[a:b]
            else:
                found += [Line(text, author) for text in texts[c:d]]
        return found

    def become(self, other: "FileLines") -> None:
        """The file was another one until now."""
        self.rows, self.certain, self.loose = list(other.rows), other.certain, list(other.loose)

    def stash(self) -> None:
        """The file was put aside."""
        self._stashed.append((self.rows, self.certain))
        self.rows, self.certain = [], False

    def unstash(self) -> None:
        """What was put aside last is back."""
        if self._stashed:
            self.rows, self.certain = self._stashed.pop()

    def forget(self) -> None:
        """The file is as it was committed."""
        self.rows, self.certain, self.loose = [], False, []

    def doubt(self) -> None:
        """Something unseen may have changed the file."""
        self.certain = False


_DISTINCT = re.compile(r"\w.*\w.*\w.*\w.*\w.*\w")


def distinct(text: str) -> frozenset[str]:
    """Return the lines of a text that are not just punctuation: six word characters and more."""
    lines = (line.strip() for line in text.split("\n"))
    return frozenset(line for line in lines if len(line) >= 8 and _DISTINCT.search(line))


_UNSEEN: dict[str, Callable[[FileLines], None]] = {
    "stash": FileLines.stash, "unstash": FileLines.unstash, "undo": FileLines.forget,
    "shell": FileLines.doubt, "agent": FileLines.doubt, "switch": FileLines.doubt,
    "format": FileLines.doubt,
}  # fmt: skip


def undone(edits: Edits) -> dict[Author, int]:
    """Return the edits that the session took back, each with the node that did so.

    An edit is taken back by git while it is not committed, by a stash without a later pop, or by a
    later edit that puts the old text in the place of the new. A file that shows the new lines
    afterwards proves that nothing was taken back.
    """
    found = _Undoing()
    for event in edits.events:
        found.take(event)
    for group in found.stashed:
        for events in group.values():
            found.undo(events, max(event.author.node for event in events))
    return {who: at for who, at in found.at.items() if not _shown_after(edits, who, at)}


class _Undoing:
    """Which edits are committed, stashed or taken back, event by event."""

    def __init__(self) -> None:
        self.at: dict[Author, int] = {}  # the node that took an edit back
        self.stashed: list[dict[str, list[Event]]] = []
        self._live: dict[str, list[Event]] = defaultdict(list)
        self._committed: dict[str, list[Event]] = defaultdict(list)
        self._undid: dict[Author, list[Author]] = defaultdict(list)

    def undo(self, events: Iterable[Event], node: int) -> None:
        """Note edits as taken back."""
        self.at.update((event.author, node) for event in events)

    def take(self, event: Event) -> None:
        """Note what an event did."""
        live = self._live
        match event.kind:
            case "write" | "append" | "edit" | "shell":
                self._edit(event)
            case "commit":
                for path, events in live.items():
                    self._committed[path] += events
                live.clear()
            case "stash":
                self.stashed.append(dict(live))
                live.clear()
            case "unstash" if self.stashed:
                for path, events in self.stashed.pop().items():
                    live[path] = events + live[path]
            case "undo":
                for group in (live, self._committed) if event.changes else (live,):
                    for path in [p for p in group if not event.path or same_file(event.path, p)]:
                        self.undo(group.pop(path), event.author.node)

    def _edit(self, event: Event) -> None:
        for earlier in (*self._live[event.path], *self._committed[event.path]):
            if _reverses(event, earlier):
                self.undo([earlier], event.author.node)
                self._undid[event.author].append(earlier.author)
                for again in self._undid.pop(earlier.author, ()):
                    self.at.pop(again, None)
        self._live[event.path].append(event)


def _reverses(event: Event, earlier: Event) -> bool:
    """Return True if an edit puts back exactly what an earlier one replaced."""
    if event.kind != "edit" or earlier.kind != "edit" or not event.changes:
        return False
    back = Counter((c.new, c.old) for c in event.changes)
    return back == Counter((c.old, c.new) for c in earlier.changes) and event.changes[0].old != ""


def _shown_after(edits: Edits, author: Author, at: int) -> bool:
    """Return True if a later read or edit of the file has the lines that an edit added."""
    own = [event for event in edits.events if event.author == author and event.changes]
    added = {
        line
        for event in own
        for change in event.changes
        for line in distinct(change.new) - distinct(change.old)
    }
    if not added:
        return False
    paths = {event.path for event in own}
    for event in edits.events:
        if event.author.node <= at or not any(same_file(event.path, path) for path in paths):
            continue
        if event.kind == "edit":
            shown = {line for change in event.changes for line in distinct(change.old)}
        elif event.kind == "read":
            shown = {line.strip() for line in _numbered(edits._text(event)).values()}
        elif event.kind == "write":
            return False
        else:
            continue
        if len(added & shown) * 2 >= len(added):
            return True
    return False
