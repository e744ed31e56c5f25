"""Gemini CLI: what the model saw and did comes back from a session's lines or its document."""

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

SESSION = "0a1b2c3d-0000-4000-8000-000000000001"
HEAD = {
    "sessionId": SESSION, "projectHash": "ab", "startTime": "2026-11-16T08:00:00.000Z",
    "lastUpdated": "2026-11-16T08:00:00.000Z", "kind": "main",
}  # fmt: skip
CONTEXT = (
    "<session_context>\n- **Workspace Directories:**\n  - /home/alice/shop\n</session_context>"
)


class Log:
    """Writes a session as Gemini CLI does: each message again as it grows."""

    def __init__(self, **head: Any) -> None:
        self.lines: list[dict[str, Any]] = [HEAD | head]
        self.put({"messages": [self.message("ctx", "user", [{"text": CONTEXT}])]})

    def message(self, key: str, kind: str, content: Any, **fields: Any) -> dict[str, Any]:
        stamp = f"2026-11-16T08:00:{len(self.lines):02d}.000Z"
        return {"id": key, "timestamp": stamp, "type": kind, "content": content, **fields}

    def put(self, fields: dict[str, Any]) -> None:
        self.lines.append({"$set": fields})

    def user(self, key: str, *texts: str) -> dict[str, Any]:
        self.lines.append(self.message(key, "user", [{"text": text} for text in texts]))
        return self.lines[-1]

    def say(self, key: str, text: str) -> dict[str, Any]:
        tokens = {"input": 900, "output": 30, "thoughts": 10, "cached": 100, "total": 940}
        fields = {"model": "gemini-test", "tokens": tokens, "thoughts": [{"description": "hidden"}]}
        self.lines.append(self.message(key, "gemini", text, **fields))
        return self.lines[-1]

    def call(self, key: str, *calls: dict[str, Any], text: str = "") -> dict[str, Any]:
        self.lines.append(self.say(key, text) | {"toolCalls": list(calls)})
        parts = [part for call in calls for part in call["result"]]
        if parts:
            self.lines.append(self.message(f"{key}-r", "user", parts))
        return self.lines[-1]

    def write(self, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(line) + "\n" for line in self.lines))
        return path


def call(key: str, name: str, status: str = "success", **response: Any) -> dict[str, Any]:
    result = {"functionResponse": {"id": key, "name": name, "response": response}}
    return {"id": key, "name": name, "args": {"command": key}, "status": status, "result": [result]}


def shell(key: str, output: str, code: int = 0) -> dict[str, Any]:
    end = f"\nExit Code: {code}" if code else ""
    text = (
        f"<untrusted_context>\nOutput: {output}{end}\nProcess Group PGID: 7\n</untrusted_context>"
    )
    return call(key, "run_shell_command", output=text)


def states_of(lake: Lake, path: Path) -> list[TraceState]:
    ingest(lake, [path])
    return list(load_states(lake))


def shown(state: TraceState) -> list[str]:
    return [
        f"{message['role']}: {block.get('text') or block.get('content') or block.get('id')}"
        for message in state.messages
        for block in message["content"]
    ]


def a_day() -> Log:
    log = Log()
    log.user("u1", "fix the till")
    log.call("g1", shell("c1", "till.py"), shell("c2", "no such till", 1), text="I look")
    log.call("g2", call("c3", "read_file", "error", error="File not found."))
    reason = "[Operation Cancelled] Reason: User denied execution."
    log.call("g3", call("c4", "replace", "cancelled", error=reason))
    log.say("g4", "done")
    return log


