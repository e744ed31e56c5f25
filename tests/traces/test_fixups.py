"""Fix-ups: an edit with its own later fix folded in, and recoveries, as pairs without a teacher."""

import json
from typing import Any

import pytest

from composer_pipeline.cli.__main__ import main
from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences.explain import explain
from composer_pipeline.preferences.pairs import build_pairs
from composer_pipeline.report.write import write_report
from composer_pipeline.states.load import failure_chains, load_states
from composer_pipeline.traces.ingest import ingest
from tests.publishing.conftest import fill, row
from tests.traces.test_edits import TEN, A, bash, edit, read

FAILS = f"Exit code 1\n{A}:4:1: F821 undefined name `bad`"
PASSES = "All checks passed!"


@pytest.fixture
def s(script: Any) -> Any:
    s = script()
    s.user("add a cache")
    read(s, "r", TEN)
    return s


@pytest.fixture
def fixed(lake: Lake, projects: Any) -> Any:
    def run(s: Any) -> dict[str, Any]:
        """Return message to the arguments of the action as it should have been."""
        s.say("end", "done")
        ingest(lake, [s.write(projects)])
        return {
            state.message_id: json.loads(state.fixed_action)["tool_calls"][0]["arguments"]
            for state in load_states(lake)
            if state.fixed_action
        }

    return run


def state(lake: Lake, message: str) -> Any:
    return next(state for state in load_states(lake) if state.message_id == message)


def test_the_fix_is_folded_into_the_edit(fixed: Any, s: Any, lake: Lake) -> None:
    edit(s, "culprit", "line number 4", "new line here\nuses bad name")
    bash(s, "red", "ruff check .", FAILS.replace(":4:", ":5:"), error=True)
    edit(s, "fix", "uses bad name", "uses good name")
    bash(s, "green", "ruff check .", PASSES)
    found = fixed(s)["mculprit"]
    assert (found["old_string"], found["new_string"]) == (
        "line number 4", "new line here\nuses good name",
    )  # fmt: skip
    culprit = state(lake, "mculprit")
    names = {x.state_id: x.message_id for x in load_states(lake)}
    assert (names[culprit.fixed_by], names[culprit.fix_verified_by]) == ("mfix", "mgreen")
    assert culprit.fix_distance == 2


def test_a_fix_with_lines_around_it_widens_the_edit(fixed: Any, s: Any) -> None:
    edit(s, "culprit", "line number 4", "uses bad name")
    bash(s, "red", "ruff check .", FAILS, error=True)
    edit(s, "fix", "line number 3\nuses bad name\nline number 5", "line 3\nuses good name\nline 5")
    bash(s, "green", "ruff check .", PASSES)
    found = fixed(s)["mculprit"]
    assert found["old_string"] == "line number 3\nline number 4\nline number 5"
    assert found["new_string"] == "line 3\nuses good name\nline 5"
    assert TEN.count(found["old_string"]) == 1


@pytest.mark.parametrize(
    "fix",
    ["nothing passes", "goes elsewhere", "undone", "uses a name of another edit", "formatted away",
     "by a subagent", "before the error"],
)  # fmt: skip
def test_no_pair(fixed: Any, s: Any, fix: str) -> None:
    edit(s, "culprit", "line number 4", "uses bad name")
    if fix == "before the error":
        edit(s, "more", "uses bad name", "uses bad name twice")
    bash(s, "red", "ruff check .", FAILS, error=True)
    if fix == "goes elsewhere":
        edit(s, "fix", "line number 9", "line nine")
    elif fix == "undone":
        edit(s, "fix", "uses bad name", "line number 4")
    elif fix == "uses a name of another edit":
        edit(s, "other", "line number 1\n", "def helper():\n    pass\n")
        edit(s, "fix", "uses bad name", "uses helper name")
    elif fix == "by a subagent":
        s.call("mt", "t", "Task", prompt="mend it")
        s.result("t", "done")
    elif fix == "formatted away":
        bash(s, "fmt", "ruff format .")
    elif fix == "nothing passes":
        edit(s, "fix", "uses bad name", "uses good name")
    if fix != "nothing passes":
        bash(s, "green", "ruff check .", PASSES)
    assert "mculprit" not in fixed(s)


def test_a_fix_that_only_makes_a_test_smaller_is_none(fixed: Any, s: Any) -> None:
    path = "/srv/p/tests/test_a.py"
    s.call("mw", "w", "Write", file_path=path, content="def test_a():\n    assert f() == 1\n")
    s.result("w", "File created")
    output = f"Exit code 1\n{path}:2: AssertionError\n==== 1 failed in 0.1s ===="
    bash(s, "red", "pytest", output, error=True)
    edit(s, "fix", "def test_a():\n    assert f() == 1\n", "", path)
    bash(s, "green", "pytest", "==== 3 passed in 0.1s ====")
    assert fixed(s) == {}


