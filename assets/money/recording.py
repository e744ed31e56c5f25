"""Days that a run has finished, recorded one by one, and the ceiling that ended it.

Belongs here: the events of a ranged run. Does not belong here: which days are whole
(``composer_pipeline.replay.engine``), and their numbers (``composer_pipeline.replay``).

A ranged run that yields a result records all of its days or none. So each day is recorded as an
event when it is done, which outlives a kill, and the result at the end, which starts what comes
after it in the same run, records nothing a second time.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import dagster as dg
from dagster._core.definitions.source_asset import SYSTEM_METADATA_KEY_SOURCE_ASSET_OBSERVATION

#: (teacher, day) -> the metadata of a day that is done.
PageOf = Callable[[str, str], Mapping[str, Any]]


class DayRecorder:
    """Records the partitions of one run as they are done.

    Args:
        context: of the run.
        keys: teacher -> its asset.
        page_of: the metadata of a teacher's day.
    """

    def __init__(
        self, context: dg.AssetExecutionContext, keys: Mapping[str, dg.AssetKey], page_of: PageOf
    ) -> None:
        self._context = context
        self._keys = keys
        self._page_of = page_of
        self._done: set[tuple[str, str]] = set()

    def day(self, day: str, missing: Mapping[str, int]) -> None:
        """Record a day of the teachers that miss nothing of it, once."""
        for name, key in self._keys.items():
            if missing.get(name) or (name, day) in self._done:
                continue
            self._done.add((name, day))
            self._context.log_event(
                dg.AssetMaterialization(
                    asset_key=key, partition=day, metadata=dict(self._page_of(name, day))
                )
            )

    def rest(self, days: Iterable[str], missing: Mapping[str, Mapping[str, int]]) -> None:
        """Record the days that nobody told of: those without a question."""
        for day in days:
            self.day(day, missing.get(day, {}))

    def result(self, name: str) -> "dg.MaterializeResult[None]":
        """Return the result of a teacher all of whose days are recorded.

        Dagster writes no event for a result with this key: it is how its own observations, which
        are told through the context too, are kept from being told twice.
        """
        told = {SYSTEM_METADATA_KEY_SOURCE_ASSET_OBSERVATION: True}
        return dg.MaterializeResult(asset_key=self._keys[name], metadata=told)


def tell_ceiling(
    context: dg.AssetExecutionContext,
    keys: Mapping[str, dg.AssetKey],
    day: str,
    missing: Mapping[str, int],
    bought: Mapping[str, str],
    sentence: str,
) -> None:
    """Say on each teacher's asset where a ceiling ended the run.

    Args:
        context: of the run.
        keys: teacher -> its asset.
        day: the day that was stopped in the middle.
        missing: teacher -> replies to it that are missing.
        bought: teacher -> what of it was bought, in words.
        sentence: what the next call needed, what is left, and where to raise it.
    """
    context.log.warning(sentence)
    for name, key in keys.items():
        context.log_event(
            dg.AssetObservation(
                asset_key=key,
                partition=day or None,
                metadata={
                    "ceiling_reached": sentence,
                    "bought": bought.get(name, "nothing"),
                    "missing": f"{missing.get(name, 0)} replies",
                },
            )
        )
