"""A lake with nights: forgetting, verifying, and what a bucket is for."""

import threading
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.lake.store import Lake
from composer_pipeline.maintenance.forget import forget, withdraw
from composer_pipeline.maintenance.status import status
from composer_pipeline.maintenance.verify import verify
from composer_pipeline.nights.anchors import read_anchors
from tests.nights.made import days, house, write_dataset

ONE, TWO, THREE = "2026-11-02", "2026-11-03", "2026-11-04"
VICTIM, TRAINED = f"{ONE}-validation-3", f"{ONE}-train-3"


def places(folder: Path, *needles: str) -> set[str]:
    """Return the files with a text, as they are or in a table."""
    lake, found = Lake(folder), set()
    for path in folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            if data[:4] == b"PAR1":
                table = str(path.relative_to(folder)).split("/", 1)[0]
                data = repr(lake.rows(table)).encode()
            # One name is the beginning of no other.
            if any(f"{needle}{end}".encode() in data for needle in needles for end in "'\"/\n "):
                found.add(str(path.relative_to(folder)))
    return found


def test_no_byte_of_a_forgotten_session_is_left_and_nights_go_on(tmp_path: Path) -> None:
    here = house(tmp_path, days(ONE))
    here.learner.folder = Path(here.lake.root) / "runs"
    here.night(ONE)
    elsewhere = tmp_path / "elsewhere"
    write_dataset(here.lake, days(ONE, TWO))
    here.learner.folder = elsewhere
    here.night(TWO)
    killed = Path(here.lake.root) / "runs" / "nights" / TWO
    killed.mkdir(parents=True)
    (killed / "part").write_text(f'"{TRAINED}"')
    root = Path(here.lake.root)
    anywhere = places(root, VICTIM, TRAINED)
    assert {"night_rows/day=2026-11-02/part.parquet", "anchors/anchors=gains/part.parquet"} <= {
        *anywhere
    }
    for name in (VICTIM, TRAINED):
        report = forget(here.lake, session=name)
        assert report.sessions == [name]
    assert places(root, VICTIM, TRAINED) <= {"forgotten.json", *_forgotten(root)}
    assert [Path(name).name for name in report.runs] == [f"night-{TWO}", f"night-{ONE}"]
    assert verify(here.lake).problems == []
    assert status(here.lake)
    assert {len(some) for some in read_anchors(here.lake).values()} == {11, 23}
    without = [s for s in days(ONE, TWO, THREE) if s.name not in (VICTIM, TRAINED)]
    write_dataset(here.lake, without)
    third = here.night(THREE)
    assert (third.outcome, third.version) == ("promoted", 3)
    gone = withdraw(here.lake, session=f"{TWO}-validation-1")
    assert gone.sessions == [f"{TWO}-validation-1"]
    assert verify(here.lake).problems == []


def _forgotten(root: Path) -> set[str]:
    """Return where the list of the forgotten is, which names them so that none comes back."""
    return {str(p.relative_to(root)) for p in root.rglob("*forgotten*") if p.is_file()}


def test_a_forgotten_session_does_not_come_back_by_a_night_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = house(tmp_path, days(ONE))
    train, threads = here.learner.train, list[threading.Thread]()

    def meanwhile(*args: Any) -> tuple[Path, dict[str, float]]:
        other = Lake(here.lake.url)
        threads.append(threading.Thread(target=lambda: forget(other, session=VICTIM)))
        threads[0].start()
        threads[0].join(0.3)
        return train(*args)

    monkeypatch.setattr(here.learner, "train", meanwhile)
    here.night(ONE)
    threads[0].join()
    assert VICTIM not in {a.state.session_id for some in read_anchors(here.lake).values()
                          for a in some}  # fmt: skip
    assert VICTIM not in {row["session_id"] for row in here.lake.rows("night_rows")}
    assert verify(here.lake).problems == []
