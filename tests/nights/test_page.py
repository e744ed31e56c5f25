"""The page of a night: what was decided and why, in one screen, in pictures, and in a file."""

from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from composer_pipeline.evaluation.report import Estimate
from composer_pipeline.lake.store import Lake
from composer_pipeline.nights.canaries import Canary
from composer_pipeline.nights.gates import Gate
from composer_pipeline.nights.night import Night
from composer_pipeline.nights.page import markdown, pictures, write_page

GAIN = Estimate(0.4, 0.2, 0.6, 20, 15)
LOSS = Estimate(-0.1, -0.2, -0.01, 60, 30)
GATES = (
    Gate(name="new", passed=True, why="+20.0% <on> states", limit=0.001, p=1e-4),
    Gate(name="easy", passed=False, why="anchors easy: -10.0%", limit=0.05, difference=LOSS),
)  # fmt: skip
MOVED = {
    "new": (0.2, 0.4, Estimate(0.2, 0.1, 0.3, 40, 15)), "hard": (0.1, 0.5, GAIN),
    "easy": (0.9, 0.8, LOSS),
}  # fmt: skip
PROMOTED = Night(
    night="2026-11-02", outcome="promoted", why=("+40.0%",), parent=0, version=1, moved=MOVED,
    rows={"new": 70, "old": 0, "held_out": 30, "sessions": 12}, usd=0.25, simulated=True,
    tables={"dataset_pairs": 12}, losses={"sdpo": (0.5, 0.25)}, gates=GATES[:1],
)  # fmt: skip
HELD = Night(
    night="2026-11-03", outcome="held", why=("95% fixes contradicted, 5% before",), rows={"new": 7},
    canaries=(
        Canary("contradicted", True, "95% fixes contradicted, 5% before", 0.95, 0.05, 0.25),
        Canary("usable", False, "teacher a answers 60%", 0.6, 0.8, 0.5),
        Canary("labels", False, "too little to compare", limit=0.3),
    ),
)  # fmt: skip
WORSE = Night(
    night="2026-11-04", outcome="worse", why=(GATES[1].why,), parent=1, version=2, moved=MOVED,
    gates=GATES, notes=("anchors own: too few sessions to say anything",),
)  # fmt: skip


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A lake of three nights."""
    lake = Lake(str(tmp_path / "lake"))
    for night in (PROMOTED, HELD, WORSE):
        lake.put_bytes(f"nights/{night.night}.json", msgspec.json.encode(night))
    return lake


def test_one_screen_says_what_was_decided_and_why(lake: Lake) -> None:
    text = markdown(lake, WORSE)
    assert text.splitlines()[0] == "**2026-11-04: worse.** anchors easy: -10.0%"
    assert "| anchors: easy | 90.0% | 80.0% | -10.0% (-20.0% to -1.0%) | 60 (30) |" in text
    assert "Left out: anchors own: too few sessions to say anything." in text
    assert "Version 2 comes from version 1; the optimizer restarted" in text
    text = markdown(lake, PROMOTED)
    assert "70 new states to train on" in text
    assert "$0.25 for the answers to the new states (simulated)" in text
    assert "Rows trained on: 12 dataset_pairs." in text
    assert "Losses: sdpo 0.5000 to 0.2500." in text


def test_a_held_night_says_which_canary_and_by_how_much(lake: Lake) -> None:
    text = markdown(lake, HELD)
    assert "| contradicted | yes | 360% |" in text
    assert "| usable | no | 50% |" in text
    assert "Canaries that cannot compare: labels." in text
    assert "No model was trained." in text
    shown = _words(pictures(lake, HELD)["canaries.svg"][1])
    assert {"contradicted, held", "360 %"} <= shown


def test_pictures_show_the_change_and_all_nights_so_far(lake: Lake) -> None:
    shown = pictures(lake, WORSE)
    assert {"new mistakes", "+40", "anchors: easy", "-10"} <= _words(shown["change.svg"][1])
    assert {"90 %", "80 %"} <= _words(shown["right.svg"][1])
    assert {"mistakes", "anchors", "promoted", "held", "worse"} <= _words(shown["nights.svg"][1])
    assert "worse" not in _words(pictures(lake, HELD)["nights.svg"][1]), "of later nights"
    found = ElementTree.fromstring(shown["nights.svg"][1]).iterfind(".//*[@class='curve']")
    lines = [line.attrib["points"].split() for line in found]
    mistakes, anchors = ([float(point.split(",")[1]) for point in line] for line in lines)
    assert mistakes[1] == mistakes[2] != mistakes[3], "a refused night measures its parent"
    assert anchors[3] == anchors[0] != anchors[1]
    # From 10 to 50 % of mistakes, and from 90 to 80 % of anchors, on one scale.
    assert (anchors[1] - anchors[0]) / (mistakes[0] - mistakes[1]) == pytest.approx(1 / 4, abs=0.01)


def test_the_page_is_one_file_that_loads_nothing_and_escapes_what_it_shows(lake: Lake) -> None:
    page = Path(write_page(lake, WORSE))
    assert page == Path(lake.root, "reports", "night-2026-11-04.html")
    text = page.read_text(encoding="utf-8")
    assert "+20.0% &lt;on&gt; states" in text
    assert "<svg" in text
    assert not [part for part in ("src=", "<script", "<link", "<on>") if part in text]
    assert write_page(lake, WORSE) == str(page)
    assert page.read_text(encoding="utf-8") == text


def _words(image: str) -> set[str]:
    return {element.text or "" for element in ElementTree.fromstring(image).iter()}
