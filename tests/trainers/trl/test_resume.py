"""A replica that dies inside a round goes on bit by bit as if it had not: on the toy task."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from composer_pipeline import files
from composer_pipeline.diloco.callback import DiLoCoCallback
from composer_pipeline.diloco.checkpoint import FILE, InnerCheckpoint, read
from composer_pipeline.diloco.log import OuterLog
from composer_pipeline.diloco.replica import Replica
from composer_pipeline.diloco.store import ObjectStore
from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.testing.training import tiny_recipe
from composer_pipeline.training.plan import ModelShape, kept_on_disk
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.rewards import Grade
from composer_pipeline.training.run import extended, write_recipe
from trainers.__main__ import sentence
from trainers.common.outer_log import take_over

ROUNDS, INNER = 3, 4
STEPS = ROUNDS * INNER
SDPO = {"teacher": "ema", "ema_rate": 0.2, "divergence": "taid", "hint_gain": False}


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it, so nothing is tidied up."""


class Kill(TrainerCallback):
    """Ends a trainer right after a step of this process, before DiLoCo has seen it."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self._step:
            raise Killed


def recipe_of(**changes: Any) -> TrainingRecipe:
    fields: dict[str, Any] = {
        "channels": {"grpo": {}, "sdpo": SDPO, "dpo": {}, "sft": {}},
        "diloco": {"replicas": 1, "rounds": ROUNDS, "inner_steps": INNER},
        "learning_rate": 1e-2, "norms_every": INNER, "checkpoint_every": 1,
        "schedule": "cosine", "warmup_steps": 2,
    }  # fmt: skip
    return tiny_recipe("toy", **fields | changes)


@pytest.fixture
def start(make, tmp_path):
    """Build one start of a replica: ``start(folder, recipe, kill_after=n)``."""

    def starts(
        folder: str, recipe: TrainingRecipe, *, kill: int | None = None, attempt: int = 1,
        before: Callable[[Any, DiLoCoCallback], None] | None = None, **options: Any,
    ) -> tuple[Any, list[tuple[str, int, dict[str, Any]]]]:  # fmt: skip
        seen: list[tuple[str, int, dict[str, Any]]] = []
        spec = recipe.diloco.agreement(
            recipe.rounds, replicas=1, data_plan=options.pop("data_plan", "toy")
        )
        url = str(tmp_path / folder / "outer")
        callback = DiLoCoCallback(url=url, run_id="run", slot=0, spec=spec, attempt=attempt)
        callbacks = [callback] if kill is None else [Kill(kill), callback]
        trainer = make(
            recipe, callbacks=callbacks, position=callback.position,
            skip_steps=(callback.start_round() - 1) * spec.inner_steps,
            on_event=lambda kind, step, numbers: seen.append((kind, step, numbers)), **options,
        )  # fmt: skip
        callback.keep(
            InnerCheckpoint(
                kept_in(tmp_path / folder), every=recipe.checkpoint_every, trainer=trainer,
                on_event=lambda kind, facts: seen.append((kind, callback.position(), facts)),
            )
        )  # fmt: skip
        if before is not None:
            before(trainer, callback)
        try:
            trainer.train()
        except Killed:
            pass
        finally:
            callback.replica.close()
        return trainer, seen

    return starts


def ended(tmp_path, folder):
    """Return the last round, the hash of its state, and the tokens of each round."""
    commits = commits_of(tmp_path, folder)
    return commits[-1].round, commits[-1].state_sha, [commit.tokens for commit in commits]


def commits_of(tmp_path, folder):
    return OuterLog.open(str(tmp_path / folder / "outer"), "run").commits()


def kept_in(run_dir):
    return run_dir / "replicas" / "slot-0" / FILE


def place_of(file):
    found = read(file)
    assert found is not None
    return found.round, found.inner


def steps_of(seen):
    return [step for kind, step, _ in seen if kind == "step"]


def numbers_of(trainer):
    tensors, numbers = trainer.private()
    return {n: t.clone() for n, t in tensors.items()}, numbers


@pytest.mark.slow
def test_a_killed_replica_ends_where_the_unbroken_one_does(start, tmp_path):
    """Teacher, schedule, moments, warm-up and every number that is said: to the bit."""
    whole, seen = start("unbroken", recipe_of())
    assert steps_of(seen) == list(range(1, STEPS + 1))
    tensors, numbers = whole.private()
    for step in (1, INNER - 1, INNER, INNER + 2, STEPS):
        folder = f"killed-{step}"
        _, first = start(folder, recipe_of(), kill=step)
        trainer, second = start(folder, recipe_of(), attempt=2)
        assert ended(tmp_path, folder) == ended(tmp_path, "unbroken"), step
        now, plain = trainer.private()
        assert plain == numbers
        assert all(torch.equal(now[name], tensors[name]) for name in tensors)
        # The step that the kill took is the only one that is made twice.
        assert steps_of(first) == list(range(1, step + 1))
        assert steps_of(second) == list(range(step, STEPS + 1))
        assert losses(second) == {k: v for k, v in losses(seen).items() if k >= step}


AT_A_BORDER = {
    "before it contributes": (Replica, "sync"),
    "before its manifest": (OuterLog, "contribute"),
    "before the commit": (OuterLog, "try_commit"),
    "after the commit": (DiLoCoCallback, "_begin_round"),
}


@pytest.mark.slow
def test_a_kill_at_a_border_costs_no_moments(start, tmp_path, monkeypatch):
    """Random numbers and sampled answers too: with dropout, and answers of the model's own."""
    grpo = {"source": "mixed", "group_size": 3}
    recipe = recipe_of(channels={"grpo": grpo, "sdpo": SDPO, "dpo": {}}, checkpoint_every=None)
    _, whole = start("unbroken", recipe, before=noisy)
    want = ended(tmp_path, "unbroken")
    for place, (kind, name) in AT_A_BORDER.items():
        calls: list[int] = []
        honest = getattr(kind, name)

        def killed(self, *given, calls=calls, honest=honest, **options):
            calls.append(1)
            if len(calls) == 3:  # past the initial state or the first round
                raise Killed
            return honest(self, *given, **options)

        with monkeypatch.context() as patched:
            patched.setattr(kind, name, killed)
            _, first = start(place, recipe, before=noisy)
        _, second = start(place, recipe, attempt=2, before=noisy)
        assert ended(tmp_path, place) == want, place
        assert sorted({*steps_of(first), *steps_of(second)}) == list(range(1, STEPS + 1))
        assert len(steps_of(first)) + len(steps_of(second)) == STEPS, "no step is made twice"
        assert {**losses(first), **losses(second)} == losses(whole)
        assert [kind for kind, _, _ in second if kind != "step"] == ["resumed"]
        if place == "before it contributes":  # in the last round: there is nothing left to train
            assert steps_of(second) == []


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["fp32", "int2"])
def test_a_kill_between_fragments_costs_nothing_either(start, tmp_path, monkeypatch, codec):
    """What the other fragments were trained to, and what the codec lost of them, goes on.

    But for what it lost of the contribution itself where a kill comes before the next step's file.
    """
    diloco = {
        "replicas": 1, "rounds": 5, "inner_steps": 2, "fragments": 2, "outer_lr": 0.5,
        "codec": codec,
    }  # fmt: skip
    recipe = recipe_of(channels={"sft": {}}, diloco=diloco)
    _, whole = start("unbroken", recipe)
    want = ended(tmp_path, "unbroken")
    fragment = [commit.fragment for commit in commits_of(tmp_path, "unbroken")[1:]]
    assert fragment[:4] == [0, 1, 0, 1]
    for step in (5, 6) if codec == "fp32" else (6,):
        _, first = start(f"killed-{step}", recipe, kill=step)
        _, second = start(f"killed-{step}", recipe, attempt=2)
        assert ended(tmp_path, f"killed-{step}") == want, step
    for place, (kind, name) in list(AT_A_BORDER.items())[: 4 if codec == "fp32" else 2]:
        calls: list[int] = []
        honest = getattr(kind, name)

        def killed(self, *given, calls=calls, honest=honest, **options):
            calls.append(1)
            if len(calls) == 4:
                raise Killed
            return honest(self, *given, **options)

        with monkeypatch.context() as patched:
            patched.setattr(kind, name, killed)
            _, first = start(place, recipe)
        _, second = start(place, recipe, attempt=2)
        assert ended(tmp_path, place) == want, place
        assert {**losses(first), **losses(second)} == losses(whole)


