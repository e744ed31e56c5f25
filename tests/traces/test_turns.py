"""The turn graph on small hand-made sessions."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from composer_pipeline.lake.store import Lake
from composer_pipeline.states.load import load_states
from composer_pipeline.traces.ingest import ingest
from composer_pipeline.traces.parse import analyse


def labels(messages: list[dict[str, Any]]) -> list[str]:
    out = []
    for message in messages:
        parts = [b.get("text") or b.get("content") or b["type"] for b in message["content"]]
        out.append(f"{message['role'][0]}:" + "+".join(map(str, parts)))
    return out


def states_of(lake: Lake, projects: Any, script: Any) -> dict[str, Any]:
    ingest(lake, [script.write(projects)])
    return {state.message_id: state for state in load_states(lake)}


def test_one_response_over_many_lines_is_one_state(lake: Lake, projects: Any, script: Any) -> None:
    s = script()
    s.user("go")
    s.block("m1", {"type": "thinking", "thinking": "hm", "signature": "x"})
    s.say("m1", "first")
    s.call("m1", "t1", "Read", file_path="/a")
    s.result("t1", [{"type": "text", "text": "A"}, {"type": "image", "source": {"data": "zz"}}])
    s.say("m2", "done")
    states = states_of(lake, projects, s)
    assert set(states) == {"m1", "m2"}
    action = states["m1"].action
    assert action.text == "first"
    assert [(c.name, c.arguments, c.id) for c in action.tool_calls] == [
        ("Read", {"file_path": "/a"}, "t1")
    ]
    assert labels(states["m2"].messages) == ["u:go", "a:first+tool_use", "u:A\n[image]"]
    assert (states["m1"].input_tokens, states["m1"].output_tokens) == (15, 3)
    assert states["m1"].n_messages == 1


def test_parallel_calls_get_both_results_in_call_order(
    lake: Lake, projects: Any, script: Any
) -> None:
    s = script()
    s.user("go")
    first = s.call("m1", "t1")
    s.result("t1", "one")
    s.call("m1", "t2", fields={"parent": first})
    s.add("progress", data={})
    s.result("t2", "two")
    s.say("m2", "done")
    s.call("m3", "t3")
    s.say("m4", "no result")
    states = states_of(lake, projects, s)
    assert labels(states["m2"].messages) == ["u:go", "a:tool_use+tool_use", "u:one+two"]
    missing = states["m4"].messages[-1]["content"][0]
    assert (missing["tool_use_id"], missing["is_error"]) == ("t3", True)


def test_rewind_keeps_the_abandoned_branch(lake: Lake, projects: Any, script: Any) -> None:
    s = script()
    s.user("start")
    fork = s.say("m1", "ready")
    s.user("try A")
    s.say("m2", "A")
    s.user("try B", parent=fork)
    s.say("m3", "B")
    states = states_of(lake, projects, s)
    assert {k: v.on_active_path for k, v in states.items()} == {
        "m1": True,
        "m2": False,
        "m3": True,
    }
    assert labels(states["m3"].messages) == ["u:start", "a:ready", "u:try B"]
    assert states["m1"].chain_id == states["m2"].chain_id != states["m3"].chain_id
    assert lake.rows("sessions")[0]["branch_points"] == 1


def test_a_subagent_of_the_same_file_is_no_branch(lake: Lake, projects: Any, script: Any) -> None:
    s = script()
    s.user("start")
    call = s.call("m1", "t1", "Task", prompt="look")
    s.user("look", isSidechain=True, agentId="a7")
    s.say("side", "found", isSidechain=True, agentId="a7")
    s.result("t1", "found", parent=call)
    s.say("m2", "done")
    s.user("and now?", parent=call, isSidechain=True, agentId="b8")
    s.say("side2", "found too", isSidechain=True, agentId="b8")
    states_of(lake, projects, s)
    (row,) = [row for row in lake.rows("sessions") if not row["agent_id"]]
    assert row["branch_points"] == 0


def test_a_call_has_the_arguments_that_were_sent(lake: Lake, projects: Any, script: Any) -> None:
    s = script()
    s.user("go")
    wire = {"wireToolInputs": {"t1": {"command": "as sent"}}}
    s.call("m1", "t1", command="as shown", fields=wire)
    s.call("m2", "t2", command="shown alone")
    # Beside a block that nobody knows, messages are read in another way.
    call = {"type": "tool_use", "id": "t3", "name": "Bash", "input": {"command": "as shown"}}
    body = {"id": "m3", "role": "assistant", "model": "m", "content": [{"type": "odd"}, call]}
    s.add("assistant", message=body, wireToolInputs={"t3": {"command": "as sent"}})
    states = states_of(lake, projects, s)
    assert states["m3"].action.tool_calls[0].arguments == {"command": "as sent"}
    assert states["m1"].action.tool_calls[0].arguments == {"command": "as sent"}
    assert states["m2"].action.tool_calls[0].arguments == {"command": "shown alone"}


def test_an_attachment_is_what_the_agent_saw_of_it(lake: Lake, projects: Any, script: Any) -> None:
    s = script()
    s.user("go")
    queued = {"type": "queued_command", "prompt": "and lint"}
    s.add("attachment", attachment=queued, rendered="The user sent: and lint")
    s.say("m1", "one")
    states = states_of(lake, projects, s)
    assert labels(states["m1"].messages) == ["u:go", "u:The user sent: and lint"]


def test_compaction_and_context_reset_start_new_prefixes(
    lake: Lake, projects: Any, script: Any
) -> None:
    s = script()
    s.user("one")
    s.say("m1", "1")
    s.add("system", subtype="compact_boundary", parent=None, logicalParentUuid="s1-2")
    s.user("summary", isCompactSummary=True)
    s.user("two")
    s.say("m2", "2")
    s.user("Implement the following plan:", parent=None)
    s.say("m3", "3")
    states = states_of(lake, projects, s)
    assert labels(states["m2"].messages) == ["u:summary", "u:two"]
    assert labels(states["m3"].messages) == ["u:Implement the following plan:"]
    # Walking back passes a compaction but not a context reset.
    assert [states[m].on_active_path for m in ("m1", "m2", "m3")] == [False, False, True]


def test_meta_and_interrupt_records_are_in_the_prefix_but_no_turns(
    lake: Lake, projects: Any, script: Any
) -> None:
    s = script()
    s.user("Caveat: The messages below were generated by the user", isMeta=True)
    s.user("go")
    s.call("m1", "t1")
    s.result("t1", "ok")
    s.user("skill text", isMeta=True)
    s.say("m2", "x")
    states = states_of(lake, projects, s)
    assert labels(states["m2"].messages) == [
        "u:Caveat: The messages below were generated by the user",
        "u:go",
        "a:tool_use",
        "u:ok",
        "u:skill text",
    ]
    assert states["m2"].turn == 2


def test_microcompaction_clears_old_results_from_there_on(
    lake: Lake, projects: Any, script: Any
) -> None:
    s = script()
    s.user("go")
    s.call("m1", "t1")
    s.result("t1", "long output")
    s.say("m2", "before")
    s.add(
        "system",
        subtype="microcompact_boundary",
        microcompactMetadata={"compactedToolIds": ["t1"]},
    )
    s.user("next")
    s.say("m3", "after")
    states = states_of(lake, projects, s)
    assert states["m2"].messages[2]["content"][0]["content"] == "long output"
    assert states["m3"].messages[2]["content"][0]["content"] == "[Old tool result content cleared]"
    assert labels(states["m3"].messages)[3:] == ["a:before", "u:next"]


def test_dangling_parent_is_bridged_and_flagged(lake: Lake, projects: Any, script: Any) -> None:
    s = script()
    s.user("go")
    s.say("m1", "1")
    s.user("more", parent="gone")
    s.say("m2", "2")
    states = states_of(lake, projects, s)
    assert labels(states["m2"].messages) == ["u:go", "a:1", "u:more"]
    assert (states["m1"].fidelity, states["m2"].fidelity) == ("reconstructed", "repaired")


def test_sidechains_and_synthetic_answers_are_no_main_states(
    lake: Lake, projects: Any, script: Any
) -> None:
    s = script()
    s.user("go")
    s.say("m1", "1")
    leaf = s.leaf
    s.say("side", "x", isSidechain=True)
    s.say("err", "API Error", model="<synthetic>", parent=leaf)
    s.user("next")
    s.say("m2", "2")
    states = states_of(lake, projects, s)
    assert set(states) == {"m1", "m2"}
    assert labels(states["m2"].messages) == ["u:go", "a:1", "u:next"]


def test_cycles_and_self_parents_end(script: Any, graph: Any) -> None:
    s = script()
    s.add("user", parent="s1-2", message={"content": "a"})
    s.add("user", parent="s1-1", message={"content": "b"})
    s.say("m", "x", parent="s1-3")
    trajectory, _ = graph(s.data)
    assert len(trajectory.nodes) == 3
    for number in range(3):
        assert len(trajectory.path_to(number)) <= 3


def _session(script: Any) -> list[str]:
    s = script()
    s.user("go")
    for turn in range(6):
        s.say(f"m{turn}", f"text {turn}")
        s.call(f"m{turn}", f"t{turn}")
        s.result(f"t{turn}", "ok")
    return s.lines


@settings(max_examples=40)
@given(data=st.data())
def test_repeated_lines_change_nothing(script: Any, data: st.DataObject) -> None:
    lines = _session(script)
    at = data.draw(st.integers(0, len(lines) - 1))
    again = data.draw(st.integers(at, len(lines)))
    doubled = [*lines[:again], lines[at], *lines[again:]]
    before = analyse("\n".join(lines).encode())[2]
    after = analyse("\n".join(doubled).encode())[2]
    assert {**after, "bytes": 0, "lines": 0} == {**before, "bytes": 0, "lines": 0}


@settings(max_examples=40)
@given(cut=st.integers(0, 4000))
def test_a_shorter_file_has_a_prefix_of_the_states(script: Any, cut: int) -> None:
    data = "\n".join(_session(script)).encode()
    full = analyse(data)[0]
    part = analyse(data[:cut])[0]
    keys = [full.nodes[n].key for n in full.states()]
    found = [part.nodes[n].key for n in part.states()]
    assert found == keys[: len(found)]


def test_a_preserved_segment_is_spliced_below_its_anchor(
    lake: Lake, projects: Any, script: Any
) -> None:
    s = script()
    s.user("one")
    s.say("m1", "1")
    head = s.user("two")
    tail = s.say("m2", "2")
    segment = {"headUuid": head, "tailUuid": tail, "anchorUuid": "s1-6"}
    s.add(
        "system",
        subtype="compact_boundary",
        parent=None,
        compactMetadata={"preservedSegment": segment},
    )
    anchor = s.user("summary", isCompactSummary=True)
    s.user("three", parent=anchor)
    s.say("m3", "3")
    states = states_of(lake, projects, s)
    assert labels(states["m3"].messages) == ["u:summary", "u:two", "a:2", "u:three"]
    assert labels(states["m2"].messages) == ["u:one", "a:1", "u:two"]
    assert len(states) == 3


def test_text_that_is_no_unicode_and_blocks_that_nobody_knows(
    lake: Lake, projects: Any, script: Any
) -> None:
    s = script()
    s.user("bad \ud800 text")
    s.block("m1", {"type": "advisor_note", "note": {"n": 2**70}})
    s.say("m1", "fine \udfff")
    s.user("on")
    s.say("m2", "x")
    states = states_of(lake, projects, s)
    assert labels(states["m2"].messages) == [
        "u:bad \ufffd text",
        "a:advisor_note+fine \ufffd",
        "u:on",
    ]
    assert states["m1"].action.text == "fine \ufffd"


def test_an_agent_file_beside_its_session_is_a_trajectory_of_it(
    lake: Lake, projects: Any, script: Any
) -> None:
    main = script()
    main.user("go")
    main.say("m1", "1")
    main.write(projects)
    sub = script()
    sub.user("find", isSidechain=True, agentId="a7")
    sub.say("m2", "found", isSidechain=True, agentId="a7")
    sub.write(projects, "agent-a7.jsonl")
    report = ingest(lake, [projects])
    states = {state.message_id: state for state in load_states(lake)}
    assert (states["m2"].agent_id, states["m2"].session_id) == ("a7", "s1")
    assert (report.totals["states"], report.totals["subagent_files"]) == (1, 1)


def test_a_session_id_that_is_no_text_is_no_obstacle(lake: Lake, projects: Any) -> None:
    record = {
        "type": "user",
        "uuid": "u",
        "sessionId": "\ud800",
        "timestamp": "2026-11-16T10:00:00Z",
    }
    message = {"id": "m1", "content": [{"type": "text", "text": "hm"}]}
    answer = record | {"type": "assistant", "uuid": "v", "parentUuid": "u", "message": message}
    lines = [record | {"message": {"content": "go"}}, answer]
    (projects / "odd.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    ingest(lake, [projects])
    states = list(load_states(lake))
    assert [(s.message_id, s.session_id) for s in states] == [("m1", "\ufffd")]


def test_a_queued_prompt_on_a_glued_line_is_in_the_prefix(
    lake: Lake, projects: Any, script: Any
) -> None:
    s = script()
    s.user("go")
    s.say("m1", "one")
    s.add("attachment", attachment={"type": "queued_command", "prompt": "and lint"})
    s.lines[-2:] = ["".join(s.lines[-2:])]  # the newline between the two was never written
    s.leaf = "s1-3"
    s.say("m2", "two", uuid="s1-4")
    states = states_of(lake, projects, s)
    assert labels(states["m2"].messages) == ["u:go", "a:one", "u:and lint"]


def test_the_usage_of_a_response_is_that_of_its_largest_line(
    lake: Lake, projects: Any, script: Any
) -> None:
    """Each line repeats the usage; the first ones are written before the end is known."""
    s = script()
    s.user("go")
    for number, tokens in enumerate((1, 7, 7, 5)):
        s.say("m1", f"part {number}")
        record = json.loads(s.lines[-1])
        record["message"]["usage"]["output_tokens"] = tokens
        s.lines[-1] = json.dumps(record)
    state = states_of(lake, projects, s)["m1"]
    assert (state.input_tokens, state.output_tokens) == (15, 7)


def test_the_first_result_of_a_call_counts(lake: Lake, projects: Any, script: Any) -> None:
    """The next request contained it; what was appended later, no model saw."""
    s = script()
    s.user("go")
    s.call("m1", "t1")
    s.result("t1", "what the model saw")
    s.say("m2", "done")
    s.result("t1", "what came later")
    assert labels(states_of(lake, projects, s)["m2"].messages)[-1] == "u:what the model saw"


def test_a_result_that_stands_before_its_call_still_continues_it(
    lake: Lake, projects: Any, script: Any
) -> None:
    """Records of parallel calls may be written in any order, and name the prompt as parent."""
    s = script()
    prompt = s.user("go")
    early = s.result("t1", "out", parent=prompt)
    s.call("m1", "t1", fields={"parent": prompt})
    s.say("m2", "done", parent=early)
    states = states_of(lake, projects, s)
    assert labels(states["m2"].messages) == ["u:go", "a:tool_use", "u:out"]
    assert all(state.on_active_path for state in states.values())


def test_a_record_behind_a_compaction_lands_on_what_it_kept(
    lake: Lake, projects: Any, script: Any
) -> None:
    """The next prompt names the last preserved record as its parent, not the summary."""
    s = script()
    s.user("one")
    s.say("m1", "1")
    head = s.user("two")
    tail = s.say("m2", "2")
    kept = {"uuids": [head, tail], "anchorUuid": "s1-6"}
    metadata = {"preservedMessages": kept}
    s.add("system", subtype="compact_boundary", parent=None, compactMetadata=metadata)
    s.user("summary", isCompactSummary=True)
    s.user("three", parent=tail)
    s.say("m3", "3")
    states = states_of(lake, projects, s)
    assert labels(states["m3"].messages) == ["u:summary", "u:two", "a:2", "u:three"]


def test_a_compaction_that_names_its_parent_does_not_follow_itself(
    lake: Lake, projects: Any, script: Any
) -> None:
    """The boundary stands before the copies: its own parent is the record, not a copy."""
    s = script()
    s.user("one")
    s.say("m1", "1")
    tail = s.say("m2", "2")
    kept = {"uuids": [tail], "anchorUuid": "s1-5"}
    s.add("system", subtype="compact_boundary", compactMetadata={"preservedMessages": kept})
    s.user("summary", isCompactSummary=True)
    s.user("three", parent=tail)
    s.say("m3", "3")
    states = states_of(lake, projects, s)
    assert labels(states["m3"].messages) == ["u:one", "a:1", "a:2", "u:summary", "a:2", "u:three"]


def test_attachments_are_no_proof_where_contents_were_replaced(
    lake: Lake, projects: Any, script: Any
) -> None:
    fidelity = []
    for replaced in (False, True):
        s = script(f"s{replaced:d}")
        s.user("go")
        s.add("attachment", attachment={"type": "date"}, rendered="It is Monday.")
        if replaced:
            s.add("content-replacement", toolUseId="t0")
        s.say(f"m{replaced:d}", "done")
        s.write(projects)
        ingest(lake, [projects])
    for state in load_states(lake):
        assert labels(state.messages) == ["u:go", "u:It is Monday."]
        fidelity.append(state.fidelity)
    assert fidelity == ["attachments_rendered", "reconstructed"]
