"""Pictures are valid SVG whose marks are where the numbers say."""

import base64
from xml.etree import ElementTree

import pytest

from composer_pipeline.charts import bars, lines, markdown_image

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
