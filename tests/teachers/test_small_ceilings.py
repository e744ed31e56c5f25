"""A ceiling stops the calls that do not fit, and nothing that does."""

import hashlib
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.lake.store import Lake
from composer_pipeline.teachers.caller import HEADROOM_CALLS, TIGHT_SHARE
from composer_pipeline.teachers.questions import Question, Questions
from composer_pipeline.teachers.report import ReplayReport
from composer_pipeline.teachers.run import replay
from composer_pipeline.teachers.teachers import TeacherSet
from composer_pipeline.testing.openrouter.faults import Fault
from composer_pipeline.testing.openrouter.server import LoopbackOpenRouter
from tests.fixtures.lake_states import write_session, write_sessions

Serve = Callable[..., LoopbackOpenRouter]
PICO = 10**12
TEACHER = "steady"


@pytest.fixture
def mixed(lake: Lake) -> Lake:
    """Two hundred short questions, and a few that cost many times as much."""
    write_sessions(lake, sessions=50, turns=4, first=3)
    for number in range(2):
        text = "long line of a log\n" * 4_000
        steps = [
            (
                Action("Next.", (ToolCall("Read", {"file_path": f"/home/user/{number}{n}.py"}),)),
                text,
            )
            for n in range(6)
        ]
        write_session(lake, f"mixed{number}", steps, prompt=f"Job {number}.", day="2026-11-01")
    return lake


def alone(teacher_set: TeacherSet, **limits: Any) -> TeacherSet:
    """Return the set with prompts that are bounded one by one, whatever went before."""
    data = teacher_set.model_dump()
    for teacher in data["teachers"]:
        teacher |= {"prompt_cache": "none", "max_tokens": 80}
    data["limits"] |= limits
    return TeacherSet.model_validate(data)


def asked_of(lake: Lake, teacher_set: TeacherSet) -> dict[str, Question]:
    questions = Questions(lake, teacher_set, teachers=[TEACHER])
    (teacher,) = questions.teachers
    return {
        state.state_id: questions.build(state, teacher)
        for chain in questions.chains()
        for state in chain
    }


def run(lake: Lake, teacher_set: TeacherSet, ceiling: int, **more: Any) -> ReplayReport:
    return replay(lake, teacher_set, teachers=[TEACHER], max_usd=Decimal(ceiling) / PICO, **more)


