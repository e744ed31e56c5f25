"""A lake with every table, made in this process from the sample sessions, at no cost."""

from decimal import Decimal
from pathlib import Path

from composer_pipeline import TeacherSet, build_hints, build_pairs, ingest, replay
from composer_pipeline.lake import Lake
from composer_pipeline.preferences.quality import write_statistics
from composer_pipeline.publishing import build_dataset
from composer_pipeline.settings import recipes_dir
from composer_pipeline.testing.sample_sessions.bundled import sample_sessions_dir
from examples.demo.profile import loopback

DAY = "2026-11-16"


def whole_lake(folder: Path) -> Path:
    """Write the lake into a new folder below ``folder``; return it.

    One day is replayed. Every pair counts as normalised: data-juicer takes seconds to start.
    """
    lake = Lake(folder / "lake")
    ingest(lake, [sample_sessions_dir()])
    with loopback():
        teachers = TeacherSet.load(recipes_dir() / "teachers" / "demo.yaml")
        replay(lake, teachers, max_usd=Decimal(1), days=[DAY])
    build_hints(lake)
    build_pairs(lake)
    for day in lake.days("pairs"):
        rows = lake.rows("pairs", days=[day])
        for row in rows:
            del row["day"]
        lake.write("normalized_pairs", [{**row, "recipe": "all"} for row in rows], day=day)
    write_statistics(lake)
    build_dataset(lake)
    return Path(lake.root)
