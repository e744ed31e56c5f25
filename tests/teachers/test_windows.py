"""Questions in windows: what is sent, what it is called, and which replies may vote together."""

from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from itertools import pairwise
from typing import Any

import orjson
import pytest

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences.eligibility import read_replies, usable_replies
from composer_pipeline.preferences.pairs import build_pairs
from composer_pipeline.preferences.vote import VoteDecision
from composer_pipeline.teachers.ledger.ledger import Ledger
from composer_pipeline.teachers.plan import plan, selector_for
from composer_pipeline.teachers.questions import BYTES_PER_TOKEN, Questions
from composer_pipeline.teachers.replies import rebuild
from composer_pipeline.teachers.run import replay
from composer_pipeline.teachers.teachers import TeacherSet
from composer_pipeline.testing.openrouter.server import LoopbackOpenRouter
from tests.fixtures.lake_states import DAY, write_session

Serve = Callable[..., LoopbackOpenRouter]
WINDOW = 4096
TASK = "Make the zebra test pass, and leave the rest alone."
NAMES = ["steady", "careful", "contrarian"]


def read(file: str) -> ToolCall:
    return ToolCall("Read", {"file_path": f"/home/user/shop/{file}.py"})


@pytest.fixture
def long(lake: Lake) -> Lake:
    """A session whose later prompts are several windows long, beside the short ones."""
    steps = [
        (Action(f"Step {n}.", (read(f"f{n}"), read(f"g{n}"))), f"line {n} of a file\n" * 300)
        for n in range(12)
    ]
    steps[5] = (Action("", (read("zebra"),)), "the zebra stripe is here\n" * 20)
    # A list is not shortened, so that the first estimate of a window is too small.
    todos = [{"content": f"item {n} of a list", "status": "pending"} for n in range(150)]
    steps[9] = (Action("", (ToolCall("TodoWrite", {"todos": todos}),)), "ok")
    # Touched again at the end, so its latest read is worth keeping.
    steps[11] = (
        Action("", (ToolCall("Edit", {"file_path": "/home/user/shop/zebra.py", "old_string": "a",
                                      "new_string": "b"}),)),
        "The file has been updated.",
    )  # fmt: skip
    write_session(lake, "long", [*steps, (Action("Done."), "ok")], prompt=TASK)
    return lake


def windowed(teacher_set: TeacherSet, names: list[str] = NAMES, **more: Any) -> TeacherSet:
    data = teacher_set.model_dump()
    for teacher in data["teachers"]:
        if teacher["name"] in names:
            teacher |= {"prompt": "window", "window_tokens": WINDOW, **more}
    return TeacherSet.model_validate(data)


def bodies(lake: Lake, teacher_set: TeacherSet) -> dict[str, tuple[str, dict[str, Any], bool]]:
    """Return state -> (key, body, windowed) of the first teacher."""
    questions = Questions(lake, teacher_set, teachers=NAMES[:1])
    (teacher,) = questions.teachers
    found = {}
    for state in questions.states:
        question = questions.build(state, teacher)
        assert not question.skip
        meta = question.call.meta
        found[state.state_id] = (question.key, orjson.loads(question.body), meta["windowed"])
    return found


