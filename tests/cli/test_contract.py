"""The command line's contract: the JSON keys of each command, in the order of a real run."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.settings import recipes_dir
from composer_pipeline.testing.samples import sample_sessions_dir
from examples.demo.profile import loopback

pytestmark = pytest.mark.slow


def call(*arguments: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "composer_pipeline.cli", *arguments, "--json"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **(env or {})},
    )
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    found = json.loads(line)
    assert isinstance(found, dict)
    return found


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Every data command once, on the sample sessions, with loopback teachers."""
    lake = ["--lake", str(tmp_path_factory.mktemp("cli") / "lake")]
    teachers = ["--teachers", str(recipes_dir() / "teachers" / "demo.yaml")]
    day = ["--day", "2026-11-16"]
    out: dict[str, dict[str, Any]] = {}
    out["ingest"] = call("ingest", str(sample_sessions_dir()), "--per-file", *lake)
    with loopback():
        out["plan"] = call("plan", *teachers, *day, *lake)
        out["preview"] = call("preview", *teachers, *day, *lake)
        out["replay"] = call("replay", *teachers, *day, "--max-usd", "1", *lake)
        out["again"] = call("replay", *teachers, *day, "--max-usd", "1", *lake)
    out["pairs"] = call("pairs", *lake)
    out["normalize"] = call("normalize", *lake)
    out["dataset"] = call("dataset", *lake)
    return out


KEYS = {
    "ingest": {
        "files",
        "distinct_states",
        "subagent_states",
        "unreadable_files",
        "states",
        "tool_calls",
        "by_file",
    },
    "plan": {"calls", "cached", "expected_usd", "worst_usd", "by_teacher"},
    "replay": {
        *("calls", "replies", "cached", "refused", "unknown"),
        *("spent_usd", "reserved_usd", "ceiling_usd"),
    },
    "preview": {"states", "replay", "plan"},
    "pairs": {"states", "pairs", "by_tier", "by_tool", "hints"},
    "normalize": {"kept", "dropped", "by_op"},
    "dataset": {"rows", "splits", "groups"},
}


@pytest.mark.parametrize("command", sorted(KEYS))
def test_keys(reports: dict[str, dict[str, Any]], command: str) -> None:
    assert KEYS[command] <= set(reports[command])


def test_paths_are_relative_to_what_was_given(reports: dict[str, dict[str, Any]]) -> None:
    files = reports["ingest"]["by_file"]
    assert files
    assert all((sample_sessions_dir() / name).is_file() for name in files)
    assert sum(f["states"] for f in files.values()) == reports["ingest"]["states"]


def test_the_plan_bounds_the_bill(reports: dict[str, dict[str, Any]]) -> None:
    plan, replay = reports["plan"], reports["replay"]
    assert plan["cached"] == 0
    assert 0 < replay["spent_usd"] <= float(plan["worst_usd"])
    assert replay["replies"] <= plan["calls"]


def test_nothing_is_bought_twice(reports: dict[str, dict[str, Any]]) -> None:
    again = reports["again"]
    assert again["calls"] == 0
    assert again["spent_usd"] == 0
    assert again["cached"] == reports["replay"]["replies"]


def test_rows_add_up(reports: dict[str, dict[str, Any]]) -> None:
    pairs, kept = reports["pairs"]["pairs"], reports["normalize"]
    assert pairs > 0
    assert kept["kept"] + kept["dropped"] == pairs
    assert sum(reports["dataset"]["splits"].values()) == reports["dataset"]["rows"]


def test_doctor_names_keys_without_showing_them(tmp_path: Path) -> None:
    report = call(
        "doctor", "--lake", str(tmp_path / "lake"), env={"OPENROUTER_API_KEY": "sk-or-secret-1"}
    )
    checks = {check["name"]: check for check in report["checks"]}
    assert checks["OPENROUTER_API_KEY"]["status"] == "ok"
    assert checks["HF_TOKEN"]["status"] == "warn"
    assert checks["lake"]["status"] == "ok"
    assert checks["teachers"]["status"] == "ok"
    assert "sk-or-secret-1" not in json.dumps(report)
    assert not (tmp_path / "lake").exists()


def test_doctor_fails_on_a_lake_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "lake").write_text("occupied")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "composer_pipeline.cli", "doctor"),
            *("--lake", str(tmp_path / "lake"), "--json"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["lake"]["status"] == "fail"


def test_compare_prints_one_object_a_line(tmp_path: Path) -> None:
    read = {"text": "", "tool_calls": [{"name": "Read", "arguments": {"file_path": "/a/b.py"}}]}
    other = {"text": "", "tool_calls": [{"name": "Read", "arguments": {"file_path": "/a/c.py"}}]}
    lines = [
        {"a": read, "b": read, "cwd": "/a", "home": "/home/user", "context": None},
        {"a": read, "b": other, "cwd": "/a", "home": "/home/user", "context": None},
    ]
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = subprocess.run(
        [sys.executable, "-m", "composer_pipeline.cli", "compare", str(file)],
        capture_output=True,
        text=True,
        check=True,
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["level"] for line in found] == ["L0", "L4"]
    assert all({"level", "mutating", "why"} <= set(line) for line in found)
