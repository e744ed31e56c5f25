"""Searching the starts of lines finds what a multi-line pattern finds."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer_pipeline.traces.outcomes import line_start

PATTERNS = [r"FAIL(?:ED)?\b|ok\b", r"\s*(?:E: x|FAIL\b(?! *0))", r"\d+ "]


@pytest.mark.parametrize("pattern", PATTERNS)
@given(text=st.text(st.sampled_from("FAILEDok: x01\r\n \t"), max_size=30))
def test_same_as_a_multi_line_pattern(pattern: str, text: str) -> None:
    expected = re.search(rf"(?m)^(?:{pattern})", text) is not None
    assert line_start(pattern)(text) == expected


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("FAIL", True),
        ("x\nFAIL", True),
        ("x FAIL", False),
        ("x\n\nFAILED y", True),
        ("x\rFAIL", False),
        ("", False),
    ],
)
def test_only_the_start_of_a_line_counts(text: str, found: bool) -> None:
    assert line_start(r"FAIL(?:ED)?\b")(text) is found
