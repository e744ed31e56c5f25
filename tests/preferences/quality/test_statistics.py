"""Alpha, noise, separability and near-duplicates on planted data."""

import math
import random
from typing import Any

import krippendorff
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences.actions.levels import Level
from composer_pipeline.preferences.quality.figures import agreement_figure, separability_figure
from composer_pipeline.preferences.quality.near_duplicates import (
    near_duplicates,
    prompt_tail,
    shingles_of,
)
from composer_pipeline.preferences.quality.rater_agreement import (
    agreement_matrix,
    noise_floor,
    nominal_alpha,
)
from composer_pipeline.preferences.quality.separability import FEATURES, separability
from composer_pipeline.preferences.quality.statistics import ALL, measure, write_statistics
from composer_pipeline.preferences.rules import NearDuplicates, Separability


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.lists(st.one_of(st.none(), st.integers(0, 4)), min_size=4, max_size=4),
        min_size=1,
        max_size=12,
    )
)
def test_alpha_is_the_librarys(units):
    given_units = [[str(v) for v in unit if v is not None] for unit in units]
    found = nominal_alpha(given_units)
    pairable = [unit for unit in given_units if len(unit) > 1]
    assert found.n == len(pairable)
    values = {v for unit in pairable for v in unit}
    if len(values) < 2:
        assert found.value is None
        assert found.note
        return
    table = [[math.nan if v is None else v for v in unit] for unit in units]
    data = list(zip(*table, strict=True))
    expected = krippendorff.alpha(reliability_data=data, level_of_measurement="nominal")
    assert found.value == pytest.approx(expected, abs=1e-12)


def row(levels, *, raters=("agent", "a", "b"), controls=(False, False, False), mutates=False):
    return {
        "raters": list(raters),
        "levels": [int(level) for level in levels],
        "controls": list(controls),
        "mutates": [mutates] * len(raters),
        "labels": [None] * len(raters),
        "tool": "Bash",
    }


def test_matrix_counts_states_that_both_answered():
    rows = [
        row([Level.L0, Level.L2, Level.L4]),  # agent-a L0, agent-b L2, a-b L4
        row([Level.L2], raters=("agent", "a"), controls=(False, False)),
    ]
    strict, loose = (agreement_matrix(rows, bound) for bound in (Level.L1, Level.L2))
    values = {key: (found.value, found.n) for key, found in strict.items()}
    assert values == {("a", "agent"): (0.5, 2), ("agent", "b"): (0.0, 1), ("a", "b"): (0.0, 1)}
    assert loose["a", "agent"].value == loose["agent", "b"].value == 1.0
    assert loose["a", "b"].value == 0.0


def test_noise_floor_needs_a_control_and_counts_a_state_once():
    none = noise_floor([row([Level.L0, Level.NONE, Level.NONE])])
    assert none.excess.value is None
    assert none.excess.note == "not measured: no control replies"
    control = {"raters": ("agent", "a", "b", "c"), "controls": (False, False, False, True)}
    # Levels to the agent: a, b, then the control.
    rows = [
        row([Level.L0, Level.L4, Level.L0, *[Level.NONE] * 3], **control),  # 1/2 differ, 0
        row([Level.L4, Level.L4, Level.L4, *[Level.NONE] * 3], **control),  # 1, 1
        row([Level.L4, Level.L4, Level.L0, *[Level.NONE] * 3], **control),  # 1, 0
        row([Level.L4, Level.L4, Level.L4]),  # no control: not audited
    ]
    found = noise_floor(rows)
    assert found.teacher.value == pytest.approx((0.5 + 1 + 1) / 3)
    assert found.resample.value == pytest.approx(1 / 3)
    assert found.excess.value == pytest.approx(0.5)
    assert found.excess.n == 3
    only = row([Level.L0], raters=("agent", "c"), controls=(False, True))
    assert "no teacher answered" in noise_floor([only]).excess.note


