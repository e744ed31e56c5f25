"""What a plan says of a question without building it is what the question is."""

from pathlib import Path

import orjson
import pytest

from composer_pipeline.lake.store import Lake
from composer_pipeline.teachers.plan_model import LengthBand, PrefixReuse, SessionOutline
from composer_pipeline.teachers.questions import Questions
from composer_pipeline.teachers.teachers import TeacherSet
from composer_pipeline.testing.samples import sample_sessions_dir
from composer_pipeline.traces.ingest import ingest
from tests.teachers.prompts import Prompt


@pytest.fixture
def questions(tmp_path: Path, teacher_set: TeacherSet) -> Questions:
    """Of some bundled sessions, subagents and compactions among them."""
    lake = Lake(tmp_path / "bundled")
    ingest(lake, [sample_sessions_dir() / "-Users-jonas-dev-ladle"])
    data = teacher_set.model_dump()
    data["teachers"] = data["teachers"][:2]
    data["teachers"][1] |= {"cache_control": "5m", "max_tokens": 77}
    return Questions(lake, TeacherSet.model_validate(data))


def test_sizes_and_keys_are_those_of_the_bodies(questions: Questions) -> None:
    seen = 0
    for states in questions.chains():
        session = SessionOutline(questions)
        for state in states:
            outline = session.of(state)
            for teacher in questions.teachers:
                question = questions.build(state, teacher)
                assert session.size(outline, teacher) == len(question.body)
                assert session.key(outline, teacher) == question.key
                assert questions.meta(teacher, outline.toolset) == question.call.meta
                assert outline.has_action == (question.refuse == "action_in_prefix")
                seen += 1
            assert b",".join(outline.prefix.parts) + outline.tail in question.body
    assert seen == 2 * len(questions.states) > 50


def prompt_of(state_id: str, session_id: str, body: bytes) -> Prompt:
    request = orjson.loads(body)
    parts = [request.get("tools") or [], *request["messages"]]
    prefixes, sizes, known = [], [], 0
    for part in parts:
        data = orjson.dumps(part)
        known = hash((known, data))
        prefixes.append(known)
        sizes.append(len(data))
    return Prompt(state_id, session_id, prefixes, sizes)


def piece_by_piece(
    prompts: list[Prompt], surely: set[str], edges: tuple[int, ...], minimum: int
) -> list[LengthBand]:
    """Count each piece of each prompt beside all earlier prompts."""
    bands = PrefixReuse(edges).bands
    earlier: dict[tuple[str, int], list[int]] = {}
    for prompt in prompts:
        kind = int(prompt.state_id in surely)
        band = bands[sum(sum(prompt.sizes) > edge for edge in edges)]
        band.states[kind] += 1
        band.bytes[kind] += sum(prompt.sizes)
        reached = uncounted = 0
        for prefix, size in zip(prompt.prefixes, prompt.sizes, strict=True):
            reached += size
            uncounted += size  # what is too short alone is cached with the piece behind it
            counts = earlier.setdefault((prompt.session_id, prefix), [0, 0])
            if reached >= minimum:
                if any(counts):
                    band.shared.setdefault((counts[0], counts[1]), [0, 0])[kind] += uncounted
                uncounted = 0
            counts[kind] += 1
    return bands


@pytest.mark.parametrize("minimum", [0, 9_000])
@pytest.mark.parametrize("edges", [(), (8_000, 12_000)])
def test_shared_beginnings_are_counted_as_piece_by_piece(
    questions: Questions, minimum: int, edges: tuple[int, ...]
) -> None:
    surely = {state.state_id for state in questions.states[::5]}
    prompts, total = [], PrefixReuse(edges, minimum)
    for states in questions.chains():
        session, ends = SessionOutline(questions), []
        for state in states:
            body = questions.build(state, questions.teachers[0]).body
            prompts.append(prompt_of(state.state_id, state.session_id, body))
            ends.append((session.of(state).node, int(state.state_id in surely)))
        total.add_session(ends, session.parents, session.reach)
    assert total.bands == piece_by_piece(prompts, surely, edges, minimum)
    assert any(band.shared for band in total.bands)
