"""Pi: each prefix is what Pi sent, and nobody's response is counted twice."""

import json
from pathlib import Path
from typing import Any

from composer_pipeline.lake.store import Lake
from composer_pipeline.states.load import load_states
from composer_pipeline.states.state import TraceState
from composer_pipeline.traces.ingest import ingest
from composer_pipeline.traces.parse import analyse
from composer_pipeline.traces.records import LineStats
from composer_pipeline.traces.sources.pi import Pi
from tests.traces.sources.wrong_types import logs_with_wrong_types

SECRET, HIDDEN = "sk-ant-api03-" + "a1B2" * 8, "[SECRET_ANTHROPIC_KEY_279f]"


class Log:
    """Writes a session by hand; every method returns the id of the new entry."""

    def __init__(self, session: str = "0199aaaa-0000-7000-8000-000000000001", **header: Any):
        self.leaf: str | None = None
        begun = {"type": "session", "version": 3, "id": session, "cwd": "/home/alice/shop"}
        self.lines = [json.dumps({**begun, "timestamp": "2026-11-16T08:00:00.000Z", **header})]

    def add(self, kind: str, **fields: Any) -> str:
        number = len(self.lines)
        stamp = f"2026-11-16T08:{number // 60:02d}:{number % 60:02d}.000Z"
        entry = {"type": kind, "id": f"e{number}", "parentId": self.leaf, "timestamp": stamp}
        self.lines.append(json.dumps(entry | fields))
        self.leaf = f"e{number}"
        return self.leaf

    def message(self, role: str, content: Any, **fields: Any) -> str:
        return self.add("message", message={"role": role, "content": content, **fields})

    def user(self, text: str) -> str:
        return self.message("user", text)

    def say(self, text: str, *calls: tuple[str, str, dict[str, Any]], stop: str = "stop") -> str:
        content: list[Any] = [{"type": "thinking", "thinking": "hidden thought"}]
        content += [{"type": "text", "text": text}] if text else []
        for call, name, arguments in calls:
            content.append({"type": "toolCall", "id": call, "name": name, "arguments": arguments})
        usage = {"input": 10, "output": 5, "cacheRead": 900, "cacheWrite": 40}
        return self.message("assistant", content, model="m", usage=usage, stopReason=stop)

    def result(self, call: str, text: str, *, error: bool = False) -> str:
        content = [{"type": "text", "text": text}]
        return self.message("toolResult", content, toolCallId=call, isError=error)

    @property
    def data(self) -> bytes:
        return ("\n".join(self.lines) + "\n").encode()


def states_of(lake: Lake, *logs: Log) -> list[TraceState]:
    folder = Path(str(lake.url)).parent / "pi-sessions"
    folder.mkdir()
    for number, log in enumerate(logs):
        (folder / f"{number}.jsonl").write_bytes(log.data)
    ingest(lake, [folder])
    return sorted(load_states(lake), key=lambda state: (state.session_id, state.ts))


def texts(state: TraceState) -> list[str]:
    return [
        f"{message['role']}: {block.get('text') or block.get('content') or block.get('name')}"
        for message in state.messages
        for block in message["content"]
    ]


LS = ("c1", "bash", {"command": "ls /home/alice/shop"})


def test_a_session_becomes_states(lake: Lake) -> None:
    log = Log()
    log.add("model_change", provider="p", modelId="m")
    log.user(f"fix the till, the key is {SECRET}")
    log.say("I look first", LS, ("c2", "read", {"path": "till.py"}))
    log.result("c1", "no such till\n\nCommand exited with code 2", error=True)
    log.result("c2", "till = 1")
    log.add("custom_message", customType="x", content="be quick", display=False)
    log.message("custom", "be safe")
    log.say("done")
    first, last = states_of(lake, log)
    assert texts(first) == [f"user: fix the till, the key is {HIDDEN}"]
    assert [call.name for call in first.action.tool_calls] == ["bash", "read"]
    assert first.action.tool_calls[0].arguments == {"command": "ls /home/user/shop"}
    assert texts(last)[1:] == [
        "assistant: I look first",
        "assistant: bash",
        "assistant: read",
        "user: no such till\n\nCommand exited with code 2",
        "user: till = 1",
        "user: be quick",
        "user: be safe",
    ]
    assert (first.hint_call, first.followed_by_error, last.error_kind) == (0, True, None)
    assert (first.model, first.input_tokens, first.output_tokens) == ("m", 950, 5)
    assert (first.session_id, first.cwd) == (json.loads(log.lines[0])["id"], "/home/user/shop")
    stored = str(lake.rows("messages"))
    assert SECRET not in stored
    assert "hidden thought" not in stored


def test_an_abandoned_branch_is_in_no_other_prefix(lake: Lake) -> None:
    log = Log()
    asked = log.user("go")
    log.say("", LS, ("c2", "bash", {"command": "pwd"}))
    half = log.result("c1", "till.py")
    log.result("c2", "/")
    log.say("the long way")
    log.leaf = asked
    log.add("branch_summary", fromId="e1", summary="it was long")
    log.say("the short way")
    log.leaf = half
    log.user("stop here")
    log.say("stopped")
    _, _, short, stopped = states_of(lake, log)
    assert texts(short) == [
        "user: go",
        "user: The following is a summary of a branch that this conversation came back from:\n\n"
        "<summary>\nit was long</summary>",
    ]
    assert texts(stopped)[-3:] == ["user: till.py", "user: No result provided", "user: stop here"]


