"""What is private in tables and files: every place, by kinds and never with its text.

``verify``, ``dataset``, ``export`` and publishing judge by it, so that they agree.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import zstandard

from composer_pipeline.errors import ComposerError
from composer_pipeline.redaction.people import user_names
from composer_pipeline.redaction.redact import find_secrets, review_value, strings
from composer_pipeline.redaction.user_rules import RedactionRules, active_rules, scan_externally
from composer_pipeline.redaction.vault import HashedValues

_PURPOSE = "a public release needs a second scanner"
#: Account names that are folders of every machine: as a part of a path they identify nobody.
_FOLDERS = frozenset(
    ("bin", "build", "data", "dev", "home", "lib", "opt", "src", "srv", "tmp", "usr", "var", "work")
)
CARD = "README.md"


def account_names() -> set[str]:
    """Return the user's name, from the home folder."""
    return {name for name in user_names(f"{Path.home()}/") if name not in _FOLDERS}


class Scanner:
    """Finds what is private, and remembers its verdicts, by digest, over all tables and files.

    The rules are those of redaction, including the user's own, and the user's name.

    Args:
        lake: whose long random values must not occur, wherever some session revealed them.
        public: use the second scanner too; everybody will be able to read the files.
        allow: what may occur in the card although it looks private: the contact.
        review: count what scores just below the threshold of redaction.
    """

    def __init__(
        self,
        lake: Any = None,
        *,
        public: bool = False,
        allow: Iterable[str] = (),
        review: bool = False,
    ) -> None:
        self._known = HashedValues.of(lake) if lake else HashedValues()
        self._public = public
        self._names = frozenset(account_names())
        self._verdicts: dict[bytes, list[str]] = {}
        self._reviewing = review
        self._review: set[tuple[str, str]] = set()
        rules = active_rules()
        self._allowed = tuple(allow)
        self._card_rules = rules.model_copy(update={"allow": (*rules.allow, *self._allowed)})

    @property
    def review(self) -> Counter[str]:
        """Return how many distinct values score just below the threshold, by evidence."""
        return Counter(kind for kind, _ in self._review)

    def of_json(self, source: str | bytes) -> list[str]:
        """Return the kinds of what is private in JSON; raise ValueError if it is not JSON."""
        data = source.encode("utf-8", "surrogatepass") if isinstance(source, str) else source
        return self._once(b"json", data, lambda: json.loads(source))

    def of_text(self, text: str, *, card: bool = False) -> list[str]:
        """Return the kinds of what is private in a text; the card may hold the contact."""
        if card:
            return self.of_value(text, self._card_rules)
        return self._once(b"text", text.encode("utf-8", "surrogatepass"), lambda: text)

    def of_value(self, value: Any, rules: RedactionRules | None = None) -> list[str]:
        """Return the kinds of what is private in a text or JSON value, without the memory."""
        kinds = find_secrets(value, self._names, rules) or [
            item.kind
            for text in strings(value)
            for item in self._known.find(text.encode("utf-8", "replace"))
        ]
        if self._public and not kinds:
            found = (
                (place.kind, text[place.start : place.end])
                for text in strings(value)
                for place in scan_externally(text, _PURPOSE)
            )
            kinds = [kind for kind, secret in found if secret not in self._allowed]
        if self._reviewing and not kinds:
            left = review_value(value, self._names, rules)
            self._review |= {(item.evidence[-1], token) for token, item in left}
        return kinds

    def _once(self, what: bytes, data: bytes, value: Callable[[], Any]) -> list[str]:
        digest = hashlib.blake2b(data, digest_size=16, person=what).digest()
        if (kinds := self._verdicts.get(digest)) is None:
            kinds = self._verdicts[digest] = self.of_value(value()) or _CLEAN
        return kinds


_CLEAN: list[str] = []
#: Rows that are decoded at a time.
BATCH = 32


