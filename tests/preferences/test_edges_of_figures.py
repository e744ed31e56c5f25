"""Edges of the statistics: ties, orders, single arguments, and what is not drawn."""

import json
from types import SimpleNamespace
from typing import Any, cast

from composer_pipeline.preferences.near_duplicates import near_duplicates, prompt_tail, shingles_of
from composer_pipeline.preferences.quality import (
    MAX_RATERS,
    Measurement,
    _length_ratio,
    agreement_figure,
)
from composer_pipeline.preferences.rules import NearDuplicates
from composer_pipeline.preferences.style import FEATURES, style_of


def test_the_first_pair_by_id_stands_for_its_repeats():
    same = shingles_of("fix the tests", "pytest")
    rows = near_duplicates([("p2", "b", same), ("p1", "a", same)], NearDuplicates())
    assert [(row["pair_id"], row["near"]) for row in rows] == [("p2", "p1")]


def test_the_tail_of_a_prompt_is_its_end():
    messages = [json.dumps({"content": text}) for text in ("oldest", "older", "last")]
    assert prompt_tail(messages, 100) == "oldest\nolder\nlast"
    assert prompt_tail(messages, 6) == "r\nlast"


def test_a_pair_of_equal_lengths_has_no_longer_side():
    found = _length_ratio([{"length_ratio": ratio} for ratio in (0.5, 1.0, 1.0, 2.0)])
    assert found["chosen_longer"].value == 0.25


def test_one_argument_stands_in_no_order():
    def keys_sorted(**arguments: Any) -> float:
        call = {"function": {"name": "Bash", "arguments": arguments}}
        return style_of([{"tool_calls": [call]}], {})[FEATURES.index("keys_sorted")]

    assert keys_sorted(command="ls") == 0.5
    assert keys_sorted(a=1, b=2) == 1.0
    assert keys_sorted(b=1, a=2) == 0.0


def test_raters_that_are_not_drawn_are_counted():
    def figure(raters: int) -> str:
        names = [f"r{n:02}" for n in range(raters)]
        matrix = {(names[0], name): Measurement(1.0, 1) for name in names[1:]}
        return agreement_figure(cast(Any, SimpleNamespace(matrix={"L2": matrix})))

    assert "not drawn" not in figure(MAX_RATERS)
    assert figure(MAX_RATERS + 3).endswith("\n\n3 more are not drawn.")
