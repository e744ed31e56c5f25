"""A rehearsal of a lake's own sessions, as a subprocess, beside the truth that it kept."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences.pairs import build_pairs
from composer_pipeline.settings import recipes_dir
from composer_pipeline.states.load import load_states
from composer_pipeline.teachers.run import replay
from composer_pipeline.teachers.teachers import TeacherSet
from composer_pipeline.testing.openrouter.command import main
from composer_pipeline.traces.ingest import ingest
from tests.fixtures.lake_states import write_session
from tests.fixtures.sessions import corpus, unpacked

__all__ = ["corpus", "unpacked"]

TEACHERS = recipes_dir() / "teachers" / "default.yaml"
COMMAND = [sys.executable, "-m", "composer_pipeline.testing.openrouter", "--lifetime", "900"]


@contextmanager
def rehearsal(lake: Lake, truth: Path, teachers: Path = TEACHERS, seed: int = 0) -> Iterator[Any]:
    """Serve a rehearsal of the lake; yield the line that it printed."""
    told = ["--teachers", teachers, "--lake", lake.url, "--truth", truth, "--seed", seed]
    env = {name: value for name, value in os.environ.items() if not name.startswith("COMPOSER_")}
    command = [*COMMAND, *map(str, told)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()


def asked(lake: Lake, truth: Path, teachers: Path = TEACHERS, seed: int = 0) -> list[Any]:
    """Ask a rehearsal about the whole lake, and return the truth."""
    with rehearsal(lake, truth, teachers, seed) as line:
        assert line["truth"] == str(truth)
        report = replay(lake, TeacherSet.load(line["teachers"]), max_usd=Decimal(5000))
    assert report.simulated
    assert not report.problem()
    return [json.loads(row) for row in truth.read_text().splitlines()]


def said(row: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(call.name, call.arguments) for call in Action.from_json(row["action"]).tool_calls]


@pytest.fixture
def varied(tmp_path: Path) -> Lake:
    """Two sessions of sixty states in which no two neighbours do the same."""
    lake = Lake(tmp_path / "lake")
    for name in ("s1", "s2"):
        steps = []
        for n in range(20):
            file = f"/home/user/shop/{name}{n}.py"
            edit = {"file_path": file, "old_string": f"a{n}\nb", "new_string": f"c{n}\nd"}
            for call in (
                ToolCall("Read", {"file_path": file}),
                ToolCall("Bash", {"command": f"pytest {file}", "description": "Test"}),
                ToolCall("Edit", edit),
            ):
                steps.append((Action("", (call,)), "fine"))
        write_session(lake, name, steps, prompt=f"Task {name}.")
    return lake


@pytest.fixture
def with_a_control(tmp_path: Path) -> Path:
    body = yaml.safe_load(TEACHERS.read_text())
    body["selection"] = {"curtail": "off"}
    body["defaults"]["window_tokens"] = 2048  # of 120 prompts, more than half are cut
    control = {"name": "again", "family": "claude", "model": "anthropic/claude-sonnet-4.5"}
    price = {"prompt": "3.00", "completion": "15.00"}
    body["teachers"].append(
        {
            **control,
            "licence": "x",
            "control": True,
            "ask_share": 1,
            "max_price": price,
            "provider": {"enforce_distillable_text": False},
        }
    )
    path = tmp_path / "teachers.yaml"
    path.write_text(yaml.safe_dump(body))
    return path


@pytest.mark.slow
def test_answers_are_of_the_session_and_the_truth_says_which(
    varied: Lake, with_a_control: Path, tmp_path: Path
) -> None:
    again = Lake(shutil.copytree(varied.url, tmp_path / "again"))
    other = Lake(shutil.copytree(varied.url, tmp_path / "other"))
    truth = asked(varied, tmp_path / "truth.jsonl", with_a_control)
    cut = [row["windowed"] for row in varied.rows("replies")]
    assert len(cut) / 2 < sum(cut) < len(cut)
    states = {state.state_id: state for state in load_states(varied)}
    replies = {(row["state_id"], row["teacher"]): row for row in varied.rows("replies")}
    assert all(row["simulated"] for row in replies.values())
    assert {(row["state_id"], row["teacher"]) for row in truth} == set(replies)
    assert len(truth) == len(states) * 6
    neighbours = {
        session: [s.action for s in states.values() if s.session_id == session]
        for session in ("s1", "s2")
    }
    for row in truth:
        state, reply = states[row["state_id"]], replies[row["state_id"], row["teacher"]]
        own = [(call.name, call.arguments) for call in state.action.tool_calls]
        of_session = [
            [(call.name, call.arguments) for call in action.tool_calls]
            for action in neighbours[state.session_id]
        ]
        gave = said(reply)
        assert (gave == own) == (row["gave"] == "recorded"), row
        assert (not gave) == (row["gave"] == "prose"), row
        if row["gave"] in ("neighbour", "better"):
            assert gave in of_session
        if row["gave"] == "near_miss":
            ((name, given),) = gave
            assert name == own[0][0]
            assert given != own[0][1]
        assert row["right"] == (row["gave"] == ("better" if row["source"] else "recorded"))
    kinds = {
        control: Counter(row["gave"] for row in truth if (row["teacher"] == "again") == control)
        for control in (False, True)
    }
    assert set(kinds[False]) == {
        "recorded", "better", "mistake", "near_miss", "neighbour", "prose"
    }  # fmt: skip
    assert 0.4 < kinds[False]["recorded"] / kinds[False].total() < 0.7
    assert kinds[True]["recorded"] / kinds[True].total() > 0.75
    # The same seed gives the same answers, and another one others.
    order = sorted(truth, key=json.dumps)
    assert sorted(asked(again, tmp_path / "t2", with_a_control), key=json.dumps) == order
    assert sorted(asked(other, tmp_path / "t3", with_a_control, seed=1), key=json.dumps) != order


def test_what_a_rehearsal_cannot_use_is_named(
    varied: Lake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    teachers = ("--teachers", str(TEACHERS))
    for options, names in (
        (("--lake", varied.url), "--lake needs a lake, and --teachers"),
        ((*teachers, "--lake", str(tmp_path / "nowhere")), "nowhere is not one"),
        ((*teachers, "--truth", str(tmp_path / "t")), "--truth needs --lake"),
        ((*teachers, "--lake", varied.url, "--truth", str(tmp_path)), "--truth"),
        ((*teachers, "--lake", varied.url, "--seed", "x"), "--seed"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(options)
        assert ended.value.code == 2
        assert names in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "nowhere").exists()


#: Asked in full, as here, seed 0 gave 0.605 of 200 pairs. As the selection of the file asks, seeds
#: 0 to 4 gave 0.600, 0.628, 0.529, 0.532 and 0.593 of 180 to 204; one standard error is 0.036.
PRECISION = (0.45, 0.70)


@pytest.mark.slow
def test_a_rehearsal_of_real_sessions_resembles_what_is_to_come(
    unpacked: Path, tmp_path: Path
) -> None:
    files = sorted(
        (unpacked / "claude-code-sessions").rglob("*.jsonl"), key=lambda path: path.stat().st_size
    )
    lake, few = Lake(tmp_path / "lake"), tmp_path / "sessions"
    few.mkdir()
    for file in files[:50]:
        shutil.copy(file, few)
    ingest(lake, [few])
    truth = asked(lake, tmp_path / "truth.jsonl")
    build_pairs(lake)
    votes = lake.rows("votes", columns=["n_families", "reason"])
    voted = sum(row["n_families"] >= 2 for row in votes)
    against = sum(row["reason"] == "pair" for row in votes)
    assert 0.05 < against / voted < 0.16
    recorded = sum(row["gave"] == "recorded" for row in truth)
    assert 0.45 < recorded / len(truth) < 0.70
    found = [row for row in lake.rows("pairs") if row["source"] == "teachers"]
    chosen = Counter(json.dumps(row["chosen"]) for row in found)
    assert len(chosen) > 0.5 * len(found)
    assert chosen.most_common(1)[0][1] <= 0.05 * len(found)
    right = {(row["state_id"], row["teacher"]): row["right"] for row in truth}
    good = [
        2 * sum(right[row["state_id"], name] for name in row["chosen_teachers"])
        >= len(row["chosen_teachers"])
        for row in found
    ]
    precision = sum(good) / len(good)
    print(f"precision of {len(good)} pairs beside the truth: {precision:.3f}")
    assert PRECISION[0] < precision < PRECISION[1]
    # What a session shows as its own fix is what teachers call better there.
    fixed = {s.state_id: s.fixed_action for s in load_states(lake) if s.fixed_action}
    better = {(r["state_id"], r["teacher"]) for r in truth if r["gave"] == "better"}
    shown = [r for r in lake.rows("replies") if (r["state_id"], r["teacher"]) in better]
    shown = [row for row in shown if row["state_id"] in fixed]
    assert shown
    for row in shown:
        assert said(row) == said({"action": fixed[row["state_id"]]})
