"""Pi's format and back: each response has the same prompt and the same action."""

from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.chat.convert import to_chat
from composer_pipeline.exporting.sessions import trace_files
from composer_pipeline.lake.store import Lake
from composer_pipeline.states.load import load_states
from composer_pipeline.states.state import TraceState
from composer_pipeline.traces.ingest import ingest

Key = tuple[str, str, str]


def key(state: TraceState) -> Key:
    return state.session_id, state.agent_id, state.message_id


def turns(lake: Lake) -> dict[Key, Any]:
    """Return the prompt of each state without its system prompt, and its action."""
    return {
        key(state): (
            to_chat(state).messages[1:],
            state.action.text,
            [(call.name, call.arguments) for call in state.action.tool_calls],
        )
        for state in load_states(lake)
    }


@pytest.fixture(scope="module")
def back(lake: Lake, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A lake that holds nothing but the export of the other one."""
    folder = tmp_path_factory.mktemp("back")
    trace_files(lake, folder / "pi")
    found = Lake(folder / "lake")
    ingest(found, [folder / "pi"])
    return found


def test_prompts_and_actions_are_the_same(lake: Lake, back: Lake) -> None:
    ours = turns(lake)
    assert len(ours) > 200
    assert turns(back) == ours


def test_subagents_and_figures_are_kept(lake: Lake, back: Lake) -> None:
    def figures(lake: Lake) -> dict[Key, Any]:
        return {
            key(state): (state.model, state.input_tokens or 0, state.output_tokens or 0)
            for state in load_states(lake)
        }

    assert figures(back) == figures(lake)
    assert any(agent for _, agent, _ in figures(back))
    assert {row["agent"] for row in back.rows("sessions")} == {"pi"}


def test_the_recorded_prompt_and_tools_are_read(back: Lake) -> None:
    state = next(load_states(back))
    assert state.system
    assert {"name", "input_schema"} <= set((state.tools or [{}])[0])


def test_an_export_beside_its_origin_adds_nothing(lake: Lake, back: Lake, tmp_path: Path) -> None:
    trace_files(lake, tmp_path, ["compacted"])
    both = Lake(tmp_path / "lake")
    ingest(both, [tmp_path, Path(str(lake.url)).parent / "projects"])
    found = [key(state) for state in load_states(both) if state.session_id == "compacted"]
    assert sorted(found) == sorted(k for k in turns(lake) if k[0] == "compacted")
