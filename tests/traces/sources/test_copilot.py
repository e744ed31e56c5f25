"""Copilot CLI: each prefix is what Copilot sent, as far as its log has it."""

import json
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.lake.store import Lake
from composer_pipeline.states.load import load_states
from composer_pipeline.states.state import TraceState
from composer_pipeline.traces.ingest import ingest
from composer_pipeline.traces.parse import analyse
from composer_pipeline.traces.records import LineStats
from composer_pipeline.traces.sources.copilot import INTERRUPTED, Copilot
from tests.traces.sources.wrong_types import logs_with_wrong_types

SECRET, HIDDEN = "sk-ant-api03-" + "a1B2" * 8, "[SECRET_ANTHROPIC_KEY_279f]"
Json = dict[str, Any]


class Log:
    """Writes a session's events by hand."""

    def __init__(self, session: str = "11111111-aaaa", **start: Any):
        self.lines: list[str] = []
        context = {"cwd": "/home/alice/shop"}
        begun = {"sessionId": session, "version": 1, "copilotVersion": "1.0.102"}
        self.add("session.start", **{**begun, "context": context, **start})

    def add(self, kind: str, /, *, agent: str = "", **data: Any) -> None:
        number = len(self.lines)
        event = {"type": kind, "data": data, "id": f"e{number}", "parentId": f"e{number - 1}"}
        event["timestamp"] = f"2026-11-16T08:{number // 60:02d}:{number % 60:02d}.000Z"
        self.lines.append(json.dumps(event | ({"agentId": agent} if agent else {})))

    def user(self, text: str, **fields: Any) -> None:
        seen = f"<current_datetime>now</current_datetime>\n\n{text}"
        self.add("user.message", **{"content": text, "transformedContent": seen, **fields})

    def say(self, text: str, *calls: tuple[str, str, Any], **fields: Any) -> None:
        made = [
            {"toolCallId": i, "name": n, "arguments": a, "type": "function"} for i, n, a in calls
        ]
        key = f"m{len(self.lines)}"
        given = {"messageId": key, "model": "m", "content": text, "toolRequests": made}
        self.add("assistant.message", **{**given, **fields})

    def result(self, call: str, text: str, **fields: Any) -> None:
        given = {"toolCallId": call, "success": True, "result": {"content": text}}
        self.add("tool.execution_complete", **{**given, **fields})

    def failure(self, call: str, text: str, code: str = "failure", **fields: Any) -> None:
        error = {"message": text, "code": code}
        self.add("tool.execution_complete", toolCallId=call, success=False, error=error, **fields)

    @property
    def data(self) -> bytes:
        return ("\n".join(self.lines) + "\n").encode()


def states_of(lake: Lake, log: Log) -> list[TraceState]:
    folder = Path(str(lake.url)).parent / "session-state"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "events.jsonl").write_bytes(log.data)
    ingest(lake, [folder])
    return sorted(load_states(lake), key=lambda state: str(state.ts))


def texts(state: TraceState) -> list[str]:
    return [
        f"{message['role']}: {block.get('text') or block.get('content') or block.get('name')}"
        for message in state.messages
        for block in message["content"]
    ]


NOW = "user: <current_datetime>now</current_datetime>"
LS = ("c1", "bash", {"command": "ls /home/alice/shop"})


def test_a_session_becomes_states(lake: Lake) -> None:
    log = Log(selectedModel="m0")
    log.user(f"fix the till, the key is {SECRET}")
    log.add("system.message", role="system", content="You are Copilot.")
    usage = {"inputTokens": 900, "outputTokens": 40, "apiCallId": "a1"}
    log.add("session.usage_record", usage=usage)
    patch = "*** Begin Patch"
    log.say("I look", LS, ("c2", "apply_patch", patch), apiCallId="a1", reasoningText="hidden")
    log.result("c2", "patched")
    log.result("c1", "no till\n<shellId: 0 completed with exit code 2>", shellExecution={})
    log.add("system.notification", content="<system_notification>x</system_notification>", kind={})
    log.add("system.notification", content="unseen", kind={"type": "instruction_discovered"})
    log.add("session.model_change", newModel="m1")
    log.add("session.context_changed", cwd="/home/alice/lamp")
    log.say("done", model=None)
    first, last = states_of(lake, log)
    assert texts(first) == [NOW, f"user: fix the till, the key is {HIDDEN}"]
    assert [call.arguments for call in first.action.tool_calls] == [
        {"command": "ls /home/user/shop"},
        {"input": patch},
    ]
    assert texts(last)[2:] == [
        "assistant: I look",
        "assistant: bash",
        "assistant: apply_patch",
        "user: no till\n<shellId: 0 completed with exit code 2>",
        "user: patched",
        "user: <system_notification>x</system_notification>",
    ]
    assert (first.followed_by_error, first.hint_call, last.error_kind) == (True, 0, None)
    assert (first.model, first.input_tokens, first.output_tokens) == ("m", 900, 40)
    assert (last.model, last.version, last.cwd) == ("m1", "1.0.102", "/home/user/lamp")
    assert (first.session_id, first.system) == ("11111111-aaaa", "You are Copilot.")
    (session,) = lake.rows("sessions")
    assert session["first_prompt"].startswith("fix the till")
    stored = str(lake.rows("messages"))
    assert SECRET not in stored
    assert "hidden" not in stored


