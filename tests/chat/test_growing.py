"""A chain converted as it grows is what each of its prefixes is converted to alone."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.chat.convert import GrowingChain, to_chat
from composer_pipeline.lake.store import Lake
from composer_pipeline.states.load import load_states
from composer_pipeline.states.state import TraceState
from composer_pipeline.testing.samples import sample_sessions_dir
from composer_pipeline.traces.ingest import ingest
from tests.fixtures.states import made_state

BLOCKS = st.one_of(
    st.builds(lambda text: {"type": "text", "text": text}, st.sampled_from(["", "a", " b "])),
    st.builds(
        lambda n: {"type": "tool_use", "id": f"t{n}", "name": "Read", "input": {"n": n}},
        st.integers(0, 4),
    ),
    st.builds(
        lambda n: {"type": "tool_result", "tool_use_id": f"t{n}", "content": f"r{n}"},
        st.integers(0, 4),
    ),
)
MESSAGES = st.lists(
    st.builds(
        lambda role, blocks: {"role": role, "content": blocks},
        st.sampled_from(["user", "assistant"]),
        st.lists(BLOCKS, max_size=3),
    ),
    max_size=9,
)


def same(chain: GrowingChain, state: TraceState) -> None:
    messages, own = chain.at(state)
    alone = to_chat(state)
    assert messages == alone.messages
    assert own == bool(alone.flags.get("action_in_prefix"))


@given(MESSAGES, st.lists(st.integers(0, 9), max_size=6), st.sampled_from([None, "be brief"]))
def test_any_prefix_in_any_order(
    messages: list[dict[str, Any]], lengths: list[int], system: str | None
) -> None:
    chain = GrowingChain()
    action = Action("", (ToolCall("Read", {}, "t1"),))
    for number, length in enumerate([*sorted(lengths), *lengths]):
        prompt = system if number % 3 else None
        same(chain, made_state(messages=messages[:length], system=prompt, action=action, cwd="/x"))


def test_the_bundled_sessions(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    ingest(lake, [sample_sessions_dir()])
    chains: dict[str, GrowingChain] = {}
    for state in load_states(lake):
        same(chains.setdefault(state.chain_id, GrowingChain()), state)
    assert len(chains) > 10


def test_messages_that_were_there_before_are_the_same_objects() -> None:
    chain = GrowingChain()
    messages: list[dict[str, Any]] = [
        {"role": role, "content": [{"type": "text", "text": str(n)}]}
        for n, role in enumerate(["user", "assistant"] * 3)
    ]
    before = chain.at(made_state(messages=messages[:3], action=Action(), cwd="/x"))[0]
    after = chain.at(made_state(messages=messages[:5], action=Action(), cwd="/x"))[0]
    assert [a is b for a, b in zip(before, after, strict=False)] == [True, True, True, False]


@pytest.mark.parametrize("count", [1, 2])
def test_a_run_that_goes_on_is_one_message(count: int) -> None:
    said = [{"role": "user", "content": [{"type": "text", "text": str(n)}]} for n in range(3)]
    chain = GrowingChain()
    chain.at(made_state(messages=said[:count], action=Action(), cwd="/x"))
    same(chain, made_state(messages=said, action=Action(), cwd="/x"))
