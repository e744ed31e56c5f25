"""A ledger that two processes begin at the same moment: both get it."""

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from composer_pipeline.teachers.ledger import sqlite


def test_the_second_waits_for_the_one_that_is_writing_the_new_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite does not wait where a switch to WAL meets a writer; the first ends while we do."""
    path = tmp_path / "ledger.db"
    waits: list[float] = []
    with closing(sqlite3.connect(path, isolation_level=None)) as first:
        first.execute("BEGIN IMMEDIATE")

        def ends(seconds: float) -> None:
            waits.append(seconds)
            first.execute("COMMIT")

        monkeypatch.setattr(time, "sleep", ends)
        store = sqlite.SqliteStore(path)
        assert store.read("PRAGMA journal_mode")[1] == [("wal",)]
        store.close()
    assert len(waits) == 1
