"""The seam for other agents' logs, proved with Codex CLI."""

import json
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer_pipeline import plugins
from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.states.load import load_states
from composer_pipeline.states.state import TraceState
from composer_pipeline.traces import source as sources
from composer_pipeline.traces.ingest import ingest
from composer_pipeline.traces.parse import analyse
from composer_pipeline.traces.records import LineStats, Record
from composer_pipeline.traces.sources.codex import TYPES

SESSION = "0199aaaa-0000-7000-8000-000000000001"


class Rollout:
    """Writes the lines of a rollout by hand."""

    def __init__(self, session: str = SESSION) -> None:
        self.lines: list[str] = []
        meta = {"id": session, "cwd": "/home/alice/shop", "cli_version": "0.65.0", "source": "cli"}
        self.add("session_meta", {**meta, "base_instructions": {"text": "You are Codex."}})
        self.add("turn_context", {"model": "gpt-test", "cwd": "/home/alice/shop"})

    def add(self, kind: str, payload: dict[str, Any]) -> None:
        number = len(self.lines)
        stamp = f"2026-11-16T08:{number // 60:02d}:{number % 60:02d}.000Z"
        self.lines.append(json.dumps({"timestamp": stamp, "type": kind, "payload": payload}))

    def item(self, kind: str, **fields: Any) -> None:
        self.add("response_item", {"type": kind, **fields})

    def say(self, role: str, text: str) -> None:
        kind = "output_text" if role == "assistant" else "input_text"
        self.item("message", role=role, content=[{"type": kind, "text": text}])

    def call(self, call_id: str, command: str) -> None:
        arguments = json.dumps({"command": ["bash", "-lc", command]})
        self.item("function_call", name="shell", arguments=arguments, call_id=call_id)

    def output(self, call_id: str, text: str, code: int = 0) -> None:
        wrapped = {"output": text, "metadata": {"exit_code": code, "duration_seconds": 0.1}}
        self.item("function_call_output", call_id=call_id, output=json.dumps(wrapped))

    def event(self, kind: str, **fields: Any) -> None:
        self.add("event_msg", {"type": kind, **fields})

    @property
    def data(self) -> bytes:
        return ("\n".join(self.lines) + "\n").encode()

    def write(self, folder: Path) -> Path:
        path = folder / "2026" / "11" / "16" / "rollout-2026-11-16T08-00-00-x.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.data)
        return path


def states_of(lake: Lake, path: Path) -> list[TraceState]:
    ingest(lake, [path])
    return list(load_states(lake))


def texts(state: TraceState) -> list[str]:
    found = []
    for message in state.messages:
        for block in message["content"]:
            shown = block.get("text") or block.get("content") or block.get("name")
            found.append(f"{message['role']}: {shown}")
    return found


def a_day() -> Rollout:
    r = Rollout()
    r.say("developer", "be careful")
    r.say("user", "<environment_context>cwd</environment_context>")
    r.say("user", "fix the till")
    r.event("user_message", message="fix the till")
    r.item("reasoning", summary=[{"type": "summary_text", "text": "hidden thought"}])
    r.say("assistant", "I look first")
    r.call("c1", "ls /home/alice/shop")
    r.call("c2", "cat till.py")
    usage = {"input_tokens": 900, "output_tokens": 40, "total_tokens": 940}
    r.event("token_count", info={"last_token_usage": usage})
    r.output("c1", "till.py")
    r.output("c2", "no such till", 1)
    r.item("custom_tool_call", call_id="c3", name="apply_patch", input="*** Begin Patch")
    r.item("custom_tool_call_output", call_id="c3", output="Success. Updated")
    action = {"type": "exec", "command": ["pytest"], "env": None}
    r.item("local_shell_call", call_id="c4", status="completed", action=action)
    r.item("function_call_output", call_id="c4", output="Exit code: 2\nWall time: 1\nOutput:\nboom")
    r.say("assistant", "done")
    r.event("agent_message", message="done")
    return r


