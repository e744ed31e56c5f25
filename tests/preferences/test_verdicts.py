"""What a person is told of each figure: good, look, or not measured and why."""

import dataclasses
from typing import Any

import pytest

from composer_pipeline.preferences.quality import Measurement, NoiseFloor, Quality, Sides, verdicts
from composer_pipeline.preferences.rules import PreferenceRules
from composer_pipeline.preferences.style import Separation


def floor(excess: float | None, error: float | None, note: str = "") -> NoiseFloor:
    some = Measurement(0.3, 40)
    return NoiseFloor(some, some, Measurement(excess, 40, note), Measurement(error, 40, note))


def apart(auc: float | None, note: str = "") -> Separation:
    weights = {"calls": -2.0, "spaces": 1.0}
    return Separation(auc, pairs=100, sessions=9, note=note, error=0.02, weights=weights)


def alpha(overall: float) -> dict[str, Measurement]:
    by_tool = {"Bash": Measurement(0.5, 40), "Edit": Measurement(0.2, 9)}
    return {"": Measurement(overall, 90), **by_tool}


def quality(**changes: Any) -> Quality:
    whole = Quality(
        matrix={},
        alpha=alpha(0.667),
        noise=floor(0.2, 0.0999),
        separation=apart(0.7),
        funnel={}, reasons={}, outcomes={}, tiers={}, agents={}, drops={},
        per_session=(Measurement(3.0, 30), Measurement(10.0, 30)),
        length_ratio={"p50": Measurement(1.5, 100)},
        contaminated=0,
        pairs=100,
        near=[{"same_session": False}, *[{"same_session": True}] * 5],
        sides=Sides(distinct=20, anywhere=33, right_checks=33, one_project=90),
    )  # fmt: skip
    return dataclasses.replace(whole, **changes)


def of(figure: str, **changes: Any) -> tuple[str, str]:
    every = {v.figure: v for v in verdicts(quality(**changes), PreferenceRules())}
    return every[figure].word, every[figure].sentence


def test_at_its_bounds_everything_is_good() -> None:
    said = verdicts(quality(), PreferenceRules())
    assert [v.word for v in said] == ["good"] * 11, said
    assert all((v.sentence.endswith(".") and v.sentence[0].isupper()) or v.sentence[0].isdigit()
               for v in said)  # fmt: skip


NEAR = [{"same_session": False}] * 2


@pytest.mark.parametrize(
    ("figure", "changes", "words"),
    [
        ("teachers' agreement", {"alpha": alpha(0.66)}, ["0.66", "Bash (0.50)", "Read pairs"]),
        ("beyond the noise floor", {"noise": floor(0.2, 0.1)}, ["+0.20", "± 0.10", "chance"]),
        ("beyond the noise floor", {"noise": floor(-0.5, 0.1)}, ["-0.50"]),
        ("told apart by style", {"separation": apart(0.71)}, ["0.71", "above 0.7", "calls"]),
        ("lengths", {"length_ratio": {"p50": Measurement(1.51, 9)}}, ["1.51", "length"]),
        ("lengths", {"length_ratio": {"p50": Measurement(0.66, 9)}}, ["0.66"]),
        ("spread over sessions", {"pairs": 99}, ["10 of 99 (10%)", "max_pairs_per_session"]),
        ("repeats", {"near": NEAR}, ["2 near-duplicates across sessions among 100"]),
        ("benchmarks", {"contaminated": 1}, ["1 of 100"]),
        ("one project", {"sides": Sides(distinct=20, one_project=91)}, ["91 of 100", "91%"]),
    ],
)  # fmt: skip
def test_look(figure: str, changes: dict[str, Any], words: list[str]) -> None:
    word, sentence = of(figure, **changes)
    assert word == "look"
    for part in words:
        assert part in sentence


@pytest.mark.parametrize(
    ("gate", "changes", "words"),
    [
        ("style", {"separation": apart(0.91)}, ["0.91", "calls"]),
        ("lengths", {"length_ratio": {"p50": Measurement(4.1, 50)}}, ["4.10"]),
        ("lengths", {"length_ratio": {"p50": Measurement(0.24, 50)}}, ["0.24"]),
        ("variety", {"sides": Sides(distinct=19)}, ["19 different", "at least 20%"]),
        ("anywhere", {"sides": Sides(distinct=20, anywhere=34)}, ["34 chosen", "at most 33%"]),
        ("checks", {"sides": Sides(distinct=20, right_checks=34)}, ["34 rejected", "at most 33%"]),
    ],
)  # fmt: skip
def test_refused(gate: str, changes: dict[str, Any], words: list[str]) -> None:
    refused = [v for v in verdicts(quality(**changes), PreferenceRules()) if v.word == "refused"]
    assert [v.gate for v in refused] == [gate]
    assert all(part in refused[0].sentence for part in words)


@pytest.mark.parametrize(
    "changes",
    [
        {"separation": apart(0.9)},
        {"length_ratio": {"p50": Measurement(4.0, 50)}},
        {"length_ratio": {"p50": Measurement(9.0, 49)}},
        {"pairs": 49, "sides": Sides(distinct=1, anywhere=49, right_checks=49)},
    ],
)  # fmt: skip
def test_at_its_bounds_nothing_is_refused(changes: dict[str, Any]) -> None:
    found = verdicts(quality(**changes), PreferenceRules())
    assert "refused" not in [v.word for v in found]


@pytest.mark.parametrize(
    ("figure", "changes", "part"),
    [
        ("teachers' agreement", {"alpha": {"": Measurement(None, 0, "not measured: one rater")}},
         "One rater; ask at least two families"),
        ("beyond the noise floor", {"noise": floor(None, None, "not measured: no control replies")},
         "No control replies; a teacher with control: true"),
        ("beyond the noise floor", {"noise": floor(0.2, None, "not measured: one audited state")},
         "One audited state"),
        ("told apart by style", {"separation": apart(None, "not measured: 3 pairs")}, "3 pairs"),
        ("lengths", {"length_ratio": {"p50": Measurement(None, 0, "not measured: no pair")}},
         "No pair."),
        ("spread over sessions", {"pairs": 0}, "No data."),
    ],
)  # fmt: skip
def test_not_measured(figure: str, changes: dict[str, Any], part: str) -> None:
    word, sentence = of(figure, **changes)
    assert word == "not measured"
    assert part in sentence


def test_without_pairs_nothing_is_said_of_repeats() -> None:
    figures = {v.figure for v in verdicts(quality(pairs=0), PreferenceRules())}
    assert figures.isdisjoint({"repeats", "benchmarks"})
