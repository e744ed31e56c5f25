"""What `statistics` refuses stops the dataset, unless the preference recipe accepts it."""

import json
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.dataset.build import build_dataset
from composer_pipeline.dataset.manifest import check_statistics, read_build
from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences.quality import (
    measure,
    read_statistics,
    verdicts,
    write_statistics,
)
from composer_pipeline.preferences.rules import PreferenceRules
from composer_pipeline.publishing.publish import publish
from composer_pipeline.report.write import write_report
from tests.publishing.test_dataset import DAY, add_session, normalise, plain

RULES = PreferenceRules()


def a_lake(tmp_path: Path, *, sessions: int = 27, **sides: Any) -> Lake:
    """Two pairs a session; ``chosen`` and ``rejected`` are commands, ``{n}`` a row's number."""
    sides = {"chosen": "cat src/{n}.py", "rejected": "cat lib/{n}.py"} | sides
    lake = Lake(tmp_path / "lake")
    for n in range(sessions):
        add_session(lake, f"s{n}", DAY, project=f"/home/user/p{n % 3}")
    normalise(lake, DAY)
    for table in ("pairs", "normalized_pairs"):
        rows = plain(lake, table, day=DAY)
        for number, row in enumerate(rows):
            for side, command in sides.items():
                text = command.format(n=number)
                message = json.loads(json.dumps(row[side]))
                message[0]["tool_calls"][0]["function"]["arguments"]["command"] = text
                row[side] = message
            row["length_ratio"] = len(sides["chosen"]) / len(sides["rejected"])
        lake.write(table, rows, day=DAY)
    return lake


def refused(lake: Lake) -> list[str]:
    found = verdicts(measure(lake, built=False), RULES)
    return sorted(verdict.gate for verdict in found if verdict.word == "refused")


CASES: list[tuple[dict[str, Any], list[str]]] = [
    ({}, []),
    ({"chosen": "git status"}, ["anywhere", "style", "variety"]),
    ({"chosen": "sed -n {n}p " + "a_file_with_a_long_name.py " * 20}, ["lengths", "style"]),
    ({"rejected": "cd /srv && pytest -q tests/test_{n}.py"}, ["checks"]),
    ({"rejected": "npm run lint -- src/{n}.ts"}, ["checks"]),
    ({"rejected": "cat tests/build_{n}.py"}, []),
    ({"rejected": "git commit -m 'make test {n}'"}, []),
]


@pytest.mark.parametrize(("sides", "gates"), CASES)
def test_each_gate(tmp_path: Path, sides: dict[str, Any], gates: list[str]) -> None:
    lake = a_lake(tmp_path, **sides)
    assert [gate for gate in refused(lake) if gate in gates or gate != "style"] == gates
    if not gates:
        assert build_dataset(lake, rules=PreferenceRules(accept=["style"])).rows == 54
        return
    with pytest.raises(ComposerError, match="the pairs are refused: ") as error:
        build_dataset(lake)
    assert all(f"{gate}: " in str(error.value) for gate in gates)
    assert lake.partitions("dataset_pairs") == []


def test_few_pairs_are_not_judged(tmp_path: Path) -> None:
    lake = a_lake(tmp_path, sessions=20, chosen="git status")
    assert "variety" not in refused(lake)


def test_the_former_dataset_stays_and_the_recipe_lets_through_what_it_names(tmp_path: Path) -> None:
    lake = a_lake(tmp_path)
    before = build_dataset(lake).build
    rows = plain(lake, "pairs", day=DAY)
    for row in rows:
        row["chosen"] = rows[0]["chosen"]
    lake.write("pairs", rows, day=DAY)
    with pytest.raises(ComposerError, match=r"accept: \[.*variety, anywhere\]"):
        build_dataset(lake)
    assert json.loads(lake.get_bytes(Lake.BUILD))["id"] == before
    some = PreferenceRules(accept=["variety", "style"])
    with pytest.raises(ComposerError, match="the pairs are refused: anywhere: 54 chosen actions"):
        build_dataset(lake, rules=some)
    report = build_dataset(lake, rules=PreferenceRules(accept=["variety", "style", "anywhere"]))
    assert {"variety", "anywhere"} <= report.accepted.keys()
    assert report.accepted["variety"].startswith("1 different chosen actions in 54 pairs (1.9%)")
    assert read_build(lake).figures["accepted"] == report.accepted
    page = tmp_path / "report.html"
    write_report(lake, page)
    assert "Let through by the recipe: variety" in page.read_text()
    publish(lake, "me/x", dry_run=True, allow_simulated=True)
    card = _card(lake)
    assert "- **anywhere**: 54 chosen actions" in card


def _card(lake: Lake) -> str:
    from composer_pipeline.publishing.card import card_files

    return card_files(lake, "me/x", read_build(lake), [])["README.md"].decode()


def test_the_dataset_brings_its_statistics(tmp_path: Path) -> None:
    """The report that the README makes right after it does not say that they are missing."""
    lake = a_lake(tmp_path)
    report = build_dataset(lake)
    check_statistics(lake, read_build(lake))
    stored = {(r["statistic"], r["a"]): r["value"] for r in lake.rows("preference_statistics")}
    assert stored["rows", "dataset"] == 54
    assert stored["pairs_by_sides", "distinct"] == 54
    assert report.quality is not None
    assert "quality" not in report.to_dict()
    assert "statistics" not in write_report(lake, tmp_path / "report.html").missing
    again = write_statistics(lake).by_scope["all"].rows()
    rows = lake.rows("preference_statistics")
    assert {r["a"] for r in rows if r["statistic"] == "verdict"} >= {"variety", "repeats"}
    assert _figures(again) == _figures(read_statistics(lake)) == _figures(report.quality.rows())


def _figures(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted(
        (r["statistic"], r["a"], r["b"], r["tool"], r["value"] or 0.0, r["n"]) for r in rows
    )


def test_a_gate_that_is_none_is_refused(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("accept: [everything]\n")
    with pytest.raises(InputError, match="accept"):
        PreferenceRules.load(recipe)
