"""Every converted prefix keeps the rules, and real chat templates take it.

Transcripts are made up (hypothesis), bundled, and, where the checkout has the shared corpus,
real. The checker is ``testing.chat_rules``; each of its rules is broken here once, so that
it is known to notice.
"""

import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
import trl
from hypothesis import given
from hypothesis import strategies as st
from transformers.utils.chat_template_utils import render_jinja_template

from composer_pipeline.chat.convert import Conversion, to_chat, wire_messages
from composer_pipeline.chat.tools import session_tools
from composer_pipeline.lake.store import Lake
from composer_pipeline.states.load import load_states
from composer_pipeline.states.state import TraceState
from composer_pipeline.testing.samples import sample_sessions_dir
from composer_pipeline.traces.ingest import ingest
from tests.chat.chat_rules import broken_rules, leaks
from tests.fixtures.states import made_state
from tests.places import CORPUS

#: Templates with tools and parallel calls, of three vendors. With ``COMPOSER_FULL=1`` all
#: states are rendered; else every seventh, and the last of each chain.
FULL = bool(os.environ.get("COMPOSER_FULL"))
TEMPLATES = ("qwen3", "glm4moe", "nemotron_3_super")


def state_of(messages: list[dict[str, Any]]) -> TraceState:
    return made_state(messages=messages)


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> list[TraceState]:
    lake = Lake(tmp_path_factory.mktemp("samples"))
    ingest(lake, [sample_sessions_dir()])
    return list(load_states(lake))


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> list[TraceState]:
    """All states of the shared corpus."""
    if not CORPUS.exists():
        if "corpus" in os.environ.get("COMPOSER_REQUIRE", "").split(","):
            pytest.fail("corpus is required: ../shared/corpus is missing")
        pytest.skip("corpus is missing: ../shared/corpus")
    folder = tmp_path_factory.mktemp("corpus")
    for name in ("claude-code-sessions", "claude-code-subagents"):
        with tarfile.open(CORPUS / f"{name}.tar.xz") as archive:
            archive.extractall(folder / "files", filter="data")
    lake = Lake(folder / "lake")
    ingest(lake, [folder / "files"])
    return list(load_states(lake))


_TEXT = st.sampled_from(["", " ", "hello", "[image 7]", "a\n\nb", "naïve ✓", "[tool error] x"])
_KEY = st.sampled_from(["t1", "t2", "t3", "t4"])
_NAME = st.sampled_from(["Read", "mcp__a.b__c d", "mcp__" + "x" * 90, "Bash"])
_ARGUMENTS = st.dictionaries(st.sampled_from(["b", "a", "c"]), st.integers() | _TEXT, max_size=3)
_PART = st.one_of(
    st.builds(lambda t: {"type": "text", "text": t}, _TEXT), st.just({"type": "image"})
)
_SAID = st.builds(lambda t: {"type": "text", "text": t}, _TEXT)
_CALL = st.builds(
    lambda k, n, a: {"type": "tool_use", "id": k, "name": n, "input": a}, _KEY, _NAME, _ARGUMENTS
)
_RESULT = st.builds(
    lambda k, c, e: (
        {"type": "tool_result", "tool_use_id": k, "content": c} | ({"is_error": True} if e else {})
    ),
    _KEY,
    _TEXT | st.lists(_PART, max_size=3),
    st.booleans(),
)
_THOUGHT = st.just({"type": "thinking", "thinking": "SECRET THOUGHT"})
_NOVELTY = st.just({"type": "novelty"})
_AGENT = st.lists(st.one_of(_SAID, _CALL, _THOUGHT, _NOVELTY), max_size=5)
_USER = st.lists(st.one_of(_SAID, _RESULT, st.just({"type": "image"}), _NOVELTY), max_size=5)
_MESSAGE = st.one_of(
    st.builds(lambda content: {"role": "assistant", "content": content}, _AGENT | _TEXT),
    st.builds(lambda content: {"role": "user", "content": content}, _USER | _TEXT),
)


@given(st.lists(_MESSAGE, max_size=8))
def test_made_up_transcripts_keep_the_rules(messages: list[dict[str, Any]]) -> None:
    converted = to_chat(state_of(messages))
    # Ids are unique in real files; a made-up repetition is told apart by position only.
    broken = [rule for rule in broken_rules(messages, converted) if "no result" not in rule]
    assert not broken
    assert wire_messages(to_chat(state_of(messages)).messages) == wire_messages(converted.messages)


def test_bundled_states_keep_the_rules(samples: list[TraceState]) -> None:
    assert len(samples) > 50
    _all_keep_the_rules(samples)


@pytest.mark.slow
def test_real_states_keep_the_rules(real: list[TraceState]) -> None:
    assert len(real) > 4000
    _all_keep_the_rules(real)


def _all_keep_the_rules(states: list[TraceState]) -> None:
    for state in states:
        broken = broken_rules(state.messages, to_chat(state))
        broken += leaks(state.messages, [call.id for call in state.action.tool_calls])
        assert not broken, state.state_id


