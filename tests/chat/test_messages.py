"""The converter's invariants, one by one, and a property over random transcripts."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.chat import convert
from composer_pipeline.chat.convert import (
    SYSTEM_TEMPLATE_VERSION,
    action_message,
    parse_reply_message,
    short_name,
    to_chat,
    wire_messages,
)
from composer_pipeline.states.state import TraceState
from tests.fixtures.states import made_state


def state_of(
    messages: list[dict[str, Any]], system: str | None = None, action: Action | None = None
) -> TraceState:
    return made_state(
        messages=messages, system=system, action=action or Action(), cwd="/home/user/shop/src"
    )


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def agent(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def call(key: str, name: str = "Read", **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": key, "name": name, "input": arguments}


def result(key: str, content: Any = "ok", *, error: bool = False) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": key, "content": content}
    return block | ({"is_error": True} if error else {})


def chat(*messages: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, int]]:
    conversion = to_chat(state_of(list(messages)))
    assert conversion.messages[0]["role"] == "system"
    return conversion.messages[1:], conversion.flags


def test_parallel_calls_are_answered_in_call_order() -> None:
    messages, flags = chat(
        user(text("go")),
        agent(text("both"), call("t1", file_path="a"), call("t2", file_path="b")),
        user(result("t2", "B"), text("and hurry"), result("t1", "A")),
    )
    assert [m["role"] for m in messages] == ["user", "assistant", "tool", "tool", "user"]
    assert [m.get("content") for m in messages[2:]] == ["A", "B", "and hurry"]
    assert [c["id"] for c in messages[1]["tool_calls"]] == ["call_0", "call_1"]
    assert [m["tool_call_id"] for m in messages[2:4]] == ["call_0", "call_1"]
    assert flags == {}


def test_interrupted_call_gets_a_synthetic_result() -> None:
    messages, flags = chat(user(text("go")), agent(call("t1")), user(text("stop")))
    assert messages[2] == {
        "role": "tool",
        "tool_call_id": "call_0",
        "name": "Read",
        "content": convert.INTERRUPTED,
    }
    assert messages[3]["content"] == "stop"
    assert flags == {"synthetic_result": 1}


def test_call_at_the_end_is_closed() -> None:
    messages, flags = chat(user(text("go")), agent(call("t1")))
    assert messages[-1]["role"] == "tool"
    assert flags == {"synthetic_result": 1}


def test_orphan_and_repeated_results_become_user_text() -> None:
    messages, flags = chat(
        user(result("gone", "old output")),
        agent(call("t1")),
        user(result("t1", "new"), result("t1", "again")),
    )
    assert messages[0] == {"role": "user", "content": convert.ORPHAN_PREFIX + "old output"}
    assert messages[2]["content"] == "new"
    assert messages[3]["content"] == convert.ORPHAN_PREFIX + "again"
    assert flags == {"orphan_result": 2}


def test_error_has_a_stable_prefix() -> None:
    messages, flags = chat(agent(call("t1")), user(result("t1", "no such file", error=True)))
    assert messages[1]["content"] == "[tool error] no such file"
    assert flags == {"tool_error": 1}


def test_only_a_true_flag_marks_an_error() -> None:
    block = result("t1", "fine")
    messages, flags = chat(agent(call("t1")), user({**block, "is_error": "false"}))
    assert messages[1]["content"] == "fine"
    assert flags == {}


def test_converting_leaves_the_stored_messages_alone() -> None:
    state = state_of([user(text("a")), user(text("b")), agent(text("c")), agent(text("d"))])
    before = json.dumps(state.messages)
    first = to_chat(state)
    assert to_chat(state) == first
    assert json.dumps(state.messages) == before


def test_images_leave_numbered_placeholders() -> None:
    picture = {"type": "image", "source": {"data": "AAAA"}}
    messages, flags = chat(
        user(text("see"), picture), agent(call("t1")), user(result("t1", [text("shot"), picture]))
    )
    assert messages[0]["content"] == "see\n\n[image 1]"
    assert messages[2]["content"] == "shot\n[image 2]"
    assert flags == {"image_dropped": 2}
    assert "AAAA" not in json.dumps(messages)


def test_text_after_a_call_moves_before_it() -> None:
    messages, flags = chat(agent(text("a"), call("t1"), text("b")), user(result("t1")))
    assert messages[0]["content"] == "a\n\nb"
    assert flags == {"text_after_call": 1}


def test_same_role_turns_merge() -> None:
    messages, _ = chat(
        user(text("one")),
        {"role": "user", "content": "two"},
        agent(text("x")),
        agent(text("y"), call("t1")),
        user(result("t1")),
    )
    assert [m["role"] for m in messages] == ["user", "assistant", "tool"]
    assert messages[0]["content"] == "one\n\ntwo"
    assert messages[1]["content"] == "x\n\ny"


def test_thinking_is_never_sent() -> None:
    messages, flags = chat(
        user(text("go")),
        agent(
            {"type": "thinking", "thinking": "hidden plan", "signature": "s"},
            {"type": "redacted_thinking", "data": "aGlkZGVu"},
        ),
        user(text("more")),
    )
    assert messages == [{"role": "user", "content": "go\n\nmore"}]
    assert flags == {}


def test_empty_content_is_dropped_or_null() -> None:
    messages, _ = chat(user(text(" ")), agent(text("")), agent(call("t1")), user(result("t1")))
    assert [m["role"] for m in messages] == ["assistant", "tool"]
    wire = wire_messages(messages)
    assert wire[0]["content"] is None
    assert "name" not in wire[1]


def test_names_fit_and_come_back() -> None:
    long = "mcp__" + "server" * 12 + "__do.it"
    short = short_name(long)
    assert len(short) == 64
    assert short_name(long[:-1] + "x") != short
    assert short_name("mcp__a__b") == "mcp__a__b"
    conversion = to_chat(state_of([agent(call("t1", long)), user(result("t1"))]))
    assert conversion.messages[1]["tool_calls"][0]["function"]["name"] == short
    reply = {"tool_calls": [{"id": "x", "function": {"name": short, "arguments": "{}"}}]}
    assert parse_reply_message(reply, conversion.tool_names).tool_calls[0].name == long
    tool = {"type": "function", "function": {"name": long, "parameters": {}}}
    unused = to_chat(state_of([user(text("go"))]), tools=[tool])
    assert unused.tools[0]["function"]["name"] == short
    assert parse_reply_message(reply, unused.tool_names).tool_calls[0].name == long


def test_arguments_keep_their_order() -> None:
    recorded = {"z": 1, "a": {"y": [2], "b": "ü"}}
    messages, _ = chat(agent(call("t1", "X", **recorded)), user(result("t1")))
    arguments = wire_messages(messages)[0]["tool_calls"][0]["function"]["arguments"]
    assert arguments == '{"z":1,"a":{"y":[2],"b":"ü"}}'


def test_action_in_its_own_prefix_is_flagged() -> None:
    action = Action(tool_calls=(ToolCall("Read", {}, "t1"),))
    state = state_of([agent(call("t1")), user(result("t1"))], action=action)
    assert to_chat(state).flags["action_in_prefix"] == 1


def test_system_prompt_recorded_or_template() -> None:
    assert to_chat(state_of([], system="As recorded.")).system_source == "recorded"
    templated = to_chat(state_of([]))
    assert templated.system_source == SYSTEM_TEMPLATE_VERSION
    assert "/home/user/shop\n" in templated.messages[0]["content"]


def test_action_message_is_action_only() -> None:
    action = Action("I will", (ToolCall("Bash", {"command": "ls"}, "toolu_1"),))
    assert action_message(action) == {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": "call_0",
                "type": "function",
                "function": {"name": "Bash", "arguments": {"command": "ls"}},
            }
        ],
    }
    assert action_message(Action("Done.")) == {"role": "assistant", "content": "Done."}


@pytest.mark.parametrize(
    "message",
    [
        {"content": None},
        {"content": " "},
        {"tool_calls": [{"function": {"name": "Bash", "arguments": "{oops"}}]},
        {"tool_calls": [{"function": {"name": "Bash", "arguments": "[1]"}}]},
        {"tool_calls": [{"function": {}}]},
    ],
)
def test_unusable_replies_raise(message: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_reply_message(message)


def test_content_parts_are_joined() -> None:
    reply = {"content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}
    assert parse_reply_message(reply) == Action("a")


_KEYS = st.sampled_from(["t1", "t2", "t3"])
_BLOCK = st.one_of(
    st.builds(text, st.sampled_from(["", "hello", "bye"])),
    st.builds(call, _KEYS),
    st.builds(result, _KEYS),
    st.just({"type": "image"}),
    st.just({"type": "thinking", "thinking": "x"}),
    st.just({"type": "novelty"}),
)
_MESSAGE = st.builds(
    lambda role, blocks: {"role": role, "content": blocks},
    st.sampled_from(["user", "assistant"]),
    st.lists(_BLOCK, max_size=4),
)


@given(st.lists(_MESSAGE, max_size=8))
def test_any_transcript_is_valid_chat(messages: list[dict[str, Any]]) -> None:
    """Every call answered once, directly after it, in order; no empty or doubled turn."""
    converted, _ = chat(*messages)
    pending: list[str] = []
    before = ""
    for message in converted:
        if message["role"] == "tool":
            assert message["tool_call_id"] == pending.pop(0)
        else:
            assert not pending
            assert message["content"] or message.get("tool_calls")
            assert message["role"] != before or message["role"] == "tool"
        pending += [c["id"] for c in message.get("tool_calls", [])]
        before = message["role"]
    assert not pending
    assert to_chat(state_of(messages)).messages[1:] == converted
