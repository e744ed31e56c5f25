"""The real-session tier on the small world: what is held out, taught, kept and refused."""

import json

import pytest

from composer_pipeline.chat.convert import parse_reply_message
from composer_pipeline.errors import InputError
from composer_pipeline.evaluation.results import BASE, read_results
from composer_pipeline.evaluation.states import read_states
from composer_pipeline.lake.store import Lake
from composer_pipeline.training.rows import TrainingData
from examples.proof import real
from examples.proof.toolworld.pipeline import Plan as World
from examples.proof.toolworld.pipeline import recorded_sessions
from examples.proof.toolworld.student import base_dir
from examples.proof.toolworld.world import write_files, write_session

PLAN = real.Plan(
    steps=2, rows=2, prompt=160, answer=24, recoveries=3, model=str(base_dir())
)  # fmt: skip
ARMS = ["sft-failed", "sft", "all"]


@pytest.fixture(scope="module")
def sessions(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sessions")
    drawn, _ = recorded_sessions(World(seed=1, count=24, coverage="half"))
    write_files([write_session(each, f"real-{i}") for i, each in enumerate(drawn)], folder)
    return folder


@pytest.fixture(scope="module")
def proved(sessions, tmp_path_factory):
    out = tmp_path_factory.mktemp("real")
    real.prove(out, [sessions], ARMS, PLAN)
    return out


def lake_of(proved, fold, arm="sft"):
    return Lake(str(proved / "runs" / str(fold) / arm / "lake"))


def taught(proved, fold, arm, table, column):
    rows = lake_of(proved, fold, arm).iter_rows(table, split="train")
    return {row["state_id"]: row[column] for row in rows}


@pytest.mark.slow
def test_every_case_is_held_out_once_and_trained_on_in_the_other_folds(proved):
    known = {state.state_id for state in read_states(proved / "states.parquet")}
    cases = {row["state_id"]: row["group_id"] for row in real.cases(Lake(str(proved / "lake")))}
    measured, trained = [], []
    for fold in range(PLAN.folds):
        measured.append(
            {r.state_id for r in read_results(proved / f"runs/{fold}/results.parquet")[BASE]}
        )
        trained.append(set(taught(proved, fold, "sft", "dataset_successes", "action")))
        groups = {cases[name] for name in trained[fold]}
        assert not groups & {cases[name] for name in measured[fold] & cases.keys()}
    assert measured[0].isdisjoint(measured[1])
    assert measured[0] | measured[1] <= known
    assert trained[0] | trained[1] == cases.keys()
    assert cases.keys() & measured[0] <= trained[1]


def test_arms_are_taught_the_recovery_and_the_placebo_what_failed(proved):
    lake = Lake(str(proved / "lake"))
    cases = {row["state_id"]: row for row in real.cases(lake)}
    recovered = taught(proved, 0, "all", "dataset_successes", "action")
    failed = taught(proved, 0, "sft-failed", "dataset_successes", "action")
    chosen = taught(proved, 0, "all", "dataset_pairs", "chosen")
    rejected = taught(proved, 0, "all", "dataset_pairs", "rejected")
    assert recovered
    for name, action in recovered.items():
        assert action == chosen[name] == cases[name]["recovery"]
        assert failed[name] == rejected[name] == cases[name]["action"]
        assert action != failed[name]
    right = {state.state_id: state.right for state in read_states(proved / "states.parquet")}
    for name, row in cases.items():
        assert right[name] == parse_reply_message(row["recovery"][0])


def test_each_arm_trains_its_own_channels_on_all_rows_that_fit(proved):
    data = {arm: TrainingData.load(proved / f"runs/0/{arm}/data") for arm in ARMS}
    assert {arm: set(some.seen) for arm, some in data.items()} == {
        "sft-failed": {"sft"}, "sft": {"sft"}, "all": {"sft", "dpo", "sdpo"}
    }  # fmt: skip
    apart = [[list(row.response_ids) for row in data[arm].demonstrations] for arm in ARMS[:2]]
    assert apart[0] != apart[1]
    assert PLAN.recipe("all").channels.weights() == {"sft": 1.0, "dpo": 0.2, "sdpo": 1.0}


def test_the_report_pools_the_folds_and_names_the_placebo(proved):
    page = (proved / "report.md").read_text()
    cases = len(real.cases(Lake(str(proved / "lake"))))
    dropped = [json.loads((proved / f"runs/{k}/dropped.json").read_bytes()) for k in range(2)]
    hard = sum(
        r.kind == "hard_uncovered"
        for k in range(2)
        for r in read_results(proved / f"runs/{k}/results.parquet")[BASE]
    )
    assert hard + sum(sum(some.values()) for some in dropped) >= cases
    assert f"2 folds, each held out once: {hard} hard_uncovered states" in page
    assert "SFT on the failed action (placebo)" in page
    assert "Difference to SFT on the failed action (placebo):" in page


def test_finished_arms_are_kept_and_killed_ones_trained_again(proved, sessions, capsys):
    finished = proved / "runs/0/sft/numbers.json"
    before = finished.stat().st_mtime_ns
    (proved / "runs/1/sft/numbers.json").unlink()
    real.prove(proved, [sessions], ARMS, PLAN)
    assert finished.stat().st_mtime_ns == before
    said = capsys.readouterr().out
    assert "fold 1 of 2, sft: kept" in said
    assert "fold 2 of 2, sft-failed: kept" in said
    assert "fold 2 of 2, sft: kept" not in said


def test_another_plan_or_other_sessions_in_the_same_folder_are_refused(proved, sessions):
    other = real.Plan(**{**vars(PLAN), "steps": 3})
    with pytest.raises(InputError, match="is the run of another recipe"):
        real.prove(proved, [sessions], ARMS, other)
    fewer = real.Plan(**{**vars(PLAN), "recoveries": 0})
    with pytest.raises(InputError, match="is the evaluation set of another plan"):
        real.prove(proved, [sessions], ARMS, fewer)
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


def test_what_cannot_be_compared_is_named(tmp_path, sessions, capsys):
    line = ["--sessions", str(sessions), "--out", str(tmp_path), "--arms"]
    assert real.main([*line, "sfd"]) == 2
    assert "no arm 'sfd'; there are sft-failed, sft, dpo" in capsys.readouterr().err
    without = tmp_path / "without"
    drawn, _ = recorded_sessions(World(seed=1, count=1, coverage="half"))
    write_files([write_session(each, "one") for each in drawn], without)
    line = ["--sessions", str(without), "--out", str(tmp_path / "none")]
    assert real.main(line) == 2
    assert "has no error turn that the agent recovered from" in capsys.readouterr().err
