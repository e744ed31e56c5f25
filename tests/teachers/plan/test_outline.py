"""What a plan says of a question without building it is what the question is."""

from pathlib import Path

import pytest

from composer_pipeline.lake.store import Lake
from composer_pipeline.teachers.plan_model import (
    Prompt,
    Reuse,
    SessionOutline,
    add_reuse,
    empty_reuse,
    pieces,
    reuse,
    reuse_along,
)
from composer_pipeline.teachers.questions import Questions
from composer_pipeline.teachers.teachers import TeacherSet
from composer_pipeline.testing.samples import sample_sessions_dir
from composer_pipeline.traces.ingest import ingest

CAPS = (b"", b'{"prompt":9,"completion":9}')


@pytest.fixture
def questions(tmp_path: Path, teacher_set: TeacherSet) -> Questions:
    """Of some bundled sessions, subagents and compactions among them."""
    lake = Lake(tmp_path / "bundled")
    ingest(lake, [sample_sessions_dir() / "-Users-jonas-dev-ladle"])
    data = teacher_set.model_dump()
    data["teachers"] = data["teachers"][:2]
    data["teachers"][1] |= {"cache_control": "5m", "max_tokens": 77}
    made = Questions(lake, TeacherSet.model_validate(data))
    made._caps = {made.teachers[0].name: CAPS}  # as a ledger of before wire 2 tells them
    return made


def test_sizes_and_names_are_those_of_the_bodies(questions: Questions) -> None:
    seen = 0
    for states in questions.chains():
        session = SessionOutline(questions)
        for state in states:
            outline = session.of(state)
            for teacher in questions.teachers:
                question, shell = questions.build(state, teacher), session.shell(outline, teacher)
                assert shell.size + outline.size == len(question.body)
                assert shell.keys(outline, teacher.name) == question.asked.keys
                assert questions.meta(teacher, outline.toolset) == question.call.meta
                assert outline.has_action == (question.refuse == "action_in_prefix")
                seen += len(question.asked.keys)
            settled = b",".join(outline.line.parts[: outline.settled])
            assert settled + outline.rest in question.body
    assert seen == 4 * len(questions.states) > 100


def piece_by_piece(
    prompts: list[Prompt], surely: set[str], edges: tuple[int, ...], minimum: int
) -> Reuse:
    """What ``reuse`` says, from its words: each piece of each prompt beside all earlier prompts."""
    total = empty_reuse(edges)
    earlier: dict[tuple[str, int], list[int]] = {}
    for prompt in prompts:
        kind = int(prompt.state_id in surely)
        band = total.bands[sum(sum(prompt.sizes) > edge for edge in edges)]
        band.states[kind] += 1
        band.bytes[kind] += sum(prompt.sizes)
        reached = uncounted = 0
        for prefix, size in zip(prompt.prefixes, prompt.sizes, strict=True):
            reached += size
            uncounted += size  # what is too short alone is cached with the piece behind it
            counts = earlier.setdefault((prompt.session_id, prefix), [0, 0])
            if reached >= minimum:
                if any(counts):
                    band.held.setdefault((counts[0], counts[1]), [0, 0])[kind] += uncounted
                uncounted = 0
            counts[kind] += 1
    return total


@pytest.mark.parametrize("minimum", [0, 9_000])
@pytest.mark.parametrize("edges", [(), (8_000, 12_000)])
def test_shared_beginnings_are_counted_as_piece_by_piece(
    questions: Questions, minimum: int, edges: tuple[int, ...]
) -> None:
    surely = {state.state_id for state in questions.states[::5]}
    prompts, total = [], empty_reuse(edges)
    for states in questions.chains():
        session, ends = SessionOutline(questions), []
        for state in states:
            body = questions.build(state, questions.teachers[0]).body
            prompts.append(Prompt(state.state_id, state.session_id, *pieces(body)))
            ends.append((session.of(state).node, int(state.state_id in surely)))
        part = empty_reuse(edges)
        reuse_along(part, ends, session.parents, session.reach, minimum)
        add_reuse(total, part)
    assert total == reuse(prompts, surely=surely, edges=edges, minimum_bytes=minimum)
    assert total == piece_by_piece(prompts, surely, edges, minimum)
    assert any(band.held for band in total.bands)
