"""Codex CLI: what a state of a rollout holds is what the model was sent."""

import json
from pathlib import Path
from typing import Any

import pytest
import zstandard

from composer_pipeline.lake.store import Lake
from composer_pipeline.states.load import load_states
from composer_pipeline.states.state import TraceState
from composer_pipeline.traces.ingest import ingest
from composer_pipeline.traces.parse import analyse
from composer_pipeline.traces.records import LineStats
from composer_pipeline.traces.sources.codex import TYPES, Codex

# UUIDs that sort by time, as Codex makes them.
SESSION = "0199aaaa-0000-7000-8000-000000000001"
OLD_TURN = "0199aaaa-1000-7000-8000-000000000001"
LATER = "0199bbbb-0000-7000-8000-000000000002"
LATER_TURN = "0199bbbb-1000-7000-8000-000000000002"
CONTEXT = "<environment_context>cwd</environment_context>"


class Rollout:
    """Writes the lines of a rollout by hand."""

    def __init__(self, thread: str = SESSION, day: int = 16, **meta: Any) -> None:
        self.thread, self.day = thread, day
        self.lines: list[str] = []
        self.ordinal: int | None = None
        known = {"id": thread, "cwd": "/home/alice/shop", "cli_version": "0.171.0"}
        self.add("session_meta", {**known, "base_instructions": {"text": "You are Codex."}, **meta})
        self.turn(OLD_TURN if thread == SESSION else LATER_TURN)

    def add(self, kind: str, payload: Any, **more: Any) -> None:
        number = len(self.lines)
        stamp = f"2026-11-{self.day}T08:{number // 60:02d}:{number % 60:02d}.000Z"
        line = {"timestamp": stamp, "ordinal": self.ordinal, "type": kind, "payload": payload}
        if self.ordinal is None:
            del line["ordinal"]
        else:
            self.ordinal += 1
        self.lines.append(json.dumps({**line, **more}, separators=(",", ":")))

    def turn(self, turn: str) -> None:
        self.add("turn_context", {"model": "gpt-test", "cwd": "/home/alice/shop", "turn_id": turn})

    def item(self, kind: str, **fields: Any) -> None:
        self.add("response_item", {"type": kind, **fields})

    def say(self, role: str, text: str) -> None:
        self.add("response_item", message(role, text))

    def call(self, call_id: str, command: str = "ls") -> None:
        arguments = json.dumps({"cmd": command})
        named = {"id": f"fc_{call_id}", "call_id": call_id, "name": "exec_command"}
        self.item("function_call", arguments=arguments, **named)

    def output(self, call_id: str, text: Any = "out") -> None:
        self.item("function_call_output", call_id=call_id, output=text)

    def event(self, kind: str, **fields: Any) -> None:
        self.add("event_msg", {"type": kind, **fields})

    def tokens(self, count: int) -> None:
        usage = {"input_tokens": count, "output_tokens": 4}
        self.event("token_count", info={"last_token_usage": usage, "total_token_usage": usage})

    @property
    def data(self) -> bytes:
        return ("\n".join(self.lines) + "\n").encode()

    def write(self, folder: Path, segment: str = "") -> Path:
        path = (
            folder / "sessions/2026/11/16" / f"rollout-2026-11-16T08-{self.thread}{segment}.jsonl"
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.data)
        return path


