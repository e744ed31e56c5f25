"""docs/first-hour.md is what its script writes: the same text and the same commands."""

import re

import pytest

from tests.first_hour import HEAD, STEPS, main
from tests.places import ROOT


def test_the_page_has_the_steps_of_the_script() -> None:
    page = (ROOT / "docs" / "first-hour.md").read_text(encoding="utf-8")
    assert page.startswith(HEAD)
    typed = re.findall(r"^\$ composer-pipeline (.*)$", page, re.M)
    steps = [
        re.escape(re.sub(r"{\w+}", "ID", step)).replace("ID", "[0-9a-f]+") for _, step in STEPS
    ]
    assert len(typed) == len(steps)
    assert all(re.fullmatch(step, line) for step, line in zip(steps, typed, strict=True))
    assert "Traceback" not in page


@pytest.mark.slow
def test_the_commands_run_in_order_and_print_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    page = (ROOT / "docs" / "first-hour.md").read_text(encoding="utf-8")
    assert _steady(capsys.readouterr().out) == _steady(page)


def _steady(page: str) -> list[str]:
    """Return the lines without a build's id and the sizes of files: these differ each time."""
    return re.sub(r"\b(?:[0-9a-f]{16}|\d{1,3},\d{3})\b *", "-", page).splitlines()
