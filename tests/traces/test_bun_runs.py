"""What a real bun printed (`bun_runs.py` records it) is read as what it was: a run of tests."""

import json
from typing import Any

from composer_pipeline.lake.store import Lake
from composer_pipeline.states.load import load_states
from composer_pipeline.traces.ingest import ingest
from tests.places import ROOT
from tests.traces.test_edits import bash


def test_runs_of_bun_are_labelled_by_its_own_summary(
    lake: Lake, projects: Any, script: Any
) -> None:
    runs = json.loads((ROOT / "tests" / "traces" / "bun_runs.json").read_text("utf-8"))["runs"]
    assert sum(run["passes"] for run in runs) > 200
    s = script()
    s.user("add a cache")
    for number, run in enumerate(runs):
        bash(s, str(number), run["command"], run["shown"], error=run["failed"])
    s.say("end", "done")
    ingest(lake, [s.write(projects)])
    states = {state.message_id: state for state in load_states(lake)}
    found = [(run, states[f"m{number}"]) for number, run in enumerate(runs)]
    wrong = [run for run, state in found if state.tests_passed is not run["passes"]]
    blamed = [run for run, state in found if run["passes"] and state.error_kind]
    missed = [run for run, state in found if not run["passes"] and not state.error_kind]
    assert (wrong, blamed, missed) == ([], [], [])
