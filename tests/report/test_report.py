"""The report: one file that needs nothing, says what is missing, and in which no text is markup."""

import json
import re
from datetime import UTC, datetime
from decimal import Decimal
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest

from composer_pipeline.diloco.views import History, RoundMark, Span, write_timeline
from composer_pipeline.errors import InputError
from composer_pipeline.evaluation.evaluate import TRAINED
from composer_pipeline.evaluation.report import Cell, Estimate
from composer_pipeline.lake.store import Lake, exports
from composer_pipeline.maintenance.forget import from_exports
from composer_pipeline.report.write import default_place, render_report, write_report
from composer_pipeline.settings import recipes_dir
from composer_pipeline.teachers.ledger.ledger import Ledger, ledger_target
from composer_pipeline.teachers.ledger.operations import set_ceiling
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.run import (
    channel_curves,
    dataset_digest,
    replica_curves,
    round_losses,
)
from tests.publishing.conftest import fill, row

DAY = "2026-11-16"
NASTY = """</pre></script><script>alert(1)</script><img src=x onerror=alert(1)>"'&amp;‮"""


class Seen(HTMLParser):
    """Elements, attributes and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        if not (self.get_starttag_text() or "").startswith("<style"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    train = [row(i, "train", session_id=f"one-{i}") for i in range(30)]
    return fill(Lake(tmp_path / "lake"), train, [row(99, "validation")])


def page(lake: Lake, **options: Any) -> Seen:
    return Seen(write_report(lake, **options).path.read_text())


def train_on(lake: Lake, name: str = "demo-1", **changes: Any) -> Path:
    """Write a finished run of two replicas on the lake's dataset."""
    recipe = TrainingRecipe.load(recipes_dir() / "train" / "demo.yaml")
    folder = Path(lake.root) / "runs" / name
    folder.mkdir(parents=True)
    commits = [
        {"round": 1, "merged": True, "included": [0, 1], "by": 0, "tokens": 9, "rejected": {},
         "state_sha": "a"},
        {"round": 2, "merged": True, "included": [0], "by": 0, "tokens": 5, "rejected": {},
         "state_sha": "b"},
    ]  # fmt: skip
    result = {
        "recipe": recipe.model_dump(mode="json"), "dataset_sha": dataset_digest(lake, recipe),
        "base": {"name": "tiny", "digest": "d1", "kind": "folder", "licence": ""},
        "start_from": None, "rows": {"dpo": 30}, "commits": commits, "restarts": {"0": 0, "1": 2},
        "metrics": {}, "versions": {}, "fidelity": {"dpo": {"fidelity": "exact", "why": ""}},
    }  # fmt: skip
    (folder / "composer.json").write_text(json.dumps(result | changes))
    (folder / "metrics.jsonl").write_text("\n".join(json.dumps(event) for event in EVENTS))
    marks = [RoundMark(1, 9.0, 40, 8, {0: "merged", 1: "rejected"}, {1: "late <b>"})]
    spans = [Span(0, "training", 0.0, 9.0, 1), Span(1, "training", 0.0, 9.0, 1)]
    write_timeline(folder, History(2, 9.0, spans, marks, {0: [0.0], 1: [0.0]}), {})
    return folder


EVENTS: list[dict[str, Any]] = [
    {"event": "step", "time": 100.0, "slot": 0, "step": 1, "dpo_loss": 0.5},
    {"event": "step", "time": 101.0, "slot": 1, "step": 1, "dpo_loss": 0.7},
]  # fmt: skip


def test_the_file_needs_nothing_and_runs_nothing(lake: Lake) -> None:
    train_on(lake)
    made = write_report(lake)
    assert made.path == default_place(lake)
    assert made.path.stat().st_mode & 0o777 == 0o600
    text = made.path.read_text()
    seen = Seen(text)
    assert not seen.tags & {"script", "link", "iframe", "object", "embed", "base", "form", "img"}
    assert not [name for name, _ in seen.attributes if name.startswith("on")]
    places = [value for name, value in seen.attributes if name in ("href", "src", "xlink:href")]
    assert all(value.startswith("#") for value in places)
    assert "default-src 'none'" in text
    assert not re.search(r"url\(|@import", text)
    assert str(lake.root) not in text


def test_a_curve_is_the_mean_of_its_replicas(lake: Lake) -> None:
    folder = train_on(lake)
    assert replica_curves(folder) == {"dpo": {0: [(1, 0.5)], 1: [(1, 0.7)]}}
    ((step, mean),) = channel_curves(folder)["dpo"]
    assert step == 1
    assert mean == pytest.approx(0.6)
    rounds = {"dpo": {1: 0.6}, "dpo, replica 0": {1: 0.5}, "dpo, replica 1": {1: 0.7}}
    assert round_losses(folder, 3) == {name: pytest.approx(of) for name, of in rounds.items()}
    assert replica_curves(folder / "none") == {}
    text = write_report(lake).path.read_text()
    assert re.findall(r"<title>(replica \d|dpo)</title>", text) == ["replica 0", "replica 1", "dpo"]


