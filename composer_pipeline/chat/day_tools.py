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

import msgspec

from composer_pipeline.chat.kept_tools import kept_sets
from composer_pipeline.chat.tool_schemas import Toolset
from composer_pipeline.chat.tools import session_tools
from composer_pipeline.lake import Lake
from composer_pipeline.trace_states import TraceState


class _Pin(msgspec.Struct):
    """Tools of a session, and the states that were asked with them."""

    session_id: str
    toolset: Toolset
    state_ids: list[str]


class Toolsets:
    """The tools of the states of some days.

    Args:
        lake: has the table ``toolsets``, and schemas from an installation where there are.
        states: all the states of their days.
    """

    def __init__(self, lake: Lake, states: Sequence[TraceState]) -> None:
        self._lake = lake
        by_day: dict[str, list[TraceState]] = {}
        for state in states:
            by_day.setdefault(state.day, []).append(state)
        installed = kept_sets(lake)
        self._pins: dict[str, list[_Pin]] = {}
        self._of: dict[str, Toolset] = {}
        for day, mine in by_day.items():
            pins = self._pins[day] = _read(lake, day)
            chosen = session_tools(mine, installed)
            latest = {pin.session_id: pin.toolset for pin in pins}
            # An equal set is the same object, so that its conversion can be shared.
            chosen = {s: _same(latest.get(s), chosen[s]) for s in chosen}
            self._of |= {state.state_id: chosen[state.session_id] for state in mine}
            self._of |= {state: pin.toolset for pin in pins for state in pin.state_ids}

    def of(self, state: TraceState) -> Toolset:
        """Return the tools that a state was offered, or will be."""
        return self._of[state.state_id]

    def pin(self, states: Iterable[TraceState]) -> None:
        """Keep the tools of these states as they are; call it before they are asked.

        Days without anything new are not written again.

        Raises:
            StorageError: the lake is not writable.
        """
        by_day: dict[str, list[TraceState]] = {}
        for state in states:
            by_day.setdefault(state.day, []).append(state)
        for day, mine in by_day.items():
            self._pins[day] = _read(self._lake, day)  # another run may have added to it
            if self._add(day, mine):
                rows = [
                    {
                        "session_id": pin.session_id,
                        "digest": pin.toolset.digest,
                        "source": pin.toolset.source,
                        "tools": pin.toolset.tools,
                        "state_ids": pin.state_ids,
                    }
                    for pin in self._pins[day]
                ]
                self._lake.write("toolsets", rows, day=day)

    def _add(self, day: str, states: Sequence[TraceState]) -> bool:
        pins = self._pins.setdefault(day, [])
        pinned = {state for pin in pins for state in pin.state_ids}
        known = {(pin.session_id, pin.toolset.digest): pin for pin in pins}
        new = [state for state in states if state.state_id not in pinned]
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


def _same(before: Toolset | None, now: Toolset) -> Toolset:
    return before if before is not None and before.digest == now.digest else now


def _read(lake: Lake, day: str) -> list[_Pin]:
    rows = lake.rows("toolsets", days=[day])
    return [
        _Pin(row["session_id"], Toolset(row["tools"], row["source"]), list(row["state_ids"]))
        for row in rows
    ]