def noisy(trainer, callback):
    """Give the model a dropout, and answers that differ a reward that does."""
    for layer in trainer.policy.model.get_base_model().model.layers:
        layer.self_attn.attention_dropout = 0.1
    grpo = next(c for c in trainer.channels if c.name == "grpo")
    grpo._sampler.grade = lambda group, answer: Grade(answer[0] % 7 / 7, {})


def test_the_plan_says_what_a_replica_keeps(start, toy_base, tmp_path):
    recipe = recipe_of(diloco={"replicas": 1, "rounds": 1, "inner_steps": 2}, checkpoint_every=2)
    start("run", recipe)
    found = read(kept_in(tmp_path / "run"))
    assert found is not None
    left_out = ("random/", "replica/")
    sizes = {n: t.nbytes for n, t in found.tensors.items() if not n.startswith(left_out)}
    counts = sum(size for name, size in sizes.items() if name.endswith("/step"))
    toy_base.config.save_pretrained(tmp_path / "model")
    shape = ModelShape.load(tmp_path / "model")
    assert kept_on_disk(shape, recipe) == sum(sizes.values()) - counts
    assert kept_on_disk(shape, recipe) == 16 * shape.trained(recipe)


def losses(seen):
    """Return what each step said of the model, but for time and memory."""
    left_out = ("seconds", "tokens_per_second", "peak_memory_mib")
    return {
        step: {k: v for k, v in numbers.items() if k not in left_out}
        for kind, step, numbers in seen
        if kind == "step"
    }


