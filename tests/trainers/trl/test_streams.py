"""Which rows a replica draws: what meets in a step, what an epoch holds, what each slot has."""

from collections import Counter
from itertools import chain

import pytest
from msgspec.structs import replace

from composer_pipeline.errors import InputError
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.rows import (
    ArrowRows,
    Demonstration,
    Group,
    Hint,
    Pair,
    SomeRows,
    TrainingData,
    bytes_of,
    writing_rows,
)
from trainers.common.base_pass import rows_to_score
from trainers.common.rows import Stream, planned

FIELDS = {"grpo": "groups", "sdpo": "hints", "dpo": "pairs", "sft": "demonstrations"}
BOTH = pytest.mark.parametrize("draw", ["independent", "by-state"])


def rows_of_states(states: int = 20, alone: int = 20) -> TrainingData:
    """Return rows of states that channels share, and demonstrations that stand alone.

    Each state has a group, a pair and a demonstration, every third one a hint.
    """
    every = [(s, [1000 + s] * 9) for s in range(states)]
    return TrainingData(
        groups=[Group(f"{s}", p, [[1], [2]], [1, 1], [1.0, 0.0], "{}") for s, p in every],
        pairs=[Pair(f"{s}", p, [1], [2]) for s, p in reversed(every)],
        hints=[Hint(f"{s}", p, [*p, 5], [2], 0, 1) for s, p in every if s % 3 == 0],
        demonstrations=[
            *(Demonstration(f"{s}", p, [1]) for s, p in every),
            *(Demonstration(f"alone{n}", [2000 + n] * 9, [1]) for n in range(alone)),
        ],
    )


def recipe_of(
    draw="by-state", *, grpo=1, sdpo=1, dpo=2, sft=2, replicas=1, steps=20, seed=0
) -> TrainingRecipe:
    off = {"weight": 0}
    return TrainingRecipe.model_validate({
        "name": "x", "seed": seed, "draw": draw,
        "diloco": {"replicas": replicas, "rounds": 1, "inner_steps": steps, "min_quorum": 1},
        "channels": {"grpo": {"groups_per_step": grpo} if grpo else off,
                     "sdpo": {"rows_per_step": sdpo} if sdpo else off,
                     "dpo": {"pairs_per_step": dpo} if dpo else off,
                     "sft": {"rows_per_step": sft} if sft else off},
    })  # fmt: skip


def steps_of(recipe, data, slot=0) -> list[dict[str, list[str]]]:
    """Return the states of each channel's rows, step by step."""
    plan, per_step = planned(recipe, data, slot), recipe.channels.rows_per_step()
    return [
        {
            c: [getattr(data, FIELDS[c])[i].id for i in plan[c][step * n : (step + 1) * n]]
            for c, n in per_step.items()
        }
        for step in range(recipe.total_steps)
    ]


def states(recipe, data) -> float:
    """Return the mean number of states of a step."""
    steps = steps_of(recipe, data)
    return sum(len(set(chain(*step.values()))) for step in steps) / len(steps)


@BOTH
@pytest.mark.parametrize("slot", [0, 1, 2])
def test_each_row_of_a_share_comes_once_an_epoch(draw, slot):
    data, recipe = rows_of_states(), recipe_of(draw, replicas=3, steps=50)
    for taken in planned(recipe, data, slot).values():
        own = set(taken)
        for start in range(0, len(taken) - len(own) + 1, len(own)):
            assert set(taken[start : start + len(own)]) == own


