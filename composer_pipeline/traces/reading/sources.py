"""Trace sources: whose logs a file holds, and how they become records.

Belongs here: the seam for agents other than Claude Code, and choosing a source by the
content of a file. Does not belong here: reading Claude Code's lines (``traces.reading.records``)
or another agent's (a module of its own, such as ``traces.reading.codex``).

A source turns lines into the records of Claude Code (:class:`Record`): user and assistant
messages with ``tool_use`` and ``tool_result`` blocks, linked by ``parent_uuid``. All that
follows (turns, states, hints, redaction, chains) is then the same for every agent. A
package adds a source as an entry point of the group ``composer_pipeline.trace_sources``.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import chain, islice
from typing import Protocol, runtime_checkable

from composer_pipeline.plugins import Registry
from composer_pipeline.traces.reading.codex import Codex
from composer_pipeline.traces.reading.envelopes import Record
from composer_pipeline.traces.reading.records import LineStats, read_records

#: Lines that a source sees to recognise a file.
HEAD_LINES = 5


@runtime_checkable
class TraceSource(Protocol):
    """The logs of one agent."""

    name: str

    def recognises(self, head: Sequence[bytes]) -> bool:
        """Say whether a file that begins with these lines is one of this agent's.

        Args:
            head: up to :data:`HEAD_LINES` lines, newlines kept.
        """
        ...

    def records(self, lines: Iterable[bytes], stats: LineStats) -> Iterator[Record]:
        """Yield records in file order and count into ``stats``; nothing is fatal.

        Args:
            lines: the file split at newline bytes, newlines kept.
            stats: receives the counts; complete when the iterator is exhausted.
        """
        ...


class ClaudeCode:
    """Claude Code's own session files; also every file that no other source claims."""

    name = "claude_code"

    def recognises(self, head: Sequence[bytes]) -> bool:
        """Say yes: lines that are no records are counted, never fatal."""
        return True

    def records(self, lines: Iterable[bytes], stats: LineStats) -> Iterator[Record]:
        """Yield the records, as :func:`composer_pipeline.traces.reading.records.read_records`."""
        return read_records(lines, stats)


SOURCES: Registry[TraceSource] = Registry(
    "composer_pipeline.trace_sources",
    "trace source",
    TraceSource,  # type: ignore[type-abstract]  # a protocol to check against
    {Codex.name: Codex, ClaudeCode.name: ClaudeCode},
)


@cache
def sources() -> tuple[TraceSource, ...]:
    """Return the sources in the order they are asked; Claude Code is the last.

    Raises:
        InputError: an entry point cannot be loaded or is no :class:`TraceSource`.
    """
    names = [name for name in SOURCES.names() if name != ClaudeCode.name]
    return tuple(SOURCES.get(name) for name in (*names, ClaudeCode.name))


def source_of(head: Sequence[bytes]) -> TraceSource:
    """Return the source whose file begins with these lines.

    Raises:
        InputError: as :func:`sources`.
    """
    return next(source for source in sources() if source.recognises(head))


def read_any(lines: Iterable[bytes], stats: LineStats) -> Iterator[Record]:
    """Yield the records of a file of any source; arguments as for ``read_records``.

    Raises:
        InputError: as :func:`sources`.
    """
    rest = iter(lines)
    head = list(islice(rest, HEAD_LINES))
    return source_of(head).records(chain(head, rest), stats)
