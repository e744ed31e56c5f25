"""Pictures are valid SVG whose marks are where the numbers say."""

import base64
import re
from collections.abc import Sequence
from xml.etree import ElementTree

import pytest

from composer_pipeline.charts import (
    DARK,
    EMPTY,
    GRID,
    MARGIN,
    PAPER,
    WIDTH,
    bars,
    heatmap,
    intervals,
    lines,
    markdown_image,
    stacked_shares,
    ticks,
)
from composer_pipeline.diloco.views import History, RoundMark, Span, timeline

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
    assert {"0.70", "0.80", "0.90", "1", "2"} <= {t.text for t in root.findall(f"{SVG}text")}


def test_a_mean_is_thick_and_its_replicas_are_thin_and_of_its_colour() -> None:
    thin = {"replica 0": [(1, 0.6), (2, 0.5)], "replica 1": [(1, 0.8), (2, 0.9)]}
    root = ElementTree.fromstring(lines({"dpo": [(1, 0.7), (2, 0.7)]}, thin=thin, unit="nats"))
    drawn = [
        (line.findtext(f"{SVG}title"), line.attrib["stroke"], float(line.attrib["stroke-width"]))
        for line in root.findall(f"{SVG}polyline")
    ]
    one, two, mean = drawn
    assert [one[0], two[0], mean[0]] == ["replica 0", "replica 1", "dpo"]
    assert one[1] == two[1] == mean[1]
    assert one[2] == two[2] < mean[2]


def test_a_long_curve_has_about_a_point_a_pixel_and_its_last() -> None:
    long = ElementTree.fromstring(lines({"dpo": [(x, float(x)) for x in range(10_000)]}))
    (line,) = long.findall(f"{SVG}polyline")
    points = line.attrib["points"].split()
    assert WIDTH < len(points) < 2 * WIDTH
    assert float(points[-1].split(",")[0]) == WIDTH - 14


@pytest.mark.parametrize(
    ("values", "most", "expected"),
    [
        ([-2.384e-06, 0.0208], 4, ["0.00", "0.01", "0.02", "0.03"]),
        ([0, 12_345], 3, ["0", "5,000", "10,000", "15,000"]),
        ([1, 2], 4, ["1", "2"]),
        ([1, 6], 4, ["0", "2", "4", "6"]),
        ([3], 4, ["2", "3", "4"]),
        ([-0.3, 0.1], 4, ["-0.3", "-0.2", "-0.1", "0.0", "0.1"]),
        ([0.69311, 0.69319], 2, ["0.69310", "0.69315", "0.69320"]),
    ],
)
def test_ticks_are_round(values: list[float], most: int, expected: list[str]) -> None:
    assert [*ticks(values, most).values()] == expected


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


def _light(colour: Sequence[float]) -> float:
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
    return sum(part * c for part, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def _contrast(one: Sequence[float], other: Sequence[float]) -> float:
    low, high = sorted((_light(one), _light(other)))
    return (high + 0.05) / (low + 0.05)


def _rgb(colour: str, dark: bool) -> list[float]:
    colour = DARK.get(colour, colour) if dark else colour
    return [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]


RUN = History(
    2, 9.0, [Span(0, kind, 0.0, 9.0, 1) for kind in ("training", "waiting", "dead")],
    [RoundMark(1, 9.0, 40, 8, {0: "merged", 1: "late"}, {})], {0: [0.0], 1: [0.0, 4.0]},
)  # fmt: skip
CELL = "#3b5bdc"
SHARES = {("agent", str(at)): (at / 20, 9) for at in range(21)}
EVERY = (
    bars({"easy, base": 3, "easy, trained": 4}, total=7),
    stacked_shares(("yes", "no", "neither"), {"Bash": (1, 2, 3)}),
    stacked_shares(("a", "b", "c"), {"2026-11-16": (0.1, 0.2, 0.3)}, amounts=True, unit=" $"),
    lines({name: [(1, 2), (2, 3)] for name in ("sft", "dpo", "grpo", "sdpo", "held out", "kto")}),
    lines(
        {"mistakes": [(0, 1), (1, 2)]}, dots={n: [(1, 2)] for n in ("promoted", "worse", "held")}
    ),
    intervals({"a": (0.1, 0.05, 0.2), "b": (-1, -2, -0.5), "c": (0.1, None, None)}),
    heatmap(["agent", *map(str, range(21))], SHARES),
    timeline(RUN, {"dpo": {1: 0.5}, "dpo, replica 0": {1: 0.4}}),
)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("image", EVERY)
def test_every_mark_is_seen_on_a_light_and_on_a_dark_ground(image: str, dark: bool) -> None:
    """The style of the image is what changes its colours; text has 4.5 to 1, other marks 3."""
    root, ground = ElementTree.fromstring(image), _rgb(PAPER, dark)
    style = root.findtext(f"{SVG}style") or ""
    under = ground
    for mark in root.iter():
        kind = mark.tag.removeprefix(SVG)
        fill, stroke = mark.get("fill", "none"), mark.get("stroke", "none")
        for name, colour in (("fill", fill), ("stroke", stroke)):
            rule = f'[{name}="{colour}"]{{{name}:{DARK.get(colour)}}}'
            assert (rule in style) == (colour in DARK), rule
        if kind == "text":
            assert mark.get("font-size") == "12"
            assert _contrast(_rgb(fill, dark), under) >= 4.5, (mark.text, fill)
        elif fill == CELL:  # the number of a heat map's cell is on the cell
            share = float(mark.attrib["fill-opacity"])
            cell = zip(_rgb(fill, dark), ground, strict=True)
            under = [share * c + (1 - share) * g for c, g in cell]
        elif kind in ("rect", "path", "polyline", "circle"):
            ink = stroke if fill == "none" or (fill == PAPER and kind == "circle") else fill
            if ink not in (GRID, EMPTY, PAPER) and not mark.get("fill-opacity"):
                assert _contrast(_rgb(ink, dark), ground) >= 3, (kind, ink)
        if kind != "rect":
            under = ground if kind != "title" else under


def test_a_chart_fits_a_phone_without_shrinking() -> None:
    *charts, wide = EVERY
    del charts[-1]  # a cell a rater
    sizes = {int(*re.findall(r'^<svg [^>]*? width="(\d+)"', image)) for image in charts}
    assert sizes == {WIDTH + 2 * MARGIN}
    assert max(sizes) <= 390 - 2 * 32
    assert "<style>" in wide
