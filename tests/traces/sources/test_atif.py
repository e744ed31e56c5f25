"""ATIF of other harnesses; the package's own export is in ``tests/exporting``."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer_pipeline.lake.store import Lake
from composer_pipeline.states.load import load_states
from composer_pipeline.states.state import TraceState
from composer_pipeline.traces.ingest import ingest
from composer_pipeline.traces.parse import analyse
from composer_pipeline.traces.source import source_of_file

Json = dict[str, Any]

TOOL = {"name": "bash", "description": "run", "parameters": {"type": "object", "properties": {}}}


def user(text: Any, **fields: Any) -> Json:
    return {"source": "user", "message": text, **fields}


def agent(text: Any = "", *calls: tuple[str, str], **fields: Any) -> Json:
    """A step with calls, each a command with its output."""
    step: Json = {"source": "agent", "message": text, "llm_call_count": 1, **fields}
    if calls:
        step["tool_calls"] = [
            {"tool_call_id": f"c{n}", "function_name": "bash", "arguments": {"command": command}}
            for n, (command, _) in enumerate(calls)
        ]
        results = [
            {"source_call_id": f"c{n}", "content": output} for n, (_, output) in enumerate(calls)
        ]
        step["observation"] = {"results": results}
    return step


def system(text: str, **fields: Any) -> Json:
    return {"source": "system", "message": text, **fields}


def trajectory(*steps: Json, **fields: Any) -> Json:
    numbered = [
        {"step_id": n, "timestamp": f"2026-11-16T08:00:{n:02d}Z", **step}
        for n, step in enumerate(steps, 1)
    ]
    agent_fields = {"name": "mini-swe-agent", "version": "2.0", "model_name": "m"}
    return {
        "schema_version": "ATIF-v1.7", "session_id": "run-1", "agent": agent_fields,
        "steps": numbered, **fields,
    }  # fmt: skip


def states_of(lake: Lake, folder: Path, *documents: Json) -> list[TraceState]:
    folder.mkdir(exist_ok=True)
    for number, value in enumerate(documents):
        (folder / f"trajectory-{number}.json").write_text(json.dumps(value, indent=2))
    ingest(lake, [folder])
    return list(load_states(lake))


def shown(state: TraceState) -> list[str]:
    return [
        f"{message['role']}: {block.get('text') or block.get('content') or block['type']}"
        for message in state.messages
        for block in message["content"]
    ]


BROKEN = "<returncode>1</returncode>\n<output>no such file</output>"


def test_a_trajectory_becomes_states(lake: Lake, tmp_path: Path) -> None:
    value = trajectory(
        system("You run commands."),
        user("fix the till"),
        agent("I look", ("ls", "<returncode>0</returncode>\n<output>a</output>"),
              reasoning_content="hidden", metrics={"prompt_tokens": 9, "completion_tokens": 3}),
        agent("", ("cat b", BROKEN)),
        agent("done", model_name="other"),
    )  # fmt: skip
    value["agent"]["tool_definitions"] = [{"type": "function", "function": TOOL}]
    first, failing, last = states_of(lake, tmp_path / "runs", value)
    assert (first.system, first.model, first.version) == ("You run commands.", "m", "2.0")
    assert first.tools is not None
    assert first.tools[0]["input_schema"] == TOOL["parameters"]
    assert (first.input_tokens, first.output_tokens, last.model) == (9, 3, "other")
    assert first.action.tool_calls[0].arguments == {"command": "ls"}
    assert [s.error_kind is not None for s in (first, failing, last)] == [False, True, False]
    assert shown(last) == [
        "user: fix the till",
        "assistant: I look",
        "assistant: tool_use",
        "user: <returncode>0</returncode>\n<output>a</output>",
        "assistant: tool_use",
        f"user: {BROKEN}",
    ]
    (session,) = lake.rows("sessions")
    assert (session["agent"], session["session_id"]) == ("mini-swe-agent", "run-1")
    assert session["unknown_types"] == "{}"
    assert "hidden" not in str(lake.rows("messages"))


@pytest.mark.parametrize(
    ("output", "extra", "failed"),
    [
        ("x\n[The command completed with exit code 2.]\n[Current working directory: /w]", {}, True),
        ("x\n[The command completed with exit code 0.]", {}, False),
        ("[stdout]\nx\n[exit_code] 2", {}, True),
        ("ERROR:\nNo replacement was performed", {}, True),
        ("fine", {"is_error": True}, True),
        ("fine", {"success": False}, True),
        ("fine", {"exit_code": 3}, True),
        ("fine", {"shellExecution": {"exitCode": 3}}, True),
        ("<returncode>1</returncode>", {"tool_result_is_error": False}, False),
    ],
)
def test_a_failed_call_is_told_by_what_its_harness_writes(
    output: str, extra: Json, failed: bool
) -> None:
    step = agent("", ("x", output))
    step["observation"]["results"][0]["extra"] = extra
    graph, _, _ = analyse(json.dumps(trajectory(user("go"), step)).encode())
    assert graph.nodes[-1].calls[0].failed == failed


def test_context_is_no_state(lake: Lake, tmp_path: Path) -> None:
    """A copied step, a step that no model made, and one of several calls."""
    one, two = states_of(
        lake,
        tmp_path / "runs",
        trajectory(
            user("go", is_copied_context=True),
            agent("copied", is_copied_context=True),
            agent("", ("ls", "a"), llm_call_count=0),
            agent("mine"),
            system("Two steps are left."),
            user("more"),
            agent("two calls of the model", llm_call_count=2),
        ),
    )
    assert (one.action.text, one.fidelity) == ("mine", "reconstructed")
    assert shown(one) == ["user: go", "assistant: copied", "assistant: tool_use", "user: a"]
    assert shown(two)[-2:] == ["user: Two steps are left.", "user: more"]
    assert two.fidelity == "repaired"
    (session,) = lake.rows("sessions")
    assert json.loads(session["unknown_types"]) == {"atif/llm_call_count": 1}


def test_a_compaction_begins_a_new_context(lake: Lake, tmp_path: Path) -> None:
    """In one document, or in the next one; both count their steps anew."""
    change = {"context_management": {"type": "compaction", "boundary": "replace"}}
    first = trajectory(
        system("sys"), user("old"), agent("said"), system("Compacted.", extra=change),
        user("summary"), agent("after"), continued_trajectory_ref="trajectory-1.json",
    )  # fmt: skip
    then = trajectory(system("sys"), user("handed over"), agent("said"))
    said, after, later = states_of(lake, tmp_path / "runs", first, then)
    assert (shown(after), after.system) == (["user: summary"], "sys")
    assert shown(later) == ["user: handed over"]
    assert said.state_id != later.state_id
    assert {s.session_id for s in (said, after, later)} == {"run-1"}


def test_subagents_are_agents_of_the_session(lake: Lake, tmp_path: Path) -> None:
    call = agent("", ("look around", "seen"))
    call["observation"]["results"][0]["subagent_trajectory_ref"] = [{"trajectory_id": "sub-1"}]
    below = trajectory(user("deeper"), agent("found"), trajectory_id="sub-2")
    inner = trajectory(user("look"), agent("", ("ls", "a")), agent("seen"), trajectory_id="sub-1",
                       subagent_trajectories=[below])  # fmt: skip
    summary = trajectory(user("summarise"), agent("short"), session_id="run-1-summary")
    summary["agent"]["extra"] = {"parent_session_id": "run-1"}
    main = trajectory(user("go"), call, agent("done"), subagent_trajectories=[inner])
    found = {s.action.text: s for s in states_of(lake, tmp_path / "runs", main, summary)}
    assert (found["seen"].session_id, found["seen"].agent_id) == ("run-1", "sub-1")
    assert (found["found"].session_id, found["found"].agent_id) == ("run-1", "sub-2")
    assert (found["short"].session_id, found["short"].agent_id) == ("run-1", "run-1-summary")
    assert len(shown(found["done"])) == 3
    calls = {row["agent_id"]: row["parent_call"] for row in lake.rows("sessions")}
    assert calls == {"": None, "sub-1": "c0", "sub-2": None, "run-1-summary": None}


def test_results_without_a_name_belong_to_the_calls_in_order(lake: Lake, tmp_path: Path) -> None:
    """Ids may repeat; without a call an observation is what the model saw next."""
    two = agent("", ("a", "one"), ("b", "two"))
    for result in two["observation"]["results"]:
        del result["source_call_id"]
    free = agent("```bash\nls\n```", observation={"results": [{"content": "a.py"}]})
    picture = [{"type": "text", "text": "see"}, {"type": "image", "source": {"path": "x.png"}}]
    value = trajectory(user(picture), two, agent("", ("c", "3")), free, agent("end"))
    *_, last = states_of(lake, tmp_path / "runs", value)
    assert shown(last) == [
        "user: see", "user: image", "assistant: tool_use", "assistant: tool_use", "user: one",
        "user: two", "assistant: tool_use", "user: 3", "assistant: ```bash\nls\n```", "user: a.py",
    ]  # fmt: skip


def test_secrets_do_not_reach_the_lake(lake: Lake, tmp_path: Path) -> None:
    secret = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
    value = trajectory(system(secret), user(secret), agent(secret, (secret, secret)), agent("x"))
    assert len(states_of(lake, tmp_path / "runs", value)) == 2
    assert secret not in str([lake.rows(t) for t in ("messages", "states", "sessions")])


def test_a_version_from_the_future_is_noted_and_read(lake: Lake, tmp_path: Path) -> None:
    value = trajectory(user("go"), agent("done"), {"source": "oracle", "message": "?"})
    value |= {"schema_version": "ATIF-v1.12", "timeline": []}
    assert len(states_of(lake, tmp_path / "runs", value)) == 1
    (session,) = lake.rows("sessions")
    assert json.loads(session["unknown_types"]) == {"atif/ATIF-v1.12": 1, "atif/source/oracle": 1}


def test_a_cut_off_document_is_one_bad_line(lake: Lake, tmp_path: Path) -> None:
    value = json.dumps(trajectory(user("go"), agent("done")))
    _, stats, facts = analyse(value[:-9].encode())
    assert (stats.agent, facts["bad_lines"], facts["states"]) == ("atif", 1, 0)
    assert stats.last_line_bad


def test_other_documents_are_not_claimed(tmp_path: Path) -> None:
    quoted = {"note": json.dumps(trajectory(user("go")))}
    for number, value in enumerate(({"schema_version": "1.0", "steps": []}, quoted)):
        (tmp_path / f"{number}.json").write_text(json.dumps(value))
        assert source_of_file(tmp_path / f"{number}.json") is None


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["agent", "user", "c0", "\ud800"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from([
            "source", "message", "tool_calls", "tool_call_id", "function_name", "arguments",
            "observation", "results", "source_call_id", "content", "extra", "metrics", "type",
            "text", "fidelity", "parser_version", "subagent_trajectory_ref", "trajectory_id",
        ]),
        inner,
        max_size=5,
    ),
    max_leaves=12,
)  # fmt: skip


@given(
    st.dictionaries(
        st.sampled_from(["agent", "extra", "steps", "session_id", "subagent_trajectories"]), _JSON
    ),
    st.lists(_JSON, max_size=4),
)
@settings(max_examples=50)
def test_any_document_is_read_without_a_crash(fields: Json, steps: list[Any]) -> None:
    value = trajectory(user("go"), agent("done")) | fields
    value["steps"] = value["steps"] + steps if isinstance(value["steps"], list) else value["steps"]
    _, stats, _ = analyse(json.dumps(value).encode())
    assert stats.bad_lines == 0


def test_names_in_a_document_are_redacted_too(lake: Lake, tmp_path: Path) -> None:
    """A document may name anything: agent, version, model, session, a source of a step."""
    key = "sk-proj-" + "Zq3vT8" * 8
    document = trajectory(user("go"), agent("done", model_name=f"m {key}"), {"source": f"x {key}"})
    document["session_id"] = "/home/alice/runs/7"
    document["agent"] = {"name": f"agent {key}", "version": f"1 {key}"}
    (state,) = states_of(lake, tmp_path, document)
    assert "SECRET" in state.agent
    assert "SECRET" in (state.model or "")
    for table in ("states", "sessions", "messages", "raw_files"):
        assert key not in str(lake.rows(table)), table
        assert "alice" not in str(lake.rows(table)), table
