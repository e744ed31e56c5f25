"""Every line of 76 scripted histories has the fate that its script gave it."""

import hashlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.lake.store import Lake
from composer_pipeline.survival import stage
from composer_pipeline.survival.follow import Followed, Follower
from composer_pipeline.traces.ingest import ingest_changes
from tests.survival.histories import HISTORIES
from tests.survival.script import HORIZONS, History

pytestmark = pytest.mark.slow

Alive = dict[str, dict[str, set[str]]]


def contents(folder: Path) -> dict[str, str]:
    """Return the hash of every file below a folder, `.git` included."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def alive(monkeypatch: pytest.MonkeyPatch) -> Alive:
    """Collect which lines are alive, by message and horizon, while the stage runs."""
    found: Alive = defaultdict(lambda: defaultdict(set))

    class Watched(Follower):
        def run(self, wanted: Any) -> Iterator[Followed]:
            for one in super().run(wanted):
                for horizon, fate in one.fates.items():
                    lines = {one.edit.lines[at].decode() for at in fate.alive}
                    found[one.edit.message_id][horizon] |= lines
                yield one

    monkeypatch.setattr(stage, "Follower", Watched)
    return found


def rows_of(lake: Lake) -> dict[tuple[str, str], dict[str, Any]]:
    messages = {row["state_id"]: row["message_id"] for row in lake.rows("states")}
    return {(messages[r["state_id"]], r["horizon"]): r for r in lake.rows("outcomes")}


def look(lake: Lake, history: History) -> dict[tuple[str, str], dict[str, Any]]:
    ingest_changes(lake, [str(history.sessions)])
    named = [str(path) for path in history.repositories]
    stage.evaluate_outcomes(lake, repositories=named, now=history.now)
    return rows_of(lake)


@pytest.mark.parametrize("name", HISTORIES)
def test_every_line_has_the_fate_that_the_script_gave_it(
    name: str, tmp_path: Path, alive: Alive
) -> None:
    (tmp_path / "work").mkdir()
    history = HISTORIES[name](tmp_path / "work")
    before = contents(tmp_path / "work")
    rows = look(Lake(str(tmp_path / "lake")), history)
    assert contents(tmp_path / "work") == before, "the look changed a repository"
    wanted = {message for message, truth in history.truth.items() if truth.lines}
    assert {message for message, _ in rows} == wanted
    for message in wanted:
        truth = history.truth[message]
        for horizon in HORIZONS:
            row, expected = rows[message, horizon], truth.alive.get(horizon)
            assert row["lines"] == len(truth.lines), horizon
            if expected is None or truth.unknown:
                assert row["status"] != "known", (horizon, row)
                assert row["alive"] is None
            else:
                assert row["status"] == "known", (horizon, row)
                assert alive[message][horizon] == expected, horizon
                assert row["alive"] == len(expected)
        if truth.commit:
            assert rows[message, "commit"]["commit"] == truth.commit
