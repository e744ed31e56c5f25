"""Error turns of a day in, the ``hints`` partition out.

Belongs here: which span a hint is about. Does not belong here: how much a hint gives away
(``preferences.hints.leakage``), finding error turns and their hints (``traces``), hints from
the teachers' consensus (``preferences.hints.from_disagreement``), and turning a hint into
tokens (``training``).
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from composer_pipeline.actions import Action
from composer_pipeline.lake import Lake
from composer_pipeline.lake.notes import Origin, Stamps, noting
from composer_pipeline.preferences.hints.leakage import leakage, span_text
from composer_pipeline.reports import Progress, Report, add_counts
from composer_pipeline.trace_states import load_states
from composer_pipeline.versions import HINTS_VERSION

#: Not the agent's fault: a parallel call failed, and this one was cancelled.
EXCLUDED_KINDS = frozenset({"cancelled", "sibling_cancelled", "sibling"})

#: Columns of ``states`` that a hint needs besides its action.
_COLUMNS = [
    "state_id",
    "session_id",
    "error_kind",
    "hint",
    "hint_source",
    "hint_call",
]


@dataclass(frozen=True)
class HintFigures(Report):
    """What a day gave, or several together. ``mean_leakage`` is 0.0 without hints."""

    hints: int = 0
    by_source: dict[str, int] = field(default_factory=dict)
    by_kind: dict[str, int] = field(default_factory=dict)
    mean_leakage: float = 0.0


@dataclass(frozen=True)
class HintsReport(HintFigures):
    """The sum over the days, and each day's own figures."""

    by_day: dict[str, HintFigures] = field(default_factory=dict)


def build_hints(
    lake: Lake, *, days: Iterable[str] | None = None, progress: Progress | None = None
) -> HintsReport:
    """Write the partitions of ``hints`` from the error turns of some days' states.

    Args:
        lake: the lake.
        days: ``YYYY-MM-DD``; all days with states when ``None``.
        progress: called after each state with a hint.

    Raises:
        StorageError: the lake is not writable.
    """
    wanted = lake.days("states") if days is None else sorted(set(days))
    by_day, stamps = {}, Stamps(lake)
    for day in wanted:
        with noting(lake, hints_origin(day), stamps):
            by_day[day] = _build_day(lake, day, progress)
    parts = by_day.values()
    hints = sum(part.hints for part in parts)
    leaked = sum(part.hints * part.mean_leakage for part in parts)
    return HintsReport(
        hints=hints,
        by_source=add_counts(part.by_source for part in parts),
        by_kind=add_counts(part.by_kind for part in parts),
        mean_leakage=leaked / hints if hints else 0.0,
        by_day=by_day,
    )


def hints_origin(day: str) -> Origin:
    """Return what a day's hints are made from."""
    tables = ("states", "messages", "chains")
    return Origin(
        "hints", {"day": day}, [(t, {"day": day}) for t in tables], {"hints": HINTS_VERSION}
    )


def _build_day(lake: Lake, day: str, progress: Progress | None) -> HintFigures:
    states = lake.rows("states", days=[day], columns=_COLUMNS)
    usable = {state["state_id"]: state for state in states if state["hint"]}
    rows = []
    for done, found in enumerate(load_states(lake, days=[day], state_ids=usable), start=1):
        row = hint_row({**usable[found.state_id], "action": found.action_json})
        if row is not None:
            rows.append(row)
        if progress:
            progress(f"hints {day}", done, len(usable))
    rows.sort(key=lambda row: str(row["state_id"]))
    lake.write("hints", rows, day=day)
    leakage = [row["leakage"] for row in rows]
    return HintFigures(
        hints=len(rows),
        by_source=dict(sorted(Counter(row["source"] for row in rows).items())),
        by_kind=dict(sorted(Counter(row["error_kind"] for row in rows).items())),
        mean_leakage=sum(leakage) / len(leakage) if leakage else 0.0,
    )


def hint_row(state: dict[str, Any]) -> dict[str, Any] | None:
    """Return the row of the table ``hints`` for a state, or ``None`` without a usable hint."""
    text = (state["hint"] or "").strip()
    if not text or state["error_kind"] in EXCLUDED_KINDS:
        return None
    call = -1 if state["hint_call"] is None else int(state["hint_call"])
    span = span_text(Action.from_json(state["action"]), call)
    return {
        "state_id": state["state_id"],
        "session_id": state["session_id"],
        "source": state["hint_source"],
        "error_kind": state["error_kind"],
        "text": text,
        "span_call": call,
        "span_text": span,
        "leakage": leakage(text, span),
    }