def test_a_session_becomes_states(lake: Lake, tmp_path: Path) -> None:
    states = states_of(lake, a_day().write(tmp_path / "tmp/shop/chats/session-x.jsonl"))
    assert [[c.name for c in s.action.tool_calls] for s in states] == [
        ["run_shell_command", "run_shell_command"], ["read_file"], ["replace"], [],
    ]  # fmt: skip
    assert [s.action.text for s in states] == ["I look", "", "", "done"]
    assert shown(states[1])[1:] == [
        "user: fix the till",
        "assistant: I look",
        "assistant: c1",
        "assistant: c2",
        f"user: {shell('c1', 'till.py')['result'][0]['functionResponse']['response']['output']}",
        "user: <untrusted_context>\nOutput: no such till\nExit Code: 1\nProcess Group PGID: 7\n"
        "</untrusted_context>",
    ]
    assert [s.error_kind is not None for s in states] == [True, True, True, False]
    assert states[0].hint_call == 1
    assert (states[0].model, states[0].input_tokens, states[0].output_tokens) == (
        "gemini-test", 900, 40,
    )  # fmt: skip
    assert {s.session_id for s in states} == {SESSION}
    assert (states[0].cwd, str(states[0].ts)[:10]) == ("/home/user/shop", "2026-11-16")
    (session,) = lake.rows("sessions")
    assert (session["agent"], session["first_prompt"]) == ("gemini", "fix the till")
    assert session["unknown_types"] == "{}"
    assert "hidden" not in str(lake.rows("messages"))


@pytest.mark.parametrize(("made", "text"), [
    (call("c1", "glob", "cancelled", output="a.py"), "a.py"),
    (call("c1", "run_shell_command", output="Command was cancelled by user before it could end."),
     "Command was cancelled by user before it could end."),
    ({"id": "c1", "name": "glob", "status": "error", "result": "no such till"}, "no such till"),
])  # fmt: skip
def test_a_failure_is_told_in_every_form(lake: Lake, tmp_path: Path, made: Any, text: str) -> None:
    log = Log()
    log.user("u1", "go")
    log.lines.append(log.say("g1", "") | {"toolCalls": [made]})
    log.say("g2", "ok")
    first, last = states_of(lake, log.write(tmp_path / "session-x.jsonl"))
    assert (bool(first.error_kind), shown(last)[-1]) == (True, f"user: {text}")


def test_a_document_of_before_2026_has_the_same_states(lake: Lake, tmp_path: Path) -> None:
    """There a result is only in its call, and the context is not told."""
    log = a_day()
    messages = {line["id"]: line for line in log.lines if "id" in line}
    kept = [m for key, m in messages.items() if not key.endswith("-r")]
    path = tmp_path / "chats" / "session-x.json"
    path.parent.mkdir()
    path.write_text(json.dumps(HEAD | {"messages": kept}, indent=2))
    old = states_of(lake, path)
    new = states_of(Lake(tmp_path / "other"), log.write(tmp_path / "session-y.jsonl"))
    assert [(s.state_id, s.error_kind) for s in old] == [(s.state_id, s.error_kind) for s in new]
    assert [shown(s) for s in old] == [shown(s)[1:] for s in new]


def test_a_rewind_leaves_what_it_removed(lake: Lake, tmp_path: Path) -> None:
    log = a_day()
    log.user("u1b", "no model saw this")
    log.lines.append({"$rewindTo": "u1b"})
    log.user("u2", "now the lamp")
    log.say("g5", "wrong lamp")
    log.lines.append({"$rewindTo": "u2"})
    log.user("u3", "the other lamp")
    log.say("g6", "right")
    *_, wrong, right = states_of(lake, log.write(tmp_path / "session-x.jsonl"))
    assert shown(wrong)[-2:] == ["assistant: done", "user: now the lamp"]
    assert shown(right)[-2:] == ["assistant: done", "user: the other lamp"]
    assert (wrong.on_active_path, right.on_active_path) == (False, True)


def test_a_stopped_prompt_is_taken_back(lake: Lake, tmp_path: Path) -> None:
    """The history that is written then is the beginning of the one before, in another form."""
    log = Log()
    asked = log.user("u1", "go")
    said = log.call("g1", shell("c1", "a.py"))
    first = log.lines[-2]
    log.say("g2", "fine")
    done = log.lines[-1]
    log.user("u2", "stopped at once")
    parts = [{"functionCall": {"id": "c1", "name": "run_shell_command", "args": {"command": "c1"}}}]
    log.put({"messages": [log.message("ctx", "user", [{"text": CONTEXT}]), asked,
                          first | {"content": parts}, said, done]})  # fmt: skip
    log.user("u3", "again")
    log.say("g3", "ok")
    last = states_of(lake, log.write(tmp_path / "session-x.jsonl"))[-1]
    assert shown(last)[-2:] == ["assistant: fine", "user: again"]
    (session,) = lake.rows("sessions")
    assert (session["compactions"], session["states"]) == (0, 3)


