"""One replica's process: where it begins in the data, and what its exit code says."""

import copy
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from composer_pipeline.diloco import inputs
from composer_pipeline.diloco.callback import DiLoCoCallback, Diverged
from composer_pipeline.diloco.fragments import read_state
from composer_pipeline.diloco.inputs import Inputs
from composer_pipeline.diloco.log import OuterLog, OuterLogError
from composer_pipeline.diloco.spec import DiLoCoSpec
from composer_pipeline.diloco.store import StoreFailed
from composer_pipeline.errors import ComposerError, InputError, StorageError
from composer_pipeline.testing.training import tiny_recipe
from composer_pipeline.training.run import write_recipe
from trainers import replica
from trainers.common.gradients import BadSteps, DeadChannel
from trainers.common.policy import base_identity, load_base
from trainers.trl import trainer as trl


class Recorder:
    """Stands where the trainer does, and keeps what it was given."""

    given: dict
    cut = False

    def __init__(self, **given):
        type(self).given = given
        self.model = "the model"
        self.accelerator = SimpleNamespace(unwrap_model=lambda model: model)

    def train(self):
        self.given["trained"] = True


@pytest.fixture
def trainer(monkeypatch):
    class OneOfThem(Recorder):
        pass

    # The others went on while this one was loading.
    leaving = SimpleNamespace(install=lambda: None)
    log = SimpleNamespace(run_id="run", store=SimpleNamespace(url="outer"))
    spec = DiLoCoSpec(rounds=4, inner_steps=5, software="torch 2.13.0")
    joined = SimpleNamespace(round=4, slot=1, log=log, spec=spec, graceful_exit=leaving)
    monkeypatch.setattr(replica, "software", lambda recipe: "torch 2.13.0")
    kept: list[Any] = []
    callback = SimpleNamespace(
        slot=1, start_round=lambda: 3, replica=joined, position=lambda: 15, keep=kept.append
    )
    monkeypatch.setattr(
        replica, "DiLoCoCallback", SimpleNamespace(from_env=lambda **options: callback)
    )
    monkeypatch.setattr(trl, "ComposerTrainer", OneOfThem)
    for name in ("resolve_model", "load_tokenizer"):
        monkeypatch.setattr(trl, name, lambda name: name)
    monkeypatch.setattr(trl, "load_base", lambda resolved, recipe: resolved)
    monkeypatch.setattr(trl, "base_identity", lambda *found: f"identity of {found[:2]}")
    monkeypatch.setattr(trl, "gate", lambda recipe, data, gains: (data, {}))
    nothing = SimpleNamespace(gains=lambda: {})
    monkeypatch.setattr(trl, "BaseScores", SimpleNamespace(load=lambda run_dir: nothing))
    monkeypatch.setattr(trl, "TrainingData", SimpleNamespace(load=lambda folder: "data"))
    return OneOfThem


def test_a_replica_that_joins_at_round_3_has_the_rows_of_two_rounds_behind_it(
    trainer, tiny_model, tmp_path, monkeypatch
):
    started = []
    monkeypatch.setattr(trl, "load_start", lambda model, recipe: started.append(model))
    diloco = {"replicas": 2, "rounds": 4, "inner_steps": 5}
    write_recipe(tiny_recipe(tiny_model, diloco=diloco), tmp_path)
    replica.train(tmp_path)
    given = trainer.given
    assert (given["skip_steps"], given["slot"], given["trained"]) == (10, 1, True)
    assert given["position"]() == 15
    assert started == ["the model"], "an earlier adapter is in before the first step"


