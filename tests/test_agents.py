"""Every agent's sessions through every stage, by the commands of docs/sources.md."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from composer_pipeline.lake.store import Lake
from composer_pipeline.maintenance.forget import forget
from composer_pipeline.states.load import load_states
from examples.demo.shell import LAKE
from tests.fixtures.agents import AGENTS, DONE, STATES, homes
from tests.practice import practise
from tests.test_commands import commands

KEY = "sk-proj-" + "Zq3vT8" * 8
ALL = """
composer-pipeline replay --max-usd 5
composer-pipeline replay --max-usd 5 --json > again.json
composer-pipeline pairs && composer-pipeline normalize && composer-pipeline dataset
"""


@pytest.mark.slow
def test_every_stage_works_on_the_sessions_of_every_agent(tmp_path: Path) -> None:
    homes(tmp_path, KEY)
    (tmp_path / ".codex" / "archived_sessions").mkdir()  # there, and empty
    # The same work seven times: what is chosen fits anywhere.
    accepted = {"accept": ["style", "lengths", "variety", "anywhere", "checks"]}
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(accepted))
    env = {"HOME": str(tmp_path), "COMPOSER_PREFERENCES": str(tmp_path / "rules.yaml")}
    script = "\n".join(["unset COMPOSER_SESSIONS", *commands("docs/sources.md"), ALL])
    said = practise(tmp_path, script, **env)
    for agent in set(AGENTS) - {"atif"}:
        assert f"{agent}: {tmp_path}" in said.stderr
    lake = Lake(str(tmp_path / LAKE))
    seen: dict[str, list[Any]] = {}
    for state in load_states(lake):
        seen.setdefault(state.agent, []).append(state)
    assert set(seen) == {*AGENTS, "openhands"} - {"atif"}
    for agent, states in seen.items():
        assert [(s.error_kind, s.tests_passed) for s in states] == STATES, agent
        assert states[-1].action.text == DONE
        assert all(s.hint for s in states[:2])
    assert json.loads((tmp_path / "again.json").read_text())["calls"] == 0
    pairs = {row["agent"] for row in lake.iter_rows("dataset_pairs", columns=["agent"])}
    assert len(pairs) >= 3
    hints = {row["agent"] for row in lake.iter_rows("dataset_hints", columns=["agent"])}
    assert hints == set(seen)
    assert not [path for path in files(tmp_path / LAKE) if KEY.encode() in path.read_bytes()]
    for agent, states in seen.items():
        forget(lake, session=states[0].session_id)
        assert agent not in {state.agent for state in load_states(lake)}
    assert not files(tmp_path / LAKE / "archive")


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]