@pytest.mark.parametrize("which", ["samples", "real"])
def test_a_longer_prefix_starts_with_the_bytes_of_the_shorter(
    which: str, request: pytest.FixtureRequest
) -> None:
    """What a provider's prompt cache needs (I8 and I10): nothing that was sent changes."""
    states: list[TraceState] = request.getfixturevalue(which)
    by_chain: dict[str, list[TraceState]] = {}
    for state in states:
        by_chain.setdefault(state.chain_id, []).append(state)
    extended = 0
    for chain in by_chain.values():
        chain.sort(key=lambda s: s.n_messages)
        before: list[bytes] = []
        for state in chain:
            chat = wire_messages(to_chat(state).messages)
            now = [orjson.dumps(message) for message in chat]
            # A reminder may be joined to the last user turn; all before it must stay.
            kept = before[:-1]
            assert now[: len(kept)] == kept, state.state_id
            extended += len(now) > len(before) > 1
            before = now
    assert extended > len(states) / 2


@pytest.mark.parametrize("which", ["samples", "real"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_chat_templates_take_every_prefix(
    name: str, which: str, request: pytest.FixtureRequest
) -> None:
    states: list[TraceState] = request.getfixturevalue(which)
    toolsets = session_tools(states)
    last = {state.chain_id: state.state_id for state in states}
    step = 1 if FULL else 7
    template = (Path(trl.__file__).parent / "chat_templates" / f"{name}.jinja").read_text()
    for number, state in enumerate(states):
        if number % step and last[state.chain_id] != state.state_id:
            continue
        chat = to_chat(state, tools=toolsets[state.session_id].tools)
        rendered, _ = render_jinja_template(
            conversations=[chat.messages],
            tools=chat.tools,
            chat_template=template,
            add_generation_prompt=True,
            bos_token="",
            eos_token="",
        )
        calls = [c for m in chat.messages for c in m.get("tool_calls", ())]
        assert all(tool["function"]["name"] in rendered[0] for tool in chat.tools)
        assert not calls or calls[-1]["function"]["name"] in rendered[0]


def _conversation() -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": [{"type": "text", "text": "please fix"}, {"type": "image"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "a private thought"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "t1", "name": "mcp.x", "input": {"b": 1, "a": 2}},
                {"type": "tool_use", "id": "t2", "name": "Read", "input": {"file_path": "/f"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "bad", "is_error": True},
                {"type": "tool_result", "tool_use_id": "gone", "content": "late"},
            ],
        },
    ]


def _swap_answers(chat: list[dict[str, Any]]) -> None:
    chat[3], chat[4] = chat[4], chat[3]


def _drop_answer(chat: list[dict[str, Any]]) -> None:
    del chat[4]


def _invent_call(chat: list[dict[str, Any]]) -> None:
    call = {"id": "call_2", "type": "function", "function": {"name": "Read", "arguments": {}}}
    chat.append({"role": "assistant", "content": "", "tool_calls": [call]})
    chat.append({"role": "tool", "tool_call_id": "call_2", "name": "Read", "content": "ok"})


def _unmark_error(chat: list[dict[str, Any]]) -> None:
    chat[3]["content"] = "bad"


def _drop_image(chat: list[dict[str, Any]]) -> None:
    chat[1]["content"] = "please fix"


def _drop_text(chat: list[dict[str, Any]]) -> None:
    chat[2]["content"] = ""


def _double_turn(chat: list[dict[str, Any]]) -> None:
    chat.insert(1, {"role": "user", "content": "again"})


def _think(chat: list[dict[str, Any]]) -> None:
    chat[2]["content"] += "a private thought"


def _keep_id(chat: list[dict[str, Any]]) -> None:
    chat[2]["tool_calls"][0]["id"] = chat[3]["tool_call_id"] = "toolu_1"


def _long_name(chat: list[dict[str, Any]]) -> None:
    chat[2]["tool_calls"][0]["function"]["name"] = "mcp.x"


def _sort_arguments(chat: list[dict[str, Any]]) -> None:
    chat[2]["tool_calls"][0]["function"]["arguments"] = {"a": 2, "b": 1}


def _cut(chat: list[dict[str, Any]]) -> None:
    chat[-1]["content"] = "[tool result without call] "


def _empty_turn(chat: list[dict[str, Any]]) -> None:
    chat.append({"role": "assistant", "content": ""})


@pytest.mark.parametrize(
    ("rule", "breakage"),
    [
        ("I1", _swap_answers), ("I1", _drop_answer), ("I1", _invent_call), ("I2", _unmark_error),
        ("I3", _drop_image), ("I12", _drop_text), ("I5", _double_turn), ("I6", _think),
        ("I7", _empty_turn), ("I8", _keep_id), ("I9", _long_name), ("I10", _sort_arguments),
        ("I12", _cut),
    ],
)  # fmt: skip
def test_checker_notices_a_broken_rule(
    rule: str, breakage: Callable[[list[dict[str, Any]]], None]
) -> None:
    prefix = _conversation()
    converted = to_chat(state_of(prefix))
    assert broken_rules(prefix, converted) == []
    breakage(converted.messages)
    found = broken_rules(prefix, converted)
    assert any(text.startswith(rule + ":") for text in found), found


def test_checker_notices_the_action_in_its_prefix() -> None:
    assert leaks(_conversation(), ["t9"]) == []
    assert leaks(_conversation(), ["t2"]) == ["I11: call t2 of the action is in its prefix"]


def test_checker_wants_a_system_prompt() -> None:
    converted = to_chat(state_of(_conversation()))
    bare = Conversion(converted.messages[1:], [], converted.tool_names, {}, "recorded")
    assert "no system prompt first" in broken_rules(_conversation(), bare)
