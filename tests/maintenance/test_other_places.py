"""Looking after a lake in a bucket, and books in PostgreSQL."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline import ingest
from composer_pipeline.lake.store import Lake
from composer_pipeline.maintenance.forget import forget
from composer_pipeline.maintenance.status import status
from composer_pipeline.maintenance.verify import verify
from composer_pipeline.money import Pico
from composer_pipeline.teachers.ledger import operations
from composer_pipeline.teachers.ledger.ledger import Ledger
from composer_pipeline.teachers.ledger.values import Bill, Call, Reply
from tests.fixtures.sessions import Script
from tests.lake.conftest import s3  # noqa: F401  a fixture

SAID = b"what the teacher said about it"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("s1", "s2"):
        script = Script(name)
        script.user(f"a question of {name}")
        script.say(f"m-{name}", f"an answer of {name}")
        script.write(tmp_path / "sessions")
    return tmp_path / "sessions"


@pytest.mark.slow
def test_a_bucket_is_verified_and_forgets(s3: Any, folder: Path) -> None:  # noqa: F811
    lake = Lake("s3://bucket/lake")
    assert not lake.is_there()
    ingest(lake, [folder])
    assert lake.is_there()
    assert verify(lake).problems == []
    assert status(lake).rows["sessions"] == 2
    assert forget(lake, session="s1").sessions == ["s1"]
    assert verify(lake).problems == []
    assert {row["session_id"] for row in lake.rows("states")} == {"s2"}
    listed = s3.list_objects_v2(Bucket="bucket", Prefix="lake/")["Contents"]
    blobs = [one["Key"] for one in listed if "/archive/" in one["Key"]]
    assert len(blobs) == 1
    assert ingest(lake, [folder]).totals["forgotten_files"] == 1
    forget(lake, project="*")
    assert lake.days("states") == lake.days("raw_files") == []


@pytest.fixture(params=["sqlite", "postgres"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield str(tmp_path / "ledger.db")
    else:
        yield request.getfixturevalue("postgres_server").database()


def test_books_forget_bytes_and_keep_amounts(target: str) -> None:
    with Ledger(target) as ledger:
        for key, session in (("k1", "s1"), ("k2", "s2"), ("shared", "s1")):
            call = Call(f"state-{key}", "careful", session, "2026-11-16", {})
            sent = ledger.do(operations.reserve(key, Pico(9), ["global"], call))
            ledger.do(
                operations.settle(sent.attempt, Bill(Pico(5)), Reply(200, SAID + key.encode()))
            )
        other = Call("state-other", "careful", "s2", "2026-11-16", {})
        ledger.do(operations.outcome("shared", other))
        assert ledger.erasable(["s1"]) == 1
        assert ledger.erase(["s1"]) == 1
        assert ledger.status()["global"].spent == 15
        assert ledger.sums_that_differ() == []
        assert sorted(ledger.kept_bytes()) == [("s2", SAID + b"k2"), ("s2", SAID + b"shared")]
        assert [row["key"] for row in ledger.rows("careful", "2026-11-16")] == ["k2", "shared"]
        assert ledger.erase(["s1"]) == 0
        assert ledger.erase([]) == 0