def test_pairs_without_a_teacher(fixed: Any, s: Any, lake: Lake) -> None:
    edit(s, "culprit", "line number 4", "uses bad name")
    bash(s, "red", "ruff check .", FAILS, error=True)
    edit(s, "fix", "uses bad name", "uses good name")
    bash(s, "green", "ruff check .", PASSES)
    s.call("mwrong", "w", "Read", file_path="/srv/p/b/c.py")
    s.result("w", "<tool_use_error>File does not exist.</tool_use_error>", error=True)
    read(s, "right", "text", "/srv/p/src/c.py")
    s.say("after", "I see")
    fixed(s)
    report = build_pairs(lake)
    assert report.by_source == {"fixup": 1, "recovery": 1}
    rows = {row["source"]: row for row in lake.rows("pairs")}
    fixup, recovery = rows["fixup"], rows["recovery"]
    assert fixup["evidence"] == f"{A}:4: F821 undefined name `bad`"
    assert (fixup["distance"], fixup["tier"], fixup["outcome"]) == (2, "fixup", "student_bad")
    assert fixup["verified_by"] == state(lake, "mgreen").state_id
    assert "uses good name" in str(fixup["chosen"])
    assert "uses bad name" in str(fixup["rejected"])
    assert "good name" not in str(fixup["prompt"])
    assert (recovery["distance"], recovery["verified_by"]) == (1, state(lake, "mright").state_id)
    assert "src/c.py" in str(recovery["chosen"])
    facts = explain(lake, fixup["pair_id"])
    assert facts["reason"] == "fixup"
    assert facts["why"].startswith("The agent mended this edit itself 2 states later")
    assert facts["chosen"]["tool_calls"][0]["arguments"]["new_string"] == "uses good name"
    before = lake.rows("pairs")
    build_pairs(lake)
    assert lake.rows("pairs") == before


def test_the_chain_of_edit_failure_and_fix(
    fixed: Any, s: Any, lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(s, "culprit", "line number 4", "uses bad name")
    bash(s, "red", "ruff check .", FAILS, error=True)
    bash(s, "again", "ruff check .", FAILS, error=True)
    edit(s, "fix", "uses bad name", "uses good name")
    bash(s, "green", "ruff check .", PASSES)
    s.call("mwrong", "w", "Read", file_path="/srv/p/b/c.py")
    s.result("w", "<tool_use_error>File does not exist.</tool_use_error>", error=True)
    fixed(s)
    ids = {state.message_id: state.state_id for state in load_states(lake)}
    names = {state_id: message for message, state_id in ids.items()}
    found = {
        names[state_id]: [(step["step"], names[step["state_id"]], step["what"]) for step in chain]
        for state_id, chain in failure_chains(lake, list(names)).items()
    }
    chain = [
        ("edit", "mculprit", f"Edit {A}"),
        ("failure", "mred", f"{A}:4: F821 undefined name `bad`"),
        ("fix", "mfix", f"Edit {A}"),
        ("check", "mgreen", "Bash ruff check ."),
    ]
    second = [chain[0], ("failure", "magain", chain[1][2]), *chain[2:]]
    members = dict.fromkeys(("mculprit", "mred", "mfix", "mgreen"), chain)
    assert found == {**members, "magain": second}

    def shown(*command: str) -> str:
        with pytest.raises(SystemExit) as done:
            main([*command, "--lake", lake.url])
        assert not done.value.code
        return capsys.readouterr().out

    for command in ("state", "pair"):
        text = shown(command, ids["mculprit"])
        assert f"edit    {ids['mculprit'][:12]} (this state)  Edit {A}" in text
        assert f"fix     {ids['mfix'][:12]}  Edit {A}" in text
        assert "edit, failure" not in shown(command, ids["mwrong"])
        steps = json.loads(shown(command, ids["mred"], "--json"))["chain"]
        assert [step["step"] for step in steps] == ["edit", "failure", "fix", "check"]
    own = {"state_id": ids["mculprit"], "source": "fixup", "tier": "fixup", "distance": 2}
    fill(lake, [row(1, "train", **own)], [row(9, "validation", n_agree=2, n_families=3)])
    page = write_report(lake).path.read_text()
    assert page.count("<li>failure <code>") == 1
    assert f"<li>failure <code>{ids['mred'][:12]}</code>: {A}:4: F821 undefined" in page
    assert "fixup: the agent itself, 2 states later" in page
    assert "gold: 2 of 3 families agree" in page


def test_an_edit_that_nothing_mends_has_a_chain_of_two(fixed: Any, s: Any, lake: Lake) -> None:
    edit(s, "culprit", "line number 4", "uses bad name")
    bash(s, "red", "ruff check .", FAILS, error=True)
    fixed(s)
    chain = failure_chains(lake, [state(lake, "mculprit").state_id])
    assert [[step["step"] for step in steps] for steps in chain.values()] == [["edit", "failure"]]


def test_a_fix_of_what_the_second_call_of_a_batch_shows(fixed: Any, s: Any) -> None:
    edit(s, "culprit", "line number 4", "uses bad name")
    s.call("mboth", "t", command="./deploy")
    s.call("mboth", "l", command="ruff check .")
    s.result("t", "Exit code 3\nsomething happened", error=True)
    s.result("l", FAILS, error=True)
    edit(s, "fix", "uses bad name", "uses good name")
    bash(s, "green", "ruff check .", PASSES)
    assert fixed(s)["mculprit"]["new_string"] == "uses good name"


def test_a_fix_that_breaks_something_else_begins_a_chain_of_its_own(
    fixed: Any, s: Any, lake: Lake
) -> None:
    edit(s, "culprit", "line number 4", "uses bad name")
    bash(s, "red", "ruff check .", FAILS, error=True)
    edit(s, "fix", "uses bad name", "uses good name")
    bash(s, "green", "ruff check .", PASSES)
    bash(s, "types", "mypy .", f"Exit code 1\n{A}:4: error: bad type  [misc]", error=True)
    fixed(s)
    fix = state(lake, "mfix").state_id
    (chain,) = failure_chains(lake, [fix]).values()
    assert [(step["step"], step["state_id"]) for step in chain] == [
        ("edit", fix), ("failure", state(lake, "mtypes").state_id),
    ]  # fmt: skip