def test_what_was_kept_is_used_only_where_the_log_is(start, make, tmp_path, monkeypatch):
    """A file of an earlier place, a damaged one, and none: the replica begins at the commit."""
    recipe, file = recipe_of(checkpoint_every=2), kept_in(tmp_path / "run")
    start("run", recipe, kill=INNER + 3)
    early = file.read_bytes()
    assert place_of(file) == (2, 2)
    start("run", recipe, kill=INNER + 1, attempt=2)  # its own steps: it ends in round 3
    kept = file.read_bytes()
    reasons: list[str] = []
    for data in (early, kept[:-1], b"", kept):
        file.write_bytes(data)
        seen = start("run", recipe, kill=1, attempt=3 + len(reasons))[1]
        kind, step, facts = seen[0]
        reasons.append(facts.get("reason", ""))
        assert kind == ("resumed" if data is kept else "inner_dropped")
        assert step == (2 * INNER + 2 if data is kept else 2 * INNER)
    assert "round 2 after 2 steps, and the log is at the beginning of round 3" in reasons[0]
    assert all("is damaged" in reason for reason in reasons[1:3])
    assert sentence({"event": "inner_dropped", "slot": 0, "reason": reasons[0]}).startswith(
        "replica 0 starts from the last commit with new optimizer state"
    )


@pytest.mark.parametrize("odd", ["rows", "trained parameters"])
def test_what_was_kept_with_something_else_is_refused(start, tmp_path, odd):
    """In a sentence with the remedy, and nothing is lost."""
    recipe = recipe_of(diloco={"replicas": 1, "rounds": 1, "inner_steps": INNER})
    start("one", recipe, kill=2)
    kept = kept_in(tmp_path / "one").read_bytes()
    other = recipe.model_copy(update={"lora": recipe.lora.model_copy(update={"r": 4})})
    changed = {"recipe": other} if odd != "rows" else {"recipe": recipe, "data_plan": "others"}
    file = kept_in(tmp_path / "two")
    file.parent.mkdir(parents=True)
    file.write_bytes(kept)
    with pytest.raises(InputError, match=f"another {odd}.*remove the file to resume from the last"):
        start("two", **changed)
    assert file.read_bytes() == kept
    file.unlink()
    start("two", attempt=2, **changed)
    assert ended(tmp_path, "two")[0] == 1


@pytest.mark.parametrize("optimizer", ["adamw_torch_fused", "adafactor", "muon"])
def test_every_optimizer_goes_on_with_what_it_had(start, tmp_path, optimizer):
    recipe = recipe_of(
        optimizer=optimizer, channels={"grpo": {"weight": 0}, "sdpo": {"weight": 0}, "dpo": {}},
        diloco={"replicas": 1, "rounds": 1, "inner_steps": 3}, warmup_steps=0,
    )  # fmt: skip
    start("unbroken", recipe)
    start("killed", recipe, kill=3)
    start("killed", recipe, attempt=2)
    assert ended(tmp_path, "killed") == ended(tmp_path, "unbroken")


def test_a_kill_while_it_is_written_leaves_the_earlier_one(start, tmp_path, monkeypatch):
    recipe = recipe_of(diloco={"replicas": 1, "rounds": 1, "inner_steps": INNER})
    honest = files.Replacement.commit
    commits = []

    def killed(self):
        if self.path.name == FILE:
            commits.append(1)
            if len(commits) == 3:
                raise Killed
        honest(self)

    monkeypatch.setattr(files.Replacement, "commit", killed)
    start("run", recipe)
    assert place_of(kept_in(tmp_path / "run")) == (1, 2)


def test_a_step_without_memory_leaves_a_run_that_goes_on(start, tmp_path):
    """With half the micro-batch, as the process that died had it: the same sums in one order."""
    recipe = recipe_of(diloco={"replicas": 1, "rounds": 1, "inner_steps": INNER})

    def short(steps):
        def fail(trainer, callback):
            honest, left = trainer._own_part, list(steps)

            def part(windows, gradients):
                if left and trainer.state.global_step + trainer._skip == left[0]:
                    left.pop(0)
                    raise torch.OutOfMemoryError("none left")
                return honest(windows, gradients)

            trainer._own_part = part

        return fail

    start("unbroken", recipe, before=short([1]))
    with pytest.raises(ComposerError, match="lower micro_batch_tokens"):
        start("short", recipe, before=short([1, 2]))
    trainer, seen = start("short", recipe, attempt=2)
    assert seen[0][:2] == ("resumed", 2)
    assert trainer._micro_batch_tokens == recipe.micro_batch_tokens // 2
    assert ended(tmp_path, "short") == ended(tmp_path, "unbroken")


