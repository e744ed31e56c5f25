"""Pairs that are nearly the same."""

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer_pipeline.preferences.near_duplicates import near_duplicates, prompt_tail, shingles_of
from composer_pipeline.preferences.rules import NearDuplicates


def test_near_duplicates_are_found_and_others_are_not():
    dice = random.Random(5)
    base = [f"word{dice.randrange(1000)}" for _ in range(300)]
    near = [*base[:290], "other", *base[291:]]
    far = [f"word{dice.randrange(1000)}" for _ in range(300)]
    pairs = [
        ("p1", "s1", shingles_of(" ".join(base), "do it")),
        ("p2", "s2", shingles_of(" ".join(near), "do it")),
        ("p3", "s1", shingles_of(" ".join(base), "do it")),
        ("p4", "s1", shingles_of(" ".join(far), "do it")),
        ("p5", "s1", shingles_of(" ".join(base), "never do that, but something else")),
        ("p6", "s1", shingles_of("", "")),
        ("p7", "s1", shingles_of("", "")),
    ]
    got = {r["pair_id"]: r for r in near_duplicates(pairs, NearDuplicates(threshold=0.95))}
    assert set(got) == {"p2", "p3", "p5", "p7"}
    assert (got["p2"]["near"], got["p2"]["same_session"]) == ("p1", False)
    assert (got["p3"]["near"], got["p3"]["similarity"], got["p3"]["same_session"]) == (
        "p1", 1.0, True,
    )  # fmt: skip
    a, b = pairs[0][2], pairs[1][2]
    assert got["p2"]["similarity"] == pytest.approx(len(a & b) / len(a | b))
    strict = near_duplicates(pairs, NearDuplicates(threshold=1))
    assert {r["pair_id"] for r in strict} == {"p3", "p7"}


@settings(max_examples=40)
@given(st.lists(st.text("abc ", max_size=12), max_size=12))
def test_reported_similarities_are_exact(texts):
    pairs = [(f"p{i:02}", "s", shingles_of(text, "")) for i, text in enumerate(texts)]
    of = {pair_id: found for pair_id, _, found in pairs}
    rows = near_duplicates(pairs, NearDuplicates(threshold=0.5))
    for found in rows:
        a, b = of[found["pair_id"]], of[found["near"]]
        assert found["similarity"] == pytest.approx(len(a & b) / len(a | b))
        assert found["similarity"] >= 0.5
        assert found["near"] not in {r["pair_id"] for r in rows}
    same: dict[Any, Any] = {}
    for pair_id, _, shingles in pairs:  # an exact repeat is never missed
        first = same.setdefault(shingles, pair_id)
        if first != pair_id:
            assert pair_id in {r["pair_id"] for r in rows}


def test_banding_finds_most_of_what_is_at_the_threshold():
    dice = random.Random(7)
    missed = 0
    for _ in range(60):
        base = [f"w{dice.randrange(10_000)}" for _ in range(400)]
        at = dice.randrange(360)
        changed = base[:at] + [f"v{n}" for n in range(36)] + base[at + 36 :]
        pairs = [("a", "s", shingles_of(" ".join(base), "x")),
                 ("b", "s", shingles_of(" ".join(changed), "x"))]  # fmt: skip
        similarity = len(pairs[0][2] & pairs[1][2]) / len(pairs[0][2] | pairs[1][2])
        assert 0.8 < similarity < 0.85
        missed += not near_duplicates(pairs, NearDuplicates())
    assert missed <= 1


def test_tail_is_the_end_of_what_was_said():
    call = '{"role":"assistant","content":"","tool_calls":[{"function":{"name":"Read"}}]}'
    messages = ['{"role":"user","content":"start"}', call, '{"role":"tool","content":"end"}']
    assert prompt_tail(messages, 4) == "\nend"
    assert "Read" in prompt_tail(messages, 200)
    assert prompt_tail(messages, 1000).startswith("start")


@pytest.mark.parametrize("limit", [1, 2, 5, 6, 7, 11])
def test_a_tail_has_just_so_many_characters(limit):
    messages = [json.dumps({"role": "user", "content": text}) for text in ("abcde", "fghij")]
    assert prompt_tail(messages, limit) == "abcde\nfghij"[-limit:]
