"""What a plan says of a question without building it is what the question is."""

from pathlib import Path

import orjson
import pytest

from composer_pipeline.lake.store import Lake
from composer_pipeline.teachers.plan_model import LengthBand, PrefixReuse, SessionOutline
from composer_pipeline.teachers.questions import BYTES_PER_TOKEN, Questions
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
    data["teachers"] = data["teachers"][:3]
    data["teachers"][1] |= {"cache_control": "5m", "max_tokens": 77}
    data["teachers"][2] |= {"prompt": "window", "window_tokens": 2048}
    return Questions(lake, TeacherSet.model_validate(data))


def test_sizes_and_keys_are_those_of_the_bodies(questions: Questions) -> None:
    seen = cut = 0
    for states in questions.chains():
        session = SessionOutline(questions)
        for state in states:
            outlines = session.of(state, {teacher.window for teacher in questions.teachers})
            for teacher in questions.teachers:
                outline = outlines[teacher.window]
                question = questions.build(state, teacher)
                assert session.size(outline, teacher) == len(question.body)
                assert session.key(outline, teacher) == question.key
                meta = questions.meta(teacher, outline.toolset, windowed=outline.windowed)
                assert meta == question.call.meta
                assert outline.has_action == (question.refuse == "action_in_prefix")
                assert b",".join(outline.prefix.parts) + outline.tail in question.body
                seen, cut = seen + 1, cut + outline.windowed
    assert seen == 3 * len(questions.states) > 75
    assert len(questions.states) > cut > 5


def test_the_last_byte_decides_alike(questions: Questions) -> None:
    """Whether a prompt still fits, for windows one token apart around its size."""
    states = sorted(questions.states, key=lambda s: s.n_messages)[-6:]
    (teacher,) = questions.teachers[:1]
    told = set()
    for state in states:
        body = orjson.loads(questions.build(state, teacher).body)
        size = len(orjson.dumps(body["messages"])) + len(orjson.dumps(body["tools"]))
        for window in range(size // BYTES_PER_TOKEN - 1, size // BYTES_PER_TOKEN + 2):
            outline = SessionOutline(questions).of(state.whole, {window})[window]
            cut = teacher.model_copy(update={"prompt": "window", "window_tokens": window})
            question = questions.build(state, cut)
            assert outline.windowed == question.call.meta["windowed"] == (size > 4 * window)
            assert SessionOutline(questions).key(outline, cut) == question.key
            told.add((outline.windowed, size - 4 * window))
    assert {(True, 1), (True, 2)} & told
    assert {(False, 0), (False, -1), (False, -2)} & told


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
            ends.append((session.of(state)[None].node, int(state.state_id in surely)))
        total.add_session(ends, session.parents, session.reach)
    assert total.bands == piece_by_piece(prompts, surely, edges, minimum)
    assert any(band.shared for band in total.bands)