def test_a_compaction_keeps_what_it_says(lake: Lake) -> None:
    log = Log()
    log.user("old")
    log.say("old answer")
    kept = log.user("kept")
    log.say("kept answer", LS)
    log.result("c1", "till.py")
    before = log.leaf
    log.add("compaction", summary="what was", firstKeptEntryId=kept, tokensBefore=9)
    log.user("new")
    log.say("new answer")
    log.leaf = before  # the user goes back to where all of it is still there
    log.say("without compaction")
    _, _, after, back = states_of(lake, log)
    assert texts(after) == [
        "user: The conversation history before this point was compacted into the following"
        " summary:\n\n<summary>\nwhat was\n</summary>",
        "user: kept",
        "assistant: kept answer",
        "assistant: bash",
        "user: till.py",
        "user: new",
    ]
    assert texts(back)[:3] == ["user: old", "assistant: old answer", "user: kept"]


def test_what_the_user_ran_is_seen_as_pi_says_it(lake: Lake) -> None:
    log = Log()
    run = {"command": "make", "cancelled": False, "truncated": True, "fullOutputPath": "/tmp/x"}
    log.message("bashExecution", None, **run, output="boom", exitCode=2)
    log.message("bashExecution", None, **run, output="secret", excludeFromContext=True)
    log.message("bashExecution", None, command="wait", output="", cancelled=True)
    log.user("see?")
    log.say("yes")
    (state,) = states_of(lake, log)
    assert texts(state)[0] == (
        "user: Ran `make`\n```\nboom\n```\n\nCommand exited with code 2"
        "\n\n[Output truncated. Full output: /tmp/x]"
    )
    assert texts(state)[1] == "user: Ran `wait`\n(no output)\n\n(command cancelled)"
    assert "secret" not in str(texts(state))


def test_an_interrupted_answer_is_a_correction_and_not_repeated(lake: Lake) -> None:
    log = Log()
    log.user("go")
    log.say("I rewrite all", stop="aborted")
    log.user("no, only the till")
    log.say("overloaded", stop="error")
    log.say("ok")
    stopped, last = states_of(lake, log)
    assert (stopped.error_kind, stopped.hint) == ("user_correction", "no, only the till")
    assert stopped.interrupted
    assert texts(last) == ["user: go", "user: no, only the till"]


def test_a_fork_repeats_no_state(lake: Lake) -> None:
    log = Log()
    log.user("go")
    log.say("there")
    fork = Log("0198bbbb", parentSession="0.jsonl", timestamp="2026-11-17T08:00:00.000Z")
    fork.lines += log.lines[1:]
    fork.leaf = log.leaf
    fork.user("and now?")
    fork.say("here")
    theirs, ours = states_of(lake, fork, log)
    assert (ours.session_id[:8], ours.action.text) == ("0199aaaa", "there")
    assert texts(theirs) == ["user: go", "assistant: there", "user: and now?"]


def test_calls_of_one_id_are_two_calls(lake: Lake) -> None:
    """Some providers number the calls of each response anew."""
    log = Log()
    log.user("go")
    for text in ("one", "two"):
        log.say("", LS)
        log.result("c1", text)
    log.say("done")
    states = states_of(lake, log)
    assert texts(states[2])[1:] == ["assistant: bash", "user: one", "assistant: bash", "user: two"]


def test_what_is_unknown_or_broken_is_counted_and_the_rest_read() -> None:
    log = Log(version=4)
    log.user("go")
    log.add("hologram")
    log.say("there")
    log.leaf = "nobody"
    log.message("oracle", "x")
    _, stats, facts = analyse(log.data + b'{"type":"mess')
    assert stats.unknown_types == {"pi/version 4": 1, "pi/hologram": 1, "pi/message/oracle": 1}
    assert (facts["states"], stats.bad_lines, stats.last_line_bad) == (1, 1, True)


def test_files_of_the_first_version_have_no_ids() -> None:
    log = Log(version=1)
    log.user("old")
    log.say("old answer")
    log.user("kept")
    log.add("compaction", summary="what was", firstKeptEntryIndex=3)
    log.say("new answer")
    lines = [json.loads(line) for line in log.lines]
    bare = [{k: v for k, v in line.items() if k not in ("id", "parentId")} for line in lines[1:]]
    graph, _, facts = analyse("\n".join(map(json.dumps, [lines[0], *bare])).encode())
    assert facts["states"] == 2
    path = graph.path_to(graph.states()[-1])
    assert [graph.text_of(graph.nodes[n])[-12:] for n in path[1:]] == ["kept", "new answer"]


def test_no_other_agents_file_is_taken() -> None:
    assert Pi().recognises([b"\n", Log().data])
    for line in (b'{"type":"session.start","id":"x","data":{}}', b'{"type":"user"}', b"[1]", b""):
        assert not Pi().recognises([line])


def test_a_wrong_type_is_never_fatal() -> None:
    log = Log(parentSession="x")
    log.user("go")
    log.say("", LS)
    log.result("c1", "till.py")
    log.message("bashExecution", None, command="ls", output="x", exitCode=1)
    kept = log.add("branch_summary", summary="x")
    log.add("compaction", summary="x", firstKeptEntryId=kept)
    log.add("custom", customType="teich-available-tools", data={"tools": [{"function": {}}]})
    log.say("done")
    for data in logs_with_wrong_types(log.data):
        for _ in Pi().records(data.splitlines(keepends=True), LineStats(agent="pi")):
            pass
