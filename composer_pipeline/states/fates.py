"""What git says became of a state's edit, in a few words and two shares, from ``outcomes``."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from composer_pipeline.lake.store import Lake

#: From the latest horizon to the earliest.
_LATEST = ("today", "30d", "20", "7d", "5", "1", "commit")
#: Lines that are alive at one of these have lasted.
_LASTED = ("20", "7d")
_COLUMNS = ["state_id", "horizon", "status", "lines", "alive", "by_session", "committed_action"]


class EditFate(msgspec.Struct, frozen=True):
    """What became of the lines that a state added; shares are in [0, 1].

    Attributes:
        fate: ``kept`` (all in the commit, and there 20 commits of the file or 7 days later),
            ``committed`` (half or more of them, or not old enough to say more), ``gone`` (less
            than half), ``refined`` (less than half, and a later edit of the session took out most
            of the rest); null where no commit is known.
        kept: share in the commit.
        survival: share alive at the latest horizon that is known.
        committed_action: as in ``outcomes``.
    """

    fate: str | None = None
    kept: float | None = None
    survival: float | None = None
    committed_action: str | None = None


def fate_of(rows: Mapping[str, Mapping[str, Any]]) -> EditFate:
    """Return the fate of a state from its rows of ``outcomes`` by horizon."""
    share = {
        horizon: row["alive"] / row["lines"]
        for horizon, row in rows.items()
        if row["status"] == "known" and row["lines"]
    }
    if "commit" not in share:
        return EditFate()
    row, kept = rows["commit"], share["commit"]
    if kept < 0.5:
        lost = row["lines"] - row["alive"]
        fate = "refined" if 2 * row["by_session"] >= lost else "gone"
    else:
        lasted = kept == 1 and any(share.get(horizon) == 1 for horizon in _LASTED)
        fate = "kept" if lasted else "committed"
    latest = next(share[horizon] for horizon in _LATEST if horizon in share)
    return EditFate(fate, kept, latest, row["committed_action"])


def by_horizon(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Mapping[str, Any]]]:
    """Return state id to its rows of ``outcomes`` by horizon."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["state_id"], {})[row["horizon"]] = row
    return found


def fates_of(lake: Lake, day: str) -> dict[str, EditFate]:
    """Return the fates of a day's states with an edit, by state id."""
    rows = by_horizon(lake.rows("outcomes", days=[day], columns=_COLUMNS))
    return {state_id: fate_of(mine) for state_id, mine in rows.items()}
