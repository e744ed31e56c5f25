"""A lake with every table, of which sessions are taken out."""

import shutil
from pathlib import Path

import pytest

from composer_pipeline.lake.store import Lake
from tests.fixtures.whole_lake import DAY


@pytest.fixture
def lake(whole_lake: Path, tmp_path: Path) -> Lake:
    shutil.copytree(whole_lake, tmp_path / "lake")
    return Lake(tmp_path / "lake")


@pytest.fixture
def victim(lake: Lake) -> str:
    """A session that has pairs, and that no other one repeats."""
    return str(lake.rows("pairs", days=[DAY])[0]["session_id"])
