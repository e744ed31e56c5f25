"""``python -m trainers``: real processes, DiLoCo rounds, resuming, reuse, evaluation."""

import json
import math
import os
import signal
import subprocess
from dataclasses import dataclass

import psutil  # type: ignore[import-untyped]
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from composer_pipeline.diloco.callback import adopt, trainable
from composer_pipeline.diloco.codecs import state_sha
from composer_pipeline.diloco.fragments import read_state
from composer_pipeline.diloco.outer_optimizer import OuterState, outer_steps, pseudo_gradient
from composer_pipeline.errors import InputError
from composer_pipeline.evaluation.evaluate import evaluate
from composer_pipeline.files import too_open
from composer_pipeline.lake.store import Lake
from composer_pipeline.publishing.publish import publish_model
from composer_pipeline.testing.training import tiny_recipe, write_dataset
from composer_pipeline.training.models import load_tokenizer
from composer_pipeline.training.rows import Prompt, pair_of
from composer_pipeline.training.run import (
    TrainReport,
    extended,
    held_out_losses,
    prepare,
    read_steps,
    report,
    train,
)
from composer_pipeline.training.windows import Windows
from tests.fixtures.waiting import wait_until
from trainers.__main__ import main
from trainers.common.adapters import load_start
from trainers.common.checkpoints import FILE as CHANNELS
from trainers.common.checkpoints import ChannelStates, earlier_state, state_file

pytestmark = pytest.mark.slow


ROUNDS = 4  # more than pass until both kills
#: Rows that the base model scores for a run of one round and replica: of hints, all.
SCORED = {"grpo": 2, "sdpo": 8, "dpo": 4}


@dataclass(frozen=True)
class Finished:
    """A run that was killed twice, and what was seen meanwhile."""

    result: TrainReport
    progress: list[tuple[str, int, int]]
    committed: int  # rounds, when nothing of it was left running
    scored: dict[str, tuple[int, int]]  # modification times of the base model's scores


@pytest.fixture(scope="module")
def recipe(tiny_model):
    """Two replicas with everything that a restart has to bring back."""
    sdpo = {"teacher": "ema", "ema_rate": 0.2, "divergence": "taid", "hint_gain": False}
    return tiny_recipe(
        tiny_model, learning_rate=0.01, checkpoint_every=1,
        channels={"grpo": {}, "sdpo": {"rows_per_step": 2, **sdpo}, "dpo": {"pairs_per_step": 2}},
        data={"max_prompt_tokens": 200, "max_completion_tokens": 64, "max_tools_tokens": 0},
        diloco={"replicas": 2, "rounds": ROUNDS, "inner_steps": 2, "min_quorum": 2},
        eval_every=1, eval_rows=2, keep_best=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def finished(lake, recipe, tmp_path_factory):
    """A run whose supervisor is killed after a round, and once it goes on, its second replica."""
    runs = tmp_path_factory.mktemp("runs")
    run = prepare(lake, recipe, runs)
    process = subprocess.Popen(
        run.command, cwd=run.cwd, env=os.environ | run.env, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    for line in process.stdout:
        if line.startswith('{"event": "round"'):
            break
    children = psutil.Process(process.pid).children()
    assert len(children) == 2
    process.kill()
    process.wait()
    process.stdout.close()
    # An orphaned replica notices within a step that its supervisor is gone.
    wait_until(lambda: not any(map(_lives, children)), "the replicas have ended")
    with pytest.raises(InputError, match="no finished training run"):
        report(run.run_dir)
    committed = read_state(str(run.run_dir / "outer"), "run")[1].round
    scored = _stamps(run.run_dir)
    seen: list[tuple[str, int, int]] = []
    killed: list[psutil.Process] = []

    def on_progress(*step):
        seen.append(step)
        if not killed:
            killed.append(_replica(1))
            killed[0].kill()

    return Finished(train(lake, recipe, runs, progress=on_progress), seen, committed, scored)


def _replica(slot):
    """Return the process of a slot, a grandchild of this one."""
    found = psutil.Process().children(recursive=True)
    return next(p for p in found if p.environ().get("COMPOSER_DILOCO_SLOT") == str(slot))


def _lives(process):
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _stamps(run_dir):
    files = [*run_dir.glob("base/*.arrow"), *run_dir.glob("data/*.arrow")]
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_ino) for path in files}


