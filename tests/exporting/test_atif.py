"""ATIF: the published models accept every file, and every state's prompt comes back from one."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from atif import Trajectory
from hypothesis import given

from composer_pipeline.actions import Action
from composer_pipeline.chat.convert import to_chat
from composer_pipeline.chat.tools import Toolsets
from composer_pipeline.cli.__main__ import main
from composer_pipeline.errors import InputError
from composer_pipeline.exporting.atif import documents
from composer_pipeline.exporting.sessions import export_sessions
from composer_pipeline.lake.store import Lake
from composer_pipeline.maintenance.forget import from_exports
from composer_pipeline.states.load import ChainPath, WholeSession, load_states
from composer_pipeline.states.state import action_of
from composer_pipeline.traces.ingest import ingest
from tests.chat.test_growing import MESSAGES
from tests.exporting.rebuilding import every, prompts
from tests.fixtures.sessions import Script
from tests.fixtures.states import made_state

Documents = dict[str, dict[str, Any]]


def written(lake: Lake, folder: Path) -> Documents:
    """Export; return the documents by name of file, each one valid."""
    report = export_sessions(lake, "atif", folder)
    found = {path.name: json.loads(path.read_bytes()) for path in folder.glob("*.json")}
    assert len(found) == report.files
    for document in found.values():
        Trajectory.model_validate(document)
    return found


def check(lake: Lake, folder: Path) -> Documents:
    """Check that each state is in one file once, with its prompt, its action and its tools."""
    found = written(lake, folder)
    parts = [part for document in found.values() for part in every(document)]
    steps = {
        step["extra"]["state_id"]: (part, step)
        for part in parts
        for step in part["steps"]
        if "state_id" in step.get("extra", {})
    }
    rebuilt = [pair for part in parts for pair in prompts(part)]
    assert len(rebuilt) == len(steps)
    by_state = dict(rebuilt)
    states = list(load_states(lake))
    assert by_state.keys() == {state.state_id for state in states}
    for state in states:
        assert by_state[state.state_id] == to_chat(state).messages
        part, step = steps[state.state_id]
        assert not step.get("is_copied_context")
        assert step["message"] == "\n\n".join(t for t in [state.action.text] if t.strip())
        calls = [(c["function_name"], c["arguments"]) for c in step.get("tool_calls", ())]
        assert calls == [(c.name, c.arguments) for c in state.action.tool_calls]
        assert step["extra"]["fidelity"] == state.fidelity
        assert (step.get("metrics") or {}).get("prompt_tokens") == state.input_tokens
        assert part["session_id"] == state.session_id
    return found


@pytest.fixture(scope="module")
def found(lake: Lake, tmp_path_factory: pytest.TempPathFactory) -> Documents:
    return check(lake, tmp_path_factory.mktemp("atif"))


def test_every_prompt_comes_back(found: Documents) -> None:
    assert len(found) > 10


def test_a_compaction_goes_on_in_another_file(found: Documents) -> None:
    first, then = found["compacted.json"], found["compacted.cont-1.json"]
    assert first["continued_trajectory_ref"] == "compacted.cont-1.json"
    assert "continued_trajectory_ref" not in then
    assert [step.get("is_copied_context", False) for step in then["steps"]] == [True, False, False]
    assert then["steps"][1]["message"].startswith("Summary")
    # What the client tells the model of a call that was never answered.
    (result,) = then["steps"][2]["observation"]["results"]
    assert result["content"].startswith("[Tool result missing")


def test_a_rewound_branch_is_a_file_that_marks_what_it_repeats(found: Documents) -> None:
    main, branch = found["rewound.json"], found["rewound.branch-1.json"]
    assert main["extra"]["branches"] == ["rewound.branch-1.json"]
    copied = [step for step in branch["steps"] if step.get("is_copied_context")]
    assert [step["source"] for step in copied] == ["system"]
    assert "continued_trajectory_ref" not in main
    (result,) = branch["steps"][2]["observation"]["results"]
    assert result == {"source_call_id": "call_0", "content": "a.py", "extra": {"is_error": True}}


def test_a_subagent_stands_inside_and_its_call_points_to_it(found: Documents) -> None:
    document = found["compacted.json"]
    (inner,) = document["subagent_trajectories"]
    assert (inner["trajectory_id"], inner["extra"]["agent_id"]) == ("compacted.a1", "a1")
    (result,) = document["steps"][2]["observation"]["results"]
    (reference,) = result["subagent_trajectory_ref"]
    assert reference["trajectory_id"] == "compacted.a1"


def test_agent_tools_and_metrics_are_told(found: Documents, lake: Lake) -> None:
    document = found["compacted.json"]
    assert document["schema_version"] == "ATIF-v1.8"
    assert document["agent"]["name"] == "claude-code"
    assert document["agent"]["version"] == "2.1.300"
    assert document["agent"]["model_name"] == "claude-test"
    named = [tool["function"]["name"] for tool in document["agent"]["tool_definitions"]]
    state = next(s for s in load_states(lake) if s.session_id == "compacted")
    session = [s for s in load_states(lake) if s.session_id == "compacted"]
    assert named == [t["function"]["name"] for t in Toolsets(lake, session).of(state).tools]
    assert document["final_metrics"]["total_prompt_tokens"] == 30
    assert document["final_metrics"]["total_completion_tokens"] == 6
    system = document["steps"][0]
    assert (system["source"], system["extra"]) == ("system", {"source": "template@1"})
    assert document["extra"]["fidelity"] == {"reconstructed": 2}


def test_what_teachers_cost_stands_beside_their_state(lake: Lake, tmp_path: Path) -> None:
    state = next(s for s in load_states(lake) if s.session_id == "rewound")
    row = {
        "state_id": state.state_id, "session_id": "rewound", "family": "f", "request_hash": "r",
        "model": "m", "status": "ok", "cost_picodollars": 2_500_000_000, "simulated": True,
    }  # fmt: skip
    mine = Lake(tmp_path / "lake")
    for table in ("sessions", "states", "chains", "messages"):
        rows = lake.read(table, days=[state.day]).drop_columns(["day"])
        mine.write(table, rows, day=state.day)
    for teacher in ("one", "two"):
        mine.write("replies", [row], day=state.day, teacher=teacher)
    found = written(mine, tmp_path / "out")
    told = [step["metrics"].get("extra") for document in found.values()
            for step in document["steps"] if "metrics" in step]  # fmt: skip
    assert [extra for extra in told if extra] == [{"replay_usd": "0.005"}]


@pytest.mark.slow
def test_the_corpus(corpus_lake: Lake, tmp_path: Path) -> None:
    found = check(corpus_lake, tmp_path)
    kinds = Counter(part["extra"]["kind"] for d in found.values() for part in every(d))
    assert kinds["continuation"] > 8
    assert sum("subagent_trajectories" in document for document in found.values()) > 5


def session_of(messages: list[dict[str, Any]]) -> WholeSession:
    states = [
        made_state(
            state_id=f"{n:032}", messages=messages[:n], action=action_of(message),
            system="be brief" if n % 5 == 4 else None, cwd="/x",
        )
        for n, message in enumerate(messages)
        if message["role"] == "assistant" and says_something(action_of(message))
    ]  # fmt: skip
    numbers = list(range(len(messages)))
    rows: list[dict[str, Any]] = [
        {"agent": "a", "agent_id": "", "versions": [], "path": "x", "parent_call": None}
    ]
    return WholeSession(
        session_id="s", day="2026-11-16", rows=rows,
        paths={"": [ChainPath(numbers, messages, states)]} if states else {},
    )  # fmt: skip


def says_something(action: Action) -> bool:
    return bool(action.text.strip() or action.tool_calls)


def without_unanswered_runs(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out what follows a call of the same side at once: no log has that."""
    kept: list[dict[str, Any]] = []
    for message in messages:
        roles = {message["role"], *(m["role"] for m in kept[-1:])}
        calls = kept and any(b["type"] == "tool_use" for b in kept[-1]["content"])
        if roles != {"assistant"} or not calls:
            kept.append(message)
    return kept