# -- a run that goes on ------------------------------------------------------------------------


@pytest.fixture
def short(start, tmp_path):
    """A finished run of two rounds, with what extending it reads of its folder."""
    recipe = lasting(2)
    start("short", recipe)
    _, sha, _ = ended(tmp_path, "short")
    write_recipe(recipe, tmp_path / "short")
    commits = [{"state_sha": sha}]
    rest: dict[str, Any] = {"recipe": {}, "rows": {}, "versions": {}, "fidelity": {}, "metrics": {}}
    result = {**rest, "base": {"digest": "base"}, "dataset_sha": "rows", "commits": commits}
    (tmp_path / "short" / "composer.json").write_text(json.dumps(result))
    (tmp_path / "short" / "metrics.jsonl").write_text('{"event": "step"}\n')
    return tmp_path / "short"


def lasting(rounds, **changes):
    """Return a recipe whose schedules do not know how long it is."""
    sdpo = {"teacher": "ema", "ema_rate": 0.2, "hint_gain": False}
    fields: dict[str, Any] = {
        "channels": {"grpo": {}, "sdpo": sdpo, "dpo": {}}, "schedule": "constant",
        "diloco": {"replicas": 1, "rounds": rounds, "inner_steps": INNER},
    }  # fmt: skip
    return recipe_of(**fields | changes)


def bytes_of(folder):
    return {str(p): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.slow
def test_an_extended_run_ends_where_a_longer_one_does(start, short, tmp_path, monkeypatch):
    """And the earlier one stays as it was, also where a kill comes while it is copied."""
    start("long", lasting(3))
    before, longer = bytes_of(short), extended(short, 3)
    assert (longer.rounds, longer.extends) == (3, str(short))
    assert longer.diloco.outer_lr == 1
    folder = tmp_path / "extended"
    folder.mkdir()
    honest, done = ObjectStore.put, []

    def killed(self, key, data):
        done.append(key)
        if len(done) == 5:
            raise Killed
        honest(self, key, data)

    with monkeypatch.context() as patched:
        patched.setattr(ObjectStore, "put", killed)
        with pytest.raises(Killed):
            take_over(longer, folder, "base", "rows")
    take_over(longer, folder, "base", "rows")
    _, seen = start("extended", longer)
    take_over(longer, folder, "base", "rows")  # a start after a kill: what is there stays
    assert seen[0][:2] == ("resumed", 2 * INNER)
    assert steps_of(seen) == list(range(2 * INNER + 1, 3 * INNER + 1))
    assert ended(tmp_path, "extended") == ended(tmp_path, "long")
    assert bytes_of(short) == before
    assert (folder / "metrics.jsonl").read_bytes() == before[str(short / "metrics.jsonl")]


@pytest.mark.slow
def test_what_cannot_be_extended_is_said(short, tmp_path):
    for rounds in (1, 2):
        with pytest.raises(InputError, match=f"--rounds {rounds}: short already has 2 rounds"):
            extended(short, rounds)
    with pytest.raises(InputError, match=r"holds no finished training run.*continues with the"):
        extended(tmp_path / "nowhere", 3)
    longer, folder = extended(short, 3), tmp_path / "longer"
    for base, rows, odd in (("other", "rows", "model"), ("base", "other", "rows")):
        with pytest.raises(InputError, match=f"short cannot be extended: its {odd} changed"):
            take_over(longer, folder, base, rows)
    changes: dict[str, dict[str, Any]] = {
        "diloco.rounds": {"diloco": longer.diloco.model_copy(update={"rounds": 2})},
        "learning_rate is 0.5, but short, which it extends, has 0.01": {"learning_rate": 0.5},
        "diloco.outer_lr": {"diloco": longer.diloco.model_copy(update={"outer_lr": 0.5})},
        "diloco is": {"diloco": longer.diloco.model_copy(update={"inner_steps": 2})},
    }
    for said, change in changes.items():
        with pytest.raises(InputError, match=f"recipe fields? {said}"):
            take_over(longer.model_copy(update=change), folder, "base", "rows")
    with pytest.raises(InputError, match="an extended run needs another"):
        take_over(longer, short, "base", "rows")
    assert not folder.exists(), "nothing was begun"
