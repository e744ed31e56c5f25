"""Money is spent in one place: nothing else reserves or settles."""

import ast
from pathlib import Path

import composer_pipeline

PACKAGE = Path(composer_pipeline.__file__).parent
#: Operations that begin or end a payment. ``release`` is not here: it can only give back.
SPENDS = {"reserve", "settle"}
#: Where they may be called: the one way to pay, and the books themselves.
ALLOWED = ("teachers/paid_call.py", "teachers/ledger/")


def spends(source: str) -> list[str]:
    """Return the calls of a module that begin or end a payment, however they are spelled."""
    found = []
    books = {"ledger", "commits"} | ({"operations"} if "teachers.ledger" in source else set())
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").endswith("ledger.operations"):
            found += [alias.name for alias in node.names if alias.name in SPENDS]
        elif isinstance(node, ast.Attribute) and node.attr in SPENDS:
            owner = node.value.attr if isinstance(node.value, ast.Attribute) else ""
            owner = node.value.id if isinstance(node.value, ast.Name) else owner
            found += [node.attr] if owner in books else []
    return found


def test_only_paid_calls_reserve_and_settle() -> None:
    callers = {
        path.relative_to(PACKAGE).as_posix(): calls
        for path in PACKAGE.rglob("*.py")
        if (calls := spends(path.read_text()))
    }
    assert sorted(callers.pop("teachers/paid_call.py")) == ["reserve", "settle", "settle"]
    assert [name for name in callers if not name.startswith(ALLOWED)] == []


def test_the_guard_sees_every_spelling() -> None:
    ours = "from composer_pipeline.teachers.ledger import operations"
    assert spends(f"{ours}\noperations.settle(a, b, c)") == ["settle"]
    assert spends("operations.settle(a, b, c)") == []
    assert spends("self.ledger.reserve(k)") == ["reserve"]
    assert spends("from composer_pipeline.teachers.ledger.operations import settle as pay") == [
        "settle"
    ]
    assert spends("index.settle()") == []
