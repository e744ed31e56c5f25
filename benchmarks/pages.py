"""A benchmark's page: printed, and kept in ``benchmarks/results`` with ``--record``."""

import argparse
from pathlib import Path


def options(about: str | None, page: Path) -> argparse.ArgumentParser:
    """Return a parser with the first line of a module's docstring and ``--record``."""
    parser = argparse.ArgumentParser(description=(about or "").splitlines()[0])
    parser.add_argument("--record", action="store_true", help=f"write {page.name}")
    return parser


def show(text: str, page: Path, given: argparse.Namespace) -> None:
    """Print a page, and write it where ``--record`` was given."""
    print(text)
    if given.record:
        page.write_text(text, encoding="utf-8")
