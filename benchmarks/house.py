"""The size and shape of the product, beside their limits; CI holds them.

    python benchmarks/house.py

Counted over ``composer_pipeline``, ``assets`` and ``trainers``. *The trip* is what one session
crosses from its file to a row of the dataset: the modules whose functions are called, and the
ordered pairs of modules where one calls the other. Exits 1 if a limit is passed.
"""

import ast
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
PRODUCT = ("composer_pipeline", "assets", "trainers")
SMALL = 80
#: Small modules with one importer that stay, and why.
REASONS = {
    "composer_pipeline/diloco/places/": "one file a place that a recipe can name",
    "losses/": "one file a loss",
    "assets/": "one file a stage",
    "__main__.py": "what `python -m` runs",
    "composer_pipeline/testing/samples.py": "what examples and tests import",
}
#: Name of a figure: its value at c0d64a3, before the merge, and its limit.
LIMITS: dict[str, tuple[float, float]] = {
    "product lines": (82_662, 81_410),
    "product files": (677, 312),
    "files per 10,000 lines": (81.9, 50),
    "docstring share, %": (18.9, 12),
    "modules of the trip": (191, 102),  # each source is asked whose a file is
    "hand-overs of the trip": (
        450,
        303,
    ),  # two less where no drawn id looks like one with check digits
    "small modules with one importer": (79, 0),
    "circles of imports": (0, 0),
}


def sources() -> dict[str, ast.Module]:
    """Return module name to its tree."""
    found = {}
    for path in sorted(p for top in PRODUCT for p in (ROOT / top).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts)] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def docstring_lines(tree: ast.Module) -> int:
    """Return how many lines of a module are docstrings."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    first = [n.body[0] for n in ast.walk(tree) if isinstance(n, kinds) and n.body]
    return sum(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for node in first
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def imports(trees: dict[str, ast.Module]) -> dict[str, set[str]]:
    """Return module to the modules that it imports, at the top or inside a function."""
    graph: dict[str, set[str]] = {name: set() for name in trees}
    for name, tree in trees.items():
        for node in _running(tree):
            if isinstance(node, ast.Import):
                graph[name] |= {alias.name for alias in node.names} & trees.keys()
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    inside = f"{node.module}.{alias.name}"
                    found = inside if inside in trees else node.module
                    graph[name] |= {found} & trees.keys() - {name}
    return graph


def _running(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a tree outside ``if TYPE_CHECKING``."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)):
            yield node
            yield from _running(node)


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that import each other."""
    left = dict(graph)
    while free := [n for n, to in left.items() if not to & left.keys()]:
        for name in free:
            del left[name]
    return [sorted(left)] if left else []


def small(trees: dict[str, ast.Module], graph: dict[str, set[str]]) -> list[str]:
    """Return the small modules with one importer and no reason to stay."""
    importers: dict[str, int] = defaultdict(int)
    for targets in graph.values():
        for target in targets:
            importers[target] += 1
    found = []
    for name in trees:
        path = name.replace(".", "/") + ".py"
        lines = len((ROOT / path).read_text(encoding="utf-8").splitlines())
        kept = path.endswith("__init__.py") or any(reason in path for reason in REASONS)
        if lines < SMALL and importers[name] == 1 and not kept:
            found.append(f"{path} ({lines} lines)")
    return found


class Trip:
    """Counts modules and hand-overs of the code that runs in the context, in every thread."""

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self.hand_overs: set[tuple[str, str]] = set()
        self._local = threading.local()

    def _profile(self, frame: FrameType, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        if event not in ("call", "return") or not file.startswith(f"{ROOT}/composer_pipeline/"):
            return
        if "/testing/" in file:
            return
        stack = self._local.__dict__.setdefault("stack", [])
        if event == "return":
            if stack:
                stack.pop()
            return
        self.modules.add(file)
        if stack and stack[-1] != file:
            self.hand_overs.add((stack[-1], file))
        stack.append(file)

    def __enter__(self) -> "Trip":
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)


def trip() -> Trip:
    """Take the smallest bundled session from its file to the dataset."""
    from composer_pipeline import (
        Lake,
        TeacherSet,
        build_dataset,
        build_hints,
        build_pairs,
        ingest,
        normalize,
        replay,
    )  # fmt: skip
    from composer_pipeline.testing.samples import sample_sessions_dir
    from examples.demo.profile import loopback

    files = [p for p in sample_sessions_dir().rglob("*.jsonl") if "subagent" not in str(p)]
    session = min(files, key=lambda path: path.stat().st_size)
    teachers = TeacherSet.load(ROOT / "recipes" / "teachers" / "demo.yaml")
    with tempfile.TemporaryDirectory() as folder, loopback():
        lake = Lake(folder)
        with Trip() as taken:
            ingest(lake, [str(session)])
            replay(lake, teachers, max_usd=Decimal(1))
            build_hints(lake)
            build_pairs(lake)
            normalize(lake, "none")
            build_dataset(lake)
    return taken


def main() -> int:
    """Print each figure beside what it was and its limit; return 1 if one is passed."""
    trees = sources()
    paths = [ROOT / (name.replace(".", "/") + ".py") for name in trees]
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)
    graph = imports(trees)
    found_small, found_circles, taken = small(trees, graph), circles(graph), trip()
    figures: dict[str, float] = {
        "product lines": lines,
        "product files": len(trees),
        "files per 10,000 lines": 10_000 * len(trees) / lines,
        "docstring share, %": 100 * sum(map(docstring_lines, trees.values())) / lines,
        "modules of the trip": len(taken.modules),
        "hand-overs of the trip": len(taken.hand_overs),
        "small modules with one importer": len(found_small),
        "circles of imports": len(found_circles),
    }
    passed = False
    print(f"{'':34}{'before':>10}{'now':>10}{'limit':>10}")
    for name, value in figures.items():
        before, limit = LIMITS[name]
        over = value > limit
        passed |= over
        print(f"{name:34}{before:>10,g}{value:>10,.5g}{limit:>10,g}{'  PASSED' if over else ''}")
    for what in [*found_small, *map(", ".join, found_circles)]:
        print(f"  {what}")
    return int(passed)


if __name__ == "__main__":
    sys.exit(main())
