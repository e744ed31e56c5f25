"""The labelling command: a key for each error turn, and the scores beside the labels."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.cli.__main__ import main
from composer_pipeline.lake.store import Lake
from composer_pipeline.traces.ingest import ingest
from tests.fixtures.sessions import Script


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    s = Script()
    s.user("go")
    for number, command in enumerate(("cd none", "cd nowhere", "cd away")):
        s.call(f"m{number}", f"t{number}", command=command)
        output = f"Exit code 1\n(eval):cd:1: no such file or directory: {command}"
        s.result(f"t{number}", output, error=True)
    s.say("end", "done")
    lake = Lake(tmp_path / "lake")
    ingest(lake, [s.write(tmp_path / "sessions")])
    return lake


def test_labels_are_written_resumed_and_scored(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "labels.jsonl"

    def run(keys: str, *command: str) -> Any:
        monkeypatch.setattr("sys.stdin", io.StringIO(keys))
        with pytest.raises(SystemExit) as ended:
            main([*command, "--lake", str(lake.url)])
        assert not ended.value.code
        return capsys.readouterr().out

    run("1\nq\n", "label", str(file))
    assert [json.loads(line)["verdict"] for line in file.read_text().splitlines()] == ["mistake"]
    shown = run("s\n2\n", "label", str(file))
    assert "whose mistake" not in shown
    run("1\n", "label", str(file))
    verdicts = [json.loads(line)["verdict"] for line in file.read_text().splitlines()]
    assert sorted(verdicts) == ["mistake", "mistake", "revealed"]
    assert "all 3 error turns are labelled" in run("", "label", str(file))
    scores = json.loads(run("", "statistics", "--labels", str(file), "--json"))
    assert scores["accuracy"] == {"hits": 2, "of": 3}
    assert scores["precision_mistake"] == {"hits": 2, "of": 3}