def test_a_long_prompt_is_cut_and_a_short_one_is_the_same_question(
    long: Lake, teacher_set: TeacherSet
) -> None:
    full, cut = bodies(long, teacher_set), bodies(long, windowed(teacher_set))
    room = WINDOW * BYTES_PER_TOKEN
    shortened = 0
    for state_id, (key, body, is_cut) in cut.items():
        whole = full[state_id][1]
        size = len(orjson.dumps(whole["messages"])) + len(orjson.dumps(whole["tools"]))
        assert is_cut == (size > room)
        assert (key == full[state_id][0]) == (not is_cut)
        if not is_cut:
            assert body == whole
            continue
        shortened += 1
        messages = body["messages"]
        used = len(orjson.dumps(messages)) + len(orjson.dumps(body["tools"]))
        assert 0.7 * room < used <= room
        assert body["tools"] == whole["tools"]
        assert messages[0] == whole["messages"][0]
        assert messages[1]["content"].startswith(TASK)
        # The last turn is there, and every call has its one result.
        assert messages[-1]["tool_call_id"] == whole["messages"][-1]["tool_call_id"]
        calls = [call["id"] for m in messages for call in m.get("tool_calls", [])]
        assert calls == [m["tool_call_id"] for m in messages if m["role"] == "tool"]
        roles = [m["role"] for m in messages]
        assert "user" not in {a for a, b in pairwise(roles) if a == b}
        text = orjson.dumps(messages).decode()
        assert "earlier turns are left out here]" in text or "[…]" in text
    assert 4 < shortened < len(cut) - 4
    last = max(cut.values(), key=lambda item: len(item[1]["messages"]) * item[2])[1]
    assert "the zebra stripe is here" in orjson.dumps(last["messages"]).decode()


def test_replies_and_pairs_say_that_they_rest_on_a_window(
    long: Lake, teacher_set: TeacherSet, serve: Serve
) -> None:
    server = serve(keep_bodies=True)
    asked = windowed(teacher_set)
    replay(long, asked, max_usd=5, teachers=NAMES)
    rows = long.rows("replies")
    cut = {state for state, (*_, is_cut) in bodies(long, asked).items() if is_cut}
    assert {row["state_id"] for row in rows if row["windowed"]} == cut
    assert {row["state_id"] for row in rows if not row["windowed"]} == {
        s.state_id for s in Questions(long, asked).states
    } - cut
    for body in server.bodies:
        assert len(orjson.dumps(body)) < WINDOW * BYTES_PER_TOKEN + 1000
    build_pairs(long)
    votes = {row["state_id"]: row["windowed"] for row in long.rows("votes")}
    assert {state for state, is_cut in votes.items() if is_cut} == cut
    assert all(row["windowed"] == votes[row["state_id"]] for row in long.rows("pairs"))


def test_a_lost_ledger_gets_the_label_back(
    long: Lake, teacher_set: TeacherSet, serve: Serve, tmp_path: Any
) -> None:
    serve()
    replay(long, windowed(teacher_set), max_usd=5, teachers=NAMES[:1])
    before = sorted((r["state_id"], r["windowed"]) for r in long.rows("replies"))
    with Ledger(tmp_path / "new.db") as ledger:
        rebuild(long, ledger)
        found = [
            (item["state_id"], item["meta"]["windowed"])
            for item in ledger.rows(NAMES[0], DAY)
        ]  # fmt: skip
    assert sorted(found) == [pair for pair in before if pair in found]
    assert any(is_cut for _, is_cut in found)


def row(state: str, teacher: str, text: str, *, is_cut: bool, at: str = "1") -> dict[str, Any]:
    return {
        "state_id": state, "teacher": teacher, "family": teacher, "model": teacher, "status": "ok",
        "action": Action(text).to_json(), "created_at": at, "request_hash": at,
        "windowed": is_cut, "control": teacher == "control",
    }  # fmt: skip


def test_a_vote_never_mixes_windows_and_whole_prompts() -> None:
    rows = [
        row("more windows", "a", "x", is_cut=True), row("more windows", "b", "x", is_cut=True),
        row("more windows", "c", "y", is_cut=False),
        row("a tie", "a", "x", is_cut=True), row("a tie", "b", "y", is_cut=False),
        row("both of one", "a", "x", is_cut=True, at="2"),
        row("both of one", "a", "y", is_cut=False),
        row("both of one", "b", "y", is_cut=False),
        row("a control", "control", "x", is_cut=False),
        row("a control", "control", "x", is_cut=True),
        row("a control", "a", "x", is_cut=True),
        row("no more than a control", "a", "x", is_cut=True),
        row("no more than a control", "control", "x", is_cut=True),
        row("no more than a control", "b", "x", is_cut=False),
        row("only a control", "control", "z", is_cut=True),
    ]  # fmt: skip
    found = {
        state: sorted((reply.teacher, reply.windowed) for reply in replies)
        for state, replies in usable_replies(rows).items()
    }
    assert found == {
        "more windows": [("a", True), ("b", True)],
        "a tie": [("b", False)],
        "both of one": [("a", False), ("b", False)],
        "a control": [("a", True), ("control", True)],
        "no more than a control": [("b", False)],
        "only a control": [("control", True)],
    }