def test_a_resumed_session_goes_on(lake: Lake, tmp_path: Path) -> None:
    """It starts with its first message alone; then the whole history comes, results twice."""
    log = Log()
    asked = log.user("u1", "go")
    answer = log.call("g1", shell("c1", "a.py"))
    called = log.lines[-2]
    said = log.say("g2", "fine")
    log.lines += log.lines[:2]
    again = answer | {"id": "g1_response"}
    kept = [log.lines[1]["$set"]["messages"][0], asked, called, again, answer, said]
    log.put({"messages": kept})
    log.user("u2", "and now?")
    log.say("g3", "ok")
    *_, last = states_of(lake, log.write(tmp_path / "session-x.jsonl"))
    assert shown(last)[-2:] == ["assistant: fine", "user: and now?"]
    assert len(shown(last)) == 6
    (session,) = lake.rows("sessions")
    assert (session["compactions"], session["states_active_path"]) == (0, 3)


def test_what_the_user_says_after_a_refusal_is_a_correction(lake: Lake, tmp_path: Path) -> None:
    log = Log()
    log.user("u1", "go")
    reason = "[Operation Cancelled] Reason: User denied execution."
    log.call("g1", call("c1", "write_file", "cancelled", error=reason))
    log.user("u2", "no, only the till")
    log.say("g2", "ok")
    refused, after = states_of(lake, log.write(tmp_path / "session-x.jsonl"))
    assert (refused.followed_by_correction, after.on_active_path) == (True, True)
    assert shown(after)[-2:] == [f"user: {reason}", "user: no, only the till"]


def test_a_compaction_starts_a_new_context(lake: Lake, tmp_path: Path) -> None:
    """Its messages are first written as if they went on."""
    log = a_day()
    thanks = [{"text": "Got it. Thanks for the additional context!"}]
    new = [
        log.message("k1", "user", [{"text": "<state_snapshot>all so far</state_snapshot>"}]),
        log.message("k2", "gemini", thanks, model=None, tokens=None),
        log.message("k3", "gemini", [{"functionCall": {"id": "c1", "name": "x", "args": {}}}]),
        log.message("k4", "user", shell("c1", "masked")["result"]),
    ]  # fmt: skip
    log.lines += new
    log.put({"messages": new})
    log.user("u9", "and the lamp?")
    log.say("g9", "on it")
    path = log.write(tmp_path / "session-x.jsonl")
    *before, after = states_of(lake, path)
    assert len(before) == 4
    assert analyse(path.read_bytes())[2]["compact_summaries"] == 1
    assert [text.split("\n")[0] for text in shown(after)] == [
        "user: <state_snapshot>all so far</state_snapshot>",
        "assistant: Got it. Thanks for the additional context!",
        "assistant: c1",
        "user: <untrusted_context>",
        "user: and the lamp?",
    ]
    assert all(state.on_active_path for state in before)
    (session,) = lake.rows("sessions")
    assert (session["compactions"], session["states"]) == (1, 5)


def test_a_masked_result_is_masked_only_from_then_on(lake: Lake, tmp_path: Path) -> None:
    """The history comes again under the same ids; who answered before is no state again."""
    log = Log()
    asked = log.user("u1", "go")
    answered = log.call("g1", shell("c1", "a long list"))
    said = log.say("g2", "ok")
    cut = call("c1", "run_shell_command", output="masked")["result"]
    cut[0]["functionResponse"]["parts"] = [{"inlineData": {"mimeType": "image/png"}}]
    log.put({"messages": [asked, log.lines[-3], answered | {"content": cut}, said]})
    log.user("u2", "and now?")
    log.say("g3", "fine")
    _, second, third = states_of(lake, log.write(tmp_path / "session-x.jsonl"))
    assert "a long list" in shown(second)[-1]
    assert shown(third)[-3:] == ["user: masked\n[image]", "assistant: ok", "user: and now?"]


