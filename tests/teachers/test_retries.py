"""Asking again: how often, how late, and what it does to the figures."""

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from composer_pipeline.lake.store import Lake
from composer_pipeline.money import PICO
from composer_pipeline.states.state import TraceState
from composer_pipeline.teachers.ledger import operations
from composer_pipeline.teachers.ledger.ledger import Ledger
from composer_pipeline.teachers.questions import Questions
from composer_pipeline.teachers.report import ReplayReport
from composer_pipeline.teachers.run import replay
from composer_pipeline.teachers.selection import Fits, KnownActions
from composer_pipeline.teachers.teachers import Teacher, TeacherSet
from composer_pipeline.testing.openrouter.faults import Fault, SeenRequest
from composer_pipeline.testing.openrouter.server import LoopbackOpenRouter

Serve = Callable[..., LoopbackOpenRouter]


def run(lake: Lake, teacher_set: TeacherSet, **options: Any) -> ReplayReport:
    return replay(lake, teacher_set, **{"max_usd": Decimal(1), "teachers": ["careful"], **options})


def limited(teacher_set: TeacherSet, **limits: Any) -> TeacherSet:
    data = teacher_set.model_dump()
    data["limits"] |= limits
    return TeacherSet.model_validate(data)


def test_no_question_is_sent_more_often_than_the_file_allows(
    lake: Lake, teacher_set: TeacherSet, serve: Serve
) -> None:
    server = serve(faults=lambda asked: Fault("error", 503))
    report = run(lake, limited(teacher_set, attempts=3), max_states=2)
    assert server.requests == report.calls == 6
    assert [item["why"] for item in report.not_bought] == ["provider_unavailable"] * 2


def test_pauses_between_retries_are_capped(
    lake: Lake, teacher_set: TeacherSet, serve: Serve, monkeypatch: Any
) -> None:
    longest: list[float] = []

    def shortest(low: float, high: float) -> float:
        if low == 0:
            longest.append(high)
        return low

    monkeypatch.setattr("random.uniform", shortest)
    serve(faults=lambda asked: Fault("error", 503))
    run(lake, limited(teacher_set, attempts=6, backoff_s=0.01, backoff_cap_s=0.05), max_states=1)
    assert longest == [0.01, 0.02, 0.04, 0.05, 0.05]


def test_a_call_that_another_process_lost_is_not_sent_again_at_once(
    lake: Lake, teacher_set: TeacherSet, serve: Serve
) -> None:
    """It loses the call while this run goes on, so only the ledger knows of it."""
    wait_s = 1.0
    patient = limited(teacher_set, recover_after_s=wait_s)
    questions = Questions(lake, patient)
    first, second = questions.states[:2]
    question = questions.build(second, questions.teachers[0])
    lost: list[float] = []
    sent: list[float] = []

    class Waves:
        def next_wave(
            self,
            states: Sequence[TraceState],
            teachers: Sequence[Teacher],
            answers: KnownActions,
            fits: Fits,
        ) -> Sequence[tuple[TraceState, Teacher]]:
            if not answers(first.state_id):
                return [(first, teachers[0])]
            if not lost:
                lost.append(time.monotonic())
                with Ledger(Path(lake.root) / "ledger.db") as other:
                    admission = other.do(
                        operations.reserve(question.key, question.amount, ["global"], question.call)
                    )
                    other.do(operations.mark_unknown(admission.attempt, "reset"))
            return [(second, teachers[0])]

    def faults(asked: SeenRequest) -> Fault | None:
        sent.append(time.monotonic())
        return None

    serve(faults=faults)
    report = run(lake, patient, selector=Waves())
    assert report.replies == len(sent) == 2
    assert sent[1] - lost[0] >= 0.95 * wait_s


def test_a_teachers_cost_is_what_this_run_paid(
    lake: Lake, teacher_set: TeacherSet, serve: Serve
) -> None:
    server = serve()
    run(lake, teacher_set, max_states=4)
    before = server.billed
    report = run(lake, teacher_set)
    careful = report.by_teacher["careful"]
    assert (careful.replies, careful.cached) == (12, 4)
    assert careful.cost_picodollars == server.billed - before > 0
    assert report.by_day_teacher["2026-11-16"]["careful"]["cost_picodollars"] == server.billed


def test_a_reply_has_the_time_at_which_it_came(
    lake: Lake, teacher_set: TeacherSet, serve: Serve
) -> None:
    serve()
    before = datetime.now(UTC)
    run(lake, teacher_set, max_states=3)
    times = [row["created_at"] for row in lake.rows("replies")]
    assert len(times) == 3
    assert all(before <= moment <= datetime.now(UTC) for moment in times)


def test_money_is_left_for_a_recovery_and_the_recovery_may_use_it(
    lake: Lake, teacher_set: TeacherSet, serve: Serve
) -> None:
    """A new call needs room for two worst cases; the one that fetches it again has the second."""
    questions = Questions(lake, teacher_set, max_states=1)
    worst = questions.build(questions.states[0], questions.teachers[0]).amount
    server = serve(faults=lambda asked: Fault("reset") if asked.nth == 1 else None)
    hasty = limited(teacher_set, recover_after_s=0)
    short = run(lake, hasty, max_states=1, max_usd=(2 * worst - 1) / PICO, run_id="short")
    assert (short.calls, short.exhausted_scope) == (0, "run:short")
    report = run(lake, hasty, max_states=1, max_usd=2 * worst / PICO)
    assert (report.calls, report.replies, report.recovered) == (2, 1, 1)
    assert report.reserved_usd == 0
    assert len(server.bills) == 1
