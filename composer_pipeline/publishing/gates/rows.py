"""What rows of the dataset must be like, whatever they say: columns, sides, one split each.

Belongs here: the refusals that need no look at texts. Does not belong here: secrets
(``publishing.gates.parquet``) and which rows there are (``publishing.dataset``).
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache

import pyarrow as pa
import pyarrow.parquet as pq

from composer_pipeline.lake import TABLES
from composer_pipeline.publishing.configs import CONFIGS
from composer_pipeline.publishing.gates.parquet import batches
from composer_pipeline.publishing.gates.refused import PublishRefused
from composer_pipeline.publishing.splits import overlaps

#: Says of a session's id why it must not be published; nothing where it may.
Barred = Callable[[str], str]
#: What must not be in two splits: the column, and its name in a refusal.
_ONCE = {"group_id": "group", "session_id": "session", "prompt": "prompt"}
_SIDES = ("pair_id", "chosen", "rejected")


def check_rows(
    files: Iterable[tuple[str, str, pq.ParquetFile]], barred: Barred | None = None
) -> None:
    """Refuse rows that no dataset may have.

    Args:
        files: (configuration, split, file) of every file of the dataset.
        barred: says of a session why it must not be published, or nothing.

    Raises:
        PublishRefused: other columns than the table's, a group, session or prompt in two splits,
            a side that is empty or equal to the other, a pair twice, or a barred session.
    """
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
    """Yield what of each row must be in one split: prompts by the digest of their messages."""
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
