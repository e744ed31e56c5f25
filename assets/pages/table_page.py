"""The page of a table: a preview, where it is, how to ask it, how many rows and how many more.

Belongs here: one builder for every asset that writes a table. Does not belong here: rows in words
(``composer_pipeline.previews``), which numbers are drawn (``pages.plots``).
"""

from collections.abc import Iterable, Mapping
from typing import Any

import dagster as dg

from assets.pages.plots import CHANGE, DAY_ROWS, PLOTS, ROWS
from assets.pages.values import records
from composer_pipeline.lake import Lake
from composer_pipeline.markdown import fenced


def figures(asset: str, numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Return numbers as metadata: those that are drawn by name, all others in one table.

    What is ``None`` was not measured and is left out; 0 is a number.
    """
    known = {
        name: value
        for name, value in numbers.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    drawn = {name: value for name, value in known.items() if name in PLOTS[asset]}
    rest = [{"number": name, "value": value} for name, value in known.items() if name not in drawn]
    return {**drawn, **({"other_numbers": records(rest)} if rest else {})}


class TablePage:
    """What the page of an asset says after a run, by partition.

    Made before the stage runs, so that it knows how many rows there were.

    Args:
        asset: its name in :data:`~assets.pages.plots.PLOTS`.
        table: the table that it writes.
        lake: where.
        days: the days of the run; nothing for a table without days.
        keys: partition keys besides the day, for example ``teacher``.
    """

    def __init__(
        self, asset: str, table: str, lake: Lake, days: Iterable[str] = (), **keys: str
    ) -> None:
        self._asset, self._table, self._lake, self._keys = asset, table, lake, keys
        self._before = {day: self._rows(day) for day in days or ("",)}

    def of(self, day: str = "", numbers: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the metadata of a day, or of the whole table.

        Args:
            day: one of those of the run.
            numbers: what the stage reports of it.
        """
        from composer_pipeline.previews import place_of, preview, query_of

        keys = self._keys_of(day)
        rows, before = self._rows(day), self._before.get(day)
        about: dict[str, Any] = {DAY_ROWS if day else ROWS: rows or 0}
        if rows is not None and before is not None:
            about[CHANGE] = rows - before
        found = {**about, **figures(self._asset, numbers or {})}
        if rows is None:
            return found
        found["path"] = dg.MetadataValue.path(place_of(self._lake, self._table, **keys))
        query = query_of(self._lake, self._table, **keys)
        found["query"] = dg.MetadataValue.md(fenced(query, "sql"))
        if shown := preview(self._lake, self._table, self._one(keys)):
            found["preview"] = dg.MetadataValue.md(shown)
        return found

    def _keys_of(self, day: str) -> dict[str, str]:
        return {**self._keys, **({"day": day} if day else {})}

    def _one(self, keys: dict[str, str]) -> dict[str, str]:
        """Return the keys of the partition that the preview is of: of a split table, train."""
        return keys or {"split": "train"}

    def _rows(self, day: str) -> int | None:
        from composer_pipeline.previews import row_count

        return row_count(self._lake, self._table, **self._keys_of(day))
