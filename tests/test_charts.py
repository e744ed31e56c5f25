"""Pictures are valid SVG whose marks are where the numbers say."""

import base64
from xml.etree import ElementTree

import pytest

from composer_pipeline.charts import (
    bars,
    heatmap,
    intervals,
    lines,
    markdown_image,
    stacked_shares,
)

SVG = "{http://www.w3.org/2000/svg}"


def test_bars_are_proportional() -> None:
    root = ElementTree.fromstring(bars({"states <all>": 200, "pairs": 50, "none": 0}))
    widths = [float(r.attrib["width"]) for r in root.findall(f"{SVG}rect")[1:]]
    assert widths[0] == pytest.approx(4 * widths[1], abs=0.5)
    assert widths[2] == 0
    assert "states <all>" in [t.text for t in root.findall(f"{SVG}text")]


def test_lines_go_up_where_values_do() -> None:
    root = ElementTree.fromstring(lines({"dpo": [(1, 0.7), (2, 0.9)], "empty": []}))
    (line,) = root.findall(f"{SVG}polyline")
    (x1, y1), (x2, y2) = [map(float, p.split(",")) for p in line.attrib["points"].split()]
    assert x2 > x1
    assert y2 < y1  # the y axis of SVG points down


def test_nothing_to_draw_is_no_error() -> None:
    ElementTree.fromstring(lines({}))
    ElementTree.fromstring(bars({}))


def test_markdown_holds_the_picture() -> None:
    text = markdown_image("<svg/>", "alt")
    data = text.removeprefix("![alt](data:image/svg+xml;base64,").removesuffix(")")
    assert base64.b64decode(data) == b"<svg/>"


def test_shares_fill_a_bar_of_one_width_and_have_a_legend() -> None:
    root = ElementTree.fromstring(stacked_shares(("yes", "no"), {"a": (3, 1), "b": (0, 2)}))
    widths = [float(r.attrib["width"]) for r in root.findall(f"{SVG}rect")[1:5]]
    assert widths[0] == pytest.approx(3 * widths[1], abs=0.5)
    assert widths[0] + widths[1] == pytest.approx(widths[2] + widths[3], abs=0.2)
    assert {"yes", "no", "4", "2"} <= {t.text for t in root.findall(f"{SVG}text")}


def test_no_label_is_markup_or_a_character_that_xml_forbids() -> None:
    name = "</text><script>\x00\x1b\u202e&"
    for image in (
        bars({name: 1}, total=2),
        lines({name: [(0, 1)]}),
        intervals({name: (0.1, None, None)}),
        heatmap([name, "b"], {(name, "b"): (0.5, 2)}),
        stacked_shares((name, "b"), {name: (1, 2)}),
    ):
        root = ElementTree.fromstring(image)
        assert not {"script"} & {element.tag.removeprefix(SVG) for element in root.iter()}
        assert "\u202e" not in image
