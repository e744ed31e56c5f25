"""One replica is the plain trainer, to the bit: on the toy task, with all channels."""

import pytest
import torch

from composer_pipeline.diloco.callback import DiLoCoCallback, trainable
from composer_pipeline.diloco.fragments import read_state
from composer_pipeline.diloco.log import OuterLog
from composer_pipeline.diloco.spec import DiLoCoSpec
from composer_pipeline.testing.training import tiny_recipe

ROUNDS, INNER = 3, 2


def recipe_of(channel: str):
    return tiny_recipe(
        "toy", channels={channel: {}, "sft": {}}, learning_rate=1e-2,
        diloco={"replicas": 1, "rounds": ROUNDS, "inner_steps": INNER},
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kept", [10, 2])
def test_one_replica_trains_what_the_plain_trainer_does(make, tmp_path, kept: int) -> None:
    """Rounds that are rebuilt from what has travelled, too: only every fifth state is whole."""
    plain = make(recipe_of("dpo"))
    plain.train()
    spec = DiLoCoSpec(rounds=ROUNDS, inner_steps=INNER, replicas=1, kept_rounds=kept)
    callback = DiLoCoCallback(url=str(tmp_path), run_id="run", slot=0, spec=spec)
    tokens: list[int] = []
    alone = make(
        recipe_of("dpo"), callbacks=[callback],
        on_event=lambda kind, step, numbers: tokens.append(numbers.get("tokens", 0)),
    )  # fmt: skip
    alone.train()
    expected = trainable(plain.model)
    assert expected
    for found in (trainable(alone.model), read_state(str(tmp_path), "run")[0]):
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    # What the log keeps between whole states leads there as well.
    before = read_state(str(tmp_path), "run", ROUNDS - 1)[1] if kept == 10 else None
    assert before is None or not before.state_key
    commits = OuterLog.open(str(tmp_path), "run").commits()
    assert commits[-1].round == ROUNDS
    assert sum(commit.tokens for commit in commits) == sum(tokens) > 0
