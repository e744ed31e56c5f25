"""Krippendorff's alpha, the agreement matrix and the noise floor."""

import math
import statistics

import krippendorff
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer_pipeline.preferences.actions.canonical import Level
from composer_pipeline.preferences.quality import agreement_matrix, noise_floor, nominal_alpha


@settings(max_examples=150)
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


def test_a_reply_that_changes_something_differs_at_level_two():
    # The agent only looked; the teacher's own action decides how strict the comparison is.
    shape = {"raters": ("agent", "a", "c"), "controls": (False, False, True)}
    found = row([Level.L2, Level.L0, Level.NONE], **shape)
    assert noise_floor([{**found, "mutates": [False, True, False]}]).teacher.value == 1.0
    assert noise_floor([{**found, "mutates": [True, False, False]}]).teacher.value == 1.0
    assert noise_floor([{**found, "mutates": [False, False, True]}]).teacher.value == 0.0


def test_the_error_of_the_excess_is_that_of_a_sample():
    shape = {"raters": ("agent", "a", "c"), "controls": (False, False, True)}
    cases = [(Level.L4, Level.L0), (Level.L4, Level.L4), (Level.L0, Level.L0), (Level.L4, Level.L0)]
    found = noise_floor([row([a, c, Level.NONE], **shape) for a, c in cases])
    gaps = [1.0, 0.0, 0.0, 1.0]
    assert found.error.value == pytest.approx(statistics.stdev(gaps) / math.sqrt(len(gaps)))
    assert noise_floor([row([Level.L4, Level.L0, Level.NONE], **shape)]).error.value is None