def test_a_run_folder_has_its_picture_as_a_file(lake: Lake) -> None:
    picture = train_on(lake) / "report" / "timeline.svg"
    assert picture.read_text().startswith("<svg")
    assert "round 1" in picture.read_text()


def test_equal_data_gives_equal_bytes(lake: Lake, tmp_path: Path) -> None:
    train_on(lake)
    files = [write_report(lake, tmp_path / name).path for name in ("a.html", "b.html")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_no_text_of_the_data_is_markup(tmp_path: Path) -> None:
    names = (
        "task", "tool_rejected", "rejected_model", "chosen_text", "rejected_text", "pair_id",
        "session_id", "tier", "outcome", "repository",
    )  # fmt: skip
    changes = dict.fromkeys(names, NASTY)
    nasty = row(0, "train", **changes, chosen_models=[NASTY],
                prompt=[{"role": "user", "content": NASTY}])  # fmt: skip
    lake = fill(Lake(tmp_path / "lake"), [nasty], [row(1, "validation")])
    reply = {
        "state_id": "s", "session_id": "s", "family": NASTY, "request_hash": "h", "model": NASTY,
        "status": NASTY, "cost_picodollars": 5, "latency_ms": 1.0, "simulated": False,
        "created_at": datetime(2026, 11, 20, tzinfo=UTC),
    }  # fmt: skip
    lake.write("replies", [reply], day="2026-11-16", teacher="t")
    statistic = {"a": NASTY, "b": "agent", "tool": "", "value": 0.5, "n": 3, "note": NASTY}
    lake.write(
        "preference_statistics",
        [{**statistic, "statistic": name} for name in ("agreement_L2", "separability_weight")]
        + [{**statistic, "statistic": "separability_auc", "a": "", "b": ""}],
        scope="all",
    )
    fill(lake, [nasty], [row(1, "validation")])
    statistics = lake.rows("preference_statistics", scope="all")
    build = json.loads(lake.get_bytes(Lake.BUILD))["id"]
    named = {"statistic": "build", "a": build, "b": "", "tool": "", "n": 0, "note": ""}
    kept = [{k: v for k, v in each.items() if k != "scope"} for each in statistics]
    lake.write("preference_statistics", [*kept, {**named, "value": None}], scope="all")
    seen = page(lake)
    assert not seen.tags & {"script", "img"}
    assert not [name for name, _ in seen.attributes if name.startswith("on")]
    assert "<script>alert(1)</script>" in seen.text
    assert "‮" not in seen.text


def test_numbers_are_those_of_the_data(lake: Lake) -> None:
    text = page(lake).text
    assert "31 pairs: 30 train, 1 validation" in text
    assert "20 pairs Drawn so that" in text
    assert text.count("rejected: the agent (agent)") == 20


def test_what_is_missing_is_said_in_words(lake: Lake) -> None:
    text = page(lake).text
    assert "No model has been trained on this version" in text
    assert "Nothing was measured on this version: run composer-pipeline statistics." in text
    assert "No teacher has answered." in text
    assert write_report(lake).missing == ["statistics", "training"]


def test_statistics_of_another_build_are_none(lake: Lake) -> None:
    of = {"a": "another", "b": "", "tool": "", "n": 1, "note": ""}
    rows = [{**of, "statistic": "build", "value": None},
            {**of, "a": "", "statistic": "krippendorff_alpha", "value": 0.777}]  # fmt: skip
    lake.write("preference_statistics", rows, scope="all")
    made = write_report(lake)
    assert "statistics" in made.missing
    assert "0.777" not in made.path.read_text()


def test_only_runs_on_this_version_are_in_it(lake: Lake) -> None:
    train_on(lake)
    train_on(lake, "older", dataset_sha="another")
    (Path(lake.root) / "runs" / "broken").mkdir()
    (Path(lake.root) / "runs" / "broken" / "composer.json").write_text("{}")
    made = write_report(lake)
    assert (made.runs, made.missing) == (["demo-1"], ["statistics"])
    text = Seen(made.path.read_text()).text
    assert "older" not in text
    assert "2 rounds, 2 merged, 2 restarts of a replica." in text
    assert "base model tiny (d1)" in text
    assert "diloco rounds 2 of 2 merged" in text
    assert "No model of this version has been evaluated" in text


def test_an_evaluation_says_where_the_model_is_worse(lake: Lake) -> None:
    folder = train_on(lake)
    value = Estimate(0.5, 0.4, 0.6, 30, 12)
    cells = [
        Cell("easy", "canonical", "base", value),
        Cell("easy", "canonical", TRAINED, value, "base", Estimate(-0.2, -0.3, -0.1, 30, 12)),
    ]
    said = {"worse": ["easy states: <i>"], "unknown": [], "cells": msgspec.to_builtins(cells)}
    (folder / "evaluation.json").write_text(json.dumps(said))
    text = write_report(lake).path.read_text()
    seen = Seen(text)
    assert (
        "demo-1. Worse than its base on easy states: <i>. Certainly other than its base: easy"
        in (seen.text[: seen.text.index("31 pairs: ")].replace(" .", "."))
    )
    assert text.count("<table>") == text.count("<caption>") == 4
    assert text.count("<th ") == text.count('<th scope="col">') == text.count("</th>")
    assert not re.search(r"<caption></caption>|<th[^>]*></th>", text)
    assert "-20.0 points [-30.0, -10.0] *" in seen.text


def test_each_tool_of_the_agent_has_its_turn(tmp_path: Path) -> None:
    many = [row(i, "train", tool_rejected="Bash") for i in range(40)]
    rare = [row(50 + i, "train", tool_rejected=f"Tool{i}", task=f"rare {i}") for i in range(3)]
    text = page(fill(Lake(tmp_path / "lake"), many + rare, [row(99, "validation")])).text
    assert all(f"rare {i}" in text for i in range(3))


def test_what_differs_is_marked(tmp_path: Path) -> None:
    near = row(0, "train", rejected_text="Bash\n  command: ls -l a.py",
               chosen_text="Bash\n  command: ls -l b.py")  # fmt: skip
    lake = fill(Lake(tmp_path / "lake"), [near], [])
    text = write_report(lake).path.read_text()
    assert "ls -l <mark>a</mark>.py" in text
    assert "ls -l <mark>b</mark>.py" in text


def test_the_first_page_of_a_site_links_the_state_of_each_pair(lake: Lake) -> None:
    places = dict.fromkeys(v for n, v in Seen(render_report(lake, links="s/")).attributes
                           if n == "href" and not v.startswith("#"))  # fmt: skip
    shown = re.findall(r'data-pair="([^"]+)"', render_report(lake))
    of = {pair["pair_id"]: pair["state_id"] for pair in lake.rows("dataset_pairs")}
    assert list(places) == ["s/", *(f"s/{of[pair]}" for pair in shown)]


def test_a_field_is_compared_with_the_same_field(tmp_path: Path) -> None:
    near = row(0, "train", rejected_text="Bash\n  description: Run all tests\n  command: pytest",
               chosen_text="Bash\n  command: pytest tests/test_totals.py",
               )  # fmt: skip
    far = row(1, "train", rejected_text="Read\n  file_path: a.py\n  limit: 3",
              chosen_text="Bash\n  command: cat a.py")  # fmt: skip
    text = write_report(fill(Lake(tmp_path / "lake"), [near, far], [])).path.read_text()
    assert "<pre>Bash\n  <mark>description: Run all tests</mark>\n  command: pytest</pre>" in text
    assert "<pre>Bash\n  command: pytest <mark>tests/test_totals.py</mark></pre>" in text
    assert "<pre>Read\n  file_path: a.py\n  limit: 3</pre>" in text


def test_the_first_screen_says_what_to_look_at(lake: Lake) -> None:
    build = json.loads(lake.get_bytes(Lake.BUILD))["id"]
    of = {"tool": "", "value": None, "n": 31}
    rows = [
        {**of, "statistic": "verdict", "a": figure, "b": word, "note": f"{figure} is so."}
        for figure, word in (("lengths", "good"), ("style", "look"), ("noise", "not measured"))
    ]
    rows.append({**of, "statistic": "build", "a": build, "b": "", "note": ""})
    lake.write("preference_statistics", rows, scope="all")
    text = page(lake).text
    first = text[: text.index("31 pairs: ")]
    assert first.startswith(f"lake, {DAY} lake, {DAY} Preference pairs from")
    assert "1 good, 1 to look at, 1 not measured, of 3 figures." in first
    assert "style : style is so. The model. None was trained." in first
    assert "lengths is so" not in text


def test_what_was_billed_is_by_day_and_against_the_ceiling(lake: Lake) -> None:
    for teacher, cost in (("a", 2 * 10**11), ("b", 10**11)):
        reply = {
            "state_id": "s", "session_id": "s", "family": "f", "request_hash": "h", "model": "m",
            "status": "ok", "cost_picodollars": cost, "latency_ms": 1.0, "simulated": False,
            "created_at": datetime(2026, 11, 20, tzinfo=UTC),
        }  # fmt: skip
        lake.write("replies", [reply], day=DAY, teacher=teacher)
    fill(lake, [row(0, "train")], [])
    assert "Against the ceiling" not in page(lake).text
    with Ledger(ledger_target(lake)) as ledger:
        ledger.do(set_ceiling("global", Decimal("0.5")))
    text = page(lake).text
    assert f"Billed, by date and teacher a b {DAY} 0.3 USD" in text
    assert "has spent $0.00 of its ceiling of $0.50: 0%. spent reserved or unknown left" in text


def test_forgetting_a_session_removes_the_reports_that_show_it(lake: Lake) -> None:
    made = write_report(lake)
    assert exports(lake) == [made.path]
    assert from_exports(lake, {"another"}, set()) == []
    shown = re.findall(r'data-session="([^"]+)"', made.path.read_text())
    assert from_exports(lake, {shown[0]}, set()) == [str(made.path)]
    assert not made.path.exists()


def test_a_lake_without_a_dataset_has_no_report(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="run composer-pipeline dataset"):
        write_report(Lake(tmp_path / "lake"))
    empty = fill(Lake(tmp_path / "empty"), [], [])
    with pytest.raises(InputError, match="nothing to report"):
        write_report(empty)
