"""What the outer log reads is what was recorded, or it says how it differs."""

import datetime as dt
import hashlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from composer_pipeline.diloco import log as outer_log
from composer_pipeline.diloco.log import Contribution, CorruptObject, OuterLog, _sha256


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OuterLog:
    monkeypatch.setattr(outer_log, "READ_PAUSE_S", 0.0)
    return OuterLog.open(str(tmp_path), "run")


def alike() -> Iterator[bytes]:
    """Yield pieces of the same size."""
    yield from (b"%08d" % n for n in range(10**8))


def test_an_object_of_another_size_is_named_by_its_size(log: OuterLog) -> None:
    log.store.put("a", b"four")
    for size in (3, 5):
        with pytest.raises(CorruptObject, match=f"has 4 bytes instead of {size}"):
            log.read("a", _sha256(b"four"), size)
    assert log.read("a", _sha256(b"four"), 4) == b"four"


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_an_object_of_many_chunks_is_read_as_it_was_written(scheme: str, tmp_path: Path) -> None:
    """From a folder, which is read as files, and through the library."""
    log = OuterLog.open(f"{scheme}{tmp_path}", "run")
    data = b"".join(itertools.islice(alike(), 100_000))
    digest = hashlib.sha256(data).hexdigest()
    log.store.put("a", data)
    assert log.store.get("a") == data
    assert bytes(log.read("a", digest, len(data))) == data
    log.verify("a", digest, len(data))
    log.store.put("a", data[:-1] + b"x")
    for look in (log.read, log.verify):
        with pytest.raises(CorruptObject, match="another SHA-256"):
            look("a", digest, len(data))
    assert [look("b") for look in (log.store.get, log.store.fetch, log.store.digest)] == [None] * 3


def test_all_of_the_hash_counts(log: OuterLog) -> None:
    first = next(alike())
    other = next(one for one in alike() if one != first and _sha256(one)[:4] == _sha256(first)[:4])
    log.store.put("a", other)
    with pytest.raises(CorruptObject, match="another SHA-256"):
        log.read("a", _sha256(first), len(first))


def test_an_object_that_is_not_there_yet_is_read_again(
    log: OuterLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([None, b"tor", b"whole"])
    monkeypatch.setattr(log.store, "fetch", lambda key: next(answers))
    assert log.read("a", _sha256(b"whole"), 5) == b"whole"


def test_the_grace_time_begins_with_the_first_contribution(
    log: OuterLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    for slot in range(3):
        log.contribute(Contribution(1, slot, 1, "k", "s", 1, "b"))
    began = dt.datetime(2026, 11, 16, tzinfo=dt.UTC)
    listed = [
        SimpleNamespace(
            key=f"rounds/1/contrib/{slot}.json",
            last_modified=began + dt.timedelta(seconds=seconds),
        )
        for slot, seconds in ((0, 5), (1, 0), (2, 9))
    ]
    monkeypatch.setattr(log.store, "list", lambda *folder: listed)
    offers, first = log.contributions(1)
    assert (set(offers), first) == ({0, 1, 2}, began)
