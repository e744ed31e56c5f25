"""Subagents whose records lie in their parent's file.

Belongs here: which records belong to which subagent. Does not belong here: their turn
graphs, which are built as any other (``traces.graph.collect``).

Some versions write the records of a subagent into the main file, with an agent's id or,
older ones, only linked to each other (``isSidechain``); others wrap them in progress
records. What hangs below a record of the main trajectory saw that trajectory: it is no
subagent, and no prefix of its own can be told for it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from composer_pipeline.traces.reading import GRAPH_TYPES, Record, embedded_record


class Reads(Protocol):
    """What takes the records of one subagent."""

    def read(self, records: Iterable[Record]) -> None:
        """Take records, in file order."""
        ...

    def finish(self) -> None:
        """Know that there are no more."""
        ...


_Reads = TypeVar("_Reads", bound=Reads)


@dataclass(slots=True)
class Sidechain(Generic[_Reads]):
    """The records of one subagent.

    ``parent_call`` is the call that started it, where the file says so; ``last`` is the
    uuid of its last record, ``known`` are the hashes of all.
    """

    records: _Reads
    parent_call: str | None = None
    last: str | None = None
    known: set[int] = field(default_factory=set)


class Sidechains(Generic[_Reads]):
    """The subagents of one file, by agent id.

    Args:
        new: makes what takes the records of one of them.
    """

    def __init__(self, new: Callable[[], _Reads]) -> None:
        self.found: dict[str, Sidechain[_Reads]] = {}
        self._new = new
        self._name_of: dict[int, str] = {}

    def take(self, record: Record, main: bool, uuid: str) -> None:
        """Give a record to its subagent, if it has one.

        Args:
            record: a progress record, or one outside the main trajectory.
            main: it is one of the main trajectory.
            uuid: its uuid.
        """
        inner = embedded_record(record) if record.type == "progress" else None
        if inner is not None and inner.agent_id is not None:
            name, call = inner.agent_id, record.parent_tool_use_id
            inner.parent_uuid = self.found[name].last if name in self.found else None
        elif not main and record.is_sidechain is True and record.type in GRAPH_TYPES:
            inner, call, above = record, None, record.parent_uuid
            known = self._name_of.get(hash(above)) if above is not None else None
            name = record.agent_id or known or f"sidechain-{uuid}"
            if above is not None and known is None and name not in self.found:
                return
            self._name_of[hash(uuid)] = name
        else:
            return
        side = self.found.get(name)
        if side is None:
            side = self.found[name] = Sidechain(self._new(), call)
        if inner.uuid is not None and hash(inner.uuid) not in side.known:
            side.known.add(hash(inner.uuid))
            side.last = inner.uuid
            side.records.read((inner,))

    def finish(self) -> None:
        """Finish all."""
        for side in self.found.values():
            side.records.finish()
