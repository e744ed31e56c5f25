"""The real-session tier on the small world: what is held out, taught, kept, said and refused."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from composer_pipeline.errors import InputError
from composer_pipeline.evaluation.results import BASE, StateResult, read_results
from composer_pipeline.evaluation.states import read_states
from composer_pipeline.lake.store import Lake
from composer_pipeline.settings import recipes_dir
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.rows import TrainingData
from examples.proof import real, real_report
from examples.proof.toolworld.pipeline import Plan as World
from examples.proof.toolworld.pipeline import recorded_sessions
from examples.proof.toolworld.student import WINDOW, base_dir
from examples.proof.toolworld.world import write_files, write_session

PLAN = real.Plan(
    steps=2, rows=2, seeds=2, questions=0, model=str(base_dir()),
    prompt=WINDOW.max_prompt_tokens, answer=WINDOW.max_completion_tokens,
)  # fmt: skip
MEASURED = Path(real.__file__).parents[2] / "benchmarks/results"
ARMS = ["sft-failed", "sft", "shipped"]


@pytest.fixture(scope="module")
def sessions(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sessions")
    drawn, _ = recorded_sessions(World(seed=1, count=24))
    write_files([write_session(each, f"real-{i}") for i, each in enumerate(drawn)], folder)
    return folder


@pytest.fixture(scope="module")
def proved(sessions, tmp_path_factory):
    out = tmp_path_factory.mktemp("real")
    real.prove(out, [sessions], ARMS, PLAN)
    return out


@pytest.fixture
def measured(proved):
    results: dict[str, dict[int, list[StateResult]]] = {BASE: {}, **{arm: {} for arm in ARMS}}
    for k in range(PLAN.folds):
        for name, some in read_results(proved / f"runs/{k}/results.parquet").items():
            arm, _, seed = name.rpartition("-")
            results[arm or BASE].setdefault(int(seed) if arm else 0, []).extend(some)
    return results


def taught(proved, fold, run, table, column):
    rows = Lake(str(proved / "runs" / str(fold) / run / "lake")).iter_rows(table, split="train")
    return {row["state_id"]: row[column] for row in rows}


def said(results, groups):
    """Return the verdict on results whose cases are in ``groups``."""
    plan = {"greedy": False}
    return real_report.verdict(real_report.summarise(results, groups, {"plan": plan}))


def test_every_case_is_held_out_once_with_its_group_of_sessions(proved):
    groups = {row["state_id"]: row["group_id"] for row in real.cases(Lake(str(proved / "lake")))}
    known = {state.state_id for state in read_states(proved / "states.parquet")}
    measured, trained = [], []
    for fold in range(PLAN.folds):
        results = read_results(proved / f"runs/{fold}/results.parquet")
        measured.append({r.state_id for r in results[BASE]})
        trained.append(set(taught(proved, fold, "sft-0", "dataset_successes", "action")))
        assert not {groups[s] for s in trained[fold]} & {groups[s] for s in measured[fold]}
    assert measured[0].isdisjoint(measured[1])
    assert measured == trained[::-1]
    assert measured[0] | measured[1] == known <= groups.keys()


def test_arms_are_taught_the_right_action_and_the_placebo_what_failed(proved):
    cases = {row["state_id"]: row for row in real.cases(Lake(str(proved / "lake")))}
    right = taught(proved, 0, "shipped-0", "dataset_successes", "action")
    failed = taught(proved, 0, "sft-failed-0", "dataset_successes", "action")
    chosen = taught(proved, 0, "shipped-0", "dataset_pairs", "chosen")
    assert right.keys() == failed.keys()
    for name, action in right.items():
        assert action == chosen[name] == cases[name]["recovery"] != failed[name]
        assert failed[name] == cases[name]["action"]


def test_shipped_is_the_recipe_that_ships_on_the_rows_of_the_other_arms(proved):
    ships = TrainingRecipe.load(recipes_dir() / "train" / "default.yaml")
    for arm in ARMS:
        assert PLAN.recipe(arm).schedule == ships.schedule
    assert PLAN.recipe("shipped").channels.weights() == ships.channels.weights()
    assert PLAN.recipe("shipped").channels.sdpo.teacher == ships.channels.sdpo.teacher
    rows = {}
    for arm in ARMS:
        data = TrainingData.load(proved / f"runs/0/{arm}-0/data")
        rows[arm] = {row.id: list(row.response_ids) for row in data.demonstrations}
    assert rows["sft"] == rows["shipped"]
    assert rows["sft"].keys() == rows["sft-failed"].keys()
    assert rows["sft"] != rows["sft-failed"]


def test_the_words_follow_the_figures(measured):
    cases = [r.state_id for r in measured["sft"][0]]
    apart = {name: name for name in cases}

    def shifted(by):
        return {
            seed: [
                msgspec.structs.replace(r, logp_right=r.logp_right + (by + i % 3 / 100)
                                        * r.tokens_right)
                for i, r in enumerate(some)
            ]
            for seed, some in measured["sft"].items()
        }  # fmt: skip

    assert "action more likely" in said(measured | {"shipped": shifted(0.2)}, apart)
    assert "action less likely" in said(measured | {"shipped": shifted(-0.2)}, apart)
    null = said(measured | {"shipped": shifted(-0.01)}, apart)
    assert "A null of SDPO's share beside SFT" in null
    assert "likely" not in null
    # The same difference in few groups is no evidence, however many cases they hold.
    together = {name: str(i % 3) for i, name in enumerate(cases)}
    assert "no claim" in said(measured | {"shipped": shifted(0.2)}, together)


def test_power_counts_groups_not_cases():
    alone = real_report.power([(f"s{i}", f"g{i}") for i in range(110)])
    assert alone["success"]["15%"] == pytest.approx(0.10, abs=0.005)
    joined = real_report.power([(f"s{i}", "g" if i < 64 else f"g{i}") for i in range(110)])
    assert joined["success"] == {"10%": None, "15%": None}
    assert joined["likelihood"]["sessions"] == alone["likelihood"]["sessions"]
    assert joined["likelihood"]["groups"] > 4 * alone["likelihood"]["groups"]
    assert "the largest group holds 58% of the cases" in real_report.power_said(joined)


def test_finished_runs_are_kept_and_killed_ones_trained_again(proved, sessions, capsys):
    finished = proved / "runs/0/sft-0/numbers.json"
    before = finished.stat().st_mtime_ns
    (proved / "runs/1/sft-1/numbers.json").unlink()
    real.prove(proved, [sessions], ARMS, PLAN)
    assert finished.stat().st_mtime_ns == before
    out = capsys.readouterr().out
    assert out.count(": kept") == 2 * (1 + 2 + 2) - 1
    assert "fold 2 of 2, sft, seed 1: kept" not in out
    assert out.index("least difference seen") < out.index("fold 1 of 2")


def test_another_plan_or_other_sessions_in_the_same_folder_are_refused(proved, sessions):
    with pytest.raises(InputError, match="is the run of another plan"):
        real.prove(proved, [sessions], ARMS, replace(PLAN, greedy=True))
    with pytest.raises(InputError, match="is the lake of other --sessions"):
        real.prove(proved, [sessions.parent], ARMS, PLAN)


def test_the_largest_groups_are_dealt_first_to_the_smallest_fold():
    rows = [{"group_id": name} for name in "aaaaabbbccd"]
    fold_of = real.deal(rows, 2)
    sizes = [sum(fold_of[row["group_id"]] == fold for row in rows) for fold in range(2)]
    assert sorted(sizes) == [5, 6]
    assert real.deal(list(reversed(rows)), 2) == fold_of
    with pytest.raises(InputError, match=r"--folds 5: .* are in 4 groups of sessions"):
        real.deal(rows, 5)
    with pytest.raises(InputError, match="at least 2 folds"):
        real.deal(rows, 1)


def test_what_cannot_be_compared_is_named(tmp_path, sessions, capsys, monkeypatch):
    line = ["--sessions", str(sessions), "--out", str(tmp_path)]
    assert real.main([*line, "--arms", "sfd"]) == 2
    assert "no arm 'sfd'; there are sft-failed, sft, dpo" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    assert real.main(line) == 2
    assert "pip install reasoning-gym (or --questions 0)" in capsys.readouterr().err
    without = tmp_path / "without"
    drawn, _ = recorded_sessions(World(seed=1, count=24))
    right = next(each for each in drawn if not each.mistaken)
    write_files([write_session(right, "one")], without)
    line = ["--sessions", str(without), "--out", str(tmp_path / "none"), "--questions", "0"]
    assert real.main(line) == 2
    assert "has no error turn that the agent recovered from" in capsys.readouterr().err


def test_the_committed_report_and_passage_are_those_of_the_committed_figures():
    found = json.loads((MEASURED / "proof-real.json").read_bytes())
    _, body = real_report.page(found).split("\n\n", 1)
    assert (MEASURED / "proof-real.md").read_text().endswith(body)
    assert real_report.verdict(found) in real_report.section(found)
    assert len(real_report.section(found).split()) <= 170
