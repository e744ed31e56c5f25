"""Values are judged with their keys and structure, and strings stay apart."""

from typing import Any

import pytest

from composer_pipeline.redaction.redact import find_secrets, redact_value

WORD = "kTrWqVbNzLpXmRtGhJkSdFqWnBvCxZyL"  # letters alone: nothing but its place gives it away


@pytest.mark.parametrize(
    "value",
    [
        {"kind": "Secret", "data": {"motto": WORD}},
        {"apiVersion": "v1", "kind": "Secret", "stringData": {"motto": WORD, "n": 1}},
        {"outputs": {"db": {"sensitive": True, "value": WORD}}},
        {"keys": [{"kty": "oct", "k": WORD}]},
        {"kty": "RSA", "n": "0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbb", "d": WORD},
    ],
)
def test_a_structure_gives_a_value_away(value: Any) -> None:
    redacted, counts = redact_value(value)
    assert counts.total() == 1
    assert WORD not in str(redacted)
    assert find_secrets(redacted) == []


def test_the_same_words_elsewhere_stay() -> None:
    value = {"kind": "ConfigMap", "data": {"motto": WORD}, "k": WORD, "value": WORD}
    assert redact_value(value) == (value, {})


def test_a_rule_that_crosses_lines_does_not_cross_strings() -> None:
    value = ["machine git.acme.org login bob password", "whatever the file says"]
    assert redact_value(value) == (value, {})


@pytest.mark.parametrize("name", ["WALLET_MNEMONIC", "DB_DSN", "PASSWORD_SALT"])
def test_names_that_only_their_last_word_gives_away(name: str) -> None:
    (redacted, _) = redact_value(f"{name}=Kj23h4kjh23k4hQz")
    assert redacted.startswith(f"{name}=[SECRET_ASSIGNED_")
