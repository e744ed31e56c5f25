"""Writes docs/recipes.md from the models: ``python -m tests.recipe_page > docs/recipes.md``."""

import json
import sys
from types import NoneType
from typing import Annotated, Any, Literal, TypeGuard, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from composer_pipeline.training.recipe import TrainingRecipe

WORDS = {
    str: "text", int: "whole number", float: "number", bool: "`true` or `false`", NoneType: "`null`"
}  # fmt: skip
SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<", "min_length": "length ≥"}

HEAD = """# Training recipes

A training run is one YAML file (`composer-pipeline train --recipe FILE`). Shipped in
`recipes/train`: `smoke` (two steps), `smollm2-cpu` (every channel on a CPU), `gpu-24gb` (0.5B to
1.5B), `gpu-80gb` (7B to 8B), `gpu-8x80gb` (32B over eight GPUs), `default` (as `gpu-24gb`),
`demo`, and for [other trainers](trainers.md) `verl` and `prime-rl`. The weights of `default` and
`gpu-*` are those that won the [proof](proof.md). Before a run, `composer-pipeline train --plan`
prints rows, steps and memory, and fails if the run does not fit; `--probe` times three real
steps. Memory on a GPU is predicted; it was measured for two settings ([On a GPU](gpu.md)).

This page is generated from the code: `python -m tests.recipe_page > docs/recipes.md`.
"""


def section(title: str, model: type[BaseModel], prefix: str = "") -> str:
    """Return the table of a model's fields, then those of the models inside."""
    about = " ".join((model.__doc__ or "").split()).replace("``", "`").replace(":attr:", "")
    text, rows = f"\n## {title}\n\n{about}\n", ""
    inside = []
    for name, field in model.model_fields.items():
        if _is_model(field.annotation):
            inside.append((name, field.annotation))
            continue
        inside += [(name, model) for model in _models(field.annotation)]  # these are a field too
        bounds = ", ".join(_bound(limit) for limit in field.metadata)
        kind = _type(field.annotation) + (f", {bounds}" if bounds else "")
        default = "required" if field.is_required() else f"`{_yaml(field.default)}`"
        rows += f"| `{prefix}{name}` | {kind} | {default} | {' '.join(_said(name, field))} |\n"
    if rows:
        text += "\n| field | type | default | meaning |\n|---|---|---|---|\n" + rows
    for name, child in inside:
        kinds = (
            get_args(child.model_fields["kind"].annotation) if "kind" in child.model_fields else ()
        )
        title = f"`{prefix}{name}`" + "".join(f", kind `{kind}`" for kind in kinds)
        text += section(title, child, f"{prefix}{name}.")
    return text


def _models(annotation: Any) -> list[type[BaseModel]]:
    """Return the models that a field may hold, in order."""
    if _is_model(annotation):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models(part)]


def _is_model(annotation: Any) -> TypeGuard[type[BaseModel]]:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _said(name: str, field: FieldInfo) -> list[str]:
    """Return the words of a field's description.

    Raises:
        ValueError: it has none.
    """
    if not field.description:
        raise ValueError(f"recipe field {name} is not described")
    return field.description.replace("|", "\\|").split()


def _type(annotation: Any) -> str:
    """Return a type in the words of a YAML file."""
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(annotation))
    if get_origin(annotation) is tuple:
        return f"list of {_type(get_args(annotation)[0])}"
    if get_origin(annotation) is dict:
        key, value = get_args(annotation)
        return f"mapping from {_type(key)} to {_type(value)}"
    if get_origin(annotation) is Annotated:
        kind, about = get_args(annotation)
        return ", ".join([_type(kind), *map(_bound, getattr(about, "metadata", ()))])
    if _is_model(annotation):
        return "fields below"
    if get_args(annotation):
        return " or ".join(dict.fromkeys(map(_type, get_args(annotation))))
    return WORDS[annotation]


def _bound(limit: Any) -> str:
    (name, value), *_ = ((n, v) for n in SIGNS if (v := getattr(limit, n, None)) is not None)
    return f"{SIGNS[name]} {value}"


def _yaml(value: Any) -> str:
    plain = list(value) if isinstance(value, tuple) else value
    return json.dumps(plain).replace('"', "") if plain != "" else '""'


def page() -> str:
    """Return the page."""
    return HEAD + section("The recipe", TrainingRecipe)


if __name__ == "__main__":
    sys.stdout.write(page())
