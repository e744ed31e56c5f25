"""Versions of models, and the pointer to the one that is served."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.nights import model_registry as registry
from composer_pipeline.nights.model_registry import ModelVersion
from composer_pipeline.training.run import folder_digest


def version(folder: Path, name: str, parent: int | None = None) -> ModelVersion:
    weights = folder / name
    weights.mkdir()
    (weights / "adapter").write_text(name)
    return ModelVersion(
        number=99, night="", base="m", weights=str(weights), decision="promoted", made="",
        parent=parent, digest=folder_digest(weights),
    )  # fmt: skip


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Three versions, each from the one before; the last is current."""
    lake = Lake(tmp_path / "lake")
    for number, parent in ((0, None), (1, 0), (2, 1)):
        assert registry.add(lake, version(tmp_path, f"w{number}", parent)).number == number
        registry.move(lake, number, "night", "")
    return lake


def current(lake: Lake) -> int:
    pointer = registry.current(lake)
    assert pointer is not None
    assert pointer.weights == registry.version_of(lake, pointer.version).weights
    return pointer.version


def rolled_back(lake: Lake) -> set[int]:
    pointer = registry.current(lake)
    return pointer.rolled_back() if pointer else set()


def test_versions_and_moves(lake: Lake) -> None:
    found = registry.report(lake)
    assert (found.current, [v.number for v in found.versions]) == (2, [0, 1, 2])
    assert [(step.to, step.by) for step in found.moves] == [(n, "night") for n in range(3)]
    assert registry.lineage(lake, 2) == {0, 1, 2}
    assert registry.lineage(lake, 1) == {0, 1}
    assert [*registry.promote(lake, 2).moves] == found.moves, "it is there already"


def test_rollback_goes_back_one_by_one(lake: Lake) -> None:
    assert registry.rollback(lake, "bad").version == 1
    assert rolled_back(lake) == {2}
    assert registry.rollback(lake).version == 0
    assert rolled_back(lake) == {1, 2}
    with pytest.raises(InputError, match="version 0 is the first: there is none before it"):
        registry.rollback(lake)
    pointer = registry.promote(lake, 2, "it was good")
    assert (pointer.version, rolled_back(lake)) == (2, {1})
    assert [step.why for step in pointer.moves][3:] == ["bad", "", "it was good"]
    assert registry.rollback(lake).version == 0, "2 was reached from 0"


def test_rollback_undoes_a_promotion_by_hand(lake: Lake) -> None:
    registry.promote(lake, 1)
    assert registry.rollback(lake).version == 2
    assert registry.rollback(lake).version == 1


def test_a_night_moves_only_from_its_parent_and_once(lake: Lake, tmp_path: Path) -> None:
    child = registry.add(lake, version(tmp_path, "w3", 2))
    registry.rollback(lake)
    assert not registry.follow(lake, child, "")
    assert current(lake) == 1
    registry.promote(lake, 2)
    assert registry.follow(lake, child, "better")
    assert current(lake) == 3
    registry.rollback(lake)
    assert registry.follow(lake, child, "better"), "it was served"
    assert current(lake) == 2


def test_what_is_missing(lake: Lake, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no model version 3: there are 0 to 2"):
        registry.promote(lake, 3)
    (tmp_path / "w1" / "adapter").write_text("another")
    with pytest.raises(InputError, match=r"the weights of model version 1 were changed .*/w1"):
        registry.rollback(lake)
    shutil.rmtree(tmp_path / "w1")
    with pytest.raises(InputError, match=r"the weights of model version 1 are gone .*/w1"):
        registry.rollback(lake)
    with pytest.raises(InputError, match=r"the weights of model version 1 are gone"):
        registry.promote(lake, 1)
    assert current(lake) == 2
    empty = Lake(tmp_path / "none")
    for what in (registry.report, registry.rollback):
        with pytest.raises(InputError, match="has no model yet; run a night first"):
            what(empty)
    with pytest.raises(InputError, match="has no model version 0: run a night first"):
        registry.promote(empty, 0)
    lake.put_bytes("models/versions/000001.json", b'{"number": "one"}')
    with pytest.raises(InputError, match=r"models/versions/000001.json: Expected `int`"):
        registry.report(lake)


def hand(url: str, number: int) -> None:
    lake = Lake(url)
    one = ModelVersion(number=0, night="", base="m", weights="", decision="first", made="")
    for _ in range(10):
        mine = registry.add(lake, one)
        registry.promote(lake, mine.number)
        registry.promote(lake, number)


def test_two_writers_at_once_lose_no_version_and_no_move(lake: Lake) -> None:
    # Each opens the lock for itself, as processes do.
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(hand, lake.url, number) for number in (0, 1)]
        while not all(one.done() for one in both):
            assert registry.current(lake) is not None
        assert [one.result() for one in both] == [None, None]
    found = registry.report(lake)
    assert [v.number for v in found.versions] == list(range(23))
    assert len({step.to for step in found.moves}) == 23