def test_a_failed_edit_is_seen_whole(lake: Lake) -> None:
    """The log has the first words of the error, and how long the whole was."""
    log = Log()
    log.user("go")
    log.say("", ("c1", "edit", {"path": "/a"}), ("c2", "edit", {"path": "/a"}))
    whole = (
        "No match found: old_str not found in /a; no changes made;"
        " you might want to try again with correct old_str"
    )
    metrics = {"resultForLlmLength": len(whole)}
    log.failure("c1", "No match found", toolTelemetry={"metrics": metrics})
    log.failure("c2", "No match found", toolTelemetry={"metrics": {"resultForLlmLength": 1}})
    log.say("sorry")
    assert texts(states_of(lake, log)[1])[-2:] == [f"user: {whole}", "user: No match found"]


def test_a_refused_call_and_a_command_with_an_exit_code_failed() -> None:
    log = Log()
    log.user("go")
    log.say("", LS, ("c2", "bash", '{"command": "ls"}'))
    log.failure("c1", "The user rejected this tool call.", code="rejected")
    log.result("c2", "no till", shellExecution={"exitCode": 3})
    graph, _, _ = analyse(log.data)
    calls = graph.nodes[graph.states()[0]].calls
    assert [call.failed for call in calls] == [True, True]
    assert calls[1].input == {"command": "ls"}


def test_a_stopped_call_is_seen_as_copilot_says_it_and_is_a_correction(lake: Lake) -> None:
    log = Log()
    log.user("go")
    log.say("I wait", LS)
    log.add("abort", reason="user_initiated")
    log.user("do not wait")
    log.say("ok")
    first, last = states_of(lake, log)
    assert texts(last)[-3:] == [f"user: {INTERRUPTED}", NOW, "user: do not wait"]
    assert (first.error_kind, first.hint) == ("user_correction", "do not wait")


def test_a_session_that_was_killed_says_so_when_it_is_resumed(lake: Lake) -> None:
    log = Log()
    log.user("go")
    log.say("I wait", LS)
    log.add("session.resume", sessionWasActive=False)
    log.failure("c1", "cut off", code="interrupted")
    log.say("again", ("c2", *LS[1:]))
    log.add("session.resume", sessionWasActive=False)
    log.user("go on")
    log.say("ok")
    first, second, last = states_of(lake, log)
    assert texts(last)[-3:] == [f"user: {INTERRUPTED}", NOW, "user: go on"]
    assert (first.error_kind, second.error_kind) == (None, None)


def test_a_prompt_during_a_call_stands_after_its_result(lake: Lake) -> None:
    log = Log()
    log.user("go")
    log.say("I look", LS)
    log.user("and hurry")
    log.result("c1", "till.py")
    log.say("ok")
    assert texts(states_of(lake, log)[1])[-3:] == ["user: till.py", NOW, "user: and hurry"]


def test_a_compaction_keeps_what_came_while_it_ran(lake: Lake) -> None:
    log = Log()
    log.user("old")
    log.say("old answer")
    log.add("session.compaction_start")
    log.add("session.compaction_complete", success=False, error="x")
    log.user("new")
    log.say("I look", LS)
    log.add("session.compaction_start", trigger="threshold")
    log.result("c1", "till.py")
    log.add("session.compaction_complete", success=True, summaryContent="what was")
    log.say("ok")
    log.say("still")
    *_, after, last = states_of(lake, log)
    summary = (
        "user: Some of the conversation history has been summarized to free up context.\n\n"
        "You were originally given instructions from a user over one or more turns. Here were the"
        " user messages:\n<user_message>\nold\n</user_message>\n<user_message>\nnew\n"
        "</user_message>\n\nHere is a summary of the prior context:\n<summary>\nwhat was\n"
        "</summary>\n"
    )
    kept = [summary, "assistant: I look", "assistant: bash", "user: till.py"]
    assert texts(after) == kept
    assert texts(last) == [*kept, "assistant: ok"]


def test_files_stand_behind_a_prompt_and_skills_behind_a_summary(lake: Lake) -> None:
    log = Log()
    log.user("go", attachments=[{"taggedFilesEntry": "* /a (3 lines)"}])
    for name in ("first", "second"):
        log.add("skill.invoked", name=name, path=f"/{name}", content=f"do {name}")
    log.say("ok")
    log.add("session.compaction_complete", success=True, summaryContent="x")
    log.say("after")
    before, after = states_of(lake, log)
    assert texts(before)[2] == "user: <tagged_files>\n* /a (3 lines)\n</tagged_files>"
    assert "## Most recent skill: second\nPath: /second\n" in texts(after)[0]
    assert "\n- first: /first\n</invoked_skills>" in texts(after)[0]


