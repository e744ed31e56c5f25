"""Writes docs/recipes.md from the models: ``python -m tests.recipe_page > docs/recipes.md``."""

import sys
from typing import Any, get_args

from pydantic import BaseModel

from composer_pipeline.training.recipe import TrainingRecipe

HEAD = """# Training recipes

A training run is one YAML file (`composer-pipeline train --recipe FILE`). Shipped in
`recipes/train`: `smoke` (two steps), `smollm2-cpu` (every channel on a CPU), `gpu-24gb` (0.5B to
1.5B), `gpu-80gb` (7B to 8B), `default` (as `gpu-24gb`) and `demo`. Before a run,
`composer-pipeline train --plan` says rows, steps and memory, and refuses what will not fit;
`--probe` times three real steps. No GPU was at hand: memory on one is predicted, not measured.

This page is written from the code: `python -m tests.recipe_page > docs/recipes.md`.
"""


def section(title: str, model: type[BaseModel], prefix: str = "") -> str:
    """Return the table of a model's fields, then those of the models inside."""
    about = " ".join((model.__doc__ or "").split()).replace("``", "`").replace(":attr:", "")
    text = f"\n## {title}\n\n{about}\n\n| field | type | default | meaning |\n|---|---|---|---|\n"
    inside = []
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            inside.append((name, field.annotation))
            continue
        bounds = ", ".join(str(limit) for limit in field.metadata)
        kind = _type(field.annotation) + (f" ({bounds})" if bounds else "")
        default = "required" if field.is_required() else f"`{field.default!r}`"
        text += f"| `{prefix}{name}` | {kind} | {default} | {field.description or 'see above'} |\n"
    for name, child in inside:
        text += section(f"`{prefix}{name}`", child, f"{prefix}{name}.")
    return text


def _type(annotation: Any) -> str:
    if isinstance(annotation, type) and not get_args(annotation):
        return annotation.__name__
    text = str(annotation).replace("typing.", "").replace("NoneType", "None")
    return text.replace("|", "or")


def page() -> str:
    """Return the page."""
    return HEAD + section("The recipe", TrainingRecipe)


if __name__ == "__main__":
    sys.stdout.write(page())