def test_two_processes_commit_every_round_and_leave_a_checkpoint(finished):
    result = finished.result
    assert not result.reused
    steps = 2 * ROUNDS
    assert finished.progress[-1] == ("train", 2 * steps, 2 * steps)
    metrics = result.metrics
    assert metrics["rounds"] == metrics["rounds_with_all_replicas"] == ROUNDS
    assert metrics["dpo_loss_last"] < metrics["dpo_loss_first"] < 0.6932
    assert metrics["dpo_active"] == 2 * steps * 2
    assert metrics["grpo_active"] > 0
    assert metrics["sdpo_active"] > 0
    composer = json.loads((result.run_dir / "composer.json").read_text())
    assert [c["included"] for c in composer["commits"]] == [[0, 1]] * ROUNDS
    assert composer["rows"] == {"grpo": 8, "sdpo": 8, "dpo": 8, "sft": 8}
    assert 0 <= metrics["hints_kept_share"] <= 1
    assert metrics["grpo_best_gain_last"] > metrics["grpo_worst_gain_last"]
    assert metrics["sft_loss_last"] < metrics["sft_loss_first"]
    numbers = read_steps(result.run_dir)
    assert set(numbers) == {(slot, k + 1) for slot in (0, 1) for k in range(steps)}
    for slot in (0, 1):
        assert numbers[slot, 1]["dpo_loss"] == pytest.approx(math.log(2), abs=1e-5)
    assert [c["merged"] for c in composer["commits"]] == [True] * ROUNDS
    assert metrics["rounds_merged"] == ROUNDS
    # The gate of publishing finds nothing private in a real checkpoint.
    files = publish_model(result.run_dir, "me/x", dry_run=True, allow_simulated=True).files
    assert {"README.md", "composer.json", "adapter_model.safetensors"} <= set(files)
    assert list(too_open(result.run_dir)) == [], "others may read no file of a run"
    adapter = load_file(result.checkpoint / "adapter_model.safetensors")
    assert any(float(v.abs().max()) > 0 for k, v in adapter.items() if "lora_B" in k)


def test_a_killed_run_ends_as_if_it_had_not_been_killed(finished, recipe, make_tiny):
    """Two trainers take turns here, and begin each round with the merge of what both became.

    To the bit: neither the moments of AdamW nor a step were lost.
    """
    result = finished.result
    assert 1 <= finished.committed < ROUNDS
    assert _stamps(result.run_dir) == finished.scored, "rows and the base model's scores stay"
    lines = (result.run_dir / "metrics.jsonl").read_text().splitlines()
    steps = [(e["slot"], e["step"]) for e in map(json.loads, lines) if e["event"] == "step"]
    assert steps.count((0, 1)) == steps.count((1, 1)) == 1, "the first round was not repeated"
    composer = json.loads((result.run_dir / "composer.json").read_text())
    assert composer["restarts"] == {"0": 0, "1": 1}
    inner = recipe.diloco.inner_steps
    trainers = [make_tiny(recipe, slot=slot) for slot in (0, 1)]
    merged = OuterState.initial(trainable(trainers[0].model))
    for round_ in range(ROUNDS):
        deltas = []
        for trainer in trainers:
            adopt(trainer.model, merged.theta)
            trainer._skip, trainer.args.max_steps = round_ * inner, inner
            trainer.train()  # goes on with the optimizer that it has
            deltas.append(pseudo_gradient(merged.theta, trainable(trainer.model)))
        list(outer_steps(merged, deltas, lr=1.0, momentum=0.0))
    committed, commit = read_state(str(result.run_dir / "outer"), "run")
    assert all(torch.equal(committed[name], merged.theta[name]) for name in committed)
    assert commit.state_sha == state_sha(merged)
    for slot, trainer in enumerate(trainers):
        file = state_file(result.run_dir, ROUNDS * inner, prefer=slot)
        assert file
        assert file.parent.name == f"slot-{slot}"
        _has_state_of(file, trainer)


def _has_state_of(file, trainer):
    """Check SDPO's averaged teacher and TAID's schedule in a file of channels' states."""
    averages, schedule = next(c for c in trainer.channels if c.name == "sdpo").state()
    with safe_open(str(file), framework="pt") as kept:
        numbers = json.loads(kept.metadata()["numbers"])["sdpo"]
        tensors = {name: kept.get_tensor(f"sdpo/{name}") for name in averages}
    torch.testing.assert_close(tensors, averages, rtol=1e-4, atol=1e-6)
    assert numbers == pytest.approx(schedule, rel=1e-4, abs=1e-6)


def test_both_replicas_end_with_the_committed_state(finished):
    result = finished.result
    shas = {}
    for slot in (0, 1):
        for line in (result.run_dir / "replicas" / f"slot-{slot}.log").read_text().splitlines():
            if line.startswith('{"event": "commit"'):
                event = json.loads(line)
                shas[slot, event["round"]] = event["state_sha"]
    composer = json.loads((result.run_dir / "composer.json").read_text())
    commits = {commit["round"]: commit["state_sha"] for commit in composer["commits"]}
    for (_, number), sha in shas.items():
        assert sha == commits[number]
    # A replica that is killed right after a commit may not have told of it: both were killed in
    # the round after `committed`, and one of them later.
    missing = {(slot, number) for slot in (0, 1) for number in commits} - shas.keys()
    assert len(missing - {(0, finished.committed), (1, finished.committed)}) <= 1
    assert (0, max(commits)) in shas
    assert (1, max(commits)) in shas


