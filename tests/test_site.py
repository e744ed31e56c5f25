"""The documents as a site: it builds strictly, and its comparison says what was recorded."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from tests.places import ROOT


@pytest.fixture(scope="module")
def compare() -> ModuleType:
    """The script that writes the comparison; scripts are no package."""
    spec = importlib.util.spec_from_file_location("compare", ROOT / "benchmarks" / "compare.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["compare"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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


def test_the_comparison_is_the_recorded_one(compare: ModuleType) -> None:
    assert (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8") == compare.page()


def test_a_figure_that_was_not_recorded_is_named(
    compare: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    figure = compare.Figure("peer", "replay.md", r"no such row ([\d.]+)")
    job = compare.Job("Replay", "work", "", (figure,))
    monkeypatch.setattr(compare, "JOBS", (job,))
    with pytest.raises(LookupError, match=r"replay\.md has no figure of peer"):
        compare.page()


def test_what_was_not_run_says_so(compare: ModuleType) -> None:
    assert compare.Figure("torchft", "", "", "no cluster").value() == "not run"
