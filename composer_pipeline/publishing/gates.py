"""The gates of publishing: every file of a commit is read by its format before it may leave.

A format that cannot be read is refused: what was not checked does not leave.
"""

import hashlib
import io
import json
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from composer_pipeline.dataset.files import CONFIGS
from composer_pipeline.dataset.splits import SPLITS, overlaps
from composer_pipeline.errors import ComposerError
from composer_pipeline.lake.schema import TABLES
from composer_pipeline.publishing.hub import Content
from composer_pipeline.redaction.people import user_names
from composer_pipeline.redaction.redact import find_secrets, strings
from composer_pipeline.redaction.user_rules import RedactionRules, active_rules, scan_externally


class PublishRefused(ComposerError):
    """A gate found something that must not be published. Exit code 1."""


def _refusal(where: str, kinds: list[str], session: str = "") -> PublishRefused:
    """Return the refusal of something private, by place and kinds; never with its text."""
    remedy = ""
    if session:
        remedy = (
            f"; composer-pipeline withdraw --session {session} takes the session out, or add a"
            " rule to the file of COMPOSER_REDACTION and run composer-pipeline reparse, then"
            " pairs, normalize and dataset"
        )
    return PublishRefused(f"{where} holds {', '.join(kinds)}{remedy}")


_PURPOSE = "a public release needs a second scanner"
#: Account names that are folders of every machine: as a part of a path they identify nobody.
_FOLDERS = frozenset(
    ("bin", "build", "data", "dev", "home", "lib", "opt", "src", "srv", "tmp", "usr", "var", "work")
)


def account_names() -> set[str]:
    """Return the publisher's user name, from the home folder."""
    return {name for name in user_names(f"{Path.home()}/") if name not in _FOLDERS}


class Scanner:
    """Finds what is private, and remembers what is clean, by digest, over all files.

    Args:
        public: use the second scanner too; everybody will be able to read the files.
        names: user names that must not occur, besides those of the user's file.
        allow: what may occur in the card although it looks private: the contact.
    """

    def __init__(
        self, *, public: bool = False, names: Iterable[str] = (), allow: Iterable[str] = ()
    ) -> None:
        self._public = public
        self._names = frozenset(names)
        self._clean: set[bytes] = set()
        rules = active_rules()
        self._allowed = tuple(allow)
        self._card_rules = rules.model_copy(update={"allow": (*rules.allow, *self._allowed)})

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
        kinds = find_secrets(value, self._names, rules)
        if self._public and not kinds:
            found = (
                (place.kind, text[place.start : place.end])
                for text in strings(value)
                for place in scan_externally(text, _PURPOSE)
            )
            kinds = [kind for kind, secret in found if secret not in self._allowed]
        return kinds

    def _once(self, what: bytes, data: bytes, value: Callable[[], Any]) -> list[str]:
        digest = hashlib.blake2b(data, digest_size=16, person=what).digest()
        if digest in self._clean:
            return []
        kinds = self.of_value(value())
        if not kinds:
            self._clean.add(digest)
        return kinds


#: Rows that are decoded at a time.
BATCH = 32


def opened(content: bytes | Path, where: str) -> pq.ParquetFile:
    """Open a Parquet file; refuse what is not one."""
    try:
        return pq.ParquetFile(content if isinstance(content, Path) else io.BytesIO(content))
    except (pa.ArrowInvalid, OSError) as error:
        raise PublishRefused(f"{where} is not a readable Parquet file") from error


def check_parquet(file: pq.ParquetFile, where: str, scanner: Scanner) -> None:
    """Refuse a file with anything private in its cells, column names or metadata."""
    schema = file.schema_arrow
    texts = [*schema.names, *(str(text) for text in _metadata(schema))]
    for text in texts:
        if kinds := scanner.of_text(text):
            raise _refusal(f"{where}: its schema", kinds)
    first = 0
    for batch in batches(file):
        for name in schema.names:
            for row, kinds in _private(batch.column(name), scanner):
                session = _session(batch, row, scanner)
                origin = f", session {session}" if session else ""
                raise _refusal(f"{where}: row {first + row}{origin}, column {name}", kinds, session)
        first += batch.num_rows


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
    """Yield (row, kinds) of the first private cell; each distinct value is scanned once."""
    is_list = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
    values = pc.list_flatten(column) if is_list else column
    is_json = "json" in str(values.type)
    values = values.storage if isinstance(values, pa.ExtensionArray) else values
    if not _is_text(values.type):
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
            at = pc.index(values, pa.scalar(value, values.type)).as_py()
            yield (pc.list_parent_indices(column)[at].as_py() if is_list else at), kinds
            return


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _printed(values: pa.Array) -> pa.Array | None:
    """Return values of other types as texts; ``None`` for numbers, flags and times."""
    kind = values.type
    if (
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_temporal(kind)
        or pa.types.is_null(kind)
    ):
        return None
    return pa.array([None if v is None else _text(v) for v in values.to_pylist()], pa.string())


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _session(batch: pa.RecordBatch, row: int, scanner: Scanner) -> str:
    """Return the session of a row, unless its id is private itself."""
    if "session_id" not in batch.schema.names:
        return ""
    session = str(batch.column("session_id")[row].as_py() or "")
    return "" if scanner.of_text(session) else session


