"""A normalisation recipe: pure data-juicer YAML, read strictly.

Belongs here: the top-level keys that we honour, their required values, and the name
and hash of a recipe. Does not belong here: which operators and parameters exist;
data-juicer's own preflight says that, in the worker.
"""

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from composer_pipeline.errors import InputError
from composer_pipeline.yaml_file import read_mapping

#: Columns that a recipe may name, in the order in which the worker receives them.
COLUMNS = (
    "pair_id",
    "state_key",
    "prompt_tail_text",
    "chosen_text",
    "rejected_text",
    "chosen_prose",
    "pair_text",
)


class NormalizeRecipe(BaseModel):
    """The keys of a data-juicer configuration that mean something here.

    ``skip_op_error`` must be written as false: data-juicer's default is true, under
    which one bad row makes a whole batch vanish. The same goes for the cache and for
    automatic parallelism, which make a run depend on what ran before and where.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    project_name: str = ""
    dataset_path: str = ""
    export_path: str = ""
    text_keys: list[str] = Field(min_length=1)
    np: int = 1
    skip_op_error: Literal[False]
    use_cache: Literal[False]
    auto_op_parallelism: Literal[False]
    open_monitor: bool = False
    open_tracer: bool = False
    process: list[dict[str, dict[str, Any] | None]] = Field(min_length=1)

    @field_validator("text_keys")
    @classmethod
    def _known(cls, keys: list[str]) -> list[str]:
        for key in keys:
            if key not in COLUMNS:
                raise ValueError(f"unknown column {key!r}; known: {', '.join(COLUMNS)}")
        return keys

    @field_validator("process")
    @classmethod
    def _one_op_each(
        cls, process: list[dict[str, dict[str, Any] | None]]
    ) -> list[dict[str, dict[str, Any] | None]]:
        for index, entry in enumerate(process):
            if len(entry) != 1:
                raise ValueError(f"entry {index} must hold exactly one operator")
        return process

    @staticmethod
    def load(path: str | Path) -> "NormalizeRecipe":
        """Read a recipe.

        Raises:
            InputError: the file is missing, is not YAML, or breaks the rules above.
        """
        file = Path(path).expanduser()
        data = read_mapping(file, "recipe")
        try:
            return NormalizeRecipe.model_validate(data)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise InputError(f"recipe {path}: {where}: {first['msg']}") from error

    def steps(self) -> list[tuple[str, dict[str, Any]]]:
        """Return (operator, arguments) in order, with data-juicer's default text key set."""
        return [
            (name, {"text_key": self.text_keys[0], **(arguments or {})})
            for entry in self.process
            for name, arguments in entry.items()
        ]

    def recipe_id(self, path: str | Path) -> str:
        """Return ``name@hash``: the file's stem, and 12 digits over what the recipe does.

        Comments, paths and the project's name do not enter the hash.
        """
        text = json.dumps(self.steps(), sort_keys=True, separators=(",", ":"))
        return f"{Path(path).stem}@{hashlib.blake2b(text.encode(), digest_size=6).hexdigest()}"