def test_the_checkpoint_is_that_of_the_round_with_the_lowest_held_out_loss(finished):
    result = finished.result
    losses = held_out_losses(result.run_dir)
    assert sorted(losses) == [round_ + 1 for round_ in range(ROUNDS)]
    best = min(losses, key=lambda round_: losses[round_])
    assert result.metrics["checkpoint_round"] == best
    assert result.metrics[f"held_out_loss_round_{best}"] == losses[best]
    url = str(result.run_dir / "outer")
    other_round = best - 1 if best > 1 else 2
    (kept, _), (other, _) = (read_state(url, "run", round_) for round_ in (best, other_round))
    adapter = load_file(result.checkpoint / "adapter_model.safetensors")
    assert all(torch.equal(adapter[name.replace(".default", "")], t) for name, t in kept.items())
    assert any(not torch.equal(kept[name], other[name]) for name in kept)


def _no_process(*arguments, **options):
    raise AssertionError("a process was started")


def test_the_same_inputs_are_not_trained_again(finished, lake, recipe, monkeypatch):
    result = finished.result
    monkeypatch.setattr(subprocess, "Popen", _no_process)
    again = train(lake, recipe, result.run_dir.parent)
    assert again.reused
    assert (again.run_dir, again.metrics) == (result.run_dir, result.metrics)
    other = recipe.model_copy(update={"seed": 1})
    assert prepare(lake, other, result.run_dir.parent).run_dir != result.run_dir


def test_evaluation_before_and_after(finished, lake, recipe, tmp_path, monkeypatch):
    result = finished.result
    told = []
    first = evaluate(lake, result.run_dir, progress=lambda *event: told.append(event))
    assert first.states == {"hard_covered": 3}
    assert told[-1] == ("evaluate", 6, 6)
    numbers = first.metrics
    for name in ("exact", "canonical", "valid_call", "preference", "margin", "right_nll",
                 "wrong_nll", "error_logp", "hint_gain"):  # fmt: skip
        assert f"hard_covered_{name}_before" in numbers
        assert f"hard_covered_{name}_after" in numbers
    assert numbers["hard_covered_right_nll_after"] < numbers["hard_covered_right_nll_before"]
    assert numbers["hard_covered_margin_after"] > numbers["hard_covered_margin_before"]
    assert numbers["hard_covered_kl_after"] > 0
    assert not first.reused
    base_nll = pytest.approx(_base_nll(lake, recipe), rel=1e-4)
    assert numbers["hard_covered_right_nll_before"] == base_nll
    again = evaluate(lake, result.run_dir)
    assert again.reused
    assert (again.metrics, again.cells) == (numbers, first.cells)
    card = result.checkpoint / "README.md"
    assert "| hard_covered | canonical |" in card.read_text()
    assert card.stat().st_mode == (result.checkpoint / "composer.json").stat().st_mode
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", _no_process)
        with pytest.raises(AssertionError, match="a process was started"):
            evaluate(lake, result.run_dir, max_new_tokens=2)  # which is another measurement
    only_train = Lake(tmp_path / "lake")
    write_dataset(only_train, rows=2)
    with pytest.raises(InputError, match="split=validation"):
        evaluate(only_train, result.run_dir)
    with pytest.raises(InputError, match="no finished training run"):
        evaluate(lake, tmp_path)


def _base_nll(lake, recipe):
    """The chosen actions' loss a token, as transformers itself computes it; the mean of rows."""
    windows = Windows(load_tokenizer(recipe.model), recipe.data)
    model = AutoModelForCausalLM.from_pretrained(recipe.model, dtype=torch.float32)
    losses = []
    for row in lake.rows("dataset_pairs", split="validation"):
        made = pair_of(Prompt(windows, row), row)
        ids = torch.tensor([[*made.prompt_ids, *made.chosen_ids]])
        labels = ids.clone()
        labels[:, : len(made.prompt_ids)] = -100
        with torch.no_grad():
            losses.append(float(model(input_ids=ids, labels=labels).loss))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("broken", ["no rows", "unknown model", "unknown field"])