@pytest.mark.parametrize("calls", [2, 32])
def test_what_was_not_bought_does_not_fit(
    mixed: Lake, teacher_set: TeacherSet, serve: Serve, calls: int
) -> None:
    """And of a ceiling of many small calls nine tenths are spent, dear questions or not."""
    server, teacher_set = serve(), alone(teacher_set)
    worst = {name: asked.amount for name, asked in asked_of(mixed, teacher_set).items()}
    assert max(worst.values()) > 10 * min(worst.values())
    ceiling = calls * min(worst.values())
    report = run(mixed, teacher_set, ceiling)
    assert server.billed <= ceiling
    left = [worst[item["state_id"]] for item in report.not_bought]
    for amount in left:
        room = max(amount, min(HEADROOM_CALLS * amount, ceiling // TIGHT_SHARE))
        assert server.billed + amount + room > ceiling
    assert report.next_call_usd is not None
    assert report.left_usd is not None
    assert (report.next_call_usd > report.left_usd) is bool(left)
    if calls == 32:
        assert server.billed >= 0.9 * ceiling
    assert server.duplicate_bills() == 0
    with_more = run(mixed, teacher_set, PICO)
    assert with_more.replies == len(worst)
    assert server.duplicate_bills() == 0


@pytest.mark.parametrize(("fault", "attempts"), [("reset", 2), ("hang", 1)])
def test_room_stays_for_what_was_lost(
    mixed: Lake, teacher_set: TeacherSet, serve: Serve, fault: Any, attempts: int
) -> None:
    """A dear reply that was billed and lost each time can be fetched under the same ceiling.

    Cheap calls go on while it is under way (``hang``), and after it was given up (``reset``).
    """
    teacher_set = alone(teacher_set, attempts=attempts, recover_after_s=0, read_timeout_s=3)
    every = asked_of(mixed, teacher_set).values()
    cheapest = min(asked.amount for asked in every)
    dear = next(asked for asked in every if asked.amount > 10 * cheapest)
    digest = hashlib.sha256(dear.body).hexdigest()
    server = serve(faults=lambda asked: Fault(fault) if asked.digest == digest else None)
    ceiling = int((attempts + 1.2) * dear.amount)
    first = run(mixed, teacher_set, ceiling, run_id="one")
    assert first.by_teacher[TEACHER].unknown == 1
    assert first.not_bought
    server.faults = None
    again = run(mixed, teacher_set, ceiling, run_id="one")
    assert again.recovered == 1
    assert server.billed <= ceiling
    assert server.duplicate_bills() == 0


def test_all_that_was_lost_is_fetched_before_anything_new(
    lake: Lake, teacher_set: TeacherSet, serve: Serve, tmp_path: Path
) -> None:
    """Also a dear reply for which there is room only after cheaper ones have been fetched."""
    lake = Lake(tmp_path / "lost")
    teacher_set = alone(teacher_set, attempts=1, recover_after_s=0)
    steps = [(Action("Next.", (ToolCall("Bash", {"command": "cat log"}),)), "a line\n" * 2_000)] * 2
    write_session(lake, "dear", steps, day="2026-10-02")
    write_sessions(lake, sessions=8, turns=2, day="2026-10-03")
    amounts = sorted(asked.amount for asked in asked_of(lake, teacher_set).values())
    assert 3 * amounts[0] < amounts[-1] < 0.8 * sum(amounts[:-1])

    server = serve(faults=lambda asked: Fault("reset"))
    first = run(lake, teacher_set, PICO, run_id="one")
    assert (first.replies, first.unknown) == (0, len(amounts))
    write_sessions(lake, sessions=2, turns=2, first=50, day="2026-10-01")
    order: list[str] = []
    server.faults = lambda asked: order.append(asked.digest)
    old = {
        hashlib.sha256(asked.body).hexdigest()
        for asked in asked_of(lake, teacher_set).values()
        if asked.call.day != "2026-10-01"
    }
    again = run(lake, teacher_set, sum(amounts) + 2 * amounts[0], run_id="one")
    assert (again.replies, again.recovered) == (len(amounts) + 4, len(amounts))
    assert set(order[: len(old)]) == old
    assert server.duplicate_bills() == 0


def test_room_is_left_for_recoveries_that_know_nothing_of_the_prompt_before(
    teacher_set: TeacherSet, serve: Serve, tmp_path: Path
) -> None:
    """A later run does not know how long the prompt before was; what it reserves is more."""
    lake = Lake(tmp_path / "chained")
    data = teacher_set.model_dump()
    data["limits"] |= {"attempts": 1, "recover_after_s": 0}
    data["teachers"] = [one | {"max_tokens": 80} for one in data["teachers"]]
    teacher_set = TeacherSet.model_validate(data)
    log = [(Action("Next.", (ToolCall("Bash", {"command": "cat log"}),)), "a line\n" * 3_000)]
    for number in range(6):
        write_session(lake, f"long{number}", log * 3, prompt=f"Job {number}.")
    questions = asked_of(lake, teacher_set).values()
    size = max(len(asked.body) for asked in questions)
    last = {
        hashlib.sha256(asked.body).hexdigest(): asked.amount
        for asked in questions
        if len(asked.body) > 0.9 * size
    }
    assert len(last) == 6
    server = serve(faults=lambda asked: Fault("reset") if asked.digest in last else None)
    ceiling = int(4.5 * max(last.values()))
    first = run(lake, teacher_set, ceiling, run_id="one")
    assert first.not_bought
    assert first.unknown
    server.faults = None
    again = run(lake, teacher_set, ceiling, run_id="one")
    assert again.recovered == first.unknown
    assert server.billed <= ceiling
    assert server.duplicate_bills() == 0
