"""The Python API: a flat list, loaded lazily, documented in docs/api.md."""

import inspect
import pydoc
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import composer_pipeline
from composer_pipeline import InputError, Lake, PreferenceRules
from composer_pipeline.reports import Report
from composer_pipeline.settings import recipe_file
from tests.api_page import page
from tests.places import ROOT

STAGES = (
    "ingest", "plan", "replay", "build_hints", "build_pairs", "write_statistics", "sufficiency",
    "normalize", "build_dataset", "export", "publish", "train", "evaluate", "write_report",
)  # fmt: skip
BY_DAY = (
    "ingest", "plan", "replay", "build_hints", "build_pairs", "write_statistics", "sufficiency",
    "normalize",
)  # fmt: skip


def python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_importing_the_package_loads_nothing_else():
    loaded = python(
        "import sys; before = set(sys.modules); import composer_pipeline\n"
        "print(*sorted(set(sys.modules) - before))"
    ).split()
    assert "composer_pipeline" in loaded
    assert not [name for name in loaded if name.startswith("composer_pipeline.")]
    assert not {"pyarrow", "pydantic", "msgspec", "duckdb", "httpx", "torch"} & set(loaded)


@pytest.mark.parametrize("name", composer_pipeline.API)
def test_every_name_is_there_and_documented(name):
    assert name in dir(composer_pipeline)
    assert inspect.getdoc(getattr(composer_pipeline, name))


@pytest.mark.parametrize("name", STAGES)
def test_every_stage_has_one_shape(name):
    stage = inspect.signature(getattr(composer_pipeline, name), eval_str=True)
    parameters = list(stage.parameters.values())
    assert parameters[0].name == "lake"
    named = {p.name: p for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
    assert named["progress"].default is None
    assert ("days" in named) == (name in BY_DAY)
    assert "days" not in named or named["days"].default is None
    assert issubclass(stage.return_annotation, Report)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'replays'"):
        _ = composer_pipeline.replays


def test_the_page_of_the_api_is_as_the_code():
    assert (ROOT / "docs" / "api.md").read_text(encoding="utf-8") == page()


def test_help_of_the_package_fits_three_screens():
    text = pydoc.plain(pydoc.render_doc(composer_pipeline))
    assert len(text.splitlines()) <= 150
    assert [name for name in composer_pipeline.API if name not in text] == []


LAKE = Lake("nowhere-at-all")
API: Any = composer_pipeline
WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "no lake": (lambda: API.ingest("lake", []), "ingest: lake must be a Lake, as in"),
    "no lake, named": (lambda: API.status(lake=None), "must be a Lake, .* NoneType"),
    "one day": (lambda: API.build_pairs(LAKE, days="2026-11-16"), "no list of days"),
    "a number of days": (lambda: API.build_hints(LAKE, days=3), "no list of days"),
    "teachers": (lambda: API.plan(LAKE, 3), "teachers: a file, or the name .* int"),
    "no such teachers": (lambda: API.plan(LAKE, "defalt"), "teacher file defalt"),
    "rules": (lambda: API.build_pairs(LAKE, rules={}), "preferences: a file.* dict"),
    "a recipe": (lambda: API.train(LAKE, 7, "runs"), "train: a file, .* int"),
    "normalize": (lambda: API.normalize(LAKE, None), "normalize: a file, .* None"),
    "money": (lambda: API.replay(LAKE, "demo", max_usd="much"), "no amount in USD"),
    "no money": (lambda: API.replay(LAKE, "demo", max_usd=None), "no amount in USD"),
    "paths": (lambda: API.ingest(LAKE, "/no/such"), "/no/such does not exist"),
    "statistics": (lambda: API.read_statistics(LAKE), "no statistics of all"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_a_notebook_gets_wrong_is_one_sentence(case):
    call, said = WRONG[case]
    with pytest.raises(InputError, match=said) as error:
        call()
    assert "\n" not in str(error.value)
    assert not Path(LAKE.url).exists()


def test_shipped_files_go_by_name_as_on_the_command_line(tmp_path):
    lake = Lake(tmp_path / "lake")
    composer_pipeline.ingest(lake, composer_pipeline.sample_sessions_dir())
    assert composer_pipeline.plan(lake, "demo", teachers=["careful"]).calls == 198
    composer_pipeline.build_pairs(lake, rules="default")
    composer_pipeline.normalize(lake, "default")
    assert composer_pipeline.build_dataset(lake, rules="default").rows > 0
    found = {(r["statistic"], r["a"]): r["value"] for r in composer_pipeline.read_statistics(lake)}
    assert found["rows", "states"] == 198
    tables = lake.tables()
    assert tables["states"] == 198
    assert "replies" not in tables
    assert composer_pipeline.verify(lake).problems == []
    assert composer_pipeline.status(lake).days["count"] == 4
    assert composer_pipeline.reparse(lake, days=["2026-11-16"]).days == ["2026-11-16"]


def test_a_file_of_ones_own_comes_before_a_shipped_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert recipe_file("default", "preferences").name == "default.yaml"
    Path("default").write_text("accept: [style]\n")
    assert recipe_file("default", "preferences") == Path("default")
    assert PreferenceRules.load("default").accept == ["style"]
