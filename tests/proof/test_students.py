"""A student other than the small world's own: recipes, window, command and report."""

import json

import pytest
import torch

from composer_pipeline.errors import InputError
from composer_pipeline.evaluation.measure import Arm, measure
from composer_pipeline.evaluation.results import BASE, read_results
from composer_pipeline.evaluation.states import read_states, rows_of
from composer_pipeline.training.models import load_tokenizer
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.rows import TrainingData
from composer_pipeline.training.windows import Windows
from examples.proof import gpu, run
from examples.proof.arms import ARMS, recipe_of_arm
from examples.proof.students import student_of, window
from examples.proof.toolworld.pipeline import Plan, evaluation_states
from examples.proof.toolworld.student import base_dir
from examples.proof.toolworld.world import held_out_sessions
from examples.proof.train import rows_said

MODEL = str(base_dir())
GRID = [
    "--model", MODEL, "--lora", "4", "--tools", "0", "--sessions", "12", "--steps", "3",
    "--seeds", "1", "--held-out", "4", "--development",
]  # fmt: skip
FOLDER = "half-25shared-12-seed1"


@pytest.fixture(scope="module")
def states():
    return evaluation_states(held_out_sessions(4))


@pytest.fixture(scope="module")
def proved(tmp_path_factory):
    """Two arms of an adapter, the second behind a run that was killed."""
    out = tmp_path_factory.mktemp("student")
    assert run.main([*GRID, "--out", str(out), "--arms", "sft-recorded"]) == 0
    assert run.main([*GRID, "--out", str(out), "--arms", "sft-recorded,shipped"]) == 0
    return out


def test_every_state_has_a_window_that_loses_nothing(states):
    tokenizer = load_tokenizer(MODEL)
    found = window(tokenizer, states, 0)
    rows, dropped = rows_of(Windows(tokenizer, found), states)
    assert not dropped
    wide = {"max_prompt_tokens": 9999, "max_completion_tokens": 999}
    whole, _ = rows_of(Windows(tokenizer, found.model_copy(update=wide)), states)
    assert rows == whole
    longest = max(row.longest for row in rows)
    assert longest <= found.max_completion_tokens < longest + 16
    assert found.max_prompt_tokens == 2 * max(len(r.prompt_ids) for r in rows)
    assert found.max_tools_tokens == 0


def test_tools_are_offered_where_they_have_room(states):
    tokenizer = load_tokenizer(MODEL)
    found = window(tokenizer, states, 512)
    assert (found.max_tools_tokens, found.max_prompt_tokens) == (512, 8 * 512)
    bare, _ = rows_of(Windows(tokenizer, window(tokenizer, states, 0)), states[:1])
    told, _ = rows_of(Windows(tokenizer, found), states[:1])
    assert len(told[0].prompt_ids) > len(bare[0].prompt_ids)


def test_a_student_is_in_the_recipe_of_each_arm_and_its_terms_stay(states):
    student = student_of(MODEL, states, lora=16, dtype="bf16", tools=0)
    for name in ("composer", "grpo", "composer-live"):
        own, other = (recipe_of_arm(name, seed=2, steps=5, student=s) for s in (None, student))
        assert other.channels == own.channels
        assert (other.seed, other.total_steps) == (2, 5)
        assert (other.lora.r, other.lora.alpha, other.lora.targets) == (16, 32, "all-linear")
        assert (other.dtype, other.activation_checkpointing) == ("bf16", True)
        assert other.data.max_prompt_tokens == student["data"]["max_prompt_tokens"]
        assert own.lora.r == 0


@pytest.mark.slow
def test_an_adapter_is_trained_and_the_base_is_measured_once(proved):
    folder = proved / "runs" / FOLDER
    arms = ("sft-recorded", "shipped")
    first, second = (read_results(folder / arm / "results.parquet") for arm in arms)
    assert list(second) == [BASE, "shipped"]
    assert first[BASE] == second[BASE]
    assert {r.state_id for r in second[BASE]} == {
        s.state_id for s in read_states(proved / "states.parquet")
    }
    assert all(r.kl is not None and r.kl >= -1e-6 for r in second["shipped"])
    assert sum(r.kl or 0.0 for r in second["shipped"]) > 0
    assert (folder / "shipped" / "model" / "adapter_config.json").is_file()


def test_the_base_is_the_one_without_adapter(proved):
    """Measured through the trained model with its adapter off, and by itself."""
    from examples.proof.run import windows_of
    from trainers.common.policy import load_base

    recipe = TrainingRecipe.load(proved / "runs" / FOLDER / "sft-recorded" / "recipe.yaml")
    base = Arm(BASE, load_base(recipe.model, recipe).eval())
    states = read_states(proved / "states.parquet")
    alone = measure(states, [base], windows_of(recipe)).results[BASE]
    kept = read_results(proved / "runs" / FOLDER / "shipped" / "results.parquet")[BASE]
    for a, b in zip(alone, kept, strict=True):
        assert (a.state_id, a.answer) == (b.state_id, b.answer)
        assert a.logp_right == pytest.approx(b.logp_right, abs=1e-4)


