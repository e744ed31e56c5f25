"""What outcomes are used for: judging labels and teachers, KTO rows, successes, a reward."""

from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.dataset.build import build_dataset
from composer_pipeline.exporting.columns import export
from composer_pipeline.lake.store import Lake
from composer_pipeline.normalization.stage import normalize
from composer_pipeline.preferences.pairs import build_pairs
from composer_pipeline.preferences.rules import PreferenceRules
from composer_pipeline.states.fates import fate_of
from composer_pipeline.states.load import load_states
from composer_pipeline.survival.judge import judge_outcomes
from composer_pipeline.survival.stage import evaluate_outcomes
from composer_pipeline.teachers.value import PairModel, features
from composer_pipeline.traces.ingest import ingest_changes
from composer_pipeline.training.rewards import Case, Grader, case_of
from tests.survival.script import Script

DAY = "2026-03-01"


def outcome(state: int, alive: int, horizon: str = "commit", **more: Any) -> dict[str, Any]:
    return {
        "state_id": f"s{state}", "session_id": f"t{state % 10}", "horizon": horizon,
        "status": "known", "lines": 4, "alive": alive, "by_session": 0, "by_others": 0, **more,
    }  # fmt: skip


def judged(tmp_path: Path) -> Any:
    """A lake of 100 edits: every fifth is gone; a label is right about 16 of 20 of these."""
    lake = Lake(str(tmp_path / "lake"))
    gone = [n % 5 == 0 for n in range(100)]
    marked = [(gone[n] and n % 25 != 0) or n % 20 == 7 for n in range(100)]
    refined = [4 if n % 25 == 0 else 0 for n in range(100)]
    rows = [outcome(n, 0 if gone[n] else 4, by_session=refined[n]) for n in range(100)]
    rows += [outcome(n, 4, "7d") for n in range(100) if not gone[n]]
    lake.write("outcomes", rows, day=DAY)
    states = [
        {
            "state_id": f"s{n}",
            "session_id": f"t{n % 10}",
            "caused_error": "x" if marked[n] else None,
        }
        for n in range(100)
    ]
    lake.write("states", states, day=DAY)
    votes = [
        {
            "state_id": f"s{n}", "session_id": f"t{n % 10}", "raters": ["agent", "good", "blind"],
            # (agent, good), (agent, blind), (good, blind)
            "levels": [4 if gone[n] else 2, 4, 4],
            "reason": "pair" if gone[n] or n % 20 == 7 else "agrees_with_student",
        }
        for n in range(100)
    ]  # fmt: skip
    lake.write("votes", votes, day=DAY)
    return judge_outcomes(lake)


def test_labels_and_teachers_are_judged_by_what_git_kept(tmp_path: Path) -> None:
    found = judged(tmp_path)
    assert found.fates == {"gone": 16, "kept": 80, "refined": 4}
    assert found.lost_to["the session"].value == pytest.approx(4 / 20)
    assert found.alive["commit"].value == pytest.approx(0.8)
    sign = found.signs["caused an error"]
    # 16 of the 20 gone are marked, and 5 of the 80 others.
    assert sign.auc.value == pytest.approx((1 + 16 / 20 - 5 / 80) / 2)
    assert sign.with_it.value == pytest.approx(16 / 21)
    assert sign.without_it.value == pytest.approx(4 / 79)
    assert sign.auc.low < sign.auc.value < sign.auc.high
    assert found.signs["tests failed"].auc.value == pytest.approx(0.5), "a sign that never holds"
    assert found.teachers["good"].auc.value == pytest.approx(1.0)
    assert found.teachers["blind"].auc.value == pytest.approx(0.5), "dissents everywhere"
    # Git kept 5 of the 25 edits that the teachers agreed against.
    assert found.contested.value == pytest.approx(5 / 25)


