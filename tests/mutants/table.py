"""The changes of ``tests/mutants/<room>.yaml``, and which tests concern the file of each.

Belongs here: reading the tables, and the tests of a change in the order in which they run. Does
not belong here: applying a change (``run_mutants``), what came of it (``verdicts``).
"""

import ast
import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
TABLES = Path(__file__).parent


@dataclass(frozen=True)
class Mutant:
    """One wrong change.

    Attributes:
        file: path in the checkout.
        old: a text that stands in the file exactly once; ``new`` takes its place.
        loses: what a user would lose.
        accepted: why it may survive; empty for a change that a test must notice.
        tests: paths of further tests, where the selection would miss them.
    """

    file: str
    old: str
    new: str
    loses: str
    accepted: str = ""
    tests: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Name the change by what it does, wherever it stands in its table."""
        said = "\0".join((self.file, self.old, self.new))
        return hashlib.sha256(said.encode()).hexdigest()[:12]

    @property
    def stale(self) -> bool:
        """Say whether the text to change is not in the file exactly once."""
        path = ROOT / self.file
        return not path.is_file() or path.read_text(encoding="utf-8").count(self.old) != 1


def rooms() -> list[str]:
    """Return the rooms that have a table, sorted."""
    return sorted(path.stem for path in TABLES.glob("*.yaml"))


@cache
def mutants(room: str) -> tuple[Mutant, ...]:
    """Return the changes of a room, in the order of its table."""
    rows = yaml.safe_load((TABLES / f"{room}.yaml").read_text(encoding="utf-8"))
    return tuple(Mutant(**{**row, "tests": tuple(row.get("tests", ()))}) for row in rows)


def tests_of(mutant: Mutant) -> list[str]:
    """Return the test files of a change, in the order of ``stages``."""
    return [test for stage in stages(mutant) for test in stage]


def stages(mutant: Mutant) -> list[list[str]]:
    """Return the test files of a change in groups, the likeliest to notice it first.

    Those of the file's own name and of the row; those that import the file, the narrow ones
    first; the folder that mirrors the file's; those that import its wing; those of its room.
    """
    module = mutant.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    wing = module.rpartition(".")[0]
    parts = mutant.file.removesuffix(".py").removeprefix("composer_pipeline/").split("/")
    named = ROOT / "tests" / Path(*parts[:-1]) / f"test_{parts[-1]}.py"
    folder = ROOT / "tests" / Path(*parts[:-1])
    while not folder.is_dir():  # a wing without tests of its own has those of its room
        folder = folder.parent
    mirrored = sorted(folder.glob("test_*.py")) if folder != ROOT / "tests" else []
    narrow_first = sorted(imports(), key=lambda file: len(file[1]))
    direct = [path for path, names in narrow_first if module in names]
    through = [path for path, names in narrow_first if wing in names and wing.count(".") > 1]
    room = sorted((ROOT / "tests" / parts[0]).rglob("test_*.py"))
    own = [named] if named.is_file() else []
    out: list[list[str]] = []
    nearest = [*own, *(ROOT / name for name in mutant.tests)]
    for group in (nearest, direct, mirrored, through, room):
        before = {test for stage in out for test in stage}
        found = dict.fromkeys(str(path.relative_to(ROOT)) for path in group)
        out.append([test for test in found if test not in before])
    return [stage for stage in out if stage]


@cache
def imports() -> tuple[tuple[Path, frozenset[str]], ...]:
    """Return each test file with the dotted names that it imports, or its conftest does."""
    out = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if "ui" in path.parts or "chaos" in path.parts or path.parent == TABLES:
            continue
        conftest = path.with_name("conftest.py")
        names = set(_imported(path))
        if conftest.is_file():
            names |= set(_imported(conftest))
        for helper in sorted(name for name in names if name.startswith("tests.")):
            file = ROOT / (helper.replace(".", "/") + ".py")
            if file.is_file():
                names |= set(_imported(file))
        out.append((path, frozenset(names)))
    return tuple(out)


@cache
def _imported(path: Path) -> frozenset[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            # A subprocess's code, or the path of what is patched.
            names |= {word for word in node.value.split() if word.startswith("composer_pipeline.")}
    return frozenset(names)
