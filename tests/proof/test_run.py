"""The grid's folders: what is drawn, kept and refused, and the command that users run."""

import json
import subprocess
import sys

import psutil  # type: ignore[import-untyped]
import pytest
import torch
from transformers import AutoModelForCausalLM

from composer_pipeline.evaluation.states import content_hash, read_states
from composer_pipeline.training.rows import Demonstration, TrainingData
from composer_pipeline.training.run import train
from examples.proof import run
from examples.proof.arms import ARMS, recipe_of, recipe_of_arm
from examples.proof.toolworld.pipeline import Plan, evaluation_states
from examples.proof.toolworld.world import for_test, held_out_sessions
from examples.proof.train import train_arm
from tests.fixtures.waiting import wait_until

PLAN = Plan(seed=1, count=12, coverage="full")
SMALL = ["--sessions", "12", "--steps", "2", "--seeds", "1", "--held-out", "12", "--jobs", "1"]


@pytest.fixture(scope="module")
def proved(tmp_path_factory):
    out = tmp_path_factory.mktemp("proof")
    assert run.main([*SMALL, "--out", str(out), "--arms", "sft"]) == 0
    return out


def only(proved, arm):
    return next((proved / run.RUNS).glob(f"*/{arm}"))


@pytest.mark.slow
def test_finished_arms_are_kept_and_killed_ones_run_again(proved, capsys):
    finished = only(proved, "sft") / "results.parquet"
    before = finished.stat().st_mtime_ns
    killed = finished.parent.with_name("sft-recorded")
    killed.mkdir()
    (killed / "left").touch()
    drawn = (proved / "test.json").read_bytes()
    argv = [*SMALL, "--out", str(proved), "--arms", "sft,sft-recorded"]
    assert run.main(argv) == 0
    assert finished.stat().st_mtime_ns == before
    assert not (killed / "left").exists()
    assert (killed / "results.parquet").is_file()
    assert (proved / "test.json").read_bytes() == drawn
    assert "sft: kept" in capsys.readouterr().out
    assert "SFT on what the agent did (placebo)" in (proved / "report.md").read_text()


def test_the_test_sessions_and_seeds_follow_from_what_was_drawn(proved):
    test = json.loads((proved / "test.json").read_bytes())
    assert not test["development"]
    kept = held_out_sessions(12, seed=test["seed"], accept=for_test)
    states = evaluation_states(kept)
    assert content_hash(read_states(proved / "states.parquet")) == content_hash(states)
    assert set(test["families"]) == {state.state_id for state in states}
    assert only(proved, "sft").parent.name.endswith(f"-seed{test['seed'] + 1}")


def test_two_runs_draw_two_tests_and_the_development_world_is_one(tmp_path):
    made = [run.drawn(tmp_path / f"{i}.json", 4, development=i > 1)[0] for i in range(4)]
    assert made[0].sessions() != made[1].sessions()
    assert made[2] == made[3]


def test_a_run_of_other_options_is_named(proved, capsys):
    argv = [*SMALL, "--out", str(proved), "--arms", "sft", "--steps", "3"]
    assert run.main(argv) == 2
    assert "is the run of another recipe" in capsys.readouterr().err
    assert run.main([*argv, "--development"]) == 2
    assert "is of other --held-out or --development" in capsys.readouterr().err


def test_an_unknown_arm_is_named(tmp_path, capsys):
    assert run.main(["--out", str(tmp_path / "out"), "--arms", "sfd"]) == 2
    assert "no arm 'sfd'; there are sft-recorded, sft" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_an_arm_through_the_trainers_command_is_the_same_model(tmp_path):
    """What the proof trains in its process is what ``composer-pipeline train`` gives."""
    lake = run.dataset(tmp_path / "data" / run.name_of(PLAN), PLAN)
    recipe = recipe_of(
        ARMS["composer"].terms, name="composer", steps=4,
        diloco={"replicas": 1, "inner_steps": 4}, norms_every=4,
    )  # fmt: skip
    here = train_arm(lake, recipe, tmp_path / "here").model.state_dict()
    report = train(lake, recipe, tmp_path / "runs")
    there = AutoModelForCausalLM.from_pretrained(str(report.checkpoint)).state_dict()
    base = AutoModelForCausalLM.from_pretrained(recipe.model, dtype=torch.float32).state_dict()
    assert set(there) == set(here)
    for name, weights in here.items():
        torch.testing.assert_close(there[name], weights, atol=1e-6, rtol=0)
    assert any(not torch.allclose(here[name], base[name], atol=1e-4) for name in base)


