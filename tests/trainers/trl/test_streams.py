"""Rows drawn by state: what meets in a step, what an epoch holds, and what each slot has."""

import random
from collections import Counter
from itertools import chain, product, takewhile

import pytest

from composer_pipeline.errors import InputError
from composer_pipeline.training.data import (
    ArrowRows,
    Demonstration,
    Group,
    Hint,
    Pair,
    TrainingData,
    bytes_of,
    writing_rows,
)
from composer_pipeline.training.recipe import TrainingRecipe
from trainers.trl.rows.beginnings import BLOCK, Beginnings
from trainers.trl.rows.streams import _Bag, planned, states_of

STATES, ODD = 20, 7


def prompt(state: int) -> list[int]:
    """Return a prompt that no other state's is like."""
    return [1000 + 7 * state] * (2 * BLOCK + state)


def rows_of_states(states: int = STATES, prompt_of=prompt, **counts: int) -> TrainingData:
    """Return a group, two pairs and two demonstrations of each state, and a hint of every third."""
    every = [(s, prompt_of(s)) for s in range(states)]
    return TrainingData(
        groups=[Group(f"{s}", p, [[1], [2]], [1, 1], [1.0, 0.0], "{}") for s, p in every],
        pairs=[Pair(f"{s}/{n}", p, [1, n], [2]) for s, p in every for n in range(2)],
        hints=[Hint(f"{s}", p, [*p, 5], [2], 0, 1) for s, p in every if s % 3 == 0],
        demonstrations=[Demonstration(f"{s}", p, [1, n]) for n in range(2) for s, p in every],
    )


def recipe_of(*, grpo=1, sdpo=1, dpo=2, sft=2, replicas=1, steps=20, seed=0) -> TrainingRecipe:
    return TrainingRecipe.model_validate({
        "name": "x", "seed": seed, "diloco": {"replicas": replicas, "rounds": 1,
                                              "inner_steps": steps, "min_quorum": 1},
        "channels": {"grpo": {"groups_per_step": grpo} if grpo else {"weight": 0},
                     "sdpo": {"rows_per_step": sdpo} if sdpo else {"weight": 0},
                     "dpo": {"pairs_per_step": dpo} if dpo else {"weight": 0},
                     "sft": {"rows_per_step": sft} if sft else {"weight": 0}},
    })  # fmt: skip


FIELDS = {"grpo": "groups", "sdpo": "hints", "dpo": "pairs", "sft": "demonstrations"}


def states_in_steps(recipe, data, slot=0) -> list[list[str]]:
    """Return the state of each row of each step."""
    plan, per_step = planned(recipe, data, slot), recipe.channels.rows_per_step()
    return [
        [
            getattr(data, FIELDS[c])[i].id.split("/")[0]
            for c, n in per_step.items()
            for i in plan[c][step * n : (step + 1) * n]
        ]
        for step in range(recipe.total_steps)
    ]


