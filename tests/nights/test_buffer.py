"""The rows of a night: new ones, and old ones by weight, within caps."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from composer_pipeline.nights.buffer import StateRow, mix
from composer_pipeline.nights.rules import Buffer

NIGHT = "2026-11-30"


def rows(count: int, *, day: str = NIGHT, session: str = "", project: str = "a") -> list[StateRow]:
    return [
        StateRow(f"{day}-{project}-{session}-{i}", session or f"{project}{day}-{i}", project, day,
                 "train")
        for i in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize(("share", "old"), [(0.0, 0), (0.25, 10), (0.5, 30), (0.8, 90)])
def test_so_large_a_share_of_all_rows_is_old(share: float, old: int) -> None:
    new, taken = mix(rows(30), rows(90, day="2026-11-01"), NIGHT, Buffer(old_share=share))
    assert (len(new), len(taken)) == (30, min(90, old))
    assert len(mix(rows(30), rows(7, day="2026-11-01"), NIGHT, Buffer(old_share=share))[1]) <= 7


def test_a_row_is_drawn_with_a_weight_that_halves_with_age() -> None:
    # The first draw of two rows takes one with its part of the weights, over many nights' hashes.
    rules = Buffer(half_life_days=10, old_share=0.5)
    first = Counter[int]()
    for i in range(4000):
        young, old = (
            replace(rows(1, day=day)[0], state_id=f"{i}-{day}")
            for day in ("2026-11-30", "2026-11-10")
        )
        new = replace(young, state_id="new", session_id="n")
        taken = mix([new], [replace(old, session_id="o"), replace(young, session_id="y")], NIGHT,
                    rules)[1]  # fmt: skip
        first[taken[0].day == NIGHT] += 1
    assert first[1] / 4000 == pytest.approx(4 / 5, abs=4 * np.sqrt(0.16 / 4000))


def test_a_row_is_taken_as_often_as_weighted_draws_take_it() -> None:
    days = [f"2026-11-{d:02d}" for d in range(1, 31)]
    rules = Buffer(half_life_days=7)
    seen: Counter[str] = Counter()
    for i in range(300):
        old = [StateRow(f"{i}-{day}", day, "a", day, "train") for day in days]
        seen.update(row.day for row in mix(rows(10), old, NIGHT, rules)[1])
    weights = 2.0 ** ((np.arange(30) - 29) / 7)
    rng, theirs = np.random.default_rng(0), np.zeros(30)
    for _ in range(3000):
        theirs[rng.choice(30, 10, replace=False, p=weights / weights.sum())] += 1
    mine = np.array([seen[day] for day in days]) / 300
    assert np.abs(mine - theirs / 3000).max() < 0.12
    assert mine[-5:].mean() > 3 * mine[:10].mean()


def test_a_session_and_a_project_have_caps() -> None:
    rules = Buffer(per_session=5, per_project=0.5)
    new, old = mix(rows(50, session="s"), rows(50, session="s"), NIGHT, rules)
    assert (len(new), len(old)) == (5, 0), "a session's cap is for new and old together"
    many = rows(60, day="2026-11-20", project="big")
    few = rows(60, day="2026-11-01", project="small")
    taken = mix(rows(20), [*many, *few], NIGHT, rules)[1]
    assert len(taken) == 20
    assert Counter(row.repository for row in taken) == {"big": 10, "small": 10}
    assert len(mix(rows(20), many, NIGHT, rules)[1]) == 20, "the only project has all"


def test_the_choice_is_a_night_s_own_and_always_the_same() -> None:
    new, old = rows(40), rows(400, day="2026-11-01")
    chosen = mix(new, old, NIGHT, Buffer())
    assert chosen == mix(new[::-1], old[::-1], NIGHT, Buffer())
    other = mix(new, old, "2026-12-01", Buffer())
    assert 0 < len({*other[1]} & {*chosen[1]}) < 20, "every row has its turn"