def test_what_was_paid_for_in_full_is_another_question_in_a_window(
    long: Lake, teacher_set: TeacherSet, serve: Serve
) -> None:
    server = serve()
    replay(long, teacher_set, max_usd=5, teachers=NAMES)
    billed = server.billed
    asked = windowed(teacher_set)
    cut = {state for state, (*_, is_cut) in bodies(long, asked).items() if is_cut}
    found = plan(long, asked, teachers=NAMES)
    for part in found.by_teacher.values():
        assert (part.calls, part.answered_before) == (len(cut), len(cut))
        assert part.changed == {f"window_tokens unset -> {WINDOW}": len(cut)}
    selected = TeacherSet.model_validate(
        asked.model_dump() | {"selection": {"curtail": "exact", "audit_share": 0}}
    )
    # What is left of a ceiling pays for none of them: the earlier answers are no votes here.
    selector = selector_for(long, selected, VoteDecision(), teachers=NAMES)
    report = replay(
        long, selected, max_usd=Decimal("0.000001"), teachers=NAMES, selector=selector
    )  # fmt: skip
    assert server.billed == billed
    assert report.exhausted_scope.startswith("run:")
    assert selector
    assert selector.report().left == len(cut)
    selector = selector_for(long, selected, VoteDecision(), teachers=NAMES)
    replay(long, selected, max_usd=5, teachers=NAMES, selector=selector)
    rows = [row for row in read_replies(long, DAY) if row["windowed"]]
    assert {row["state_id"] for row in rows} == cut
    # Votes were on windows alone: the first two families were asked again at each.
    counts = Counter(row["state_id"] for row in rows)
    assert min(counts.values()) >= 2
    assert server.duplicate_bills() == 0


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"context_length": 4096}, "window_tokens 4096 and max_tokens"),
        ({"window_tokens": 2047}, "window_tokens"),
        ({"prompt": "some"}, "prompt"),
    ],
)
def test_a_window_that_cannot_be(
    teacher_set: TeacherSet, tmp_path: Any, more: dict[str, Any], why: str
) -> None:
    data = teacher_set.model_dump(mode="json", exclude_none=True)
    data["teachers"][0] |= {"prompt": "window", "window_tokens": WINDOW, **more}
    file = tmp_path / "teachers.yaml"
    file.write_bytes(orjson.dumps(data))
    with pytest.raises(InputError, match=why) as caught:
        TeacherSet.load(file)
    assert str(file) in str(caught.value)


def test_a_turn_that_no_window_holds_is_left_out_and_said(
    lake: Lake, teacher_set: TeacherSet, serve: Serve
) -> None:
    todos = [{"content": f"item {n} of a long list", "status": "pending"} for n in range(600)]
    steps = [(Action("", (ToolCall("TodoWrite", {"todos": todos}),)), "ok"), (Action("Done."), "")]
    write_session(lake, "huge", steps, prompt=TASK)
    server = serve()
    asked = windowed(teacher_set)
    found = plan(lake, asked, teachers=NAMES[:1])
    report = replay(lake, asked, max_usd=5, teachers=NAMES[:1])
    assert found.by_teacher[NAMES[0]].skipped == 1
    (skipped,) = report.skipped
    assert skipped["why"] == f"window_tokens: {WINDOW} do not hold task and last turn"
    assert server.requests == report.states - 1
