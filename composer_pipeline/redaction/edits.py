"""What one redaction replaced: counts, placeholders, and where each stood.

Belongs here: applying replacements to a text and remembering their places in the text as it
was at first, also through several rules. Does not belong here: finding what to replace
(``redaction.engine``).

Places are kept only where somebody asks for them (a decoded view, ``composer-pipeline
redact``); counting costs nothing more.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

#: Kinds that are no secret but say who or where somebody is: their placeholder is the kind.
PERSONAL = frozenset(("EMAIL", "HOST", "ACCOUNT", "NAME"))
#: How many encodings deep texts are read.
MAX_DEPTH = 3


@dataclass(frozen=True, slots=True)
class Found:
    """Something private in a text: ``text[start:end]`` is of this ``kind``.

    ``value`` is what its placeholder is made of, where that is not the text itself.
    """

    start: int
    end: int
    kind: str
    value: str = ""


@dataclass(frozen=True, slots=True)
class Edit:
    """``text[start:end]`` of the first text became ``new`` by a ``rule``."""

    start: int
    end: int
    new: str
    rule: str


class Trace:
    """Edits of a text, in places of the text as it was at first.

    Args:
        length: characters of the first text.
    """

    def __init__(self, length: int) -> None:
        # Pieces of the current text: kept characters (`new` is None) or a replacement.
        self._pieces: list[_Piece] = [_Piece(0, length)]

    def apply(self, start: int, end: int, new: str, rule: str) -> None:
        """Note that ``current[start:end]``, which is not empty, became ``new``."""
        before: list[_Piece] = []
        inside: list[tuple[int, _Piece]] = []
        after: list[_Piece] = []
        at = 0
        for piece in self._pieces:
            if at + piece.size <= start:
                before.append(piece)
            elif at >= end:
                after.append(piece)
            else:
                inside.append((at, piece))
            at += piece.size
        (first_at, first), (last_at, last) = inside[0], inside[-1]
        begin, stop = first.begin, last.stop
        if first.new is not None:  # a part of an earlier replacement stays
            new = first.new[: start - first_at] + new
        elif start > first_at:
            begin += start - first_at
            before.append(_Piece(first.begin, begin))
        if last.new is not None:
            new += last.new[end - last_at :]
        elif end < last_at + last.size:
            stop = last.begin + end - last_at
            after.insert(0, _Piece(stop, last.stop))
        self._pieces = [*before, _Piece(begin, stop, new, rule), *after]

    def edits(self) -> list[Edit]:
        """Return the edits, in order."""
        return [Edit(p.begin, p.stop, p.new, p.rule) for p in self._pieces if p.new is not None]


@dataclass(frozen=True, slots=True)
class _Piece:
    begin: int
    stop: int
    new: str | None = None
    rule: str = ""

    @property
    def size(self) -> int:
        return self.stop - self.begin if self.new is None else len(self.new)


class Ledger:
    """Counts of one redaction, by kind; its places too where it has a ``trace``.

    Args:
        trace: notes the places.
        depth: how many encodings deep the text was found.
        names: user names of the text.
    """

    __slots__ = ("counts", "depth", "names", "placeholders", "rule", "trace")

    def __init__(
        self, trace: Trace | None = None, depth: int = 0, names: Iterable[str] = ()
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.placeholders = 0
        self.trace = trace
        self.depth = depth
        self.names = names
        #: The rule that runs now.
        self.rule = ""

    def placeholder(self, kind: str, value: str) -> str:
        """Count a replacement and return what stands for ``value`` now."""
        self.counts[kind] += 1
        if kind in ("USER", "HOME"):
            return "user"
        self.placeholders += 1
        if kind in PERSONAL:
            value = value.lower()
        digest = hashlib.blake2b(value.encode("utf-8", "replace"), digest_size=2).hexdigest()
        return f"[{kind if kind in PERSONAL else f'SECRET_{kind}'}_{digest}]"

    def replace(self, text: str, edits: Iterable[Edit]) -> str:
        """Return ``text`` with edits applied; they are in order and do not overlap."""
        parts: list[str] = []
        done = shift = 0
        for edit in edits:
            parts += (text[done : edit.start], edit.new)
            done = edit.end
            if self.trace is not None:
                self.trace.apply(edit.start + shift, edit.end + shift, edit.new, edit.rule)
                shift += len(edit.new) - (edit.end - edit.start)
        return "".join([*parts, text[done:]]) if parts else text

    def put(self, text: str, found: Iterable[Found]) -> str:
        """Return ``text`` with what was found replaced; of overlapping ones the first."""
        edits: list[Edit] = []
        done = 0
        for item in found:
            if item.start >= done and item.end > item.start:
                value = item.value or text[item.start : item.end]
                new = self.placeholder(item.kind, value)
                edits.append(Edit(item.start, item.end, new, self.rule))
                done = item.end
        return self.replace(text, edits)


#: A rule's function: a text and the ledger of this redaction to the text redacted.
Rule = Callable[[str, Ledger], str]
#: A rule by its id.
Row = tuple[str, Rule]
