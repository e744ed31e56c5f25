"""A lake that does not begin, and the codes of what went wrong; wrong inputs are `bad_inputs`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from composer_pipeline.cli.__main__ import main
from composer_pipeline.settings import recipes_dir
from composer_pipeline.testing.samples import sample_sessions_dir


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = 0
    try:
        main(arguments)
    except SystemExit as stop:
        code = int(stop.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture(scope="module")
def sample_lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lake = tmp_path_factory.mktemp("sample") / "lake"
    command = [
        sys.executable,
        "-m",
        "composer_pipeline.cli",
        "ingest",
        str(sample_sessions_dir()),
    ]
    subprocess.run([*command, "--lake", str(lake), "--json"], check=True, capture_output=True)
    return lake


def test_missing_path(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    code, out, err = run(capsys, "ingest", str(tmp_path / "nowhere"), "--lake", str(lake))
    assert code == 2
    assert "nowhere" in err
    assert len(err.strip().splitlines()) == 1
    assert out == ""
    assert not lake.exists()


def test_folder_without_sessions(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    lake = tmp_path / "lake"
    code, _, err = run(capsys, "ingest", str(tmp_path / "empty"), "--lake", str(lake))
    assert code == 2
    assert "empty" in err
    assert not lake.exists()


def test_a_lake_that_is_not_writable(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    # A file in the place of the folder refuses every user, also root.
    lake = tmp_path / "lake"
    lake.write_text("occupied")
    code, _, err = run(capsys, "ingest", str(sample_sessions_dir()), "--lake", str(lake))
    assert code == 2
    assert "not writable" in err
    assert str(lake) in err
    assert lake.read_text() == "occupied"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_lake_without_permission(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    parent = tmp_path / "locked"
    parent.mkdir(mode=0o500)
    code, _, err = run(capsys, "ingest", str(sample_sessions_dir()), "--lake", str(parent / "lake"))
    assert code == 1
    assert "not writable" in err


def test_budget_exhausted_is_exit_3(sample_lake: Path, tmp_path: Path) -> None:
    import shutil

    from examples.demo.profile import loopback

    lake = tmp_path / "lake"
    shutil.copytree(sample_lake, lake)
    teachers = str(recipes_dir() / "teachers" / "demo.yaml")
    with loopback():
        done = subprocess.run(
            [
                *(sys.executable, "-m", "composer_pipeline.cli", "replay", "--json"),
                *("--teachers", teachers, "--max-usd", "0.02", "--lake", str(lake)),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 3, done.stderr
    report = json.loads(done.stdout)
    assert report["not_bought"]
    assert 0 < report["spent_usd"] <= 0.02
    assert {
        "calls",
        "replies",
        "cached",
        "refused",
        "unknown",
        "reserved_usd",
        "ceiling_usd",
    } <= set(report)


def test_json_is_one_object_and_progress_goes_elsewhere(sample_lake: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "composer_pipeline.cli",
            "states",
            "--json",
            "--lake",
            str(sample_lake),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len({line["state_id"] for line in lines}) == len(lines) > 100
    assert set(lines[0]) >= {
        "state_id",
        "session_id",
        "message_id",
        "n_messages",
        "tools",
        "error_kind",
    }
    shown = subprocess.run(
        [
            *(sys.executable, "-m", "composer_pipeline.cli", "state", lines[40]["state_id"]),
            *("--json", "--lake", str(sample_lake)),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    state = json.loads(shown.stdout)
    assert len(state["prefix"]) == lines[40]["n_messages"]
    assert set(state["action"]) == {"text", "tool_calls"}
