"""A normalisation recipe: pure data-juicer YAML, read strictly.

Belongs here: the top-level keys that we honour, their required values, and the name
and hash of a recipe. Does not belong here: which operators and parameters exist;
data-juicer's own preflight says that, in the worker.
"""

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator

from composer_pipeline.config_file import nearest, read_model
from composer_pipeline.errors import InputError
from composer_pipeline.normalize.text_columns import COLUMNS

Process = list[dict[str, dict[str, JsonValue] | None]]


class NormalizeRecipe(BaseModel):
    """The keys of a data-juicer configuration that mean something here.

    ``skip_op_error`` must be written as false: data-juicer's default is true, under
    which one bad row makes a whole batch vanish. The same goes for the cache and for
    automatic parallelism, which make a run depend on what ran before and where.

    ``np`` is the number of processes that judge large tables. ``executor_type: ray`` runs
    the operators on a Ray cluster (``ray_address``: ``auto``, ``local`` or an address).
    ``custom_operator_paths`` are files or packages with operators of one's own, relative to
    the working folder, as data-juicer reads them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    project_name: str = ""
    dataset_path: str = ""
    export_path: str = ""
    text_keys: list[str] = Field(min_length=1)
    np: int = Field(default=1, ge=1)
    skip_op_error: Literal[False]
    use_cache: Literal[False]
    auto_op_parallelism: Literal[False]
    open_monitor: bool = False
    open_tracer: bool = False
    executor_type: Literal["default", "ray"] = "default"
    ray_address: str = "auto"
    custom_operator_paths: list[str] = Field(default_factory=list)
    process: Process = Field(min_length=1)

    @field_validator("text_keys")
    @classmethod
    def _known(cls, keys: list[str]) -> list[str]:
        for key in keys:
            if key not in COLUMNS:
                raise ValueError(
                    f"unknown column {key!r}{nearest(key, COLUMNS)}; known: {', '.join(COLUMNS)}"
                )
        return keys

    @field_validator("custom_operator_paths", mode="before")
    @classmethod
    def _one_or_many(cls, paths: Any) -> Any:
        return [paths] if isinstance(paths, str) else paths

    @field_validator("process")
    @classmethod
    def _one_op_each(cls, process: Process) -> Process:
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
        recipe = read_model(path, "normalise recipe", NormalizeRecipe)
        for place in recipe.custom_operator_paths:
            if not Path(place).exists():
                full = f"custom_operator_paths: {Path(place).absolute()}"
                raise InputError(f"normalise recipe {path}: {full} does not exist")
        return recipe

    def steps(self) -> list[tuple[str, dict[str, Any]]]:
        """Return (operator, arguments) in order, with data-juicer's default text key set."""
        return [
            (name, {"text_key": self.text_keys[0], **(arguments or {})})
            for entry in self.process
            for name, arguments in entry.items()
        ]

    def recipe_id(self, path: str | Path) -> str:
        """Return ``name@hash``: the file's stem, and 12 digits over what the recipe does.

        Comments, paths, processes, the executor and the project's name do not enter the
        hash; the code of own operators does.
        """
        text = json.dumps(self.steps(), sort_keys=True, separators=(",", ":"))
        digest = hashlib.blake2b(text.encode(), digest_size=6)
        for place in self.custom_operator_paths:
            root = Path(place)
            for file in sorted(root.rglob("*.py")) if root.is_dir() else [root]:
                digest.update(b"\0" + file.read_bytes())
        return f"{Path(path).stem}@{digest.hexdigest()}"