#: Returns why a session, by id, must not be published; an empty text where it may.
Barred = Callable[[str], str]
#: Columns whose values must not be in two splits, and their names in a refusal.
_ONCE = {"group_id": "group", "session_id": "session", "prompt": "prompt"}
_SIDES = ("pair_id", "chosen", "rejected")


def check_rows(
    files: Iterable[tuple[str, str, pq.ParquetFile]], barred: Barred | None = None
) -> None:
    """Refuse rows that no dataset may have, in (configuration, split, file) of a whole dataset."""
    opened = list(files)
    for config, split, file in opened:
        _check_columns(config, split, file.schema_arrow)
        if set(_SIDES) <= set(file.schema_arrow.names):
            _check_sides(f"{config}/{split}", file)
        _check_barred(f"{config}/{split}", file, barred)
    placed = ((split, value) for config, split, file in opened for value in _placed(file))
    for kind, count in overlaps(placed).items():
        if count:
            raise PublishRefused(f"{count} {kind}(s) are in both splits")


def _check_columns(config: str, split: str, schema: pa.Schema) -> None:
    spec = TABLES[CONFIGS[config]]
    # Types are compared without the name of a list's items, which differs between writers.
    if schema.names != spec.schema.names or schema.types != spec.schema.types:
        raise PublishRefused(f"{config}/{split}: its columns are not those of {spec.name}")


def _check_sides(where: str, file: pq.ParquetFile) -> None:
    seen: set[str] = set()
    for batch in batches(file, list(_SIDES)):
        for pair_id, chosen, rejected in zip(
            *(batch.column(name).to_pylist() for name in _SIDES), strict=True
        ):
            if pair_id in seen:
                raise PublishRefused(f"{where}: a pair_id occurs twice")
            seen.add(pair_id)
            if not chosen or not rejected or chosen == rejected:
                raise PublishRefused(
                    f"{where}: pair {pair_id} has an empty side or chosen equal to rejected"
                )


def _check_barred(where: str, file: pq.ParquetFile, barred: Barred | None) -> None:
    if barred is None or "session_id" not in file.schema_arrow.names:
        return
    sessions: set[str] = set()
    for batch in batches(file, ["session_id"]):
        sessions.update(batch.column("session_id").unique().to_pylist())
    for session in sorted(sessions):
        if why := barred(session):
            raise PublishRefused(
                f"{where} has rows of session {session}: {why};"
                " run composer-pipeline dataset, which leaves them out"
            )


def _placed(file: pq.ParquetFile) -> Iterator[dict[str, str]]:
    """Yield the values of each row that must be in one split; prompts as digests."""
    names = [name for name in _ONCE if name in file.schema_arrow.names]
    for batch in batches(file, names):
        columns = [
            map(_prompt, batch.column(name).to_pylist())
            if name == "prompt"
            else batch.column(name).to_pylist()
            for name in names
        ]
        for values in zip(*columns, strict=True):
            yield {_ONCE[name]: value for name, value in zip(names, values, strict=True)}


def _prompt(messages: list[str]) -> str:
    return hashlib.blake2b(b"".join(map(_message, messages)), digest_size=16).hexdigest()