@pytest.mark.slow
def test_own_fixes_are_repeated_beside_the_successes_and_nobody_was_asked(tmp_path):
    plan = ARMS["own"].plan(Plan(seed=2, count=24))
    lake = run.dataset(tmp_path / run.name_of(plan), plan)
    recipe = recipe_of_arm("own", seed=2, steps=1)
    change = run.demonstrations(lake, run.windows_of(recipe), "fixes")
    success = Demonstration("a success", [1], [2])
    data = change(TrainingData(demonstrations=[success]))
    pairs = list(lake.iter_rows("dataset_pairs", split="train"))
    assert data.demonstrations[0] == success
    assert [d.id for d in data.demonstrations[1:]] == [row["state_id"] for row in pairs]
    assert {row["source"] for row in pairs} == {"fixup", "recovery"}
    assert not lake.rows("replies")


def test_what_cannot_be_drawn_is_named(tmp_path, capsys):
    line = ["--out", str(tmp_path / "out")]
    assert run.main([*line, "--held-out", "865"]) == 2
    assert "--held-out 865: the world has 864 sessions" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run.main([*line, "--seeds", "0"])
    assert "--seeds: 0 is less than 1" in capsys.readouterr().err
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "test.json").write_text("{")
    assert run.main(line) == 2
    assert "test.json cannot be read" in capsys.readouterr().err


@pytest.mark.slow
def test_a_worker_that_is_killed_ends_the_grid_and_what_is_done_stays(tmp_path, monkeypatch):
    """Two processes; the first one that begins an arm is killed."""
    argv = [sys.executable, "-m", "examples.proof.run", *SMALL, "--out", str(tmp_path)]
    argv += ["--jobs", "2", "--arms", "sft,sft-recorded"]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as grid:
        begun = wait_until(lambda: list(tmp_path.glob("runs/*/*/recipe.yaml")), "an arm begins")
        for child in psutil.Process(grid.pid).children(recursive=True):
            if "spawn_main" in " ".join(child.cmdline()):
                child.kill()
        assert grid.stderr is not None
        said = grid.stderr.read()
    assert begun
    assert grid.returncode == 1
    assert "proof: a process was ended from outside; start it again" in said
    assert run.main([*argv[3:-4], "--jobs", "1", "--arms", "sft,sft-recorded"]) == 0


def test_replicas_share_the_rows_of_a_step():
    whole = recipe_of_arm("shipped", seed=1, steps=60)
    for name in ("diloco-1", "diloco-2", "diloco-4", "diloco-killed"):
        recipe = recipe_of_arm(name, seed=1, steps=60)
        rows = recipe.channels.rows_per_step()
        replicas = recipe.diloco.replicas
        assert {c: n * replicas for c, n in rows.items()} == whole.channels.rows_per_step()
        assert recipe.total_steps == whole.total_steps == 60
        assert recipe.channels.weights() == whole.channels.weights()
        assert recipe.rounds == 6


def test_other_teachers_are_tried_with_all_and_only_where_there_are_some(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(run, "prove", lambda out, todo, *_, **__: asked.extend(todo))
    argv = ["--all", "--seeds", "2", "--held-out", "4", "--out", str(tmp_path)]
    assert run.main(argv) == 0
    cells = {(plan.coverage, plan.shared) for plan, _ in asked}
    assert cells == {run.MAIN, *run.OTHERS}
    assert {arm for _, arm in asked} == set(ARMS)
    alone = [plan for plan, arm in asked if arm == "culprit"]
    assert [(plan.coverage, plan.shared) for plan in alone] == [run.MAIN] * 2
    assert len(asked) == len(set(asked))


def test_data_that_differ_are_in_folders_of_their_own():
    plans = {arm.plan(PLAN) for arm in ARMS.values()}
    assert len({run.name_of(plan) for plan in plans}) == len(plans) == 4
