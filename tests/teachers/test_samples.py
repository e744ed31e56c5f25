"""The bundled sessions, end to end: careful and steady agree where there is a better action."""

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest

from composer_pipeline.actions import Action
from composer_pipeline.lake.store import Lake
from composer_pipeline.states.load import load_states
from composer_pipeline.teachers.run import replay
from composer_pipeline.teachers.teachers import TeacherSet
from composer_pipeline.testing.openrouter.server import LoopbackOpenRouter
from composer_pipeline.testing.personas import Script
from composer_pipeline.testing.samples import answers, sample_sessions_dir
from composer_pipeline.traces.ingest import ingest


@pytest.mark.slow
def test_teachers_answer_the_samples(
    tmp_path: Path, teacher_set: TeacherSet, serve: Callable[..., LoopbackOpenRouter]
) -> None:
    lake = Lake(tmp_path / "samples")
    ingest(lake, [sample_sessions_dir()])
    better = answers()
    server = serve(script=Script.from_sessions(sample_sessions_dir(), better), flaky_faults=True)
    report = replay(lake, teacher_set, max_usd=Decimal(5))
    states = {state.state_id: state for state in load_states(lake)}
    assert report.replies + report.refused == 4 * len(states)
    assert int(report.spent_usd * 10**12) == server.billed
    assert report.not_bought == report.skipped == []
    replies: dict[str, dict[str, Action]] = {}
    for row in lake.rows("replies"):
        if row["status"] == "ok":
            replies.setdefault(row["state_id"], {})[row["teacher"]] = Action.from_json(
                row["action"]
            )
    improved = 0
    for state_id, state in states.items():
        by_teacher = replies[state_id]
        assert set(by_teacher) >= {"careful", "steady", "contrarian"}
        agent = [(call.name, call.arguments) for call in state.action.tool_calls]
        careful = [(call.name, call.arguments) for call in by_teacher["careful"].tool_calls]
        sided = [(call.name, call.arguments) for call in by_teacher["contrarian"].tool_calls]
        assert sided == agent
        if state.message_id in better:
            improved += careful != agent
        else:
            assert careful == agent
    assert improved >= len(better) * 0.9
    assert replay(lake, teacher_set, max_usd=Decimal(5)).calls == 0