@given(MESSAGES.map(without_unanswered_runs))
def test_any_conversation(messages: list[dict[str, Any]]) -> None:
    session = session_of(messages)
    lake = Lake("/nowhere")
    for document in documents(session, "s", Toolsets(lake, session.states), {}).values():
        Trajectory.model_validate(document)
        found = dict(prompts(document))
        for state in session.states:
            assert found[state.state_id] == to_chat(state).messages


def test_recorded_requests_that_repeat_each_other_are_one_path() -> None:
    said = [
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "b"}]},
        {"role": "user", "content": [{"type": "text", "text": "c"}]},
    ]
    states = [
        made_state(state_id=name, messages=said[:n], action=Action(text), chain_id=name)
        for name, n, text in (("1", 1, "b"), ("2", 3, "d"), ("3", 3, "e"), ("4", 1, "z"))
    ]
    paths = [ChainPath(list(range(s.n_messages)), s.messages, [s]) for s in states]
    rows = [{"agent": "a", "agent_id": "", "versions": ["1"], "parent_call": None}]
    session = WholeSession(session_id="s", day="d", rows=rows, paths={"": paths})
    found = documents(session, "s", Toolsets(Lake("/nowhere"), states), {})
    assert {name: [s["message"] for s in d["steps"]][1:] for name, d in found.items()} == {
        "s": ["a", "b", "c", "d"],
        "s.cont-1": ["a", "b", "c", "e"],
        "s.cont-2": ["a", "z"],  # the same request, answered again
    }
    told = {state for document in found.values() for state, _ in prompts(document)}
    assert told == {"1", "2", "3", "4"}
    assert [s.get("is_copied_context") for s in found["s.cont-1"]["steps"]] == [
        True, True, True, None, None,
    ]  # fmt: skip