def test_a_replica_of_other_software_loads_nothing(
    trainer, tiny_model, tmp_path, monkeypatch, capsys
):
    """At each start, so also after a restart; its exit code says that another one is no help."""
    monkeypatch.setattr(replica, "software", lambda recipe: "torch 2.14.0")
    monkeypatch.setattr(replica, "_build", lambda *_, **__: pytest.fail("it loads a model"))
    diloco = {"replicas": 2, "rounds": 4, "inner_steps": 5}
    write_recipe(tiny_recipe(tiny_model, diloco=diloco), tmp_path)
    monkeypatch.setattr(sys, "argv", ["replica", "--run-dir", str(tmp_path)])
    for _ in range(2):
        assert replica.main() == 2
        assert capsys.readouterr().out == (
            "error: run run in outer: torch is 2.13.0 there and 2.14.0 here; finish the run with"
            " what is there, or begin another one (docs/guide.md)\n"
        )


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InputError("bad field"), 2),
        (DeadChannel("channel sdpo is dead"), 2),
        (BadSteps("3 steps in a row"), 4),
        (StorageError("full"), 4),
        (ComposerError("SDPO: other tokens"), 4),
        (OuterLogError("no quorum"), 1),
        (StoreFailed("away for long"), 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_the_exit_code_says_whether_another_start_could_help(
    error, code, tmp_path, monkeypatch, capsys
):
    def fails(run_dir, **_):
        raise error

    monkeypatch.setattr(replica, "train", fails)
    monkeypatch.setattr(sys, "argv", ["replica", "--run-dir", str(tmp_path)])
    monkeypatch.delenv("COMPOSER_DILOCO_SUPERVISOR", raising=False)
    assert replica.main() == code
    assert capsys.readouterr().out == f"error: {error}\n"


def test_a_full_disk_is_a_sentence_and_another_os_error_is_not(tmp_path, monkeypatch, capsys):
    def fails(run_dir, **_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(replica, "train", fails)
    monkeypatch.setattr(sys, "argv", ["replica", "--run-dir", str(tmp_path)])
    assert replica.main() == 4
    assert "is not writable: No space left on device" in capsys.readouterr().out

    def odd(run_dir, **_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(replica, "train", odd)
    with pytest.raises(OSError, match="Input/output"):
        replica.main()


def test_one_replica_is_the_plain_trainer_whatever_the_rounds(make, tmp_path):
    rounds = 20  # where two replicas begin to use outer momentum
    recipe = tiny_recipe("toy", diloco={"replicas": 1, "rounds": rounds, "inner_steps": 1})
    spec = DiLoCoSpec(rounds=rounds, inner_steps=1, replicas=1)
    callback = DiLoCoCallback(url=str(tmp_path / "outer"), run_id="run", slot=0, spec=spec)
    in_rounds, plain = make(recipe, callbacks=[callback]), make(recipe)
    in_rounds.train()
    plain.train()
    theta, commit = read_state(str(tmp_path / "outer"), "run")
    assert commit.round == rounds
    trained = {n: p.detach() for n, p in plain.model.named_parameters() if p.requires_grad}
    assert theta.keys() == trained.keys()
    for name, value in trained.items():
        torch.testing.assert_close(theta[name], value, rtol=1e-5, atol=1e-7)


def test_a_run_that_diverged_may_be_started_again(tmp_path, monkeypatch):
    """A new process begins with an empty optimizer; other failures of training would repeat."""
    codes = []
    for error in (Diverged("replica 1: not finite"), OuterLogError("lost"), ComposerError("x")):

        def failing(run_dir, error=error, **_):
            raise error

        monkeypatch.setattr(replica, "train", failing)
        monkeypatch.setattr(replica, "end_with_supervisor", lambda: None)
        monkeypatch.setattr(sys, "argv", ["replica", "--run-dir", str(tmp_path)])
        codes.append(replica.main())
    assert codes == [1, 1, 4]


def test_replicas_of_one_base_tokenizer_template_and_recipe_agree(tiny_model, tokenizer):
    """And of no others: what differs is named. Paths and names may differ."""
    recipe = tiny_recipe(tiny_model)
    model = load_base(tiny_model, recipe)

    def identity(**changed):
        given = recipe.model_copy(update=changed)
        return dict(zip(*[iter(base_identity(model, tokenizer, given).split())] * 2, strict=True))

    same = identity()
    assert list(same) == ["weights", "tokenizer", "template", "recipe"]
    assert identity(name="other", model="/elsewhere", threads=3) == same
    assert differing(same, identity(learning_rate=0.5)) == ["recipe"]
    template, tokenizer = tokenizer.chat_template, copy.deepcopy(tokenizer)
    tokenizer.chat_template = template + " "
    assert differing(same, identity()) == ["template"]
    tokenizer.add_tokens(["<another>"])
    assert differing(same, identity()) == ["tokenizer", "template"]
    with torch.no_grad():
        list(model.parameters())[-1].view(-1)[-1].add_(1)
    assert differing(same, identity()) == ["weights", "tokenizer", "template"]


def differing(one, other):
    return [name for name in one if one[name] != other[name]]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--log", "s3://b/x"], "--log and --run-id belong together"),
        (["--run-id", "x"], "--log and --run-id belong together"),
        ([], "one of --run-dir and --log is needed"),
    ],
)
def test_a_replica_is_told_where_its_run_is(options, says, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["replica", *options])
    with pytest.raises(SystemExit, match="2"):
        replica.main()
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--wait-s", "0"], "run first in {log} has not started; start it with composer-pipeline"),
        (["--slot", "2"], "--slot 2 is outside of 0..1"),
        ([], "run first in {log} has no free slot (none are for other machines); end a replica"),
    ],
    ids=["not begun", "no such slot", "no free slot"],
)
def test_a_run_that_cannot_be_joined_is_one_sentence(options, says, tmp_path, monkeypatch, capsys):
    log = OuterLog.open(str(tmp_path), "first")
    if "started" not in says:
        spec = DiLoCoSpec(rounds=1, inner_steps=1, heartbeat_timeout_s=0.01)
        inputs.publish(log, Inputs({}, spec.model_dump_json(), here=2), {})
    place = ["--log", str(tmp_path), "--run-id", "first", "--run-dir", str(tmp_path / "here")]
    monkeypatch.setattr(sys, "argv", ["replica", *place, *options])
    assert replica.main() == 2
    said = capsys.readouterr().out
    assert says.format(log=tmp_path) in said
    assert said.count("\n") == 1