def message(role: str, text: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def states_of(lake: Lake, path: Path) -> list[TraceState]:
    ingest(lake, [path])
    return list(load_states(lake))


def texts(state: TraceState) -> list[str]:
    found = []
    for shown in state.messages:
        for block in shown["content"]:
            text = block.get("text") or block.get("content") or block.get("name")
            found.append(f"{shown['role']}: {text}")
    return found


def a_day() -> Rollout:
    r = Rollout()
    r.say("developer", "be careful")
    r.say("user", CONTEXT)
    r.say("user", "fix the till")
    r.event("user_message", message="fix the till")
    r.item("reasoning", summary=[{"type": "summary_text", "text": "hidden thought"}])
    r.say("assistant", "I look first")
    r.call("c1", "ls /home/alice/shop")
    r.call("c2", "cat till.py")
    r.tokens(900)
    r.output("c1", "till.py")
    r.output("c2", "Chunk ID: 1\nWall time: 0.1 seconds\nProcess exited with code 1\nOutput:\nno")
    r.item("custom_tool_call", call_id="c3", name="apply_patch", input="*** Begin Patch")
    r.item("custom_tool_call_output", call_id="c3", output="Success. Updated")
    r.say("assistant", "done")
    return r


def test_a_rollout_becomes_states(lake: Lake, tmp_path: Path) -> None:
    first, patch, last = states_of(lake, a_day().write(tmp_path))
    assert [call.name for call in first.action.tool_calls] == ["exec_command", "exec_command"]
    assert first.action.text == "I look first"
    assert first.action.tool_calls[0].arguments == {"cmd": "ls /home/user/shop"}
    assert patch.action.tool_calls[0].arguments == {"input": "*** Begin Patch"}
    assert texts(first) == ["user: be careful", f"user: {CONTEXT}", "user: fix the till"]
    assert texts(last)[3:] == [
        "assistant: I look first",
        "assistant: exec_command",
        "assistant: exec_command",
        "user: till.py",
        "user: Chunk ID: 1\nWall time: 0.1 seconds\nProcess exited with code 1\nOutput:\nno",
        "assistant: apply_patch",
        "user: Success. Updated",
    ]
    assert (first.hint_call, bool(first.error_kind), last.error_kind) == (1, True, None)
    assert (first.model, first.version, first.cwd) == ("gpt-test", "0.171.0", "/home/user/shop")
    assert (first.input_tokens, first.output_tokens) == (900, 4)
    assert (first.system, first.session_id, first.day) == ("You are Codex.", SESSION, "2026-11-16")
    (session,) = lake.rows("sessions")
    assert (session["first_prompt"], session["unknown_types"]) == ("fix the till", "{}")
    assert "hidden thought" not in str(lake.rows("messages"))


SCRIPT = [{"type": "input_text", "text": "Script failed\nWall time 0.1 seconds\nOutput:\n"}]


@pytest.mark.parametrize(
    ("failed", "output"),
    [
        (False, "Chunk ID: 1\nWall time: 1 seconds\nProcess exited with code 0\nOutput:\nx"),
        (True, "Chunk ID: 1\nWall time: 1 seconds\nProcess exited with code 127\nOutput:\nx"),
        (False, "Chunk ID: 1\nWall time: 1 seconds\nProcess running with session ID 7\nOutput:\n"),
        (False, "Exit code: 0\nWall time: 1 seconds\nOutput:\nExit code: 3"),
        (True, "Exit code: -1\nWall time: 1 seconds\nTotal output lines: 9\nOutput:\nx"),
        (False, "Output:\nProcess exited with code 1"),
        (True, '{"output":"no such till","metadata":{"exit_code":2,"duration_seconds":0.1}}'),
        (False, '{"output":"x","metadata":{"exit_code":0,"duration_seconds":0.1}}'),
        (True, "apply_patch verification failed: Failed to find expected lines in till.py"),
        (
            True,
            'exec_command failed: CreateProcess { message: "Rejected(\\"rejected by user\\")" }',
        ),
        (True, "patch rejected by user"),
        (True, "user cancelled MCP tool call"),
        (True, "unsupported call: nothing"),
        (True, "failed to parse function arguments: missing field `cmd`"),
        (True, {"content": "no", "success": False}),
        (True, SCRIPT),
        (True, "Wall time: 3.0 seconds\naborted by user"),
        (False, "a log that says apply_patch verification failed"),
    ],
)
def test_a_failure_is_told_by_what_the_model_was_shown(failed: bool, output: Any) -> None:
    r = Rollout()
    r.say("user", "go")
    r.call("c1")
    r.output("c1", output)
    graph, _, _ = analyse(r.data)
    assert [call.failed for call in graph.nodes[1].calls] == [failed]


@pytest.mark.parametrize(
    "ended",
    [
        {"type": "patch_apply_end", "call_id": "c1", "success": False},
        {"type": "exec_command_end", "call_id": "c1", "exit_code": 4},
        {"type": "mcp_tool_call_end", "call_id": "c1", "result": {"Err": "no server"}},
        {"type": "mcp_tool_call_end", "call_id": "c1", "result": {"Ok": {"isError": True}}},
        {"type": "item_completed", "item": {"id": "c1", "status": "declined"}},
        {"type": "item_completed", "item": {"id": "exec-7", "status": "failed", "exit_code": 4}},
    ],
)
def test_an_event_tells_a_failure_that_the_output_hides(ended: dict[str, Any]) -> None:
    r = Rollout()
    r.say("user", "go")
    r.item("custom_tool_call", call_id="c1", name="exec", input="await tools.exec_command()")
    r.add("event_msg", ended)
    r.item("custom_tool_call_output", call_id="c1", output="fine")
    r.item("custom_tool_call", call_id="c2", name="exec", input="text(1)")
    r.item("custom_tool_call_output", call_id="c2", output="fine")
    graph, _, _ = analyse(r.data)
    assert [graph.nodes[number].calls[0].failed for number in graph.states()] == [True, False]


def test_a_response_ends_where_its_tokens_are_told(lake: Lake, tmp_path: Path) -> None:
    """Two answers in a row are two decisions; one with calls in parallel is one."""
    r = Rollout()
    r.say("user", "go")
    r.say("assistant", "first")
    r.tokens(10)
    r.call("c1")
    r.tokens(10)  # only the limits have changed
    r.call("c2")
    r.tokens(20)
    r.output("c1")
    r.output("c2")
    r.call("c3")
    r.output("c3")
    for number, sampled in enumerate((7, 7, 9)):
        about = {"sampled_through_sequence": sampled}
        said = {"name": "t", "arguments": "{}", "call_id": f"d{number}"}
        r.add("response_item", {"type": "function_call", **said}, metadata=about)
        r.output(f"d{number}")
    found = states_of(lake, r.write(tmp_path))
    calls = [[call.id for call in state.action.tool_calls] for state in found]
    assert calls == [[], ["c1", "c2"], ["c3"], ["d0", "d1"], ["d2"]]
    assert [state.input_tokens for state in found[:2]] == [10, 20]


def test_what_was_rolled_back_is_in_no_later_prefix(lake: Lake, tmp_path: Path) -> None:
    r = Rollout()
    r.say("user", CONTEXT)
    for prompt in ("one", "two", "three"):
        r.say("developer", f"<model_switch>{prompt}</model_switch>")
        r.say("user", prompt)
        r.say("assistant", f"answer {prompt}")
    r.event("thread_rolled_back", num_turns=2)
    r.say("user", "other")
    r.call("c1")
    r.event("thread_rolled_back", num_turns=9)
    r.say("user", "afresh")
    r.say("assistant", "ok")
    found = states_of(lake, r.write(tmp_path))
    start = [f"user: {CONTEXT}", "user: <model_switch>one</model_switch>"]
    assert texts(found[3]) == [*start, "user: one", "assistant: answer one", "user: other"]
    assert texts(found[4]) == [*start, "user: afresh"]
    assert [state.on_active_path for state in found] == [False] * 4 + [True]


def test_a_compaction_keeps_messages_as_messages(lake: Lake, tmp_path: Path) -> None:
    """What it keeps is no new prompt and no state, and neither is the summary's own response."""
    r = a_day()
    r.tokens(940)
    r.say("assistant", "what was done")
    kept = [
        message("user", "fix the till"),
        message("developer", "<permissions instructions>"),
        message("assistant", "I look first"),
        {"type": "function_call", "name": "exec_command", "call_id": "c1", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "till.py"},
        message("user", "SUMMARY\nwhat was done"),
    ]
    r.tokens(950)
    r.add("compacted", {"message": "SUMMARY\nwhat was done", "replacement_history": kept})
    r.say("user", "and the lamp")
    r.say("assistant", "on it")
    found = states_of(lake, r.write(tmp_path))
    assert [state.action.text for state in found] == ["I look first", "", "done", "on it"]
    assert texts(found[-1]) == [
        "user: fix the till",
        "user: <permissions instructions>",
        "assistant: I look first",
        "assistant: exec_command",
        "user: till.py",
        "user: SUMMARY\nwhat was done",
        "user: and the lamp",
    ]
    assert "compacted_encrypted" not in {state.fidelity for state in found}


def test_a_compaction_that_nobody_can_read_is_said(lake: Lake, tmp_path: Path) -> None:
    r = Rollout()
    secret = {"type": "compaction", "encrypted_content": "gAAAA"}
    for kept in ([message("user", "one"), secret], [message("user", "S")], None):
        r.say("user", "one")
        r.say("assistant", "answer")
        r.add("compacted", {"message": "S", "replacement_history": kept})
    r.say("user", "more")
    r.say("assistant", "last")
    found = [state.fidelity for state in states_of(lake, r.write(tmp_path))]
    plain = "attachments_rendered"
    assert found == [plain, "compacted_encrypted", plain, "repaired"]


def test_only_the_turns_with_an_encrypted_context_say_so(lake: Lake, tmp_path: Path) -> None:
    r = Rollout()
    r.say("user", "one")
    r.say("assistant", "answer")
    r.say("user", "two")
    r.item("context_compaction", encrypted_content="gAAAA")
    r.say("assistant", "blind")
    r.event("thread_rolled_back", num_turns=1)
    r.say("user", "other")
    r.say("assistant", "sees")
    found = [state.fidelity for state in states_of(lake, r.write(tmp_path))]
    assert found == ["attachments_rendered", "compacted_encrypted", "attachments_rendered"]


def test_newer_files_name_the_root_the_tokens_and_what_made_a_summary(
    lake: Lake, tmp_path: Path
) -> None:
    r = Rollout(LATER, session_id=SESSION)
    r.say("user", "go")
    r.call("c1")
    r.add("token_usage_record", {"usage": {"input_tokens": 70, "output_tokens": 4}})
    r.output("c1")
    about = {"compaction_output": True}
    r.add("response_item", message("assistant", "a summary"), metadata=about)
    (state,) = states_of(lake, r.write(tmp_path))
    assert (state.session_id, state.agent_id) == (SESSION, LATER)
    assert (state.input_tokens, state.output_tokens) == (70, 4)


def test_a_fork_that_repeats_lines_counts_none_twice(lake: Lake, tmp_path: Path) -> None:
    ours = states_of(lake, a_day().write(tmp_path / "a"))
    fork = Rollout(LATER, day=20, forked_from_id=SESSION)
    fork.lines.pop()
    fork.lines += [line.replace("2026-11-16", "2026-11-20") for line in a_day().lines]
    fork.turn(LATER_TURN)
    fork.say("user", "and now?")
    fork.call("c9")
    found = states_of(lake, fork.write(tmp_path / "b"))
    assert len(found) == len(ours) + 1
    (new,) = (state for state in found if state.session_id == LATER)
    assert texts(new)[2:4] == ["user: fix the till", "assistant: I look first"]
    assert texts(new)[-1] == "user: and now?"


def based(fork: str, end: int, data: bytes) -> Rollout:
    """Return a rollout that begins inside another one, as newer versions write it."""
    whole = data.split(b"\n")[:end]
    offset = sum(len(line) + 1 for line in whole)
    base = {"thread_id": SESSION, "end_ordinal_exclusive": end, "end_byte_offset": offset}
    made = Rollout(fork, history_base=base)
    made.lines.pop()
    made.ordinal = end + 1
    made.say("user", "the other way")
    made.say("assistant", "as you like")
    return made


@pytest.mark.parametrize(("fork", "packed"), [(SESSION, False), (LATER, True)])
def test_a_fork_has_the_lines_before_it(
    lake: Lake, tmp_path: Path, fork: str, packed: bool
) -> None:
    """A rollback and a fork are new files that only name the one that they begin in."""
    first = Rollout()
    first.lines.clear()
    first.ordinal = 0
    first.add("session_meta", {"id": SESSION, "cwd": "/srv"})
    for prompt in ("one", "two"):
        first.say("user", prompt)
        first.say("assistant", f"answer {prompt}")
    path = first.write(tmp_path)
    if packed:  # Codex packs what is old, and the user has archived it
        old = tmp_path / "archived_sessions"
        old.mkdir()
        (old / f"{path.name}.zst").write_bytes(zstandard.compress(first.data))
        path.unlink()
    based(fork, 3, first.data).write(tmp_path, "_segment")
    found = states_of(lake, tmp_path)
    assert sorted(state.action.text for state in found) == [
        "answer one", "answer two", "as you like",
    ]  # fmt: skip
    (last,) = (state for state in found if state.action.text == "as you like")
    assert texts(last) == ["user: one", "assistant: answer one", "user: the other way"]
    assert last.fidelity == "attachments_rendered"


def test_a_fork_of_a_lost_rollout_says_so(lake: Lake, tmp_path: Path) -> None:
    (state,) = states_of(lake, based(LATER, 3, b"").write(tmp_path))
    assert (state.fidelity, texts(state)) == ("repaired", ["user: the other way"])


def test_a_subagent_belongs_to_the_session_that_started_it(lake: Lake, tmp_path: Path) -> None:
    a_day().write(tmp_path)
    spawned = {"subagent": {"thread_spawn": {"parent_thread_id": SESSION, "depth": 1}}}
    agent = Rollout(LATER, source=spawned, subagent_history_start_ordinal=4)
    agent.lines[1:] = []
    agent.ordinal = 1
    agent.say("user", "fix the till")
    agent.say("assistant", "inherited")
    agent.event("task_complete", turn_id=OLD_TURN)
    agent.item("agent_message", author="/root", content=[{"type": "input_text", "text": "count"}])
    agent.say("assistant", "four")
    told = [{"type": "encrypted_content", "encrypted_content": "gAAAA"}]
    agent.item("agent_message", author="/root", content=told)
    agent.say("assistant", "five")
    agent.write(tmp_path)
    found = states_of(lake, tmp_path)
    assert {state.session_id for state in found} == {SESSION}
    state, blind = (state for state in found if state.agent_id)
    assert (state.agent_id, state.action.text) == (LATER, "four")
    assert blind.fidelity == "compacted_encrypted"
    assert texts(state) == ["user: fix the till", "assistant: inherited", "user: count"]


def test_calls_of_every_kind_are_in_the_prefix(lake: Lake, tmp_path: Path) -> None:
    r = Rollout()
    r.say("user", "go")
    r.item("tool_search_call", call_id="c1", execution="client", arguments={"query": "mail"})
    r.item("tool_search_output", call_id="c1", status="completed", tools=[{"name": "mail"}])
    r.item("function_call", call_id="c2", namespace="mcp__mail__", name="send", arguments="{}")
    picture = [{"type": "input_text", "text": "sent"}, {"type": "input_image", "image_url": "x"}]
    r.item("function_call_output", call_id="c2", output=picture)
    action = {"type": "exec", "command": ["pytest"], "env": None}
    r.item("local_shell_call", call_id="c3", status="completed", action=action)
    r.item("web_search_call", action={"type": "search", "query": "till"})
    r.add("inter_agent_communication", {"author": "/root/a", "content": "I am done"})
    for kind in ("world_state", "realtime_item", "inter_agent_communication_metadata"):
        r.add(kind, {"trigger_turn": False})
    r.say("assistant", "end")
    found = states_of(lake, r.write(tmp_path))
    calls = [call for state in found for call in state.action.tool_calls]
    assert [(call.name, call.arguments) for call in calls] == [
        ("tool_search", {"query": "mail"}),
        ("mcp__mail__send", {}),
        ("local_shell", {"command": ["pytest"]}),
    ]
    assert texts(found[-1])[1:] == [
        "assistant: tool_search",
        'user: [{"name": "mail"}]',
        "assistant: mcp__mail__send",
        "user: sent\n[image]",
        "assistant: local_shell",
        "user: aborted",  # so Codex answers for a call without an end
        "user: I am done",
    ]
    assert [row["unknown_types"] for row in lake.rows("sessions")] == ["{}"]


def test_an_interruption_and_the_next_prompt_are_a_correction(lake: Lake, tmp_path: Path) -> None:
    r = Rollout()
    r.say("user", "go")
    for prompt in ("no, only the till", "and stop"):
        r.say("assistant", "I rewrite all of it")
        if prompt == "and stop":
            r.say("user", "<turn_aborted>the user interrupted</turn_aborted>")
        r.event("turn_aborted", reason="interrupted")
        r.say("user", prompt)
    r.say("assistant", "ok")
    found = states_of(lake, r.write(tmp_path))
    assert [state.hint for state in found] == ["no, only the till", "and stop", None]
    assert texts(found[-1])[1:] == [
        "assistant: I rewrite all of it",
        "user: no, only the till",
        "assistant: I rewrite all of it",
        "user: <turn_aborted>the user interrupted</turn_aborted>",
        "user: and stop",
    ]


def test_a_prompt_after_a_killed_call_is_kept(lake: Lake, tmp_path: Path) -> None:
    r = Rollout()
    r.say("user", "go")
    r.call("c1")
    r.tokens(900)
    r.say("user", "go on")
    r.say("assistant", "ok")
    *_, last = states_of(lake, r.write(tmp_path))
    assert texts(last)[-2:] == ["user: aborted", "user: go on"]


def test_a_system_prompt_that_is_a_message_too_counts_once(lake: Lake, tmp_path: Path) -> None:
    r = Rollout()
    system = message("developer", "You are Codex.")
    r.add("response_item", system)
    r.say("user", "go")
    r.say("assistant", "ok")
    r.add("compacted", {"message": "", "replacement_history": [system, message("user", "go")]})
    r.say("assistant", "still ok")
    for state in states_of(lake, r.write(tmp_path)):
        assert (state.system, texts(state)) == ("You are Codex.", ["user: go"])


def test_a_grown_file_keeps_its_states_and_a_cut_one_loses_none(lake: Lake, tmp_path: Path) -> None:
    r = a_day()
    before = {state.state_id for state in states_of(lake, r.write(tmp_path))}
    whole = list(r.lines)
    r.say("user", "thanks, and the lamp?")
    r.say("assistant", "on it")
    path = r.write(tmp_path)
    after = {state.state_id for state in states_of(lake, path)}
    assert before < after
    r.lines = whole[:-3]  # Codex wrote it anew
    assert {state.state_id for state in states_of(lake, r.write(tmp_path))} == after


def test_secrets_do_not_reach_the_lake(lake: Lake, tmp_path: Path) -> None:
    key = "AKIAZ7QK3VN5RT2WLX4B"
    r = Rollout(base_instructions={"text": f"key {key}"})
    r.say("developer", f"<environment_context>{key}</environment_context>")
    r.say("user", f"use {key}")
    r.call("c1", f"export AWS_ACCESS_KEY_ID={key}")
    r.output("c1", f"Process exited with code 1\nOutput:\n{key}")
    r.add("compacted", {"message": key, "replacement_history": [message("assistant", key)]})
    r.say("assistant", f"the key is {key}")
    assert len(states_of(lake, r.write(tmp_path))) == 2
    tables = ("messages", "states", "sessions", "chains")
    assert not any(key in str(lake.rows(table)) for table in tables)


def test_unknown_and_broken_lines_are_counted() -> None:
    r = Rollout()
    r.say("user", "go")
    r.item("hologram", text="x")
    r.event("sunrise")
    r.add("sparkle", {})
    data = r.data + b"{broken\n" + b'{"timestamp": "2026-11-16T09:00:00Z", "type": "respo'
    graph, stats, facts = analyse(data)
    names = ("response_item/hologram", "event_msg/sunrise", "sparkle")
    assert stats.unknown_types == {f"codex/{name}": 1 for name in names}
    assert (facts["bad_lines"], facts["lines"], facts["states"]) == (2, len(r.lines) + 2, 0)
    assert stats.last_line_bad
    assert len(graph.nodes) == 1


ODD = [
    None, True, -1, 3, 1.5, "", "c1", "\ud800", [], [None, 3, "x"], [{"type": 3}, {"text": 1}], {},
    [{"type": "message", "role": "assistant", "content": [{"text": "x"}]}, {"type": "compaction"}],
    {"type": ["x"], "id": 3, "Ok": 3, "text": "x", "output": [], "subagent": {"thread_spawn": 1}},
]  # fmt: skip
KINDS = """
    message function_call function_call_output tool_search_output local_shell_call reasoning
    compaction agent_message token_count item_completed mcp_tool_call_end turn_aborted
    thread_rolled_back task_started
""".split()  # noqa: SIM905  a block of names instead of a column
FIELDS = """
    role content call_id id output tools arguments name namespace action info usage num_turns reason
    replacement_history message item turn_id model cwd session_id source base_instructions
    history_base subagent_history_start_ordinal encrypted_content result type
""".split()  # noqa: SIM905


def test_a_wrong_type_in_any_field_is_read_without_a_crash() -> None:
    r = a_day()
    for line_kind in sorted(TYPES):
        for kind in KINDS:
            for field in FIELDS:
                for value in ODD:
                    given = {"type": kind, "call_id": "c1", "role": "assistant", field: value}
                    r.add(line_kind, given)
    for value in ODD:
        r.add("response_item", {"type": "function_call", "call_id": "c1"}, metadata=value)
        r.add("response_item", value)
        r.lines.append(json.dumps({"type": value, "payload": {}, "timestamp": value}))
    stats = LineStats()
    for _ in Codex().records(r.data.splitlines(keepends=True), stats):
        pass
    assert stats.lines == len(r.lines)
    for field in FIELDS:
        for value in ODD:
            odd: dict[str, Any] = {field: value}
            r = Rollout(**odd)
            r.lines += a_day().lines[2:]
            assert [*Codex().records(r.data.splitlines(keepends=True), LineStats())]


def test_the_source_is_told_by_content(lake: Lake, tmp_path: Path, script: Any) -> None:
    """One folder may hold files of several agents, whatever their names are."""
    a_day().write(tmp_path).rename(tmp_path / "notes.jsonl")
    s = script("claude-1")
    s.user("go")
    s.say("m1", "ok")
    s.write(tmp_path, "rollout-2026.jsonl")
    assert ingest(lake, [tmp_path]).totals["states"] == 4
    assert {row["session_id"]: row["agent"] for row in lake.rows("sessions")} == {
        SESSION: "codex", "claude-1": "claude-code",
    }  # fmt: skip


def test_no_other_agents_file_is_taken() -> None:
    for line in (b'{"type":"user","payload":{}}', b'{"type":"session_meta"}', b"[1]", b""):
        assert not Codex().recognises([line])


def test_folders_are_codex_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CODEX_HOME", str(tmp_path))
    assert Codex().folders() == [tmp_path / "sessions", tmp_path / "archived_sessions"]