class Findings:
    """All that a scanner found, by place, column and session."""

    def __init__(self, scanner: Scanner) -> None:
        self.scanner = scanner
        #: (place, column, session) -> where it is first, cells, kinds.
        self._found: dict[tuple[str, str, str], tuple[str, int, Counter[str]]] = {}

    def __len__(self) -> int:
        return len(self._found)

    def add(
        self, where: str, kinds: Iterable[str], at: str = "", column: str = "", session: str = ""
    ) -> None:
        """Add what one cell, line or file holds, if anything."""
        if kinds:
            session = "" if self.scanner.of_text(session) else session
            first, cells, known = self._found.get((where, column, session), (at, 0, Counter[str]()))
            known.update(kinds)
            self._found[where, column, session] = first, cells + 1, known

    def lines(self) -> list[str]:
        """Return a sentence for each place, and at the end one with the remedy."""
        if not self._found:
            return []
        found = []
        for (where, column, session), (first, cells, kinds) in sorted(self._found.items()):
            parts = [first, session and f"session {session}", column and f"column {column}"]
            place = ": ".join(filter(None, (where, ", ".join(filter(None, parts)))))
            counts = (f"{kind} {n}" if n > 1 else kind for kind, n in sorted(kinds.items()))
            more = f", in {cells} places" if cells > 1 else ""
            found.append(f"{place} holds {', '.join(counts)}{more}")
        return [*found, self._remedy()]

    def _remedy(self) -> str:
        named = sorted({session for _, _, session in self._found if session})
        out = "; or composer-pipeline withdraw --session {} takes the session out".format
        return (
            "composer-pipeline reparse, then pairs, normalize and dataset redact it; for what is"
            " then left, or is not private, first add a rule, or a value of `allow`, to the file of"
            " COMPOSER_REDACTION" + "".join(map(out, named))
        )

    def refuse(self, error: type[ComposerError] = ComposerError) -> None:
        """Raise an error that lists everything, if there is anything."""
        if self._found:
            raise error("\n".join(self.lines()))

    def rows(self, table: pa.Table, where: str, first: int = 0) -> int:
        """Scan the cells of a table's rows; return the number of the row after them."""
        for batch in table.to_batches():
            for name in batch.schema.names:
                for row, kinds in _private(batch.column(name), self.scanner):
                    self.add(where, kinds, f"row {first + row}", name, _session(batch, row))
            first += batch.num_rows
        return first

    def row(self, row: Mapping[str, Any], where: str, number: int) -> None:
        """Scan a row that is no part of a table: its texts, and the messages of its lists."""
        for name, value in row.items():
            for part in value if isinstance(value, list) else [value]:
                kinds = self.scanner.of_json(json.dumps(part))
                self.add(where, kinds, f"row {number}", name, row.get("session_id") or "")

    def parquet(self, file: pq.ParquetFile, where: str) -> None:
        """Scan the cells, column names and metadata of a Parquet file."""
        schema, first = file.schema_arrow, 0
        for text in (*schema.names, *_metadata(schema)):
            self.add(where, self.scanner.of_text(text), "its schema")
        for batch in batches(file):
            first = self.rows(pa.Table.from_batches([batch]), where, first)

    def file(self, name: str, content: bytes | Path, where: str = "") -> None:
        """Scan a file as its readers will read it; what cannot be read is reported as well."""
        where = where or name
        try:
            if name.endswith(".parquet"):
                self.parquet(pq.ParquetFile(opened(content)), where)
                return
            data = content.read_bytes() if isinstance(content, Path) else content
            if name.endswith(".jsonl"):
                self._json_lines(where, data)
            elif name.endswith(".json"):
                self.add(where, self.scanner.of_json(data), session=_named_session(data))
            else:
                self.add(where, self.scanner.of_text(data.decode(), card=name == CARD))
        except (ValueError, OSError):
            self.add(where, ["what cannot be read"])

    def _json_lines(self, where: str, data: bytes) -> None:
        session = _named_session(data)
        for number, line in enumerate(data.splitlines(), start=1):
            if line.strip():
                try:
                    kinds = self.scanner.of_json(line)
                except ValueError:
                    kinds = ["what is not JSON"]
                self.add(where, kinds, f"line {number}", session=session)


def opened(content: bytes | Path) -> pa.NativeFile:
    """Open a file for pyarrow."""
    return pa.OSFile(str(content)) if isinstance(content, Path) else pa.BufferReader(content)


def batches(file: pq.ParquetFile, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file in order, at most :data:`BATCH` at a time."""
    for number in range(file.metadata.num_row_groups):
        yield from file.iter_batches(
            batch_size=BATCH, row_groups=[number], columns=columns, use_threads=False
        )


def _metadata(schema: pa.Schema) -> Iterator[str]:
    for fields in (schema.metadata, *(schema.field(i).metadata for i in range(len(schema)))):
        for key, value in (fields or {}).items():
            if key != b"ARROW:schema":  # the schema itself, encoded
                yield key.decode("utf-8", "replace")
                yield value.decode("utf-8", "replace")


def _private(column: pa.Array, scanner: Scanner) -> Iterator[tuple[int, list[str]]]:
    """Yield (row, kinds) of the private cells; each distinct value is scanned once."""
    is_list = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
    values = pc.list_flatten(column) if is_list else column
    is_json = "json" in str(values.type)
    values = values.storage if isinstance(values, pa.ExtensionArray) else values
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        values = _printed(values)
        if values is None:
            return
    for value in values.unique().to_pylist():
        if value is None:
            continue
        try:
            kinds = scanner.of_json(value) if is_json else scanner.of_text(value)
        except json.JSONDecodeError:
            kinds = ["what is not JSON"]
        if kinds:
            places = pc.indices_nonzero(pc.equal(values, pa.scalar(value, values.type)))
            rows = pc.list_parent_indices(column).take(places) if is_list else places
            yield from ((row, kinds) for row in rows.to_pylist())


_NO_TEXT = (
    pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_temporal,
    pa.types.is_null,
)  # fmt: skip


def _printed(values: pa.Array) -> pa.Array | None:
    """Return values of other types as texts; ``None`` for numbers, flags and times."""
    if any(is_kind(values.type) for is_kind in _NO_TEXT):
        return None
    return pa.array([None if v is None else _text(v) for v in values.to_pylist()], pa.string())


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        packed = value.startswith(zstandard.FRAME_HEADER)
        data = zstandard.ZstdDecompressor().decompress(value) if packed else value
        return data.decode("utf-8", "replace")
    return str(value)


def _session(batch: pa.RecordBatch, row: int) -> str:
    has = "session_id" in batch.schema.names
    return str(batch.column("session_id")[row].as_py() or "") if has else ""


_SESSION = re.compile(rb'"(?:sessionId|session_id|id)":\s*"([^"\\]{8,64})"')


def _named_session(data: bytes) -> str:
    found = _SESSION.search(data[:65536])
    return found[1].decode("utf-8", "replace") if found else ""
