"""Evaluation states of the small world, from its truth.

Belongs here: held-out sessions as a set that ``evaluation`` measures models on. Does not belong
here: sets made from a user's lake (``evaluation``) and measuring.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from composer_pipeline.chat import Toolsets, to_chat
from composer_pipeline.evaluation import EvaluationState, Kind
from composer_pipeline.lake import Lake
from composer_pipeline.testing.toolworld.sessions import write_files, write_session
from composer_pipeline.testing.toolworld.world import PROJECT, Recorded, Step, World
from composer_pipeline.trace_states import load_states
from composer_pipeline.traces.ingest import ingest


def evaluation_states(recorded: Sequence[Recorded]) -> list[EvaluationState]:
    """Return the states of sessions, through the parser and the converter that training uses.

    A hard state counts as covered where teachers answer its bug type at half coverage; at full
    coverage they answer both kinds. Its hint is what the agent was told after the mistake.

    Args:
        recorded: sessions that no arm and no base has seen.
    """
    written = [write_session(r, f"held-out-{i}") for i, r in enumerate(recorded)]
    truth = {m: (w.recorded.world, step) for w in written for m, step in w.truth.items()}
    out = []
    with tempfile.TemporaryDirectory() as scratch:
        write_files(written, Path(scratch) / "projects")
        lake = Lake(f"{scratch}/lake")
        ingest(lake, [Path(scratch) / "projects"])
        states = list(load_states(lake))
        tools = Toolsets(lake, states)
        for state in states:
            world, step = truth[state.message_id]
            talk = to_chat(state, tools=tools.of(state).tools)
            hard = step.kind == "hard"
            out.append(
                EvaluationState(
                    state.state_id, state.session_id, _kind(world, step), talk.messages,
                    talk.tools, step.right, world.mistake() if hard else None,
                    state.hint if hard else None, PROJECT.cwd,
                )
            )  # fmt: skip
    return out


def _kind(world: World, step: Step) -> Kind:
    if step.kind == "hard":
        return "hard_covered" if world.bug % 2 == 0 else "hard_uncovered"
    return step.kind