@pytest.mark.parametrize(("form", "out"), [("atif", "x.json"), ("sts", "x")])
def test_bad_input(lake: Lake, tmp_path: Path, form: str, out: str) -> None:
    with pytest.raises(InputError, match=r"--(out|format)"):
        export_sessions(lake, form, tmp_path / out)
    with pytest.raises(InputError, match="no session to export"):
        export_sessions(Lake(tmp_path / "empty"), "atif", tmp_path / "y")


def test_files_of_sessions_that_are_gone_go_too(lake: Lake, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export_sessions(lake, "atif", out)
    (out / "mine.json").write_text("{}")
    report = export_sessions(lake, "atif", out, sessions=["rewound"])
    assert report.sessions == 1
    left = sorted(path.name for path in out.iterdir())
    assert left == ["mine.json", "rewound.branch-1.json", "rewound.json"]


def test_the_command(lake: Lake, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    with pytest.raises(SystemExit) as end:
        main(["export", "--format", "pi", "--out", str(out), "--lake", lake.url, "--json"])
    assert end.value.code == 0
    told = json.loads(capsys.readouterr().out)
    assert told["files"] == len(list(out.glob("*.jsonl")))
    assert (told["format"], told["folder"]) == ("pi", str(out))


@pytest.mark.parametrize("form", ["atif", "pi"])
def test_a_forgotten_session_leaves_its_files(lake: Lake, tmp_path: Path, form: str) -> None:
    out = tmp_path / "out"
    export_sessions(lake, form, out)
    names = {path.name for path in out.iterdir()}
    changed = from_exports(lake, {"compacted"}, set())
    gone = names - {path.name for path in out.iterdir()}
    assert gone == {Path(name).name for name in changed if Path(name).parent == out}
    assert {name for name in names if name.startswith("compacted")} == gone


def test_ids_of_other_hands_name_no_place_outside(tmp_path: Path) -> None:
    said = Script("../../out of here")
    said.user("go")
    said.say("m-out", "")
    said.say("m-in", "Done.")
    said.write(tmp_path / "projects", "one.jsonl")
    lake = Lake(tmp_path / "lake")
    ingest(lake, [tmp_path / "projects"])
    found = written(lake, tmp_path / "out")
    (document,) = found.values()
    assert document["session_id"] == "../../out of here"
    assert not (tmp_path.parent / "out of here.json").exists()


def test_one_format_leaves_the_files_of_another(lake: Lake, tmp_path: Path) -> None:
    export_sessions(lake, "pi", tmp_path / "out", sessions=["rewound"])
    export_sessions(lake, "atif", tmp_path / "out", sessions=["compacted"])
    assert (tmp_path / "out" / "rewound.jsonl").exists()


def test_results_that_are_empty_or_quote_an_error() -> None:
    call = {"type": "tool_use", "id": "t", "name": "Read", "input": {}}
    messages: list[dict[str, Any]] = []
    for n, content in enumerate(["", "[tool error] quoted"]):
        result = {"type": "tool_result", "tool_use_id": f"t{n}", "content": content}
        messages += [
            {"role": "user", "content": [{"type": "text", "text": "a"}]},
            {"role": "assistant", "content": [{**call, "id": f"t{n}"}]},
            {"role": "user", "content": [result]},
        ]
    messages.append({"role": "assistant", "content": [{"type": "text", "text": "end"}]})
    session = session_of(messages)
    found = documents(session, "s", Toolsets(Lake("/nowhere"), session.states), {})
    told = dict(prompts(found["s"]))
    for state in session.states:
        assert told[state.state_id] == to_chat(state).messages
    results = [r for step in found["s"]["steps"] if "observation" in step
               for r in step["observation"]["results"]]  # fmt: skip
    assert [r["content"] for r in results] == ["", "[tool error] quoted"]
    assert all("extra" not in r for r in results)
