"""The gates of publishing: every file of a commit is read by its format before it may leave.

A format that cannot be read is refused: what was not checked does not leave.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache

import pyarrow as pa
import pyarrow.parquet as pq

from composer_pipeline.dataset.files import CONFIGS
from composer_pipeline.dataset.splits import SPLITS, overlaps
from composer_pipeline.errors import ComposerError
from composer_pipeline.lake.schema import TABLES
from composer_pipeline.publishing.hub import Content
from composer_pipeline.redaction.scanning import Findings, Scanner, batches, opened


class PublishRefused(ComposerError):
    """A gate found something that must not be published. Exit code 1."""


#: Returns why a session, by id, must not be published; an empty text where it may.
Barred = Callable[[str], str]
#: Columns whose values must not be in two splits, and their names in a refusal.
_ONCE = {"group_id": "group", "session_id": "session", "prompt": "prompt"}
_SIDES = ("pair_id", "chosen", "rejected")


def check_rows(
    files: Iterable[tuple[str, str, pq.ParquetFile]], barred: Barred | None = None
) -> None:
    """Refuse rows that no dataset may have, in (configuration, split, file) of a whole dataset."""
    every = list(files)
    for config, split, file in every:
        _check_columns(config, split, file.schema_arrow)
        if set(_SIDES) <= set(file.schema_arrow.names):
            _check_sides(f"{config}/{split}", file)
        _check_barred(f"{config}/{split}", file, barred)
    placed = ((split, value) for config, split, file in every for value in _placed(file))
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


_DATA = re.compile(rf"data/(?P<config>[^/]+)/(?P<split>{'|'.join(SPLITS)})[^/]*\.parquet")


def check_files(
    files: Mapping[str, Content], scanner: Scanner | None = None, barred: Barred | None = None
) -> None:
    """Refuse a commit that holds anything that must not be published.

    Every file is read as its readers will read it: Parquet row group by row group, JSON and
    messages with their keys, lines of JSON, other texts, and the text chunks of images.

    Args:
        files: path in the repository to the bytes, or to where they are.
        scanner: knows what it has scanned before.
        barred: returns why no row of a session may be in the dataset, or an empty text.

    Raises:
        InputError: the redaction file is wrong, or a public release without the second scanner.
        PublishRefused: something is private (the message names every configuration, row, session
            and column, and a remedy), a format cannot be read, other columns than the table's,
            a group, session or prompt in two splits, or a pair whose two sides are equal.
    """
    findings = Findings(scanner or Scanner())
    for name in sorted(files):
        findings.add("the name of a file", findings.scanner.of_text(name))
    data = {name: match for name in sorted(files) if (match := _DATA.fullmatch(name))}
    for name, match in data.items():
        if match["config"] not in CONFIGS:
            raise PublishRefused(f"{name}: there is no configuration {match['config']}")
        findings.file(name, files[name], f"{match['config']}/{match['split']}")
    findings.refuse(PublishRefused)  # what the card repeats is better reported at its origin
    for name in sorted(files.keys() - data.keys()):
        findings.file(name, files[name])
    findings.refuse(PublishRefused)
    check_rows(
        (
            (match["config"], match["split"], pq.ParquetFile(opened(files[name])))
            for name, match in data.items()
        ),
        barred,
    )