def test_a_rollout_becomes_states(lake: Lake, tmp_path: Path) -> None:
    states = states_of(lake, a_day().write(tmp_path / "sessions"))
    assert [[call.name for call in s.action.tool_calls] for s in states] == [
        ["shell", "shell"],
        ["apply_patch"],
        ["local_shell"],
        [],
    ]
    first, patch, shell, last = states
    assert first.action.text == "I look first"
    assert first.action.tool_calls[0].arguments == {
        "command": ["bash", "-lc", "ls /home/user/shop"]
    }
    assert patch.action.tool_calls[0].arguments == {"input": "*** Begin Patch"}
    assert shell.action.tool_calls[0].arguments == {"command": ["pytest"]}
    assert (last.action.text, last.error_kind) == ("done", None)
    assert texts(first) == [
        "user: be careful",
        "user: <environment_context>cwd</environment_context>",
        "user: fix the till",
    ]
    assert texts(last)[3:] == [
        "assistant: I look first",
        "assistant: shell",
        "assistant: shell",
        "user: till.py",
        "user: Exit code 1\nno such till",
        "assistant: apply_patch",
        "user: Success. Updated",
        "assistant: local_shell",
        "user: Exit code: 2\nWall time: 1\nOutput:\nboom",
    ]
    assert (first.error_kind, first.hint_call, first.hint) == (
        "exit_code", 1, "Exit code 1\nno such till",
    )  # fmt: skip
    assert (shell.error_kind, shell.hint_source) == ("failing_tests", "exit_code")
    assert (first.model, first.version, first.cwd) == ("gpt-test", "0.65.0", "/home/user/shop")
    assert (first.input_tokens, first.output_tokens) == (900, 40)
    assert first.system == "You are Codex."
    assert first.session_id == SESSION
    assert {s.day for s in states} == {"2026-11-16"}
    (session,) = lake.rows("sessions")
    assert session["first_prompt"] == "fix the till"
    assert json.loads(session["unknown_types"]) == {}
    assert "hidden thought" not in str(lake.rows("messages"))


def test_a_copy_has_the_same_responses(lake: Lake, tmp_path: Path) -> None:
    """A fork repeats the lines under a new session; its states are not counted twice."""
    ours = states_of(lake, a_day().write(tmp_path / "a"))
    fork = Rollout("0199bbbb-0000-7000-8000-000000000002")
    fork.lines += a_day().lines
    fork.say("user", "and now?")
    fork.call("c9", "true")
    states = states_of(lake, fork.write(tmp_path / "b"))
    assert len(states) == len(ours) + 1
    assert {s.message_id for s in ours} < {s.message_id for s in states}


def test_a_grown_file_keeps_its_states(lake: Lake, tmp_path: Path) -> None:
    r = a_day()
    path = r.write(tmp_path)
    before = {s.state_id for s in states_of(lake, path)}
    r.say("user", "thanks, and the lamp?")
    r.say("assistant", "on it")
    r.write(tmp_path)
    after = states_of(lake, path)
    assert before < {s.state_id for s in after}
    assert len(after) == len(before) + 1


def test_an_interruption_and_the_next_prompt_are_a_correction(lake: Lake, tmp_path: Path) -> None:
    r = Rollout()
    r.say("user", "go")
    r.say("assistant", "I rewrite all of it")
    r.event("turn_aborted", reason="interrupted")
    r.say("user", "<turn_aborted>the user interrupted</turn_aborted>")
    r.say("user", "no, only the till")
    r.say("assistant", "ok")
    first, second = states_of(lake, r.write(tmp_path))
    assert (first.error_kind, first.hint) == ("user_correction", "no, only the till")
    assert texts(second)[1:] == [
        "assistant: I rewrite all of it",
        "user: [Request interrupted by user]",
        "user: no, only the till",
    ]


def test_compaction_replaces_the_history(lake: Lake, tmp_path: Path) -> None:
    r = Rollout()
    r.say("user", "old prompt")
    r.say("assistant", "old answer")
    kept = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "kept"}]}
    r.add("compacted", {"message": "a summary", "replacement_history": [kept]})
    r.say("user", "new prompt")
    r.say("assistant", "new answer")
    _, after = states_of(lake, r.write(tmp_path))
    assert texts(after) == ["user: kept", "user: a summary", "user: new prompt"]


def test_unknown_and_broken_lines_are_counted(tmp_path: Path) -> None:
    r = Rollout()
    r.say("user", "go")
    r.item("hologram", text="x")
    r.add("sparkle", {})
    data = r.data + b"{broken\n" + b'{"timestamp": "2026-11-16T09:00:00Z", "type": "respo'
    graph, stats, facts = analyse(data)
    assert stats.unknown_types == {"codex/response_item/hologram": 1, "codex/sparkle": 1}
    assert (facts["bad_lines"], facts["lines"], facts["states"]) == (2, len(r.lines) + 2, 0)
    assert stats.last_line_bad
    assert len(graph.nodes) == 1


