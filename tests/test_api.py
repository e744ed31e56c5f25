"""The Python API: a flat list, loaded lazily, documented in docs/api.md."""

import inspect
import subprocess
import sys

import pytest

import composer_pipeline
from composer_pipeline.reports import Report
from tests.api_page import page
from tests.places import ROOT

STAGES = (
    "ingest", "plan", "replay", "build_hints", "build_pairs", "write_statistics", "normalize",
    "build_dataset", "export", "publish", "train", "evaluate", "write_report",
)  # fmt: skip
BY_DAY = ("ingest", "plan", "replay", "build_hints", "build_pairs", "write_statistics", "normalize")


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


@pytest.mark.parametrize("name", composer_pipeline.__all__)
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
