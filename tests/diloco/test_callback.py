"""The callback inside a real ``transformers.Trainer``; the other slot is a thread."""

import os
import threading

import pytest
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from composer_pipeline.diloco.callback import DiLoCoCallback, adopt, trainable
from composer_pipeline.diloco.codecs import decode_delta
from composer_pipeline.diloco.fragments import read_state
from composer_pipeline.diloco.log import OuterLog
from composer_pipeline.diloco.outer_optimizer import signature
from composer_pipeline.diloco.replica import Replica
from composer_pipeline.diloco.spec import DiLoCoSpec
from composer_pipeline.errors import ComposerError, InputError
from tests.fixtures.waiting import DEADLINE_S

SPEC = DiLoCoSpec(
    rounds=3,
    inner_steps=4,
    outer_lr=0.7,
    outer_momentum=0.9,
    join_timeout_s=DEADLINE_S,
    grace_s=DEADLINE_S,
    heartbeat_timeout_s=DEADLINE_S,
    round_timeout_s=DEADLINE_S,
)


class Net(torch.nn.Module):
    """A frozen base and a trained adapter, as with LoRA."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.base = torch.nn.Linear(4, 8)
        self.adapter = torch.nn.Linear(8, 1)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
        self.to(dtype)
        self.base.requires_grad_(False)

    def forward(self, x, labels):
        out = self.adapter(torch.tanh(self.base(x.to(self.base.weight.dtype))))
        return {"loss": torch.nn.functional.mse_loss(out.float(), labels)}


def rows(count: int = 64) -> list[dict]:
    generator = torch.Generator().manual_seed(1)
    return [{"x": x, "labels": x[:1] * 2 - 1} for x in torch.randn(count, 4, generator=generator)]


def trainer(tmp_path, callbacks, *, model=None, max_steps=12, schedule="linear") -> Trainer:
    args = TrainingArguments(
        output_dir=str(tmp_path / "out"),
        max_steps=max_steps,
        per_device_train_batch_size=4,
        learning_rate=0.05,
        lr_scheduler_type=schedule,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        logging_steps=100,
    )
    return Trainer(model or Net(), args, train_dataset=rows(), callbacks=callbacks)


def peer(url: str, spec: DiLoCoSpec, slot: int = 1) -> threading.Thread:
    """Start a replica whose local change is +1 on every parameter in every round."""

    def loop() -> None:
        replica = Replica(OuterLog.open(url, "run"), spec, slot)
        replica.join(trainable(Net()))
        while not replica.finished:
            replica.sync({n: -torch.ones_like(t) for n, t in replica.state.theta.items()}, tokens=1)
        replica.close()

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    return thread


def test_a_trainer_is_one_replica_of_a_run(tmp_path) -> None:
    url, seen = str(tmp_path / "outer"), []
    callback = DiLoCoCallback(
        url=url, run_id="run", slot=0, spec=SPEC, on_commit=lambda r, info: seen.append((r, info))
    )
    assert callback.start_round() == 1
    starts = {}

    class Starts(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step % 4 == 0:
                now = trainable(kwargs["model"])
                starts[state.global_step // 4] = {n: p.detach().clone() for n, p in now.items()}

    other = peer(url, SPEC)
    training = trainer(tmp_path, [callback, Starts()], schedule="constant")
    training.train()
    other.join(DEADLINE_S)
    log = OuterLog.open(url, "run")
    assert [[p.slot for p in c.included] for c in log.commits()[1:]] == [[0, 1]] * 3
    assert training.state.global_step == 12

    # Only the adapter is exchanged, and the model ends as the log does.
    model, (theta, last) = training.model, read_state(url, "run")
    assert theta.keys() == {"adapter.weight", "adapter.bias"}
    assert all(torch.equal(p, theta[n]) for n, p in trainable(model).items())
    assert torch.equal(model.base.weight, Net().base.weight)

    for round_ in range(3):
        committed = read_state(url, "run", round_)[0]
        assert all(torch.equal(starts[round_][n], committed[n]) for n in committed)

    # Its first contribution is what the Trainer alone would have changed in H steps.
    alone = trainer(tmp_path, [], max_steps=4, schedule="constant")
    alone.train()
    part = log.commits()[1].included[0]
    delta = decode_delta(log.read(part.key, part.sha256, part.size), theta)
    for name, parameter in trainable(Net()).items():
        change = trainable(alone.model)[name] - parameter
        assert change.abs().max() > 1e-3
        torch.testing.assert_close(-delta[name], change, rtol=0, atol=1e-6)

    assert [r for r, _ in seen] == [1, 2, 3]
    info = seen[-1][1]
    assert (info["included"], info["contributed"], info["rejected"]) == ([0, 1], True, {})
    assert (info["round"], info["rounds"], info["by"], info["slot"]) == (3, 3, last.by, 0)
    assert info["state_sha"] == last.state_sha
    assert info["bytes_sent"] == part.size
    assert info["delta_norm"] > 0
    assert info["update_norm"] > 0
    assert callback.commits == [info for _, info in seen]


def test_between_rounds_a_trainer_keeps_what_is_not_merged(tmp_path) -> None:
    """And its change to a fragment is from where it last took it."""
    url = str(tmp_path / "outer")
    agreed = SPEC.model_copy(update={"fragments": 2, "outer_lr": 0.5, "outer_momentum": 0.0})
    seen = {}

    class Sees(TrainerCallback):
        def __init__(self, when: str) -> None:
            self.when = when

        def on_step_end(self, args, state, control, **kwargs):
            now = trainable(kwargs["model"])
            seen[self.when, state.global_step] = {n: p.detach().clone() for n, p in now.items()}

    callback = DiLoCoCallback(url=url, run_id="run", slot=0, spec=agreed)
    other = peer(url, agreed)
    trainer(tmp_path, [Sees("before"), callback, Sees("after")], schedule="constant").train()
    other.join(DEADLINE_S)
    log = OuterLog.open(url, "run")
    assert [[p.slot for p in c.included] for c in log.commits()[1:]] == [[0, 1]] * 3
    # Both are of one module: with fewer modules than fragments each parameter is one.
    first, second = {"adapter.weight"}, {"adapter.bias"}
    starts = {name: p.detach() for name, p in trainable(Net()).items()}
    for round_, names in ((1, first), (2, second), (3, first | second)):
        before, after = seen["before", 4 * round_], seen["after", 4 * round_]
        committed = read_state(url, "run", round_)[0]
        part = log.commits()[round_].included[0]
        like = {name: committed[name] for name in names}
        delta = decode_delta(log.read(part.key, part.sha256, part.size), like)
        for name in names:
            assert torch.equal(delta[name], starts[name] - before[name])
            assert torch.equal(after[name], committed[name])
            starts[name] = after[name]
        for name in before.keys() - names:
            assert torch.equal(after[name], before[name])
            assert not torch.equal(after[name], committed[name])


def test_a_rejoining_trainer_follows_the_schedule_of_the_run(tmp_path) -> None:
    url, rates = str(tmp_path / "outer"), []

    class Rates(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            rates.append(kwargs["optimizer"].param_groups[0]["lr"])

    class Dies(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == 5:
                raise RuntimeError("killed")

    agreed = SPEC.model_copy(update={"min_quorum": 2})
    other = peer(url, agreed)
    first = DiLoCoCallback(url=url, run_id="run", slot=0, spec=agreed)
    with pytest.raises(RuntimeError, match="killed"):
        trainer(tmp_path, [first, Dies()]).train()
    first.replica.close()
    second = DiLoCoCallback(url=url, run_id="run", slot=0, spec=agreed, attempt=2)
    assert second.start_round() == 2
    again = trainer(tmp_path, [second, Rates()])
    again.train()
    other.join(DEADLINE_S)
    assert again.state.global_step == 8
    assert rates == pytest.approx([0.05 * (12 - step) / 12 for step in range(4, 12)])
    log = OuterLog.open(url, "run")
    assert [c.included[0].attempt for c in log.commits()[1:]] == [1, 2, 2]

    # After the end, a late attempt only adopts the result.
    late = DiLoCoCallback(url=url, run_id="run", slot=0, spec=agreed, attempt=3)
    final = trainer(tmp_path, [late])
    final.train()
    assert log.last_round() == 3
    theta, _ = read_state(url, "run")
    assert all(torch.equal(p, theta[n]) for n, p in trainable(final.model).items())


def test_bf16_parameters_that_did_not_train_contribute_zero(tmp_path) -> None:
    url = str(tmp_path / "outer")
    model = Net(torch.bfloat16)
    spec = DiLoCoSpec(rounds=2, inner_steps=1, replicas=1, outer_lr=0.7)
    callback = DiLoCoCallback(url=url, run_id="run", slot=0, spec=spec)
    # A committed state that bf16 cannot represent, as merging makes them.
    replica = callback.replica
    agreed = spec.model_copy(update={"model_signature": signature(trainable(model))})
    first = Replica(replica.log, agreed, 0, 7)
    first.join(trainable(model))
    first.sync({n: torch.full_like(t, 1e-4) for n, t in first.state.theta.items()})
    first.close()
    training = trainer(tmp_path, [callback], model=model, max_steps=2)
    training.args.learning_rate = 0.0
    training.train()
    assert callback.commits[0]["delta_norm"] == 0.0
    log = replica.log
    assert read_state(url, "run", 2)[0].keys() == read_state(url, "run", 1)[0].keys()
    states = [read_state(url, "run", r)[0] for r in (1, 2)]
    assert all(torch.equal(states[0][n], states[1][n]) for n in states[0])
    assert log.last_round() == 2


def test_too_few_steps_are_refused_before_any_work(tmp_path) -> None:
    callback = DiLoCoCallback(url=str(tmp_path / "o"), run_id="run", slot=0, spec=SPEC)
    with pytest.raises(InputError, match="max_steps is 11, but 3 DiLoCo rounds"):
        trainer(tmp_path, [callback], max_steps=11).train()
    assert callback.replica.log.spec() is None


def test_an_orphaned_replica_stops(tmp_path, monkeypatch) -> None:
    spec = SPEC.model_copy(update={"replicas": 1})
    callback = DiLoCoCallback(
        url=str(tmp_path / "o"), run_id="run", slot=0, spec=spec, supervisor=os.getppid()
    )
    monkeypatch.setattr(os, "getppid", lambda: 1_000_000)
    with pytest.raises(ComposerError, match="supervisor of DiLoCo slot 0 is gone"):
        trainer(tmp_path, [callback]).train()
    callback.replica.close()


def test_the_environment_makes_the_callback(tmp_path, monkeypatch) -> None:
    with pytest.raises(InputError, match="COMPOSER_DILOCO_URL is not set"):
        DiLoCoCallback.from_env()
    values = {"URL": str(tmp_path), "RUN": "run", "SLOT": "1", "ATTEMPT": "3"}
    for name, value in {**values, "SPEC": SPEC.model_dump_json()}.items():
        monkeypatch.setenv(f"COMPOSER_DILOCO_{name}", value)
    callback = DiLoCoCallback.from_env()
    assert (callback.slot, callback.replica.attempt, callback.spec) == (1, 3, SPEC)
    monkeypatch.setenv("COMPOSER_DILOCO_SLOT", "one")
    with pytest.raises(InputError, match="COMPOSER_DILOCO_SLOT is 'one'"):
        DiLoCoCallback.from_env()


def test_adopting_another_model_is_refused() -> None:
    theta = {name: p.detach().clone() for name, p in trainable(Net()).items()}
    with pytest.raises(InputError, match=r"adapter\.weight as \(8, 1\)"):
        adopt(Net(), {**theta, "adapter.weight": theta["adapter.weight"].T})
    with pytest.raises(InputError, match=r"parameter adapter\.bias"):
        adopt(Net(), {"adapter.weight": theta["adapter.weight"]})