def test_epochs_have_orders_of_their_own():
    stream = Stream({row: row for row in range(12)}, seed="0/0")
    epochs = [stream.take(12) for _ in range(3)]
    assert all(sorted(epoch) == list(range(12)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


@BOTH
def test_shares_are_disjoint_and_differ_by_one_row_at_most(draw):
    data, recipe = rows_of_states(), recipe_of(draw, replicas=3, steps=60)
    plans = [planned(recipe, data, slot) for slot in range(3)]
    for channel, field in FIELDS.items():
        shares = [set(plan[channel]) for plan in plans]
        assert sorted(chain(*shares)) == list(range(len(getattr(data, field))))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_shares_behind_the_hint_gate_differ_by_one_row_at_most():
    data = rows_of_states()
    for seed in range(6):
        recipe = recipe_of(replicas=2, steps=20, seed=seed)
        one = set(planned(recipe, data, 0)["sdpo"])
        kept = sorted([*one, min(set(range(7)) - one)])  # nearly all are one replica's at first
        gated = replace(data, hints=SomeRows(data.hints, kept))
        sizes = [len(set(planned(recipe, gated, slot)["sdpo"])) for slot in range(2)]
        assert sum(sizes) == len(kept)
        assert abs(sizes[0] - sizes[1]) <= 1


@BOTH
def test_a_channel_with_fewer_rows_than_replicas_is_every_slots(draw):
    data, recipe = rows_of_states(4), recipe_of(draw, replicas=3, steps=8)  # two hints
    assert [set(planned(recipe, data, slot)["sdpo"]) for slot in range(3)] == [{0, 1}] * 3


@BOTH
def test_a_longer_run_begins_with_the_rows_of_a_shorter_one(draw):
    data = rows_of_states()
    short, long = (planned(recipe_of(draw, steps=n), data, 0) for n in (5, 50))
    assert all(long[channel][: len(taken)] == taken for channel, taken in short.items())
    assert planned(recipe_of(draw, steps=5, seed=1), data, 0) != short


def test_a_states_rows_are_one_slots():
    data, recipe = rows_of_states(), recipe_of(replicas=2, steps=60)
    apart = [set(chain(*chain(*(s.values() for s in steps_of(recipe, data, slot)))))
             for slot in range(2)]  # fmt: skip
    assert len(apart[0] & apart[1]) <= 2  # where a share was full


def test_rows_of_one_state_meet():
    data = rows_of_states()
    assert states(recipe_of("independent", steps=10), data) > 4.5
    assert states(recipe_of(steps=10), data) < 3.6  # one demonstration a step stands alone
    assert states(recipe_of(steps=7), rows_of_states(alone=0)) == 2


def test_demonstrations_without_a_partner_are_spread_as_in_the_shuffle():
    data = rows_of_states()
    plans = [
        planned(recipe_of(draw, steps=60), data, 0)["sft"] for draw in ("independent", "by-state")
    ]
    assert [row if row >= 20 else -1 for row in plans[0]] == [
        row if row >= 20 else -1 for row in plans[1]
    ]  # fmt: skip
    assert plans[0] != plans[1]


@pytest.mark.parametrize("channel", FIELDS)
def test_a_channel_alone_is_drawn_as_ever(channel):
    alone = {name: 3 if name == channel else 0 for name in FIELDS}
    data = rows_of_states()
    plans = [planned(recipe_of(draw, **alone), data, 0) for draw in ("independent", "by-state")]
    assert plans[0] == plans[1]


@BOTH
def test_what_the_base_scores_is_what_is_drawn_behind_the_hint_gate(draw):
    data = rows_of_states()
    recipe = recipe_of(draw, replicas=2, steps=4)
    scored = rows_to_score(recipe, data)
    gated = replace(data, hints=SomeRows(data.hints, [1, 2, 5]))
    for slot in range(2):
        for channel, rows in planned(recipe, gated, slot).items():
            of = getattr(gated, FIELDS[channel])
            known = {row.id for row in scored.get(channel, of)}
            assert {of[i].id for i in rows} <= known
    assert len(scored["sdpo"]) == len(data.hints)


def test_several_rows_of_a_state_do_not_crowd_out_the_others():
    data = rows_of_states(4, alone=0)
    data.demonstrations = [d for d in data.demonstrations for _ in range(8)]
    first = steps_of(recipe_of(grpo=0, sdpo=0, sft=4, steps=1), data)[0]
    assert sorted(Counter(first["sft"]).values()) == [2, 2]
    assert set(first["sft"]) == set(first["dpo"])


@BOTH
def test_a_weighted_channel_without_a_row_is_refused(draw):
    data = rows_of_states()
    data.hints = []
    with pytest.raises(InputError, match="a channel with a weight has no row"):
        planned(recipe_of(draw), data, 0)


def test_prompts_are_read_from_the_file_as_they_are(tmp_path):
    rows = [Demonstration(str(n), [n, 70_000 + n][: n % 3], [1]) for n in range(5)]
    with writing_rows(tmp_path / "rows.arrow", Demonstration) as out:
        for row in rows[:2]:
            out.append(row)
        out.flush()  # a second batch
        for row in rows[2:]:
            out.append(row)
    stored = ArrowRows(tmp_path / "rows.arrow", Demonstration)
    assert [bytes(b) for b in bytes_of(stored, "prompt_ids")] == list(bytes_of(rows, "prompt_ids"))
