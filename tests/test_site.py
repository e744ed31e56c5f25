"""The documents as a site: it builds strictly, and its comparison says what was recorded."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from composer_pipeline.actions import Action
from composer_pipeline.preferences.actions.canonical import Level
from composer_pipeline.preferences.actions.levels import ActionContext, level
from tests.places import ROOT


def _script(name: str) -> ModuleType:
    """Return a script of benchmarks/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


compare, figures = _script("compare"), _script("figures")


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_every_page_is_in_the_site_and_every_link_leads_somewhere(tmp_path: Path) -> None:
    done = _run("-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    listed = {page for entry in _navigation() for page in entry.values()}
    assert listed == {page.name for page in (ROOT / "docs").glob("*.md")}
    pages = {page.name: page.read_text(encoding="utf-8") for page in tmp_path.rglob("*.html")}
    assert "From nothing to a trained" in pages["guide.html"]
    for name, html in pages.items():
        loaded = re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*", html)
        outside = [tag for tag in loaded if re.search(r"(?:src|href)=\"?(?:https?:)?//", tag)]
        assert not outside, f"{name} does not work without a network"
    assert re.search(r'<script src="\S*iframe-worker.js">', pages["guide.html"]), "search in a file"


def _navigation() -> list[dict[str, str]]:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    entries: list[dict[str, str]] = yaml.safe_load(text)["nav"]
    return entries


def test_the_comparison_is_the_recorded_one() -> None:
    assert (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8") == compare.page()


@pytest.mark.parametrize("name", [*figures.pictures()])
def test_a_picture_of_the_documents_is_the_recorded_one(name: str) -> None:
    """What draws them again is ``make figures``."""
    image = (ROOT / "docs" / "images" / name).read_text(encoding="utf-8")
    assert image == figures.pictures()[name] + "\n"
    assert any(f"](images/{name})" in page.read_text() for page in (ROOT / "docs").glob("*.md"))


def test_the_drawn_levels_of_agreement_are_those_of_the_code() -> None:
    drawn = {name: pair for name, _, _, _, *pair in figures.LEVELS if pair[0]}
    found = {}
    for name, pair in drawn.items():
        one, other = (Action(tool_calls=(call,)) for call in pair)
        found[name] = level(one, other, ActionContext()).level.name
    assert found == {name: name for name in drawn}
    assert [name for name, *_ in figures.LEVELS] == [each.name for each in Level][:-1]


def test_a_figure_that_was_not_recorded_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    figure = compare.Figure("peer", "replay.md", r"no such row ([\d.]+)")
    job = compare.Job("Replay", "work", "", (figure,))
    monkeypatch.setattr(compare, "JOBS", (job,))
    with pytest.raises(LookupError, match=r"replay\.md has no figure of peer"):
        compare.page()


def test_what_was_not_run_says_so() -> None:
    assert compare.Figure("torchft", "", "", "no cluster").value() == "not run"