@pytest.mark.parametrize(
    "payload",
    [
        {"type": "function_call"},
        {"type": "function_call", "call_id": "x", "arguments": "[1]"},
        {"type": "function_call", "call_id": "x", "arguments": 3},
        {"type": "function_call_output", "call_id": 5, "output": None},
        {"type": "function_call_output", "call_id": "x", "output": "{not json"},
        {"type": "function_call_output", "call_id": "x", "output": '{"output": 3}'},
        {"type": "function_call_output", "call_id": "x", "output": {"content": "c", "success": 0}},
        {"type": "message", "role": "assistant", "content": 7},
        {"type": "message", "role": "user", "content": [None, {"type": "input_image"}]},
        {"type": None},
    ],
)
def test_odd_items_are_never_fatal(lake: Lake, tmp_path: Path, payload: dict[str, Any]) -> None:
    r = a_day()
    r.add("response_item", payload)
    r.say("assistant", "still here")
    states = states_of(lake, r.write(tmp_path))
    assert "still here" in states[-1].action.text


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
    | st.sampled_from(["message", "function_call", "assistant", "call_1", "\ud800"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["type", "role", "content", "call_id", "output", "arguments", "text", "x"]),
        inner,
        max_size=4,
    ),
    max_leaves=8,
)  # fmt: skip


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=30),
            st.builds(
                lambda kind, payload: json.dumps({"type": kind, "payload": payload}).encode(),
                st.sampled_from([*TYPES, None, 3, ["x"]]),
                _JSON,
            ),
        ),
        max_size=8,
    )
)
@settings(max_examples=300)
def test_any_lines_are_read_without_a_crash(lines: list[bytes]) -> None:
    data = Rollout().data + b"\n".join(lines)
    _, stats, facts = analyse(data)
    assert stats.lines >= 2
    said = sum(b'"assistant"' in line or b"call" in line for line in lines)
    assert facts["states"] <= said  # none is invented


def test_the_source_is_told_by_content(lake: Lake, tmp_path: Path, script: Any) -> None:
    """One folder may hold files of several agents, whatever their names are."""
    a_day().write(tmp_path).rename(tmp_path / "notes.jsonl")
    s = script("claude-1")
    s.user("go")
    s.say("m1", "ok")
    s.write(tmp_path, "rollout-2026.jsonl")
    report = ingest(lake, [tmp_path])
    assert report.totals["states"] == 5
    assert {s.session_id for s in load_states(lake)} == {SESSION, "claude-1"}


# -- plug-ins ----------------------------------------------------------------------------


class Plain(sources.TraceSource):
    """A source for a format of one line a message: ``role|text``."""

    name = "plain"

    def recognises(self, head: Sequence[bytes]) -> bool:
        return head[:1] == [b"#plain\n"]

    def records(self, lines: Iterable[bytes], stats: LineStats) -> Iterator[Record]:
        for number, line in enumerate(lines):
            stats.lines += 1
            role, _, text = line.decode().strip().partition("|")
            if text:
                body = {
                    "role": role,
                    "id": f"p{number}",
                    "content": [{"type": "text", "text": text}],
                }
                yield Record(
                    type=role,
                    uuid=f"p{number}",
                    parent_uuid=f"p{number - 1}" if number > 1 else None,
                    session_id="plain-1",
                    timestamp="2026-11-16T00:00:00Z",
                    message=msgspec.Raw(json.dumps(body).encode()),
                )


class Wrong:
    """Not a source."""


def _install(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    point = EntryPoint(name, value, sources.SOURCES.group)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [point])
    monkeypatch.setattr(
        EntryPoint, "load", lambda self: {"Plain": Plain, "Wrong": Wrong}[self.attr]
    )
    sources.sources.cache_clear()


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    sources.sources.cache_clear()


def test_a_package_adds_a_source(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _install(monkeypatch, "plain", "some.package:Plain")
    path = tmp_path / "log.jsonl"
    path.write_text("#plain\nuser|hello bob@acme.com\nassistant|hi\n")
    (state,) = states_of(lake, path)
    assert state.action.text == "hi"
    assert texts(state)[0].startswith("user: hello [EMAIL_")
    assert [source.name for source in sources.sources()] == ["plain", "claude-code"]


def test_a_broken_plug_in_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    _install(monkeypatch, "wrong", "some.package:Wrong")
    with pytest.raises(InputError, match=r"'wrong' \(some\.package:Wrong\)"):
        sources.sources()


def test_a_fork_is_a_session_of_its_own(lake: Lake, tmp_path: Path) -> None:
    """It repeats the meta line of the session that it comes from, behind its own."""
    fork = Rollout("0199bbbb-0000-7000-8000-000000000002")
    meta = Rollout(SESSION).lines[0]
    fork.lines.append(meta.replace("You are", "You were").replace("0.65.0", "0.1.0"))
    fork.say("user", "and now?")
    fork.call("c9", "true")
    (state,) = states_of(lake, fork.write(tmp_path))
    assert state.session_id == "0199bbbb-0000-7000-8000-000000000002"
    assert (state.system, state.version) == ("You are Codex.", "0.65.0")


def test_the_same_words_twice_are_two_states(lake: Lake, tmp_path: Path) -> None:
    rollout = Rollout()
    for _ in range(2):
        rollout.say("user", "again")
        rollout.say("assistant", "Done.")
    states = states_of(lake, rollout.write(tmp_path))
    assert [state.n_messages for state in states] == [1, 3]
    assert len({state.state_id for state in states}) == 2
