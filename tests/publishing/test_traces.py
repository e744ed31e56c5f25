"""Sessions below ``traces/``: for the Hub's viewer, scanned like the rest, loaded by nothing."""

import json
from pathlib import Path

import pytest
import yaml

from composer_pipeline.lake.store import Lake
from composer_pipeline.publishing.gates import PublishRefused
from composer_pipeline.testing.hub.server import LoopbackHub
from composer_pipeline.traces.ingest import ingest
from tests.fixtures.sessions import Script
from tests.publishing.conftest import REPO, fill, row, send


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A dataset of two sessions that are in the lake, beside one that has no row."""
    for name in ("session-train", "session-validation", "session-apart"):
        said = Script(name)
        said.user(f"Fix {name}")
        said.call(f"m-{name}", f"t-{name}", command="ls")
        said.result(f"t-{name}", "a.py")
        said.say(f"n-{name}", "Done.")
        said.write(tmp_path / "projects")
    lake = Lake(tmp_path / "lake")
    ingest(lake, [tmp_path / "projects"])
    return fill(lake, [row(0, "train")], [row(9, "validation")])


def test_the_datasets_sessions_are_there_and_no_configuration_loads_them(
    lake: Lake, hub: LoopbackHub
) -> None:
    report = send(lake, hub, traces=True)
    files = hub.repos[REPO].head.files
    found = {path for path in files if path.startswith("traces/")}
    assert found == {"traces/session-train.jsonl", "traces/session-validation.jsonl"}
    first = json.loads(files["traces/session-train.jsonl"].splitlines()[0])
    assert (first["type"], first["harness"]) == ("session", "claude-code")
    text = files["README.md"].decode()
    assert "`traces/` holds the sessions whole, in 2 files" in text
    front = yaml.safe_load(text.split("---\n")[1])
    loaded = [file["path"] for config in front["configs"] for file in config["data_files"]]
    assert all(path.startswith("data/") for path in loaded)
    assert found <= set(json.loads(files["manifest.json"])["files"])
    assert found <= set(report.files)
    # Without the word they are not there, and those of before go.
    again = send(lake, hub)
    assert {path for path, what in again.changes.items() if what == "delete"} == found
    assert "traces/" not in hub.repos[REPO].head.files["README.md"].decode()


def test_the_gate_reads_them(lake: Lake, hub: LoopbackHub) -> None:
    (day,) = lake.days("messages")
    rows = lake.rows("messages", days=[day])
    secret = "ghp_" + "a1B2" * 9
    for found in rows:
        found["json"] = found["json"].replace("a.py", secret)
        del found["day"]
    lake.write("messages", rows, day=day)
    fill(lake, [row(0, "train")], [row(9, "validation")])
    with pytest.raises(PublishRefused, match="traces/session-train"):
        send(lake, hub, traces=True)
    assert REPO not in hub.repos
