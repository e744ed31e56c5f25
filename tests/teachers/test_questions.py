"""What would be asked: which states, in which order, and what must not be sent."""

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.lake.store import Lake
from composer_pipeline.teachers.questions import BYTES_PER_TOKEN, Questions
from composer_pipeline.teachers.teachers import TeacherSet
from tests.fixtures.lake_states import DAY, write_session

READ = Action("", (ToolCall("Read", {"file_path": "/home/user/x"}),))


def with_context(teacher_set: TeacherSet, tokens: int) -> TeacherSet:
    data = teacher_set.model_dump()
    data["teachers"] = [data["teachers"][0] | {"context_length": tokens}]
    return TeacherSet.model_validate(data)


def test_a_prompt_that_leaves_no_room_for_the_answer_is_not_sent(
    lake: Lake, teacher_set: TeacherSet
) -> None:
    questions = Questions(lake, teacher_set)
    teacher = questions.teachers[0]
    state = questions.states[0]
    prompt = len(questions.build(state, teacher).body) // BYTES_PER_TOKEN
    for tokens, sent in (
        (prompt + teacher.max_tokens, True),
        (prompt + teacher.max_tokens - 1, False),
    ):
        narrow = Questions(lake, with_context(teacher_set, tokens))
        question = narrow.build(narrow.states[0], narrow.teachers[0])
        assert (question.skip == "") is sent
        assert sent or "context_length" in question.skip


def test_only_the_days_that_are_named(lake: Lake, teacher_set: TeacherSet) -> None:
    write_session(lake, "later", [(READ, "")], day="2026-11-20")
    named = Questions(lake, teacher_set, days=["2026-11-20", "2026-11-21"])
    assert named.days == ["2026-11-20"]
    assert {state.session_id for state in named.states} == {"later"}
    assert Questions(lake, teacher_set, days=["2026-11-21"]).states == []
    assert Questions(lake, teacher_set).days == [DAY, "2026-11-20"]


def test_a_state_that_the_lake_holds_twice_is_one_question(
    lake: Lake, teacher_set: TeacherSet
) -> None:
    once = Questions(lake, teacher_set)
    rows = lake.rows("states", days=[DAY])
    lake.write("states", [{k: v for k, v in r.items() if k != "day"} for r in rows * 2], day=DAY)
    twice = Questions(lake, teacher_set)
    assert [s.state_id for s in twice.states] == [s.state_id for s in once.states]


def test_failed_actions_come_first_then_time(lake: Lake, teacher_set: TeacherSet) -> None:
    ids = write_session(lake, "late", [(READ, "a"), (READ, "b"), (READ, "c")], error_turns=[1, 2])
    found = Questions(lake, teacher_set, max_states=2)
    assert [state.state_id for state in found.states] == ids[1:]


def test_a_secret_is_refused_in_every_state_that_shows_it(
    lake: Lake, teacher_set: TeacherSet
) -> None:
    secret = "password=xK9vRtq2LmZp8Wd3"
    ids = write_session(lake, "leaky", [(READ, secret), (READ, "b"), (READ, "c")])
    questions = Questions(lake, teacher_set)
    found = {state.state_id: state for state in questions.states}
    refused = [
        questions.build(found[state_id], teacher).refuse
        for state_id in ids
        for teacher in questions.teachers[:2]
    ]
    assert refused == ["", "", "secret", "secret", "secret", "secret"]
