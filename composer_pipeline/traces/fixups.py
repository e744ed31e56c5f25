"""Edits as they should have been: the culprit's, with its later fix of the same session folded in.

As ``git rebase --autosquash`` would do it: where a later edit changes lines that the culprit wrote,
and the check that failed passes behind it, the fix is applied to what the culprit wrote.
"""

import re
from bisect import bisect_right
from typing import Any

import msgspec

from composer_pipeline.tool_names import with_change
from composer_pipeline.traces.edits import Author, Change, Edits, Event
from composer_pipeline.traces.graph_nodes import Call
from composer_pipeline.traces.verdicts import Judge, defines

_TESTS = re.compile(r"(?:^|[/_.-])(?:tests?|specs?|__tests__)(?:[/_.-]|$)|(?:Test|Spec)\.\w+$")


class Fixup(msgspec.Struct, frozen=True, gc=False):
    """The arguments that the culprit's call should have had, and what shows it.

    ``fixed_by`` is the node of the last edit that is folded in, ``verified_by`` that of the run
    which passed behind it.
    """

    arguments: dict[str, Any]
    fixed_by: int
    verified_by: int


def fixup(judge: Judge, culprit: Author, error: int, failed: Call) -> Fixup | None:
    """Return the culprit's edit with its fix folded in, or ``None`` where there is none to trust.

    Args:
        judge: of the trajectory's active path.
        culprit: the call that caused the error.
        error: the node that shows it.
        failed: the call there that failed.
    """
    call, edits = judge.graph.nodes[culprit.node].calls[culprit.call], judge.edits
    event = next((event for event in edits.events if event.author == culprit), None)
    steps = call.steps
    if event is None or len(steps) != 1 or len(event.changes) != 1:
        return None
    tool = steps[0].name
    if tool not in ("Edit", "Write"):
        return None
    passed = judge.passes_after(error, failed)
    if passed is None:
        return None
    later = [
        other
        for other in edits.events[bisect_right(edits.events, culprit, key=lambda e: e.author) :]
        if other.author.node < passed
        and other.kind != "read"
        and (other.path == event.path or not other.path)
    ]
    folded = _fold(event, later, error)
    if folded is None:
        return None
    change, fixed_by = folded
    if _needs_more(
        event, change, [e for e in edits.events if culprit < e.author and e.author.node < passed]
    ):
        return None
    if tool == "Edit" and not _applies(edits, event, change):
        return None
    given = with_change(call.own, change.old, change.new)
    return Fixup(given, fixed_by, passed) if given is not None else None


def _fold(event: Event, later: list[Event], error: int) -> tuple[Change, int] | None:
    """Apply the edits behind the error to what the culprit wrote; return the last one's node too.

    Edits before the error that touch the same lines are later work, not a fix.
    """
    change, fixed_by = event.changes[0], -1
    for other in later:
        if other.kind in ("agent", "switch", "undo", "stash", "unstash", "shell", "write", "move"):
            return None
        for step in other.changes if other.kind == "edit" else ():
            made = _applied(change, step)
            if made is None:
                if _lines(step.old) & _lines(change.new) - _lines(change.old) - _lines(step.new):
                    return None  # it changes some of these lines and others
                continue
            if other.author.node < error:
                return None
            if _TESTS.search(event.path) and not _lines(step.new) - _lines(step.old):
                return None  # the test was only made smaller
            change, fixed_by = made, other.author.node
    if fixed_by < 0 or change.new == change.old or change.new == event.changes[0].new:
        return None
    return change, fixed_by


def _applied(change: Change, step: Change) -> Change | None:
    """Return a change with a later one folded in, where that one changes its lines."""
    written = _lines(change.new) - _lines(change.old)
    if not (_lines(step.old) - _lines(step.new)) & written:
        return None
    if step.old in change.new and (step.everywhere or change.new.count(step.old) == 1):
        return change._replace(new=change.new.replace(step.old, step.new))
    if change.old and change.new and step.old.count(change.new) == 1 and not change.everywhere:
        return Change(step.old.replace(change.new, change.old), step.new)
    return None


def _needs_more(event: Event, change: Change, later: list[Event]) -> bool:
    """Return True if the fix uses names that another edit, which is not folded in, defines."""
    new = _names(change.new) - _names(event.changes[0].new) - _names(change.old)
    for other in later:
        for step in other.changes:
            if step.new in change.new:
                continue
            added = _lines(step.new) - _lines(step.old) - _lines(change.new)
            if any(defines(name, "\n".join(added)) for name in new & _names(step.new)):
                return True
    return False


def _names(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"[A-Za-z_]\w{2,}", text))


def _applies(edits: Edits, event: Event, change: Change) -> bool:
    """Return True if an edit applies once to the file as it was, or nothing shows the file."""
    text = edits.lines(event.path, event.author.node).text()
    if text is None:
        return change.old == event.changes[0].old
    return text.count(change.old) == 1 or (change.everywhere and change.old in text)


def _lines(text: str) -> frozenset[str]:
    return frozenset(line.strip() for line in text.split("\n") if line.strip())