@lru_cache(maxsize=20_000)
def _message(source: str) -> bytes:
    text = json.dumps(json.loads(source), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


CARD = "README.md"
_DATA = re.compile(rf"data/(?P<config>[^/]+)/(?P<split>{'|'.join(SPLITS)})[^/]*\.parquet")
_SESSION = re.compile(rb'"(?:sessionId|session_id|id)":\s*"([^"\\]{8,64})"')
#: Bytes of a text in an image.
_MOST = 1 << 20
_PNG = b"\x89PNG\r\n\x1a\n"


def check_files(
    files: Mapping[str, Content],
    *,
    public: bool = False,
    allow: Iterable[str] = (),
    barred: Barred | None = None,
) -> None:
    """Refuse a commit that holds anything that must not be published.

    Every file is read as its readers will read it: Parquet row group by row group, JSON and
    messages with their keys, lines of JSON, other texts, and the text chunks of images. The
    rules are those of redaction, including the user's own, and the publisher's user name.

    Args:
        files: path in the repository to the bytes, or to where they are.
        public: use the second scanner too; everybody will be able to read the files.
        allow: texts that may occur in the card, such as the contact for withdrawals.
        barred: returns why no row of a session may be in the dataset, or an empty text.

    Raises:
        InputError: the redaction file is wrong, or ``public`` without the second scanner.
        PublishRefused: something is private (the message names configuration, row, session and
            column, and a remedy), a format cannot be read, other columns than the table's,
            a group, session or prompt in two splits, or a pair whose two sides are equal.
    """
    scanner = Scanner(public=public, names=account_names(), allow=allow)
    # Data first: what the card repeats of them is better reported at its origin.
    for name, content in sorted(
        files.items(), key=lambda item: (not item[0].startswith("data/"), item[0])
    ):
        if kinds := scanner.of_text(name):
            raise _refusal("the name of a file", kinds)
        _check_file(name, content, scanner)
    check_rows(
        (
            (match["config"], match["split"], opened(content, name))
            for name, content in sorted(files.items())
            if (match := _DATA.fullmatch(name)) and match["config"] in CONFIGS
        ),
        barred,
    )


def _check_file(name: str, content: Content, scanner: Scanner) -> None:
    if name.endswith(".parquet"):
        match = _DATA.fullmatch(name)
        where = f"{match['config']}/{match['split']}" if match else name
        if match and match["config"] not in CONFIGS:
            raise PublishRefused(f"{name}: there is no configuration {match['config']}")
        check_parquet(opened(content, where), where, scanner)
        return
    data = content.read_bytes() if isinstance(content, Path) else content
    if name.endswith(".jsonl"):
        _check_lines(name, data, scanner)
    elif data.startswith(_PNG):
        for text in _texts_of_png(name, data):
            if kinds := scanner.of_text(text):
                raise _refusal(f"{name}: a text of the image", kinds)
    else:
        _check_text(name, data, scanner)


def _check_text(name: str, data: bytes, scanner: Scanner) -> None:
    """Refuse a text file that holds something private; JSON is scanned with its keys."""
    try:
        text = data.decode()
        kinds = (
            scanner.of_json(data)
            if name.endswith(".json")
            else scanner.of_text(text, card=name == CARD)
        )
    except ValueError as error:
        raise PublishRefused(f"{name} cannot be read, so its content cannot be checked") from error
    if kinds:
        raise _refusal(name, kinds)


def _check_lines(name: str, data: bytes, scanner: Scanner) -> None:
    session = _SESSION.search(data[:65536])
    for number, line in enumerate(data.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            kinds = scanner.of_json(line)
        except ValueError as error:
            raise PublishRefused(f"{name}: line {number} is not JSON") from error
        if kinds:
            found = session[1].decode("utf-8", "replace") if session else ""
            found = "" if scanner.of_text(found) else found
            raise _refusal(f"{name}: line {number}", kinds, found)


def _texts_of_png(name: str, data: bytes) -> Iterator[str]:
    """Yield the texts that an image carries beside its pixels."""
    at = len(_PNG)
    while at + 12 <= len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + length]
        if at + 12 + length > len(data):
            break
        at += 12 + length
        if kind == b"IEND":
            break
        if kind in (b"zTXt", b"iTXt"):
            yield from _inflated(name, kind, body)
        elif kind not in (b"IHDR", b"PLTE", b"IDAT"):
            yield body.decode("utf-8", "replace").replace("\0", "\n")
    if at < len(data):
        yield data[at:].replace(b"tEXt", b"\n").decode("utf-8", "replace")


def _inflated(name: str, kind: bytes, body: bytes) -> Iterator[str]:
    key, _, rest = body.partition(b"\0")
    yield key.decode("utf-8", "replace")
    if kind == b"zTXt":
        packed, rest = True, rest[1:]
    else:
        packed, rest = rest[:1] == b"\1", rest[2:]
        language, _, rest = rest.partition(b"\0")
        translated, _, rest = rest.partition(b"\0")
        yield f"{language.decode('utf-8', 'replace')}\n{translated.decode('utf-8', 'replace')}"
    try:
        stream = zlib.decompressobj()
        text = stream.decompress(rest, _MOST) if packed else rest
        if stream.unconsumed_tail:
            raise PublishRefused(f"{name} has a text of more than {_MOST} bytes")
    except zlib.error as error:
        raise PublishRefused(f"{name} cannot be read, so its content cannot be checked") from error
    yield text.decode("utf-8", "replace")