def test_the_report_says_the_student_its_rows_and_its_steps(proved):
    numbers = json.loads((proved / "runs" / FOLDER / "shipped" / "numbers.json").read_bytes())
    data = TrainingData.load(proved / "runs" / FOLDER / "shipped" / "data")
    assert {k: n for k, n in numbers.items() if k.startswith("rows ")} == {
        f"rows {channel}": n for channel, n in data.counts().items() if n
    }
    page = (proved / "report.md").read_text()
    assert f"Student: {MODEL}, fp32, LoRA of rank 4 on every linear map; prompts of up to" in page
    line = next(row for row in page.splitlines() if "| rows sdpo: " in row)
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[0] == ARMS["shipped"].what
    assert cells[1] == rows_said(numbers)[0]
    assert cells[3] == f"{numbers['hints_kept_share']:.0%}"
    assert float(cells[4]) == pytest.approx(numbers["step_seconds"], abs=0.006)
    rate = numbers["step_tokens"] / numbers["step_seconds"]
    assert int(cells[5].replace(",", "")) == pytest.approx(rate, rel=2e-3)
    assert float(cells[6]) == pytest.approx(numbers["peak_memory_mib"] / 1024, abs=0.006)


def test_rows_that_do_not_fit_are_counted_and_said(proved, states, tmp_path, capsys):
    student = student_of(MODEL, states, lora=4, dtype="fp32", tools=0)
    lengths = sorted(
        len(row.response_ids)
        for row in TrainingData.load(
            proved / "runs" / FOLDER / "sft-recorded" / "data"
        ).demonstrations
    )
    assert lengths[0] < lengths[-1]
    (tmp_path / "data").symlink_to(proved / "data")
    student["data"]["max_completion_tokens"] = max(8, lengths[-1] - 1)
    plan = Plan(1, 12, *run.MAIN)
    fitting = [s for s in states if len(rows_of(windows(student), [s])[0])]
    assert fitting
    run.prove(tmp_path, [(plan, "sft")], fitting, steps=1, student=student)
    lost = sum(n > student["data"]["max_completion_tokens"] for n in lengths)
    assert lost
    said = f"left out, sft: response is too long: {lost}"
    assert f"{FOLDER} sft: {said}" in capsys.readouterr().out
    assert f"| {said} |" in (tmp_path / "report.md").read_text()


def windows(student):
    recipe = recipe_of_arm("sft", seed=1, steps=1, student=student)
    return run.windows_of(recipe)


@pytest.mark.parametrize(
    ("changed", "field"), [(["--lora", "8"], "lora"), (["--tools", "16"], "data")]
)
def test_another_student_in_the_same_folder_is_refused(proved, capsys, changed, field):
    """Also for an arm that is not there yet: its base would be another one."""
    argv = [*GRID, *changed, "--out", str(proved), "--arms", "dpo"]
    assert run.main(argv) == 2
    assert f"is the run of another student ({field}); take another --out" in capsys.readouterr().err


def test_arms_that_merge_whole_models_need_no_adapter(tmp_path, capsys):
    argv = [*GRID, "--out", str(tmp_path), "--arms", "sft,diloco-2"]
    assert run.main(argv) == 2
    assert "--arms: diloco-2 merges whole models" in capsys.readouterr().err
    adapter, whole = (
        run._chosen(run._options(["--all", *more]))
        for more in (["--model", MODEL, "--lora", "16"], [])
    )
    assert whole == list(ARMS)
    assert set(whole) - set(adapter) == {"diloco-1", "diloco-2", "diloco-4", "diloco-killed"}


def test_what_belongs_to_a_model_is_refused_without_one(tmp_path, capsys):
    with pytest.raises(SystemExit) as refused:
        run.main(["--out", str(tmp_path), "--lora", "8", "--arms", "none"])
    assert refused.value.code == 2
    assert "belong to --model" in capsys.readouterr().err


def test_a_model_that_is_not_there_is_named(tmp_path, capsys):
    argv = ["--device", "cpu", "--model", "./nowhere", "--out", str(tmp_path / "out")]
    assert gpu.main(argv) == 2
    said = capsys.readouterr().err
    assert "proof-gpu: model './nowhere': no such folder" in said
    assert "--model" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="would run")
def test_without_a_device_it_says_so(tmp_path, capsys):
    assert gpu.main(["--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == "proof-gpu: no CUDA device here, so nothing was run\n"
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_main_measures_steps_then_runs_the_grid(proved, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # main sets it
    (tmp_path / "data").symlink_to(proved / "data")
    argv = [*GRID, "--device", "cpu", "--dtype", "fp32", "--prompts", "64", "--arms", "sft"]
    assert gpu.main([*argv, "--out", str(tmp_path)]) == 0
    page = (tmp_path / "report.md").read_text()
    head, steps = page.split(f"## A step of {MODEL} beside TRL's trainers\n")
    assert "SFT on the consensus" in head
    assert f"torch {torch.__version__}, trl " in steps
    named = [line.split("|")[2].strip() for line in steps.splitlines() if line.startswith("| 64 ")]
    assert named == ["TRL: GRPO", "TRL: SDPO", "TRL: DPO", "TRL: all three", "composer"]
    written = (tmp_path / "steps.md").stat().st_mtime_ns
    assert gpu.main([*argv, "--out", str(tmp_path)]) == 0  # all of it is there
    assert (tmp_path / "steps.md").stat().st_mtime_ns == written


def test_another_evaluation_set_is_refused(proved, states):
    with pytest.raises(InputError, match="is the evaluation set of another"):
        run.prove(proved, [(Plan(1, 12, *run.MAIN), "sft")], states[:-1], steps=3)