@pytest.mark.parametrize("slot", [0, 1, 2])
def test_each_row_of_a_share_comes_once_an_epoch(slot):
    data, recipe = rows_of_states(), recipe_of(replicas=3, steps=60)
    for taken in planned(recipe, data, slot).values():
        own = len(set(taken))
        # An epoch's end inside a step lets a row of that step wait until the step is over.
        for k in range(1, len(taken) // own + 1):
            seen = Counter(taken[: k * own])
            assert len(seen) == own
            assert max(seen.values()) - min(seen.values()) <= 1 + (len(taken) % own > 0)
        seen = Counter(taken)
        assert max(seen.values()) - min(seen.values()) <= 1


def test_shares_are_disjoint_and_differ_by_one_row_at_most():
    data, recipe = rows_of_states(), recipe_of(replicas=3, steps=60)
    plans = [planned(recipe, data, slot) for slot in range(3)]
    for channel, count in (("grpo", 20), ("sdpo", ODD), ("dpo", 40), ("sft", 40)):
        shares = [set(plan[channel]) for plan in plans]
        assert sorted(chain(*shares)) == list(range(count))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_a_states_rows_are_one_slots():
    data, recipe = rows_of_states(), recipe_of(replicas=2, steps=60)
    apart = [set(chain(*states_in_steps(recipe, data, slot))) for slot in range(2)]
    assert len(apart[0] & apart[1]) <= 2  # where a share was full


def test_a_channel_with_fewer_rows_than_replicas_is_every_slots():
    data, recipe = rows_of_states(4), recipe_of(replicas=3, steps=8)  # two hints
    assert [set(planned(recipe, data, slot)["sdpo"]) for slot in range(3)] == [{0, 1}] * 3


def test_rows_of_one_state_meet():
    data = rows_of_states()
    steps = states_in_steps(recipe_of(), data)
    # 20 steps are an epoch of all but the hints, which come round three times.
    assert [len(set(step)) for step in steps[:ODD]] == [1] * ODD
    assert sum(len(set(step)) for step in steps) <= 2 * len(steps)


def test_a_step_of_many_rows_keeps_as_many_states_as_the_smallest_channel_has_rows():
    recipe = recipe_of(grpo=4, sdpo=4, dpo=8, sft=8, steps=10)
    assert states_of(recipe.channels.rows_per_step()) == 4
    assert min(len(set(step)) for step in states_in_steps(recipe, rows_of_states())) >= 4
    # One group, but sixteen demonstrations: no state brings more than two of them.
    assert states_of({"grpo": 1, "sft": 16}) == 8


def test_a_channel_alone_is_drawn_row_by_row():
    recipe = recipe_of(grpo=0, sdpo=0, dpo=0, sft=4, steps=10)
    steps = states_in_steps(recipe, rows_of_states())
    # Two demonstrations of a state meet by chance: in 10 steps of 4 out of 40 about 1.5 times.
    assert sum(4 - len(set(step)) for step in steps) <= 5


def test_states_that_begin_alike_meet_where_no_row_of_the_state_is_left():
    def session(state: int) -> list[int]:
        """Return a prompt of one of five sessions: it goes on where the one before ends."""
        own, turn = divmod(state, 4)
        return [1000 + own] * (4 * BLOCK) + [2000 + state] * (BLOCK * (turn + 1))

    recipe = recipe_of(sdpo=0, dpo=0, sft=2)
    data = rows_of_states(prompt_of=session)
    data.demonstrations = data.demonstrations[:STATES]  # one of each state
    steps = states_in_steps(recipe, data)[:10]  # an epoch of demonstrations
    sessions = [len({int(state) // 4 for state in step}) for step in steps]
    assert sum(sessions) <= 14  # drawn at random it would be 25


def test_no_row_comes_twice_in_a_step_where_there_are_others():
    recipe = recipe_of(sdpo=3, dpo=6, steps=40)
    data = rows_of_states()
    for channel, taken in planned(recipe, data, 0).items():
        many = recipe.channels.rows_per_step()[channel]
        for start in range(0, len(taken), many):
            assert len(set(taken[start : start + many])) == many


def test_a_longer_run_begins_with_the_rows_of_a_shorter_one():
    data = rows_of_states()
    short, long = (planned(recipe_of(steps=n), data, 0) for n in (5, 50))
    assert all(long[channel][: len(taken)] == taken for channel, taken in short.items())
    other = planned(recipe_of(steps=5, seed=1), data, 0)
    assert other != short


def test_a_step_longer_than_its_channel_takes_every_row_equally_often():
    data = rows_of_states(3)  # one hint
    plan = planned(recipe_of(sdpo=4, dpo=10, steps=3), data, 0)
    assert plan["sdpo"] == [0] * 12
    assert set(Counter(plan["dpo"]).values()) == {5}


def test_a_weighted_channel_without_a_row_is_named():
    data = rows_of_states()
    data.hints = []
    with pytest.raises(InputError, match="channel sdpo has a weight and no row"):
        planned(recipe_of(), data, 0)


def test_a_new_state_leaves_those_alone_that_another_channel_still_has():
    data = rows_of_states(12)
    alike = Beginnings({"sft": data.demonstrations[:12], "grpo": data.groups[:11]})
    draw = random.Random(0)
    mine, theirs = (
        _Bag([(place, i) for i, place in enumerate(alike.places[c])], alike, draw)
        for c in ("sft", "grpo")
    )
    assert mine.take([], [], [theirs])[1] == 11  # the one state without a group
    (place, row) = theirs.take([], [mine], [])
    assert mine.take([place], [], [])[1] == row


def shared_blocks(one: list[int], other: list[int]) -> float:
    """Return the blocks that both begin with, as a part of the longer one's."""
    sides = [[p[i : i + BLOCK] for i in range(0, len(p), BLOCK)] for p in (one, other)]
    same = takewhile(lambda pair: pair[0] == pair[1], zip(*sides, strict=False))
    return len(list(same)) / max(map(len, sides))


def test_what_two_prompts_share_is_what_both_begin_with():
    prompts = [[t for bit in bits for t in [bit] * BLOCK] for bits in product((8, 9), repeat=4)]
    alike = Beginnings({"sft": [Demonstration("", p, [1]) for p in prompts]})
    places = alike.places["sft"]
    for (a, one), (b, other) in product(enumerate(prompts), repeat=2):
        assert alike.shared(places[a], places[b]) == shared_blocks(one, other)


def test_places_follow_the_prompts_and_what_they_share(tmp_path):
    base = list(range(4 * BLOCK))
    prompts = [base, [9, *base], base, base[: 2 * BLOCK], [*base[: 3 * BLOCK], *[7] * BLOCK]]
    rows = [Demonstration(str(i), p, [1]) for i, p in enumerate(prompts)]
    with writing_rows(tmp_path / "rows.arrow", Demonstration) as out:
        for row in rows[:2]:
            out.append(row)
        out.flush()  # a second batch
        for row in rows[2:]:
            out.append(row)
    stored = ArrowRows(tmp_path / "rows.arrow", Demonstration)
    assert [bytes(b) for b in bytes_of(stored, "prompt_ids")] == list(bytes_of(rows, "prompt_ids"))
    for of in (rows, stored):
        alike = Beginnings({"sft": of})
        places = alike.places["sft"]
        assert places[0] == places[2]
        assert len(set(places)) == 4
        shares = [alike.shared(places[0], places[i]) for i in range(5)]
        assert shares == [1.0, 0.0, 1.0, 0.5, 0.75]
        assert alike.shared(places[3], places[4]) == 0.5