def test_a_cleared_context_holds_nothing_of_before(lake: Lake) -> None:
    log = Log()
    log.user("old")
    log.add("session.context_cleared", initialMessage="new")
    log.say("ok")
    (state,) = states_of(lake, log)
    assert texts(state) == ["user: new"]


def test_many_prompts_are_repeated_in_part(lake: Lake) -> None:
    log = Log()
    for number in range(30):
        log.user(f"prompt {number}")
    log.say("ok")
    log.add("session.compaction_complete", success=True, summaryContent="x", trigger="manual")
    log.say("after")
    shown = texts(states_of(lake, log)[1])[0]
    assert shown.startswith("user: The conversation history")
    assert shown.count("<user_message>") == 3 + 16
    assert "prompt 2\n</user_message>\n... 11 messages omitted ...\n<user_message>" in shown


@pytest.mark.parametrize(("stored", "begin"), [({}, "The"), ({"checkpointNumber": 1}, "Some of")])
def test_a_summary_begins_as_it_was_sent(lake: Lake, stored: dict[str, Any], begin: str) -> None:
    log = Log()
    log.user("go")
    log.say("ok")
    given = {"success": True, "summaryContent": "x", "trigger": "manual", **stored}
    log.add("session.compaction_complete", **given)
    log.say("after")
    assert texts(states_of(lake, log)[1])[0].startswith(f"user: {begin}")


def test_a_subagent_is_a_conversation_of_its_own(lake: Lake) -> None:
    log = Log()
    log.user("go")
    log.say("", ("c1", "task", {"prompt": "count"}))
    log.add("subagent.started", agent="sub", toolCallId="c1")
    log.user("count", agent="sub", source="agent-11111111")
    log.say("one", agent="sub", parentToolCallId="c1")
    log.result("c1", "one")
    log.say("it is one")
    _, below, last = states_of(lake, log)
    assert (below.agent_id, texts(below)) == ("sub", [NOW, "user: count"])
    assert texts(last)[2:] == ["assistant: task", "user: one"]
    row = next(row for row in lake.rows("sessions") if row["agent_id"])
    assert (row["parent_call"], row["first_prompt"]) == ("c1", "count")


def test_a_response_in_parts_is_one_state(lake: Lake) -> None:
    log = Log()
    log.user("go")
    log.say("first", LS, apiCallId="a", chunkCount=2, chunkIndex=0)
    log.say("second", apiCallId="a", chunkCount=2, chunkIndex=1)
    log.result("c1", "x")
    log.say("done")
    first, last = states_of(lake, log)
    assert first.action.text == "first\n\nsecond"
    assert texts(last)[-1] == "user: x"


def test_a_truncated_request_says_so(lake: Lake) -> None:
    log = Log()
    log.user("go")
    log.say("whole")
    log.add("session.truncation", messagesRemovedDuringTruncation=3)
    log.say("cut")
    log.add("session.compaction_complete", success=True, summaryContent="x")
    log.say("anew")
    found = [state.fidelity for state in states_of(lake, log)]
    assert found == ["reconstructed", "repaired", "reconstructed"]


def test_what_is_unknown_or_broken_is_counted_and_the_rest_read() -> None:
    log = Log(version=2)
    log.user("go")
    log.add("session.hologram")
    log.result("u1", "x", isUserRequested=True)  # by the user's own call, which no model sees
    log.add("session.snapshot_rewind", upToEventId="e1")
    log.say("there")
    _, stats, facts = analyse(log.data + b'{"type":"user.mess')
    unknown = {"version 2", "session.hologram", "session.snapshot_rewind"}
    assert stats.unknown_types == {f"copilot/{name}": 1 for name in unknown}
    assert (facts["states"], stats.bad_lines, stats.last_line_bad) == (1, 1, True)


def test_no_other_agents_file_is_taken() -> None:
    assert Copilot().recognises([b"\n", Log().data])
    for line in (b'{"type":"session","id":"x"}', b'{"type":"user"}', b"[1]", b""):
        assert not Copilot().recognises([line])


def test_a_wrong_type_is_never_fatal() -> None:
    log = Log()
    log.user("go", attachments=[{"taggedFilesEntry": "* /a (3 lines)"}])
    log.add("skill.invoked", name="s", path="/s", content="x")
    log.add("session.usage_record", usage={"inputTokens": 1, "apiCallId": "a"})
    log.say("I look", LS, apiCallId="a", chunkCount=2)
    log.failure("c1", "No match found", toolTelemetry={"metrics": {"resultForLlmLength": 1}})
    log.say("x", agent="sub", parentToolCallId="c1")
    log.add("session.compaction_complete", success=True, summaryContent="x")
    log.add("session.context_cleared", initialMessage="x")
    log.say("done")
    for data in logs_with_wrong_types(log.data):
        for _ in Copilot().records(data.splitlines(keepends=True), LineStats(agent="copilot")):
            pass