def test_bad_input_is_one_sentence_and_exit_code_2(
    broken, lake, recipe, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # this process's own stays
    run = prepare(lake, recipe, tmp_path)
    command = list(run.command)
    if broken == "no rows":
        command[command.index("--lake") + 1] = str(tmp_path / "empty")
    else:
        path = tmp_path / "recipe.yaml"
        text = "name: x\nmodel: ./nowhere\n" if broken == "unknown model" else "name: x\nfoo: 1\n"
        path.write_text(text)
        command[command.index("--recipe") + 1] = str(path)
    assert main(command[command.index("trainers") + 1 :]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    said = {"no rows": "dataset_groups", "unknown model": "nowhere", "unknown field": "foo"}
    assert said[broken] in err


def test_a_finished_run_is_extended_and_stays_as_it_is(finished, lake, tmp_path):
    """Both replicas go on with their moments, in a folder of its own."""
    old = finished.result.run_dir
    before = {str(p): p.read_bytes() for p in old.rglob("*") if p.is_file()}
    longer = extended(old, ROUNDS + 1)
    done = train(lake, longer, tmp_path)
    assert {str(p): p.read_bytes() for p in old.rglob("*") if p.is_file()} == before
    assert done.run_dir.parent == tmp_path
    assert done.metrics["rounds"] == done.metrics["rounds_merged"] == ROUNDS + 1
    urls = str(old / "outer"), str(done.run_dir / "outer")
    earlier, same = (read_state(url, "run", ROUNDS)[1] for url in urls)
    assert earlier == same
    lines = (done.run_dir / "metrics.jsonl").read_text().splitlines()
    events = list(map(json.loads, lines))
    resumed = [(e["slot"], e["step"]) for e in events if e["event"] == "resumed"][-2:]
    assert sorted(resumed) == [(0, 2 * ROUNDS), (1, 2 * ROUNDS)]
    assert set(read_steps(done.run_dir)) == {
        (s, k + 1) for s in (0, 1) for k in range(2 * ROUNDS + 2)
    }
    composer = json.loads((done.run_dir / "composer.json").read_text())
    assert composer["recipe"]["extends"] == old.name
    assert str(old) not in (done.run_dir / "composer.json").read_text()


def test_a_nightly_run_goes_on_from_the_last_ones_adapter(
    finished, lake, recipe, make_tiny, tmp_path
):
    """With its teacher and schedule too: it ends where one in this process does."""
    result = finished.result
    short = recipe.diloco.model_copy(update={"replicas": 1, "rounds": 1, "min_quorum": 1})
    changes = {"start_from": str(result.run_dir), "diloco": short, "keep_best": False}
    nightly = recipe.model_copy(update=changes | {"eval_every": None})
    told = []
    second = train(lake, nightly, tmp_path, merge=True, progress=lambda *e: told.append(e))
    scored = [(f"base model, {name}", rows, rows) for name, rows in SCORED.items()]
    assert told == [*scored, ("train", 1, 2), ("train", 2, 2)]
    assert second.merged == second.run_dir / "merged"
    begun, _ = read_state(str(second.run_dir / "outer"), "run", 0)
    earlier = load_file(result.checkpoint / "adapter_model.safetensors")
    assert {name.replace(".default", "") for name in begun} == earlier.keys()
    for name, tensor in begun.items():
        assert torch.equal(tensor, earlier[name.replace(".default", "")]), name
    states = ChannelStates(tmp_path / "here", 0, first=earlier_state(nightly))
    here = make_tiny(nightly, states=states)
    load_start(here.model, nightly)
    here.train()
    ended, _ = read_state(str(second.run_dir / "outer"), "run")
    torch.testing.assert_close(ended, dict(trainable(here.model)), rtol=1e-4, atol=1e-6)
    _has_state_of(second.checkpoint / CHANNELS, here)
    composer = json.loads((second.run_dir / "composer.json").read_text())
    assert composer["start_from"]["name"] == result.run_dir.name
    assert str(result.run_dir) not in (second.run_dir / "composer.json").read_text()
    assert (second.run_dir / "merged" / "model.safetensors").is_file()


def test_the_run_leaves_a_picture_with_its_killed_replica(finished):
    from composer_pipeline.diloco.views import TIMELINE, read_timeline

    run_dir = finished.result.run_dir
    drawn = read_timeline(run_dir)
    assert drawn is not None
    assert drawn == (run_dir / TIMELINE).read_text()
    assert drawn.count(">replica 0<") == drawn.count(">replica 1<") == 1
    assert 'class="dead"' in drawn
    assert drawn.count('class="start"') >= 2, "both after the supervisor's end, and the killed one"
    assert "held out" in drawn
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    ended = [e for e in map(json.loads, lines) if e["event"] == "replica_ended"]
    assert [(e["slot"], e["code"], e["restart"]) for e in ended] == [(1, -9, 1)]