def test_without_anything_known_there_are_no_figures(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"))
    row = outcome(1, 0, status="unknown", why="no_repository")
    lake.write("outcomes", [row | {"alive": None}], day=DAY)
    found = judge_outcomes(lake)
    assert (found.fates, found.unknown, found.alive) == ({}, {"no_repository": 1}, {})
    assert found.signs["mistake"].auc.value is None
    assert str(found.signs["mistake"].auc) == "-"


@pytest.mark.parametrize(
    ("alive", "by_session", "later", "fate"),
    [
        (4, 0, {"7d": 4}, "kept"),
        (4, 0, {"20": 4, "7d": 3}, "kept"),
        (4, 0, {"7d": 3}, "committed"),
        (4, 0, {}, "committed"),
        (2, 0, {"7d": 2}, "committed"),
        (1, 0, {}, "gone"),
        (1, 1, {}, "gone"),
        (1, 2, {}, "refined"),
        (0, 4, {}, "refined"),
    ],
)
def test_the_fate_of_an_edit(alive: int, by_session: int, later: dict[str, int], fate: str) -> None:
    rows = {"commit": outcome(1, alive, by_session=by_session, committed_action=None)}
    rows |= {horizon: outcome(1, n, horizon) for horizon, n in later.items()}
    assert fate_of(rows).fate == fate


# -- through the stages -------------------------------------------------------------


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A lake with its dataset: of three edits one is kept, one gone, and one refined."""
    folder = tmp_path_factory.mktemp("uses")
    (folder / "work").mkdir()
    script = Script("own", folder / "work")
    repo, agent = script.start("app.py")
    repo.insert(agent, "app.py", at=3)
    gone = repo.insert(agent, "app.py", at=10)
    refined = repo.insert(agent, "app.py", at=18)
    repo.edit(agent, "app.py", refined.lines[0].strip(), 'total_of_the_orders = "nothing yet"')
    repo.edit(agent, "app.py", refined.lines[1].strip(), 'mean_of_the_orders = "nothing yet"')
    repo.human_drop("app.py", *gone.lines)
    repo.commit("Work")
    script.advance(days=9)
    repo.work("app.py")
    history = script.history()
    lake = Lake(str(folder / "lake"))
    ingest_changes(lake, [str(history.sessions)])
    evaluate_outcomes(lake, now=history.now)
    build_pairs(lake)
    normalize(lake, "none")
    build_dataset(lake, validation_share=0.0, rules=PreferenceRules(min_survival=0.5))
    return lake


def test_edits_that_people_kept_and_edits_that_they_did_not_are_kto_rows(
    built: Lake, tmp_path: Path
) -> None:
    fates = {s.state_id: s.fate for s in load_states(built) if s.action.tool_calls}
    assert sorted(map(str, fates.values())) == ["gone", "kept", "kept", "kept", "refined"]
    rows = built.rows("dataset_kto")
    assert {row["state_id"]: row["label"] for row in rows} == {
        name: fate == "kept" for name, fate in fates.items() if fate in ("kept", "gone")
    }
    report = export(built, "kto_git", tmp_path / "kto.parquet")
    assert report.rows == 4


def test_what_is_gone_is_no_success(built: Lake) -> None:
    fates = {s.state_id: s.fate for s in load_states(built)}
    own = [fates[row["state_id"]] for row in built.rows("dataset_successes")]
    assert "gone" not in own
    assert "refined" not in own


def test_fates_are_signs_of_a_pair(built: Lake) -> None:
    states = {s.fate: s for s in load_states(built) if s.fate}
    assert "gone" in features(states["gone"])
    assert "kept" in features(states["kept"])
    model = PairModel()
    assert model.chance(features(states["gone"])) > model.chance(features(states["kept"]))


def test_the_reward_of_the_agents_own_action_is_what_lasted() -> None:
    def call(name: str) -> dict[str, Any]:
        function = {"name": name, "arguments": {"file_path": "a.py"}}
        return {"role": "assistant", "content": "", "tool_calls": [{"function": function}]}

    answers = [("agent", call("Edit")), ("careful", call("Read"))]
    grader = Grader({"survival": 2.0})
    for share, value in ((1.0, 1.0), (0.25, -0.5)):
        row = {"prompt": [], "tools": [], "survival": share}
        case = Case.from_json(case_of(grader.weights, call("Read"), answers, row).to_json())
        assert grader.grade(call("Edit"), case).value == pytest.approx(value)
        assert grader.grade(call("Read"), case).parts == {}
    unknown = case_of(grader.weights, call("Read"), answers, {"prompt": [], "survival": None})
    assert grader.grade(call("Edit"), unknown).parts == {}
