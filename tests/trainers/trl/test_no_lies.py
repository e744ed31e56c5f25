"""Runs that cannot lie, through the trainer's own command."""

import json
import signal
import subprocess

import pytest
import yaml

from composer_pipeline.diloco.log import Commit, Included, Rejected
from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.testing.training import tiny_recipe
from composer_pipeline.training.run import RECIPE, alone, prepare, train
from trainers.__main__ import main, require_merged, sentence
from trainers.__main__ import train as train_here


def round_of(number, included=(), rejected=()):
    return Commit(number, included, rejected, "", "sha", "", 0, 0)


def test_a_run_that_merged_nothing_is_no_result():
    empty = [round_of(1, (), (Rejected(0, "lora_A is not finite"),)), round_of(2)]
    with pytest.raises(ComposerError) as error:
        require_merged(empty)
    assert "none of 2 rounds merged anything" in str(error.value)
    assert "replica 0: lora_A is not finite" in str(error.value)
    assert not isinstance(error.value, InputError)
    require_merged([*empty, round_of(3, (Included(1, "", "", 0, 1.0, 0, 1),))])


def test_an_empty_commit_is_said():
    event = {"event": "round", "round": 1, "of": 2, "included": [], "merged": False}
    said = sentence({**event, "rejected": {"0": "its x is not finite"}})
    assert said == "round 1/2 merged nothing (replica 0: its x is not finite)"
    step = {"event": "step", "slot": 0, "step": 1, "of": 2, "dpo_loss": None}
    assert "not finite: dpo_loss" in sentence({**step, "non_finite": ["dpo_loss"]})


@pytest.fixture
def prepared(lake, tiny_model, tmp_path):
    return tiny_recipe(tiny_model), prepare(lake, tiny_recipe(tiny_model), tmp_path / "runs")


def test_a_folder_in_which_another_process_trains(lake, prepared):
    recipe, run = prepared
    (run.run_dir / "outer").mkdir()
    with alone(run.run_dir):
        with pytest.raises(ComposerError, match="another process is training in"):
            train_here(recipe, lake, run.run_dir)
        with pytest.raises(ComposerError, match="another process is training in"):
            train(lake, recipe, run.run_dir.parent, force=True)
    assert (run.run_dir / "outer").is_dir()


def test_a_run_folder_does_not_go_on_with_other_weights(lake, prepared, tmp_path):
    recipe, run = prepared
    found = {"model": {"name": "tiny", "kind": "folder", "digest": "blake2b:other", "licence": ""}}
    (run.run_dir / "contents.json").write_text(json.dumps(found))
    with pytest.raises(InputError, match=r"recipe field model: .* has changed since run folder"):
        train_here(recipe, lake, run.run_dir)


@pytest.fixture
def command(monkeypatch, capsys):
    """Run the trainer's command with a changed recipe; return exit code and standard error.

    In this process, which has loaded what it needs; its children are processes of their own.
    """
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # this process's own stays

    def run_it(run, **changes):
        path = run.run_dir / RECIPE
        path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | changes))
        for name, value in run.env.items():
            monkeypatch.setenv(name, value)
        arguments = run.command[run.command.index("trainers") + 1 :]
        return main(arguments), capsys.readouterr().err

    return run_it


@pytest.mark.slow
def test_infinity_as_learning_rate_is_a_failure_with_a_reason(lake, prepared, command):
    _, run = prepared
    diloco = {"replicas": 1, "inner_steps": 2, "rounds": 2}
    code, said = command(run, learning_rate=1e30, diloco=diloco)
    assert code == 1, said
    assert "Traceback" not in said
    assert said.splitlines()[-1].startswith("error: ")
    assert not (run.run_dir / "composer.json").exists()
    assert not (run.run_dir / "checkpoint").exists()
    text = (run.run_dir / "metrics.jsonl").read_text()
    for line in text.splitlines():
        json.loads(line, parse_constant=pytest.fail)


@pytest.mark.slow
def test_a_full_disk_is_one_sentence_and_the_run_goes_on_later(
    lake, tiny_model, small_disk, command
):
    run = prepare(lake, tiny_recipe(tiny_model), small_disk)
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * 900_000)
    code, said = command(run)
    assert code == 1, said
    assert "Traceback" not in said
    assert said.splitlines()[-1].startswith("error: ")
    assert "No space left on device" in said.splitlines()[-1]
    assert not (run.run_dir / "composer.json").exists()
    filler.unlink()
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    code, said = command(run)
    assert code == 0, said
    assert (run.run_dir / "checkpoint" / "README.md").is_file()
