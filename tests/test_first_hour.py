"""docs/first-hour.md is what its script writes: the same text and the same commands."""

import re

from tests.first_hour import HEAD, STEPS
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
