"""The documents name what is there: every package in the tree, every path that they point to."""

import re
from pathlib import Path

import pytest

from tests.places import ROOT

ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
LIBRARY = ROOT / "composer_pipeline"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def _tree() -> str:
    return ARCHITECTURE.split("```")[3]


@pytest.mark.parametrize(
    "package", sorted(path.parent.relative_to(LIBRARY) for path in LIBRARY.rglob("__init__.py"))
)
def test_the_tree_shows_every_package(package: Path) -> None:
    if package != Path():
        assert re.search(rf"(^| ){re.escape(package.name)}/", _tree(), re.M), (
            f"{package} is not shown"
        )


def test_the_tree_shows_nothing_that_is_gone() -> None:
    folders = {path.name for path in ROOT.rglob("*") if path.is_dir() and ".venv" not in path.parts}
    shown = set(re.findall(r"(?:^| )([a-z_]+)/(?= |$)", _tree(), re.M))
    assert shown - folders == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_in_the_documents_exist(page: Path) -> None:
    named = re.findall(r"`((?:[\w.-]+/)+[\w.-]*)`", page.read_text())
    code = [name for name in named if name.endswith((".py", ".yaml", ".md", "/"))]
    made = (".dagster/", "lake-demo/", "build/", "archive/", "made/", "rounds/", "benchmarks/NAME")
    gone = [
        name
        for name in code
        if not name.startswith(made)
        and not (ROOT / name).exists()
        and not (LIBRARY / name).exists()
    ]
    assert gone == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_targets_in_the_documents_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = set(
        re.findall(r"(?<![\w-])make ([a-z]+(?:-[a-z]+)*)(?=[`\s])", _code(page.read_text()))
    )
    assert named - targets == set()


def test_every_measured_figure_names_what_prints_it() -> None:
    rows = re.findall(
        r"^\| (.+?) \| `(.+?)` \| .+ \|$", (ROOT / "docs" / "measured.md").read_text(), re.M
    )
    assert len(rows) > 10
    for what, command in rows:
        target = re.fullmatch(r"make ([a-z-]+)", command)
        found = f"\n{target[1]}:" in (ROOT / "Makefile").read_text() if target else None
        assert found or (ROOT / command).is_file(), f"{what}: {command}"


def _code(text: str) -> str:
    """Return what stands between backticks: sentences may say "make it"."""
    return "\n".join(re.findall(r"```.*?```|`[^`\n]+`", text, re.S))
