"""What must hold before anything leaves this machine.

Belongs here: refusals. Does not belong here: talking to the Hub (``publishing.hub``).
"""

import json
from collections.abc import Iterator, Mapping

import pyarrow as pa

from composer_pipeline.chat import prompt_hash
from composer_pipeline.errors import ComposerError
from composer_pipeline.lake import TABLES
from composer_pipeline.publishing.configs import CONFIGS
from composer_pipeline.publishing.splits import overlaps
from composer_pipeline.redaction import find_secrets, second_opinion, strings

_ASKS = "a public release needs a second scanner"


class PublishRefused(ComposerError):
    """A gate found something in the data that must not be published. Exit code 1."""


def check_gates(tables: Mapping[tuple[str, str], pa.Table], *, public: bool = False) -> None:
    """Refuse data that must not be published; look at what the final files decode to.

    Args:
        tables: (config, split) to rows.
        public: ask a second scanner too; everybody will be able to read the rows.

    Raises:
        InputError: ``public``, and the second scanner is not installed.
        PublishRefused: a secret, a group, session or prompt in two splits, or a pair
            whose two sides are equal.
    """
    sides: list[tuple[str, dict[str, str]]] = []
    for (config, split), table in tables.items():
        spec = TABLES[CONFIGS[config]]
        if table.column_names != spec.schema.names:
            raise PublishRefused(f"{config}/{split}: its columns are not those of {spec.name}")
        for row, column, kinds in find_private(table, public=public):
            raise PublishRefused(
                f"{config}/{split}: row {row}, column {column} holds {', '.join(kinds)}"
            )
        prompts = table.column("prompt").to_pylist()
        for group, session, prompt in zip(
            table.column("group_id").to_pylist(),
            table.column("session_id").to_pylist(),
            prompts,
            strict=True,
        ):
            digest = prompt_hash([json.loads(message) for message in prompt])
            sides.append((split, {"group": group, "session": session, "prompt": digest}))
        if config == "pairs":
            _check_pairs(table, split)
    for kind, count in overlaps(sides).items():
        if count:
            raise PublishRefused(f"{count} {kind}(s) are in both splits")


def _check_pairs(table: pa.Table, split: str) -> None:
    ids = table.column("pair_id").to_pylist()
    if len(set(ids)) != len(ids):
        raise PublishRefused(f"pairs/{split}: a pair_id occurs twice")
    for pair_id, chosen, rejected in zip(
        ids,
        table.column("chosen").to_pylist(),
        table.column("rejected").to_pylist(),
        strict=True,
    ):
        if not chosen or not rejected or chosen == rejected:
            raise PublishRefused(
                f"pairs/{split}: pair {pair_id} has an empty side or chosen equal to rejected"
            )


def check_text(name: str, text: str, *, public: bool = False) -> None:
    """Refuse a text file that must not be published; JSON is scanned with its keys.

    Args:
        name: the file's name; one that ends in ``.json`` is read as JSON.
        text: its content.
        public: ask a second scanner too.

    Raises:
        InputError: ``public``, and the second scanner is not installed.
        PublishRefused: it holds a secret, an address or a user's folder.
    """
    value = json.loads(text) if name.endswith(".json") else text
    kinds = find_secrets(value)
    if public and not kinds:
        kinds = [f.kind for part in strings(value) for f in second_opinion(part, _ASKS)]
    if kinds:
        raise PublishRefused(f"{name} holds {', '.join(kinds)}")


def find_private(table: pa.Table, *, public: bool = False) -> Iterator[tuple[int, str, list[str]]]:
    """Yield ``(row, column, kinds)`` of what is private in a table; each distinct string once.

    A message is scanned whole: its keys tell what its values are.
    """
    clean: set[str] = set()
    for name in table.column_names:
        for row, value in enumerate(table.column(name).to_pylist()):
            is_json = "arrow.json" in str(table.schema.field(name).type)
            items = value if isinstance(value, list) else [value]
            for item in items:
                if item in clean or not isinstance(item, str):
                    continue
                value = json.loads(item) if is_json else item
                kinds = find_secrets(value)
                if public and not kinds:
                    kinds = [f.kind for text in strings(value) for f in second_opinion(text, _ASKS)]
                if kinds:
                    yield row, name, kinds
                clean.add(item)
