"""`init` writes what every command reads; `status` says what is there and what is next."""

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.cli.__main__ import main
from composer_pipeline.lake.provenance import FileStamps, build_id, record_of, write_record
from composer_pipeline.lake.store import Lake
from composer_pipeline.lake.withdrawn import Publication, remember_publication
from composer_pipeline.maintenance.status import status
from composer_pipeline.normalization.stage import normalized_derivation
from composer_pipeline.report.write import default_place
from composer_pipeline.settings import load_env_file, with_values
from composer_pipeline.survival.stage import evaluate_outcomes
from composer_pipeline.testing.samples import sample_sessions_dir
from composer_pipeline.versions import OUTCOMES_VERSION
from tests.fixtures.whole_lake import DAY
from tests.report.test_report import train_on

Run = Callable[..., Any]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str) -> Any:
        with pytest.raises(SystemExit) as left:
            main([*arguments, "--json"])
        out, err = capsys.readouterr()
        assert not left.value.code, err
        return json.loads(out)

    return call


def test_init_makes_a_lake_and_writes_what_the_next_command_reads(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COMPOSER_ENV_FILE", str(tmp_path / ".env"))
    (tmp_path / ".env").write_text("# mine\nHF_TOKEN=keep\nCOMPOSER_LAKE=old # there\n")
    said = run("init", "--lake", "my lake", "--sessions", str(sample_sessions_dir()))
    assert said["next"] == f"composer-pipeline ingest {sample_sessions_dir()}"
    lines = (tmp_path / ".env").read_text().splitlines()
    assert lines[:3] == ["# mine", "HF_TOKEN=keep", "COMPOSER_LAKE='my lake'"]
    assert stat.S_IMODE((tmp_path / ".env").stat().st_mode) == 0o600
    env = {k: v for k, v in os.environ.items() if k not in ("COMPOSER_LAKE", "HF_TOKEN")}
    command = [sys.executable, "-m", "composer_pipeline.cli", "status", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    found = json.loads(done.stdout)
    assert found["lake"] == str(tmp_path / "my lake")
    assert found["rows"]["sessions"] == 0
    assert found["next"].startswith("composer-pipeline ingest")
    # A second one asks nothing again and loses nothing.
    assert run("init", "--lake", "my lake")["lake"] == str(tmp_path / "my lake")


def test_the_environment_wins_and_keys_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "env"
    file.write_text(
        "export COMPOSER_TEACHERS='a b.yaml' # x\nCOMPOSER_LAKE=file\nOPENROUTER_API_KEY=no\n!\n"
    )
    monkeypatch.setenv("COMPOSER_ENV_FILE", str(file))
    monkeypatch.setenv("COMPOSER_LAKE", "shell")
    monkeypatch.setenv("COMPOSER_TEACHERS", "")
    monkeypatch.delenv("COMPOSER_TEACHERS")
    load_env_file()
    assert os.environ["COMPOSER_TEACHERS"] == "a b.yaml"
    assert os.environ["COMPOSER_LAKE"] == "shell"
    assert "OPENROUTER_API_KEY" not in os.environ


def test_other_lines_of_the_file_stay() -> None:
    text = "A=1\n\n# COMPOSER_LAKE=x\nCOMPOSER_LAKE = old\n"
    assert with_values(text, {"COMPOSER_LAKE": "new", "COMPOSER_RUNS": "a b"}) == (
        "A=1\n\n# COMPOSER_LAKE=x\nCOMPOSER_LAKE=new\nCOMPOSER_RUNS='a b'\n"
    )


def test_status_counts_and_says_what_is_next(whole_lake: Path, tmp_path: Path) -> None:
    shutil.copytree(whole_lake, tmp_path / "lake", copy_function=shutil.copy2)
    lake = Lake(tmp_path / "lake")
    said = status(lake, ledger=tmp_path / "lake" / "ledger.db")
    assert said.rows["sessions"] == 16
    assert said.rows["states"] == 198
    assert said.rows["replies"] == 156
    assert said.days == {"count": 4, "first": DAY, "last": "2026-11-19"}
    size = sum(path.stat().st_size for path in (tmp_path / "lake").rglob("*") if path.is_file())
    assert said.bytes["total"] == size
    assert float(said.usd["spent"]) > 0
    assert said.stages["pairs"] == said.stages["dataset"] == "current"
    assert "not recorded" in said.stages["normalize"], "the fixture wrote these rows itself"
    rows = lake.read("replies", days=[DAY], teacher="steady").drop_columns(["day", "teacher"])
    lake.write("replies", rows.slice(1), day=DAY, teacher="steady")
    said = status(lake)
    assert said.usd == {}
    assert said.stages["pairs"] == f"{DAY}: replies/teacher=steady/day={DAY} was made again"
    assert said.stages["dataset"] == "older than replies"
    assert said.next == "composer-pipeline pairs"
    lake.put_bytes("forget.json", b"{}")
    assert status(lake).next.startswith("composer-pipeline forget")


def test_after_the_dataset_next_is_what_this_version_of_it_lacks(
    whole_lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(whole_lake, tmp_path / "lake", copy_function=shutil.copy2)
    lake, stamps = Lake(tmp_path / "lake"), FileStamps(Lake(tmp_path / "lake"))
    for made in (normalized_derivation(day, "none") for day in lake.days("pairs")):
        write_record(lake, made, record_of(made, stamps))

    def following() -> str:
        return status(lake).next.removeprefix("composer-pipeline ")

    assert following() == "replay --max-usd USD  (days without replies), or train"
    monkeypatch.setattr("composer_pipeline.maintenance.status.pending_days", lambda *_: [])
    assert following() == "train"
    run_dir = train_on(lake)
    assert following() == "evaluate"
    (run_dir / "evaluation.json").write_text("{}")
    assert following() == "report"
    default_place(lake).parent.mkdir()
    default_place(lake).write_text("<html>")
    assert following() == "publish --repo OWNER/NAME"
    remember_publication(lake, "a/b", Publication("c" * 40, build=build_id(lake)))
    said = status(lake)
    assert said.next == "nothing is stale"
    assert {stage for stage, why in said.stages.items() if why != "current"} == {"outcomes"}
    runs = ["demo-1"]
    page = str(default_place(lake))
    assert said.made == {"train": runs, "evaluate": runs, "report": [page], "publish": ["a/b"]}
    os.utime(default_place(lake), (1, 1))
    assert status(lake).stages["report"] == "older than run demo-1"
    lake.put_bytes(Lake.BUILD, b'{"id": "later"}')
    stages = status(lake).stages
    other = "of another version of the dataset, or of an unknown one"
    assert [stages[name] for name in ("report", "publish")] == [other, other]
    (run_dir / "composer.json").write_text("{}")
    assert status(lake).stages["train"] == other


def test_status_tells_days_to_ingest_and_days_that_lack_replies(
    whole_lake: Path, tmp_path: Path
) -> None:
    lake, source = Lake(whole_lake), tmp_path / "sessions"
    shutil.copytree(sample_sessions_dir(), source, copy_function=shutil.copy2)
    assert status(lake, sessions=[source]).stages["ingest"] == "current"
    assert status(lake, sessions=[tmp_path / "gone"]).stages["ingest"] == "current"
    file = max(source.rglob("*.jsonl"))
    file.write_text(file.read_text() + "\n")
    said = status(lake, sessions=[source])
    assert said.stages["ingest"].endswith(": session files have changed")
    assert said.next == f"composer-pipeline ingest {source}"
    shutil.copytree(whole_lake, tmp_path / "lake", copy_function=shutil.copy2)
    place = tmp_path / "lake/made/replies/teacher=flaky" / f"day={DAY}.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | {"missing": 2, "why": "away"}))
    lake = Lake(tmp_path / "lake")
    said = status(lake)
    assert said.stages["replies"].startswith(f"{DAY}: 2 replies of flaky are missing (away)")
    evaluate_outcomes(lake)
    for setting, ends in (
        ("git", "current"),
        ("outcomes", f"outcomes other -> {OUTCOMES_VERSION}"),
    ):
        place = tmp_path / "lake/made/outcomes" / f"day={DAY}.json"
        record = json.loads(place.read_text())
        record["settings"][setting] = "other"
        place.write_text(json.dumps(record))
        assert status(lake).stages["outcomes"].endswith(ends)


def test_status_of_days_that_other_rules_redacted(
    whole_lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = tmp_path / "redaction.yaml"
    rules.write_text("hosts: [build7.acme.net]\n")
    monkeypatch.setenv("COMPOSER_REDACTION", str(rules))
    assert status(Lake(whole_lake)).next == "composer-pipeline reparse"
