"""Writes docs/api.md from the names themselves: ``python -m tests.api_page > docs/api.md``."""

import inspect
import sys
from collections.abc import Callable
from typing import Any

import composer_pipeline

HEAD = """# The Python API

`from composer_pipeline import …` offers these names, in the order of the stages. Each is loaded
when it is first used. A stage is `stage(lake, …, *, days=None, progress=None) -> Report`:
`days` where its tables have days (`None` is every day, an empty list none), `progress` is called
as (label, done, total), and `Report.to_dict()` is plain JSON. `help(name)` says the rest.
Runnable: the four files of `examples/`.

This page is written from the code: `python -m tests.api_page > docs/api.md`.

"""
GROUPS = {
    "What everything speaks of": "Lake",
    "Files that you write": "TeacherSet",
    "Stages and questions, in order": "ingest",
    "Errors": "ComposerError",
}


def signature(name: str, found: Callable[..., Any]) -> str:
    """Return a function's parameters without their types; a class is its name."""
    if inspect.isclass(found):
        return name
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in inspect.signature(found).parameters.values()
    ]
    return f"{name}{inspect.Signature(parameters)}"


def page() -> str:
    """Return the page."""
    text = HEAD
    first_of = {first: title for title, first in GROUPS.items()}
    for name in composer_pipeline.API:
        if name in first_of:
            text += f"## {first_of[name]}\n\n"
        found = getattr(composer_pipeline, name)
        sentence = " ".join((inspect.getdoc(found) or "").split("\n\n")[0].split())
        sentence = sentence.replace("``", "`").replace(":data:", "").replace(":class:", "")
        end = "\n\n" if name in LAST else "\n"
        text += f"- `{signature(name, found)}`: {sentence}{end}"
    return text.rstrip() + "\n"


LAST = {composer_pipeline.API[composer_pipeline.API.index(first) - 1] for first in GROUPS.values()}

if __name__ == "__main__":
    sys.stdout.write(page())
