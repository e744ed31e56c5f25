"""Settings from the environment and from ``.env``; never secrets."""

import os
import re
import shlex
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from composer_pipeline.errors import InputError


def recipes_dir() -> Path:
    """Return the folder of the recipes: the checkout's, or the one in the wheel."""
    checkout = Path(__file__).resolve().parent.parent / "recipes"
    if checkout.is_dir():
        return checkout
    return Path(str(resources.files("composer_pipeline"))) / "_recipes"


def recipe_file(given: Any, kind: str) -> Path:
    """Return a path as given, or the shipped file of a kind that has this name: ``default``.

    ``kind`` is a folder of ``recipes/``: ``teachers``, ``preferences``, ``normalize``, ``train``,
    ``nights``.
    """
    if not isinstance(given, (str, os.PathLike)):
        what = f"{kind}: a file, or the name of one below recipes/{kind}"
        raise InputError(f"{what}, not {type(given).__name__}")
    path = Path(os.path.expanduser(given))  # noqa: PTH111  Path's own fails for an unknown user
    shipped = recipes_dir() / kind / f"{path}.yaml"
    return shipped if len(path.parts) == 1 and not path.exists() and shipped.exists() else path


class Settings(BaseModel):
    """Paths and URLs. Every field has an environment variable ``COMPOSER_<FIELD>``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    lake: str = "lake"
    sessions: str = ""
    teachers: str = str(recipes_dir() / "teachers" / "default.yaml")
    preferences: str = str(recipes_dir() / "preferences" / "default.yaml")
    normalize: str = str(recipes_dir() / "normalize" / "default.yaml")
    train: str = str(recipes_dir() / "train" / "default.yaml")
    nights: str = str(recipes_dir() / "nights" / "default.yaml")
    redaction: str = ""
    runs: str = ""
    ledger: str = ""
    max_usd: str = "1.00"
    exclude: str = ""
    repositories: str = ""
    publish_repo: str = ""
    publish_nightly: bool = False
    model_repo: str = ""
    first_day: Annotated[str, Field(pattern=r"^(\d{4}-\d\d-\d\d)?$")] = ""
    last_day: Annotated[str, Field(pattern=r"^(\d{4}-\d\d-\d\d)?$")] = ""
    publish_simulated: bool = False
    keep_runs_days: int = 0
    executor: str = "in_process"
    second_scanner: Literal["on", "off"] = "on"
    view_url: str = "http://127.0.0.1:3070"
    evaluate_per_kind: int = Field(default=0, ge=0)

    @property
    def excluded(self) -> tuple[str, ...]:
        """Return the comma-separated globs of ``COMPOSER_EXCLUDE``: never archived."""
        return tuple(glob.strip() for glob in self.exclude.split(",") if glob.strip())

    @property
    def run_root(self) -> Path:
        """Return the folder of training runs: ``COMPOSER_RUNS``, or ``runs`` in a local lake."""
        if self.runs:
            return Path(self.runs).expanduser()
        base = self.lake if "://" not in self.lake else "."
        return Path(base).expanduser() / "runs"

    @staticmethod
    def from_env(env: Mapping[str, str] | None = None) -> "Settings":
        """Read the settings from the environment, or ``env``; empty variables count as unset."""
        given = os.environ if env is None else env
        values = {
            name: value
            for name in Settings.model_fields
            if (value := given.get(f"COMPOSER_{name.upper()}", ""))
        }
        return Settings(**values)


VARIABLE = "COMPOSER_ENV_FILE"
_LINE = re.compile(r"\s*(?:export\s+)?([A-Z][A-Z0-9_]*)\s*=(.*)")


def env_file() -> Path:
    """Return the file: ``.env`` in the working folder, or ``COMPOSER_ENV_FILE``."""
    return Path(os.environ.get(VARIABLE) or ".env")


def load_env_file() -> None:
    """Set the environment variables of the file's ``COMPOSER_*`` lines that are not set yet."""
    try:
        text = env_file().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return
    for line in text.splitlines():
        if (found := _LINE.fullmatch(line)) and found[1].startswith("COMPOSER_"):
            os.environ.setdefault(found[1], _value(found[2]))


def with_values(text: str, values: Mapping[str, str]) -> str:
    """Return the text of an ``.env`` file with some values set; other lines stay."""
    left = dict(values)
    lines = []
    for line in text.splitlines():
        found = _LINE.fullmatch(line)
        name = found[1] if found else ""
        lines.append(f"{name}={shlex.quote(left.pop(name))}" if name in left else line)
    lines += [f"{name}={shlex.quote(value)}" for name, value in left.items()]
    return "\n".join(lines) + "\n"


def _value(text: str) -> str:
    try:
        return " ".join(shlex.split(text, comments=True))
    except ValueError:
        return text.strip()
