"""What reads a picture of the lineage page, and what Dagster knows of it, can fail."""

from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageDraw

from tests.places import ROOT
from tests.ui.lineage_facts import BOX, GREEN, GREY, areas, states


@pytest.mark.parametrize("name", ["green", "grey", "red"])
def test_a_box_of_each_colour_is_seen(name: str, tmp_path: Path) -> None:
    fill = {"green": GREEN, "grey": GREY, "red": (210, 60, 50)}[name]
    image = Image.new("RGB", (100, 60), "white")
    ImageDraw.Draw(image).rectangle((10, 10, 89, 49), fill=fill)
    image.quantize(64).save(tmp_path / "box.png")
    seen = 80 * 40 if name == "red" else 76 * 36
    assert areas(tmp_path / "box.png") == {"green": 0, "grey": 0, "red": 0, name: seen}


def test_lines_are_no_boxes(tmp_path: Path) -> None:
    image = Image.new("RGB", (100, 60), "white")
    ImageDraw.Draw(image).line((5, 5, 95, 55), fill=GREY, width=3)
    image.save(tmp_path / "line.png")
    assert areas(tmp_path / "line.png")["grey"] == 0


def test_the_readme_shows_a_lineage_page_with_nothing_to_do() -> None:
    seen = areas(ROOT / "docs" / "images" / "lineage.png")
    boxes = 16
    assert seen["grey"] < BOX / 2  # the zoom's buttons are grey
    assert seen["red"] == 0
    assert seen["green"] > BOX * boxes


def node(made: int, failed: int = 0, checks: Any = ()) -> Any:
    return {
        "assetKey": {"path": ["a"]},
        "partitionStats": {"numPartitions": 4, "numMaterialized": made, "numFailed": failed},
        "assetMaterializations": [{"timestamp": "1"}],
        "assetChecksOrError": {"checks": list(checks)},
    }


def check(status: str, severity: str) -> Any:
    said = {"status": status, "evaluation": {"severity": severity}}
    return {"name": "c", "executionForLatestMaterialization": said}


@pytest.mark.parametrize(
    ("given", "colour"),
    [
        (node(4), "green"),
        (node(3), "grey"),
        (node(3, failed=1), "red"),
        (node(4, checks=[check("FAILED", "WARN")]), "green"),
        (node(4, checks=[check("FAILED", "ERROR")]), "red"),
        (node(4) | {"partitionStats": None}, "green"),
        (node(4) | {"partitionStats": None, "assetMaterializations": []}, "grey"),
    ],
)
def test_what_dagster_knows_of_an_asset(given: Any, colour: str) -> None:
    assert states({"assetNodes": [given]}) == {"a": colour}
