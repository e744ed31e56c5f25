"""A value, its JSON text and its cell in Parquet are judged alike, and once redacted stay so.

What a user would lose: a lake that ``verify`` and ``dataset`` pass and publishing refuses.
"""

import json
import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from composer_pipeline.redaction.redact import find_secrets, redact_value
from composer_pipeline.redaction.scanning import Scanner, _private
from tests.redaction.labelled import secrets

DUMPS: dict[str, Callable[[Any], str]] = {
    "compact": lambda v: json.dumps(v, separators=(",", ":")),
    "spaced": lambda v: json.dumps(v, ensure_ascii=False),
    "indented": lambda v: json.dumps(v, indent=2),
    "with a line end": lambda v: json.dumps(v) + "\n",
}
SHAPES: dict[str, Callable[[str], Any]] = {
    "text": lambda t: t,
    "block": lambda t: [{"type": "text", "text": t}],
    "input": lambda t: {"command": "run it", "content": t, "n": 3},
    "nested": lambda t: {"a": [{"b": json.dumps({"c": t})}]},
    "key": lambda t: {t: 1},
}
ACCOUNT_SID = "AC" + "0f3b" * 8
STRUCTURED: list[Any] = [
    {"account_sid": ACCOUNT_SID, "x": 1},
    {"accountId": "481516234299"},
    {"run": ["mysql", "-u", "root", "-pS3cr3t!x9"]},
    {"env": [{"name": "DB_PASSWORD", "value": "hunter23!"}]},
    {"headers": {"Authorization": "Basic bWlyYTpodW50ZXIyMyE="}},
    {"kind": "Secret", "data": {"pw": "aHVudGVyMjMh"}},
    [["Cookie", "sid=8f7a6b5c4d3e2f1a"]],
]


def judgements(value: Any) -> dict[str, bool]:
    """Return whether a value is private, by each way to look at it."""
    scanner = Scanner()
    found = {"value": bool(find_secrets(value))}
    for name, dump in DUMPS.items():
        text = dump(value)
        found[f"{name} text"] = bool(find_secrets(text))
        found[f"{name} JSON"] = bool(scanner.of_json(text))
        column = pa.array([text, "nothing"], pa.string())
        found[f"{name} cell"] = bool(list(_private(column, scanner)))
    return found


@pytest.mark.parametrize("value", STRUCTURED, ids=lambda v: json.dumps(v)[:24])
def test_what_its_key_gives_away_is_found_in_every_form(value: Any) -> None:
    assert set(judgements(value).values()) == {True}
    redacted, counts = redact_value(value)
    assert counts
    assert set(judgements(redacted).values()) == {False}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_planted_secrets_are_judged_alike_and_once(shape: str) -> None:
    rng = random.Random(33)
    for item in rng.sample(secrets(41), 40):
        value = SHAPES[shape](item.text)
        said = judgements(value)
        assert len(set(said.values())) == 1, (item.kind, said)
        redacted, _ = redact_value(value)
        assert redact_value(redacted) == (redacted, {}), item.kind
        assert set(judgements(redacted).values()) == {False}, item.kind
