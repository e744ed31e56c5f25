"""The sessions of OpenCode."""

from collections.abc import Iterable, Iterator, Sequence

from composer_pipeline.traces.records import LineStats, Record
from composer_pipeline.traces.source import TraceSource


class OpenCode(TraceSource):
    """The sessions of OpenCode."""

    name = "opencode"

    def recognises(self, head: Sequence[bytes]) -> bool:
        """Return True if a file is one of this agent's."""
        return False

    def records(self, lines: Iterable[bytes], stats: LineStats) -> Iterator[Record]:
        """Yield the conversation as records."""
        yield from ()
