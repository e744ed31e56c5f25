"""Which tools each state is offered, for good.

Belongs here: the table ``toolsets``, which pins the tools of a state once it was asked, and
the check of a reply's arguments against them. Does not belong here: where schemas come from
(``chat.tools``, ``chat.installed_tools``).

The tools are part of a request's bytes, and the bytes are what a reply is known by. A
session that goes on and uses a new tool, or a better schema from a user's installation,
must not change what its earlier states were asked, or all their replies would be bought
again. So the states that were asked keep their tools, and only new states get the new ones.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache, partial

import msgspec

from composer_pipeline.chat.kept_tools import kept_sets
from composer_pipeline.chat.tool_schemas import Toolset
from composer_pipeline.chat.tools import session_tools
from composer_pipeline.lake import Lake
from composer_pipeline.trace_states import TraceState

#: Days and sessions whose tools are kept in memory; others are read or made again.
KEPT_DAYS, KEPT_SESSIONS = 16, 512


class _Pin(msgspec.Struct):
    """Tools of a session, and the states that were asked with them."""

    session_id: str
    toolset: Toolset
    state_ids: list[str]


class _Day:
    """What the table says of one day: its pins, the tools of each state, the last of a session."""

    def __init__(self, pins: list[_Pin]) -> None:
        self.pins = pins
        self.of = {state: pin.toolset for pin in pins for state in pin.state_ids}
        self.latest = {pin.session_id: pin.toolset for pin in pins}

    @classmethod
    def read(cls, lake: Lake, day: str) -> "_Day":
        """Read a day; without a partition it has no pins."""
        return cls(_read(lake, day))


class Toolsets:
    """The tools of the states of some days.

    Args:
        lake: has the table ``toolsets``, and schemas from an installation where there are.
        states: all the states of their days.
    """

    def __init__(self, lake: Lake, states: Sequence[TraceState]) -> None:
        self._lake = lake
        self._states: dict[tuple[str, str], list[TraceState]] = {}
        for state in states:
            self._states.setdefault((state.day, state.session_id), []).append(state)
        self._installed = kept_sets(lake)
        #: Equal sets are one object, so that conversions are shared and memory is bounded.
        self._same: dict[tuple[str, str], Toolset] = {}
        self._day = lru_cache(KEPT_DAYS)(partial(_Day.read, lake))
        self._chosen = lru_cache(KEPT_SESSIONS)(self._choose)

    def of(self, state: TraceState) -> Toolset:
        """Return the tools that a state was offered, or will be."""
        pinned = self._day(state.day).of.get(state.state_id)
        return pinned or self._chosen(state.day, state.session_id)

    def _choose(self, day: str, session_id: str) -> Toolset:
        mine = [state.whole for state in self._states[day, session_id]]
        chosen = session_tools(mine, self._installed)[session_id]
        latest = self._day(day).latest.get(session_id)
        if latest is not None and latest.digest == chosen.digest:
            return latest
        return self._same.setdefault((chosen.digest, chosen.source), chosen)

    def pin(self, states: Iterable[TraceState]) -> None:
        """Keep the tools of these states as they are; call it before they are asked.

        Days without anything new are not written again.

        Raises:
            StorageError: the lake is not writable.
        """
        by_day: dict[str, list[TraceState]] = {}
        for state in states:
            by_day.setdefault(state.day, []).append(state)
        self._day.cache_clear()  # another run may have added to them
        for day, mine in by_day.items():
            pins = self._day(day).pins
            if self._add(pins, [s for s in mine if s.state_id not in self._day(day).of]):
                rows = [
                    {
                        "session_id": pin.session_id,
                        "digest": pin.toolset.digest,
                        "source": pin.toolset.source,
                        "tools": pin.toolset.tools,
                        "state_ids": pin.state_ids,
                    }
                    for pin in pins
                ]
                self._lake.write("toolsets", rows, day=day)
        self._day.cache_clear()

    def _add(self, pins: list[_Pin], new: Sequence[TraceState]) -> bool:
        known = {(pin.session_id, pin.toolset.digest): pin for pin in pins}
        for state in new:
            toolset = self.of(state)
            key = (state.session_id, toolset.digest)
            if key not in known:
                known[key] = _Pin(state.session_id, toolset, [])
                pins.append(known[key])
            known[key].state_ids.append(state.state_id)
        return bool(new)


def toolsets_of_day(lake: Lake, day: str) -> dict[str, Toolset]:
    """Return digest -> tools of a day, for reading replies again."""
    return {pin.toolset.digest: pin.toolset for pin in _read(lake, day)}


def _read(lake: Lake, day: str) -> list[_Pin]:
    rows = lake.rows("toolsets", days=[day])
    return [
        _Pin(row["session_id"], Toolset(row["tools"], row["source"]), list(row["state_ids"]))
        for row in rows
    ]
