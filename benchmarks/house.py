"""The house in figures: folders, files, functions, lines and tests, each beside its bar.

    python benchmarks/house.py [--at REVISION] [--no-tests]

Prints one line a figure and what misses its bar; exits 1 on a miss. What is counted:

- *modules of a folder*: its ``*.py`` files without ``__init__.py``, for each folder of
  ``composer_pipeline``; sub-folders count for themselves;
- *lines of a file*: all lines, blank ones and comments included;
- *functions too complex*: what ruff's ``C901`` finds above ten in the product, less those whose
  ``# noqa: C901`` is followed by a reason on the same line;
- *product lines*: lines of the ``*.py`` files of ``composer_pipeline`` without its ``testing``, of
  ``assets``, ``trainers`` and ``examples/demo`` (which stood in ``assets`` before), tracked and new
  files alike; beside them the lines that hold code: no blank line, comment or docstring. They are
  compared with revision ``BEFORE``; ``--at REVISION`` counts another one. A figure without a bar,
  since new features add lines too;
- *tests*: what pytest collects, parameters counted one by one.
"""

import argparse
import ast
import io
import json
import re
import subprocess
import sys
import tokenize
from collections import Counter
from pathlib import Path, PurePosixPath
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("composer_pipeline", "assets", "trainers", "examples")
COUNTED = ("composer_pipeline/", "assets/", "trainers/", "examples/demo/")
NOT_COUNTED = "composer_pipeline/testing"

MOST_MODULES = 12
MEDIAN_LINES = 120
MOST_LINES = 450
MOST_COMPLEX = 10
LEAST_TESTS = 3246
"""Tests that were collected when the rooms were laid out; raise it when tests are added."""
BEFORE = "3133120"
"""The revision before the rooms and wings."""
BEFORE_LINES, BEFORE_CODE = 35_303, 24_269

_REASON = re.compile(r"#\s*noqa:.*\bC901\b[\s,:-]*(\w.*)")


def modules(folder: Path) -> list[Path]:
    """Return the modules of one folder, ``__init__`` left out."""
    return [path for path in sorted(folder.glob("*.py")) if path.name != "__init__.py"]


def too_complex() -> list[str]:
    """Return ``file:line: function`` of each function above the bar that gives no reason."""
    options = ["--select", "C901", "--ignore-noqa", "--output-format", "json", "--exit-zero"]
    limit = ["--config", f"lint.mccabe.max-complexity={MOST_COMPLEX}"]
    found = subprocess.run(
        [sys.executable, "-m", "ruff", "check", *options, *limit, *PRODUCT],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    missing = []
    for finding in json.loads(found.stdout):
        path, row = Path(finding["filename"]), finding["location"]["row"]
        if not _REASON.search(path.read_text().splitlines()[row - 1]):
            missing.append(f"{path.relative_to(ROOT)}:{row}: {finding['message']}")
    return missing


def code_lines(source: str) -> int:
    """Return how many lines hold code: no blank line, comment or docstring."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            docstrings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    empty = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    held: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in empty and token.type != tokenize.ENDMARKER:
            held.update(range(token.start[0], token.end[0] + 1))
    return len(held - docstrings)


def git(*arguments: str) -> str:
    """Return what git prints in the repository."""
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


def product_lines(revision: str | None) -> tuple[int, int]:
    """Return all lines and the code lines of the product, at a revision or as it stands."""
    if revision is None:
        listed = git("ls-files", "--cached", "--others", "--exclude-standard")
    else:
        listed = git("ls-tree", "-r", "--name-only", revision)
    lines = code = 0
    for name in sorted(set(listed.splitlines())):
        counted = name.startswith(COUNTED) and not name.startswith(NOT_COUNTED)
        if not counted or PurePosixPath(name).suffix != ".py":
            continue
        if revision is not None:
            source = git("show", f"{revision}:{name}")
        elif (ROOT / name).exists():
            source = (ROOT / name).read_text()
        else:
            continue
        lines += len(source.splitlines())
        code += code_lines(source)
    return lines, code


def collected_tests() -> int:
    """Return how many tests pytest collects."""
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = re.search(r"^(\d+) tests? collected", ran.stdout, re.MULTILINE)
    if found is None or ran.returncode:
        raise SystemExit(f"pytest could not collect the tests:\n{ran.stdout[-2000:]}")
    return int(found[1])


def main() -> int:
    """Print each figure beside its bar; return 1 when one misses."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--at", metavar="REVISION", help="only count the lines of a revision")
    options.add_argument("--no-tests", action="store_true", help="do not collect the tests")
    arguments = options.parse_args()
    if arguments.at:
        print("{} lines, {} of them code".format(*product_lines(arguments.at)))
        return 0

    misses: list[str] = []

    def figure(
        name: str, value: float | str, bar: str = "", missed: list[str] | None = None
    ) -> None:
        print(f"{name:36} {value!s:>16}   {bar}")
        misses.extend(f"{name}: {what}" for what in missed or ())

    library = ROOT / "composer_pipeline"
    files = sorted(library.rglob("*.py"))
    sizes = {path: len(path.read_text().splitlines()) for path in files}
    rooms = Counter(path.parent for path in files if path.name != "__init__.py")
    (fullest, most) = rooms.most_common(1)[0]
    figure(
        "modules of the fullest folder", f"{most} {fullest.relative_to(ROOT).name}",
        f"at most {MOST_MODULES}",
        [f"{room.relative_to(ROOT)} holds {n}" for room, n in rooms.items() if n > MOST_MODULES],
    )  # fmt: skip
    middle = median(sizes[path] for path in files if path.name != "__init__.py")
    over = [f"it is {middle:g} lines"] if middle > MEDIAN_LINES else []
    figure("median file", f"{middle:g} lines", f"at most {MEDIAN_LINES}", over)
    longest = max(files, key=lambda path: sizes[path])
    figure(
        "longest file", f"{sizes[longest]} {longest.name}", f"at most {MOST_LINES}",
        [f"{path.relative_to(ROOT)} has {n}" for path, n in sizes.items() if n > MOST_LINES],
    )  # fmt: skip
    missing = too_complex()
    figure(f"functions above {MOST_COMPLEX}, no reason", len(missing), "none", missing)
    lines, code = product_lines(None)
    figure("product lines", lines, f"{lines - BEFORE_LINES:+} since {BEFORE} ({BEFORE_LINES})")
    figure("  of them code", code, f"{code - BEFORE_CODE:+} since {BEFORE} ({BEFORE_CODE})")
    if not arguments.no_tests:
        tests = collected_tests()
        fewer = [f"only {tests}"] if tests < LEAST_TESTS else []
        figure("tests collected", tests, f"at least {LEAST_TESTS}", fewer)
    for miss in misses:
        print(f"MISSED  {miss}")
    return 1 if misses else 0


if __name__ == "__main__":
    sys.exit(main())
