"""How close two actions are: L0, L1, L2, L4 or none.

Belongs here: whole actions. Does not belong here: two calls
(``preferences.actions.call_levels``), the levels (``preferences.actions.tool_rules``), what is
cosmetic (``preferences.actions.canonical``) and who wins a vote
(``preferences.agreement.vote``).

L0 is a byte-equal canonical form; L1 an equal effect; L2 the same tool on the same target;
L4 the same class of tool. L3, a paid judge of meaning, is never given here. The relation is
symmetric but not transitive.
"""

from collections.abc import Callable, Sequence

from composer_pipeline.actions import Action
from composer_pipeline.preferences.actions.call_levels import Situation, call_verdict
from composer_pipeline.preferences.actions.canonical import (
    CanonicalAction,
    read_action,
)
from composer_pipeline.preferences.actions.text_kinds import text_kind, whole_text
from composer_pipeline.preferences.actions.tool_rules import Level, Verdict

#: Says whether two actions mean the same.
Semantic = Callable[[Action, Action], bool]


def level(
    a: Action, b: Action, situation: Situation, *, semantic: Semantic | None = None
) -> Verdict:
    """Return the level of agreement of two actions: the one function that decides it.

    Parallel calls are matched without order; the level is the loosest of the best
    complete matching. Calls without a partner leave L4, or none when no call of one side
    shares a class with a call of the other. Texts before calls do not count.

    Args:
        a: one action.
        b: the other; the result does not depend on which is which.
        situation: what both had before them.
        semantic: asked about two different actions of one class; where it says that they
            mean the same the level is L3. It may cost money, and is off by default.
    """
    place = situation.place
    return level_of(read_action(a, place), read_action(b, place), situation, semantic=semantic)


def level_of(
    a: CanonicalAction,
    b: CanonicalAction,
    situation: Situation,
    *,
    semantic: Semantic | None = None,
) -> Verdict:
    """Return the level of two actions that were read before (see :func:`level`)."""
    if a.form == b.form:
        return Verdict(Level.L0, "equal canonical form" if a.calls else "equal text")
    verdict = _verdict(a, b, situation)
    if semantic is not None and verdict.level is Level.L4:
        first, second = sorted((a, b), key=lambda side: side.form)
        if semantic(first.action, second.action):
            return Verdict(Level.L3, "one meaning, as the semantic judge says")
    return verdict


def _verdict(a: CanonicalAction, b: CanonicalAction, situation: Situation) -> Verdict:
    if not a.calls and not b.calls:
        return _texts(a.action.text, b.action.text)
    if not a.calls or not b.calls:
        text = a.action.text if not a.calls else b.action.text
        kind = text_kind(text)
        if any(call.kind == kind for call in a.calls or b.calls):
            return Verdict(Level.L4, "both ask the user")
        return Verdict(Level.NONE, "one side calls a tool, the other answers in text")
    if len(a.calls) == len(b.calls) == 1:
        return call_verdict(a.calls[0], b.calls[0], situation)
    grid = [[call_verdict(x, y, situation) for y in b.calls] for x in a.calls]
    if len(a.calls) == len(b.calls):
        for bound in (Level.L0, Level.L1, Level.L2, Level.L4):
            match = _perfect_matching([[cell.level <= bound for cell in row] for row in grid])
            if match is not None:
                cells = [grid[i][j] for i, j in enumerate(match)]
                loosest = max(cells, key=lambda cell: cell.level)
                return Verdict(loosest.level, f"{len(cells)} calls matched; {loosest.why}")
    if any(cell.level < Level.NONE for row in grid for cell in row):
        return Verdict(Level.L4, "some calls have no partner")
    return Verdict(Level.NONE, "no call shares a class")


def _texts(a: str, b: str) -> Verdict:
    if whole_text(a).strip() == whole_text(b).strip():
        return Verdict(Level.L0, "equal text")
    kinds = text_kind(a), text_kind(b)
    if kinds[0] == kinds[1]:
        return Verdict(Level.L4, f"both texts {kinds[0]}")
    return Verdict(Level.NONE, "one text asks, the other does not")


def _perfect_matching(allowed: Sequence[Sequence[bool]]) -> list[int] | None:
    """Match every row to a column of its own (Kuhn); ``None`` if that is impossible.

    scipy has it too, but the base install does without scipy.
    """
    size = len(allowed)
    owner = [-1] * size

    def place(row: int, seen: set[int]) -> bool:
        for column in range(size):
            if allowed[row][column] and column not in seen:
                seen.add(column)
                if owner[column] < 0 or place(owner[column], seen):
                    owner[column] = row
                    return True
        return False

    if not all(place(row, set()) for row in range(size)):
        return None
    match = [0] * size
    for column, row in enumerate(owner):
        match[row] = column
    return match
