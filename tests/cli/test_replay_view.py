"""A replay fits on one screen, and says how to go on."""

import io
from decimal import Decimal

import msgspec
import pytest
from rich.console import Console

from composer_pipeline.cli.teachers import _command, replay_view
from composer_pipeline.teachers.report import ReplayReport, TeacherFigures

LARGE = ReplayReport(
    run_id="r", simulated=False, states=158_000, calls=90_000, replies=80_000, cached=1_000,
    recovered=0, refused=3, unknown=2, spent_usd=Decimal("41.5"), reserved_usd=Decimal("0.0125"),
    ceiling_usd=Decimal(42), exhausted_scope="run:r",
    by_teacher={
        f"teacher-{n}": TeacherFigures(replies=n, cost_picodollars=n * 10**12) for n in range(30)
    },
    by_day_teacher={
        f"2026-{month:02d}-{day:02d}": {
            "a": {"rows": 5, "ok": 4, "unusable": 1, "cost_picodollars": 10**10},
            "b": {"rows": 7, "ok": 7, "cost_picodollars": 2 * 10**10},
        }
        for month in range(1, 13) for day in range(1, 29)
    },
    skipped=[
        {"state_id": str(n), "teacher": "a", "why": f"context_length: about {n} tokens, a takes 9"}
        for n in range(200)
    ],
    not_bought=[
        {"state_id": str(n), "teacher": "a", "why": f"odd reason {n % 40} " + "x" * 100}
        for n in range(2000)
    ],
    next_call_usd=Decimal("0.9"), left_usd=Decimal("0.4875"),
    exhausted_ceiling_usd=Decimal(42),
)  # fmt: skip


def screen(report: ReplayReport) -> list[str]:
    console = Console(file=io.StringIO(), width=80)
    for part in replay_view(report, _command(report, "", ["--day 2026-01-01"])):
        console.print(part)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_a_large_replay_fits_on_one_screen() -> None:
    lines = screen(LARGE)
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    assert "$41.50 of $42.00 spent, 79000 replies bought, 1000 were there" in text
    assert "2026-12-28 12 11 $0.0300" in text  # the latest days, teachers added up
    assert "+ 330 more" in text
    assert "200 context_length" in text  # one reason, however it ends
    assert "$41.51 of $42.00 spent; this run's" in text
    assert "on average, the next could cost up to $0.9, with a lost reply" in text
    assert "composer-pipeline replay --max-usd 42.00 --day 2026-01-01" in text


def test_a_small_replay_shows_no_empty_parts() -> None:
    small = msgspec.structs.replace(
        LARGE, skipped=[], not_bought=[], refused=0, exhausted_scope="", reserved_usd=Decimal(0)
    )
    assert not [line for line in screen(small) if "without a reply" in line or "ceiling" in line]


@pytest.mark.parametrize(
    ("changes", "command"),
    [
        ({"next_call_usd": Decimal(30)}, "composer-pipeline replay --max-usd 60.00"),
        (
            {"exhausted_scope": "teacher:a"},
            "composer-pipeline budget set teacher:a USD, then replay again",
        ),
    ],
)
def test_the_command_that_goes_on(changes: dict[str, object], command: str) -> None:
    assert _command(msgspec.structs.replace(LARGE, **changes), "", []) == command
