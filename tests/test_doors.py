"""A wing has a door: code outside imports from the wing, never from a file inside it."""

import ast
import importlib
from collections.abc import Iterator

import pytest

from tests.places import ROOT

DOORS = [
    f"composer_pipeline.{wing}"
    for wing in (
        "lake.notes", "lake", "redaction", "chat", "normalize", "publishing", "doctor",
        "evaluation", "training.data", "training.windows",
        "traces.archive", "traces.reading", "traces.graph", "traces.states",
        "replay.ledger", "replay.provider", "replay.catalogue", "replay.selection",
        "replay.engine", "replay.plan",
        "preferences.actions", "preferences.agreement", "preferences.pairs", "preferences.hints",
        "preferences.export", "preferences.quality", "interchange",
    )
]  # fmt: skip
#: Code that must use the doors. A benchmark may look inside for what a door does not show.
HOUSES = ("composer_pipeline", "assets", "trainers", "examples", "benchmarks")


def wing_of(module: str) -> str:
    return next((w for w in DOORS if module == w or module.startswith(f"{w}.")), "")


def trespasses(module: str, source: str) -> Iterator[str]:
    """Yield each import of a file inside a wing that ``module`` does not belong to."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ImportFrom) or not node.module:
            continue
        wing = wing_of(node.module)
        if not wing or wing == wing_of(module):
            continue
        shown = set(importlib.import_module(wing).__all__)
        names = {alias.name for alias in node.names}
        hidden = names - shown if node.module == wing else names
        if module.startswith("benchmarks."):
            hidden = names & shown if node.module != wing else set()
        for name in sorted(hidden):
            yield f"{module}: {name} from {node.module}"


def test_code_outside_a_wing_comes_through_its_door():
    found: list[str] = []
    for path in (path for house in HOUSES for path in (ROOT / house).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found += trespasses(module, path.read_text(encoding="utf-8"))
    assert not found


def test_a_trespass_is_seen():
    inside = "from composer_pipeline.replay.ledger.rules import settle"
    assert list(trespasses("composer_pipeline.cli.replay", inside))
    assert not list(trespasses("composer_pipeline.replay.ledger.batch", inside))
    hidden = "from composer_pipeline.replay.ledger import batch"
    assert list(trespasses("composer_pipeline.cli.replay", hidden))
    through = "from composer_pipeline.replay.ledger import Ledger"
    assert not list(trespasses("composer_pipeline.cli.replay", through))


@pytest.mark.parametrize("wing", DOORS)
def test_a_door_shows_few_names_and_says_what_is_inside(wing):
    door = importlib.import_module(wing)
    assert door.__doc__
    assert 1 <= len(door.__all__) <= 24
    assert all(hasattr(door, name) for name in door.__all__)
