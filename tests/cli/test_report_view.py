"""What a person reads of a report: every number, nothing as code."""

import pytest

from composer_pipeline.cli.common import readable


@pytest.mark.parametrize(
    ("value", "name", "text"),
    [
        ({"gold": 1000, "silver": 1}, "by_tier", "gold: 1,000\nsilver: 1"),
        ({"careful": {"calls": 3, "errors": {}}}, "teachers", "careful: calls 3, errors -"),
        (["a.py", "b.py"], "files", "a.py\nb.py"),
        ([], "skipped", "-"),
        ("", "warning", "-"),
        (None, "sweep", "-"),
        (0, "unreadable", "0"),
        (0.0, "leakage", "0"),
        (False, "private", "no"),
        (2756.16666, "tokens_per_step", "2756"),
        (0.00171661376, "adapter", "0.001717"),
        (123456.7, "tokens", "123,457"),
        (9346152000, "cost_picodollars", "0.009346152 USD"),
        ({"a": {"cost_picodollars": 5}}, "t", "a: cost_picodollars 0.000000000005 USD"),
        ("lake/[a]b", "lake", "lake/[a]b"),
    ],
)  # fmt: skip
def test_fields_are_text(value, name, text):
    assert readable(value, name) == text