def test_an_editor_records_calls_apart(lake: Lake, tmp_path: Path) -> None:
    """One message gathers the calls of all responses; a refused call is only answered."""
    log = Log()
    log.user("u1", "go")
    done: list[dict[str, Any]] = []
    for key, *calls in (("g1", shell("c1", "a"), shell("c2", "b")), ("g2", shell("c3", "c"))):
        log.say(key, key)
        for each in calls:
            done = [*done, each]
            log.lines.append(log.message("t", "gemini", "", model="m", toolCalls=done))
        parts = [part for each in calls for part in each["result"]]
        log.lines.append(log.message(f"{key}-r", "user", parts))
    log.say("g3", "I remove it")
    refused = call("c4", "run_shell_command", error="Tool was canceled by the user.")
    log.lines.append(log.message("g3-r", "user", refused["result"]))
    log.say("g4", "ok")
    states = states_of(lake, log.write(tmp_path / "session-x.jsonl"))
    assert [[c.id for c in s.action.tool_calls] for s in states] == [
        ["c1", "c2"], ["c3"], ["c4"], [],
    ]  # fmt: skip
    assert [s.fidelity for s in states][2:] == ["repaired", "repaired"]
    assert states[2].error_kind is not None
    assert states[2].action.tool_calls[0].arguments == {}
    assert shown(states[3])[-1] == "user: Tool was canceled by the user."


def test_a_subagent_belongs_to_the_session_of_its_folder(lake: Lake, tmp_path: Path) -> None:
    a_day().write(tmp_path / "chats" / "session-x.jsonl")
    side = Log(sessionId="agent-1", kind="subagent", directories=["/home/alice/shop"])
    side.user("s1", "look around")
    side.say("s2", "seen")
    side.write(tmp_path / "chats" / SESSION / "agent-1.jsonl")
    found = {s.action.text: s for s in states_of(lake, tmp_path)}
    assert (found["seen"].session_id, found["seen"].agent_id) == (SESSION, "agent-1")
    assert found["done"].agent_id == ""


def test_secrets_do_not_reach_the_lake(lake: Lake, tmp_path: Path) -> None:
    secret = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
    log = Log()
    log.user("u1", f"use {secret}")
    log.call("g1", shell("c1", secret), text=secret)
    log.say("g2", secret)
    states = states_of(lake, log.write(tmp_path / "session-x.jsonl"))
    assert len(states) == 2
    assert secret not in str([lake.rows(t) for t in ("messages", "states", "sessions")])


def test_a_cut_off_line_and_unknown_things_are_counted(lake: Lake, tmp_path: Path) -> None:
    log = a_day()
    log.lines.append(log.message("x", "hologram", "?"))
    log.put({"mood": "good"})
    path = log.write(tmp_path / "session-x.jsonl")
    path.write_text(path.read_text() + '{"id": "g9", "type": "gem')
    assert len(states_of(lake, path)) == 4
    (session,) = lake.rows("sessions")
    assert json.loads(session["unknown_types"]) == {"gemini/hologram": 1, "gemini/$set/mood": 1}
    assert session["bad_lines"] == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("logs.json", json.dumps([{"sessionId": "x", "messageId": 0, "type": "user"}])),
        ("package.json", '{"name": "shop"}'),
        ("session.json", '{"sessionId": "x", "messages": []}'),
        ("checkpoint-a.json", json.dumps({"history": [{"role": "user", "parts": []}]})),
    ],
)
def test_other_files_of_its_folder_are_not_claimed(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert source_of_file(tmp_path / name) is None


_NAMES = [
    "id", "type", "content", "text", "functionCall", "functionResponse", "response", "toolCalls",
    "result", "status", "$set", "$rewindTo", "messages", "tokens", "input", "args", "parts",
    "sessionId", "directories", "model",
]  # fmt: skip
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["u1", "gemini", "user", "\ud800"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(_NAMES),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@given(st.lists(_JSON | st.binary(max_size=9), max_size=6))
@settings(max_examples=50)
def test_any_lines_are_read_without_a_crash(lines: list[Any]) -> None:
    log = a_day()
    data = "".join(json.dumps(line) + "\n" for line in log.lines).encode()
    odd = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    _, stats, _ = analyse(data + b"\n".join(odd))
    assert stats.agent == "gemini"
