"""One night in a process of its own, which may be killed at one of its writes.

    python -m tests.maintenance.ticks LAKE [WRITE]

Kills itself, as ``kill -9`` would, before it makes the write of that number; prints how many there
were where nothing killed it.
"""

import os
import signal
import sys
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import Any

from composer_pipeline import TeacherSet, build_hints, build_pairs, normalize, replay
from composer_pipeline.lake.parquet import PartitionWriter
from composer_pipeline.lake.store import Lake
from composer_pipeline.maintenance.status import harvest_days, pairs_days, replay_days
from composer_pipeline.preferences.rules import PreferenceRules
from composer_pipeline.settings import recipes_dir
from composer_pipeline.testing.samples import sample_sessions_dir
from composer_pipeline.traces.archive import harvest
from composer_pipeline.traces.parse import parse_days

TODAY = date(2026, 11, 20)


def tick(lake: Lake) -> None:
    """What the three nightly schedules do, one after the other."""
    samples = [sample_sessions_dir()]
    if days := harvest_days(lake, samples):
        harvest(lake, samples, days=days)
        parse_days(lake, days)
        build_hints(lake, days=days)
    teachers = TeacherSet.load(recipes_dir() / "teachers" / "demo.yaml")
    asked: dict[tuple[str, ...], list[str]] = {}
    for day, names in replay_days(lake, teachers, TODAY).items():
        asked.setdefault(tuple(names), []).append(day)
    for chosen, days in asked.items():
        replay(lake, teachers, max_usd=Decimal(5), days=days, teachers=list(chosen))
    if days := pairs_days(lake, PreferenceRules(), "none"):
        build_pairs(lake, days=days)
        normalize(lake, "none", days=days)


def main() -> None:
    lake, at = Lake(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    writes = 0

    def counted(write: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            nonlocal writes
            writes += 1
            if writes == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return write(*args, **kwargs)

        return wrapped

    Lake.put_stream = counted(Lake.put_stream)  # type: ignore[method-assign]
    PartitionWriter.commit = counted(PartitionWriter.commit)  # type: ignore[method-assign]
    tick(lake)
    print(writes)


if __name__ == "__main__":
    main()
