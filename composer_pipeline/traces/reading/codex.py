"""Codex CLI: ``~/.codex/sessions/**/rollout-*.jsonl`` as records.

Belongs here: what the lines of a rollout mean. Does not belong here: choosing a source
(``traces.reading.sources``) and everything behind the records.

A line is ``{timestamp, type, payload}``. ``session_meta`` names the session, its folder
and the version, ``turn_context`` the model, ``response_item`` is one item of the
conversation (message, function call, its output), ``compacted`` replaces the history, and
``event_msg`` is for the interface: only token counts and interruptions are used.

A rollout does not say which items one response of the model made. Items of the model that
follow each other without an output, a prompt or a new turn between them are one response.
It is known by the id of its first call; one without calls by its text and the response
before it, so that a resumed or forked copy has the same ids. Reasoning is dropped. Where
a tool's output is JSON with an exit code, the text inside is kept, with the exit code
before it when it is not 0.
"""

from collections.abc import Iterable, Iterator, Sequence

from composer_pipeline.traces.reading.codex_items import Item
from composer_pipeline.traces.reading.codex_rollout import TYPES, Rollout
from composer_pipeline.traces.reading.envelopes import Record
from composer_pipeline.traces.reading.raw_json import decode_any
from composer_pipeline.traces.reading.records import LineStats


class Codex:
    """The rollout files of Codex CLI."""

    name = "codex"

    def recognises(self, head: Sequence[bytes]) -> bool:
        """Say whether the first line that is an object is a rollout's."""
        for line in head:
            value = _object(line)
            if value is not None:
                kind = value.get("type")
                known = isinstance(kind, str) and kind in TYPES
                return known and isinstance(value.get("payload"), dict)
        return False

    def records(self, lines: Iterable[bytes], stats: LineStats) -> Iterator[Record]:
        """Yield the conversation as records; an undecodable line is counted."""
        rollout = Rollout(stats)
        for line in lines:
            stats.bytes += len(line)
            if not line.strip():
                continue
            stats.lines += 1
            value = _object(line)
            stats.last_line_bad = value is None and not line.endswith(b"\n")
            if value is None:
                stats.bad_lines += 1
                continue
            stats.records += 1
            stats.complete_bytes = stats.bytes
            yield from rollout.take(value)
        yield from rollout.flush()


def _object(line: bytes) -> Item | None:
    value = decode_any(line.strip(b"\xef\xbb\xbf \t\r\n\0"))
    return value if isinstance(value, dict) else None
