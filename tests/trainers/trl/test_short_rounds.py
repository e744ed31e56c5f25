"""A replica whose rounds are shorter than the others' (``diloco.pace: equal-time``)."""

import copy
import threading
from types import SimpleNamespace
from typing import Any

import msgspec
import torch
from transformers import TrainerCallback

from composer_pipeline.diloco.callback import DiLoCoCallback, trainable
from composer_pipeline.diloco.log import OuterLog
from composer_pipeline.diloco.replica import Replica
from composer_pipeline.diloco.rounds import Work
from composer_pipeline.testing.training import tiny_recipe
from tests.fixtures.waiting import DEADLINE_S, wait_until
from trainers.common.checkpoints import ChannelStates
from trainers.common.outer_log import spec_of

ROUNDS, STEPS = 3, 4


def test_rows_states_and_looks_are_those_of_the_rounds_and_no_channel_is_dead(
    make, toy_data, tmp_path
):
    """One step a round: each is the first of its round, and in so few all answers may be equal."""
    recipe = tiny_recipe(
        "toy", eval_every=1,
        channels={"grpo": {}, "sdpo": {"teacher": "ema", "hint_gain": False}, "dpo": {}, "sft": {}},
        diloco={
            "replicas": 2, "rounds": ROUNDS, "inner_steps": STEPS, "min_quorum": 2,
            "pace": "equal-time", "weights": "tokens",
        },
    )  # fmt: skip
    flat = [msgspec.structs.replace(g, rewards=[0.5] * len(g.rewards)) for g in toy_data.groups]
    url, spec = str(tmp_path / "outer"), spec_of(recipe, "toy")
    assert (spec.pace, spec.weights) == ("equal-time", "tokens")
    log = OuterLog.open(url, "run")
    callback = DiLoCoCallback(url=url, run_id="run", slot=0, spec=spec)
    seen: list[tuple[str, int]] = []

    class Slow(TrainerCallback):
        """The other one has made its steps of the first round before this one's first ends."""

        def on_step_begin(self, args, state, control, **_):
            wait_until(lambda: 1 in log.contributions(1)[0], "the peer contributes")

    trainer = make(
        recipe, msgspec.structs.replace(toy_data, groups=flat), callbacks=[Slow(), callback],
        position=callback.position, ends_round=lambda: callback.ends_round,
        states=ChannelStates(tmp_path / "run", 0, keep_all=True),
        on_event=lambda kind, step, numbers: seen.append((kind, numbers.get("round", step))),
    )  # fmt: skip
    trainer.held_out = SimpleNamespace(measure=lambda: {"loss": 1.0})
    windows: list[int] = []
    dpo: Any = next(c for c in trainer.channels if c.name == "dpo")
    honest = dpo.window

    def window(student: Any, step: int) -> Any:
        windows.append(step)
        return honest(student, step)

    dpo.window = window

    def quick() -> None:
        replica = Replica(log, spec, 1)
        replica.join(trainable(copy.deepcopy(trainer.policy.model)))
        while not replica.finished:
            delta = {n: torch.zeros_like(t) for n, t in replica.state.theta.items()}
            replica.sync(delta, tokens=1, work=Work(STEPS, 1e-9))
        replica.close()

    peer = threading.Thread(target=quick, daemon=True)
    peer.start()
    trainer.train()
    peer.join(DEADLINE_S)
    own = [commit.included[0] for commit in log.commits()[1:]]
    assert [part.steps for part in own] == [1] * ROUNDS
    assert windows == [0, STEPS, 2 * STEPS]
    assert seen == [
        place for r in range(ROUNDS) for place in (("step", r * STEPS + 1), ("held_out", r + 1))
    ]
    kept = sorted(file.name for file in (tmp_path / "run").rglob("channels-*"))
    assert kept == [f"channels-{(r + 1) * STEPS:08d}.safetensors" for r in range(ROUNDS)]
    assert trainer.state.global_step == ROUNDS