def test_level_two_differs_only_where_something_changes():
    levels = [Level.L2, Level.L2, Level.NONE]
    shape = {"raters": ("agent", "a", "c"), "controls": (False, False, True)}
    assert noise_floor([row(levels, **shape)]).teacher.value == 0.0
    assert noise_floor([row(levels, mutates=True, **shape)]).teacher.value == 1.0


def action(name, **arguments):
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return [{"role": "assistant", "content": "", "tool_calls": [call]}]


def planted(n, chosen, rejected, *, sessions=10, seed=1):
    """Pairs whose sides are drawn by two functions of a random generator."""
    dice = random.Random(seed)
    return [
        {
            "session_id": f"s{i % sessions}",
            "chosen": chosen(dice),
            "rejected": rejected(dice),
        }
        for i in range(n)
    ]


def plain(dice):
    words = " ".join(f"w{dice.randrange(50)}" for _ in range(dice.randrange(3, 30)))
    return action("Bash", command=words, description="Say it")


def quoted(dice):
    words = " ".join(f'"w{dice.randrange(50)}"' for _ in range(dice.randrange(3, 30)))
    return action("Bash", command=words, description="Say it")


def reversed_keys(dice):
    (message,) = plain(dice)
    function = message["tool_calls"][0]["function"]
    function["arguments"] = dict(reversed(function["arguments"].items()))
    return [message]


def with_text(dice):
    return [{**plain(dice)[0], "content": "I will do that."}]


@pytest.mark.parametrize("side", [quoted, reversed_keys, with_text])
def test_planted_style_is_found(side):
    found = separability(planted(80, side, plain), Separability())
    assert found.auc is not None
    assert found.auc > 0.99
    assert found.roc[0] == (0.0, 0.0)
    assert found.roc[-1] == (1.0, 1.0)
    assert set(found.weights) == set(FEATURES)
    assert "AUC 1.0" in separability_figure(found, 0.7) or found.auc < 0.9995


def test_what_does_not_differ_is_not_found():
    found = separability(planted(300, plain, plain), Separability())
    assert found.auc is not None
    assert found.error is not None
    assert abs(found.auc - 0.5) < 4 * found.error
    assert found.auc < 0.7


def test_a_session_is_never_in_two_folds():
    # In each session another habit tells the sides apart. Only who has seen the session's other
    # pairs knows which habit it is, so over whole sessions nothing can be predicted.
    habits = ["'", '"', "\n", "é", " /abs/x", " "]
    rows = [
        {
            "session_id": f"s{number}",
            "chosen": action("Bash", command="x" * 40 + habit * 4),
            "rejected": action("Bash", command="x" * (40 + 4 * len(habit))),
        }
        for number, habit in enumerate(habits)
        for _ in range(10)
    ]
    found = separability(rows, Separability())
    assert found.auc is not None
    assert found.auc < 0.7


@pytest.mark.parametrize(
    ("rows", "note"),
    [
        (planted(49, quoted, plain), "49 pairs, fewer than 50"),
        (planted(60, quoted, plain, sessions=4), "4 sessions, fewer than 5"),
        ([], "0 pairs"),
    ],
)
def test_too_little_data_gives_no_number(rows, note):
    found = separability(rows, Separability())
    assert found.auc is None
    assert note in found.note
    assert note in separability_figure(found, 0.7)


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


@settings(max_examples=40, deadline=None)
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


def test_an_empty_lake_is_measured_as_nothing(tmp_path):
    lake = Lake(tmp_path)
    quality = write_statistics(lake).by_scope[ALL]
    rows = lake.rows("preference_statistics")
    assert rows
    assert {r["scope"] for r in rows} == {"all"}
    unmeasured = {r["statistic"]: r["note"] for r in rows if r["value"] is None}
    assert set(unmeasured) >= {"separability_auc", "excess_disagreement", "pairs_per_session_mean"}
    assert all(note.startswith(("not measured", "not defined")) for note in unmeasured.values())
    assert "no state" in agreement_figure(quality)
    assert measure(lake, "2026-11-16").funnel["states"] == 0
