"""The rules on other readings of a text: decoded, or with its lines joined.

Belongs here: which rules run on such a reading, and bringing back what they find. Does not
belong here: decoding (``redaction.views``), the rules (``redaction.engine``).
"""

import re
from collections.abc import Iterable, Iterator
from typing import Protocol

from composer_pipeline.redaction.edits import (
    MAX_DEPTH,
    PERSONAL,
    Edit,
    Found,
    Ledger,
    Row,
    Trace,
)
from composer_pipeline.redaction.prefilter import dump_value
from composer_pipeline.redaction.views.base64_runs import decoded_runs
from composer_pipeline.redaction.views.escapes import Decoded, Escape, View, windows


class Judge(Protocol):
    """What the readings need of the rules (``redaction.engine.Rules``)."""

    #: Characters of user names.
    name_letters: frozenset[str]

    def active(self, source: bytes, names: Iterable[str]) -> list[Row]:
        """Return the rules that may find something in the JSON of a text."""

    def settle(self, text: str, active: list[Row], ledger: Ledger) -> str:
        """Return the text with all that the active rules find replaced."""

    def allowed(self, value: str) -> bool:
        """Say whether the user's file lets a value stay."""


def encoded(rules: Judge, text: str, ledger: Ledger) -> str:
    """Replace base64 that holds a secret."""
    if ledger.depth >= MAX_DEPTH:
        return text
    found = []
    for start, end, plain in decoded_runs(text):
        inner = Ledger(depth=ledger.depth + 1, names=ledger.names)
        rules.settle(plain, rules.active(dump_value(plain), ()), inner)
        if inner.counts and not rules.allowed(text[start:end]):
            kind = next((k for k in inner.counts if k not in _NOT_ALONE), "ENCODED")
            found.append(Found(start, end, kind))
    return ledger.put(text, found)


def joined(rules: Judge, view: View, text: str, ledger: Ledger) -> str:
    """Replace what is found where lines are joined, and goes over a break."""
    breaks = list(view.escapes(text)) if ledger.depth < MAX_DEPTH else []
    if not breaks:
        return text
    parts = [(at, text[at:end], inside) for at, end, inside in windows(text, breaks)]
    # One look at all parts, each in its quotes, tells for most texts that there is nothing.
    every = dump_value([_without(part, inside) for _, part, inside in parts])
    active = _others(rules, every, ledger)
    if all(name.startswith(_OF_NAMES) for name, _ in active):
        # These find nothing over a break but where letters of names stand on both sides.
        letters = rules.name_letters
        parts = [
            (at, part, inside)
            for at, part, inside in parts
            if active and any(part[a - 1] in letters and part[b] in letters for a, b, _ in inside)
        ]
    edits: list[Edit] = []
    for start, part, inside in parts:
        whole = Decoded(part, inside)
        active = _others(rules, dump_value(whole.text), ledger)
        for edit in _inner(rules, whole, active, ledger, over=True):
            if not edits or start + edit.start >= edits[-1].end:
                edits.append(Edit(start + edit.start, start + edit.end, edit.new, edit.rule))
                kinds = _PLACEHOLDER.findall(edit.new) or ["USER"]
                ledger.counts.update(kinds)
                ledger.placeholders += len(kinds)
    return ledger.replace(text, edits)


def _without(text: str, breaks: list[Escape]) -> str:
    done, parts = 0, []
    for start, end, _ in breaks:
        parts.append(text[done:start])
        done = end
    return "".join([*parts, text[done:]])


def decoded(rules: Judge, view: View, text: str, ledger: Ledger) -> str:
    """Replace what is found in another reading of the whole text."""
    escapes = list(view.escapes(text)) if ledger.depth < MAX_DEPTH else []
    if not escapes:
        return text
    merged: list[Edit] = []
    whole = Decoded(text, escapes)
    active = _others(rules, dump_value(whole.text), ledger)
    for edit in _inner(rules, whole, active, ledger, over=False):
        if merged and edit.start < merged[-1].end:  # two in one escape
            last = merged.pop()
            edit = Edit(last.start, max(edit.end, last.end), last.new + edit.new, edit.rule)
        merged.append(edit)
    return ledger.replace(text, merged)


def _inner(
    rules: Judge, part: Decoded, active: list[Row], ledger: Ledger, *, over: bool
) -> Iterator[Edit]:
    """Yield what is replaced in a decoded text, at its place in the source.

    With ``over`` only what an escape is a part of; else it is counted here.
    """
    if not active:
        return
    trace = Trace(len(part.text))
    inner = Ledger(trace, ledger.depth + 1, ledger.names)
    rules.settle(part.text, active, inner)
    if not over:
        ledger.counts.update(inner.counts)
        ledger.placeholders += inner.placeholders
    for edit in trace.edits():
        start, end = part.source(edit.start, edit.end)
        if not over or end - start != edit.end - edit.start:
            yield Edit(start, end, edit.new, f"{ledger.rule}/{edit.rule}")


def _others(rules: Judge, source: bytes, ledger: Ledger) -> list[Row]:
    """Return the active rules beside the view that runs now."""
    return [row for row in rules.active(source, ledger.names) if row[0] != ledger.rule]


#: Rules that find nothing but names.
_OF_NAMES = ("user", "home/")
_PLACEHOLDER = re.compile(r"\[(?:SECRET_)?([A-Z0-9_]+)_[0-9a-f]{4}\]")
#: What does not make base64 worth replacing as a whole.
_NOT_ALONE = frozenset(("HOME", "USER", *(PERSONAL - {"EMAIL"})))
