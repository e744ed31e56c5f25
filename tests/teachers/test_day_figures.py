"""Figures of a teacher's day come from the table, whoever bought the replies and when."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

from composer_pipeline.lake.store import Lake
from composer_pipeline.teachers.replies import billed_teachers, day_figures

DAY = "2026-11-20"


def write(lake: Lake, *rows: Mapping[str, object]) -> None:
    common = {
        "session_id": "s", "family": "f", "model": "m", "status": "ok", "simulated": True,
        "created_at": datetime(2026, 11, 20, tzinfo=UTC),
    }  # fmt: skip
    made = [{**common, "state_id": str(n), "request_hash": str(n), **row}
            for n, row in enumerate(rows)]  # fmt: skip
    lake.write("replies", made, day=DAY, teacher="t")


def test_figures_of_a_day(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    write(
        lake,
        *({"cost_picodollars": 5, "latency_ms": float(n), "prompt_tokens": 10, "cached_tokens": 4}
          for n in range(100, 120)),
        {"status": "refused", "cost_picodollars": 0},
    )  # fmt: skip
    found = day_figures(lake, "t", DAY)
    assert found["cost_picodollars"] == 100
    assert (found["latency_p50_ms"], found["latency_p95_ms"]) == (110.0, 119.0)
    assert found["cache_read_share"] == pytest.approx(0.4)
    assert (found["ok"], found["refused"], found["usable_share"]) == (20, 1, 20 / 21)


def test_what_was_not_measured_is_absent(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    assert day_figures(lake, "t", DAY) == {}
    write(lake, {"cost_picodollars": 0})
    # Nothing was paid, which is a measurement; how long it took is not known.
    assert day_figures(lake, "t", DAY) == {"ok": 1, "usable_share": 1.0, "cost_picodollars": 0}
    assert billed_teachers(lake) == {}
