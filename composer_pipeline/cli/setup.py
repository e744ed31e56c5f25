"""Commands: init, status."""

import json
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from composer_pipeline.cli.common import (
    JsonOption,
    LakeOption,
    LedgerOption,
    app,
    named_ledger,
    open_lake,
    show,
    usd,
)
from composer_pipeline.errors import InputError
from composer_pipeline.files import replace
from composer_pipeline.lake.schema import SCHEMA_VERSION
from composer_pipeline.lake.store import Lake
from composer_pipeline.settings import Settings, env_file, with_values


@app.command
def init(
    *,
    lake: LakeOption = "",
    sessions: str = "",
    teachers: str = "",
    max_usd: str = "",
    yes: Annotated[bool, Parameter(negative="")] = False,
    as_json: JsonOption = False,
) -> None:
    """Create a lake, and write the settings to .env, which every command reads.

    On a terminal it prompts for options that were not given; elsewhere, and with --yes, it takes
    the defaults. Other lines of .env are kept. Keys are never written: export OPENROUTER_API_KEY.

    Args:
        sessions: folder of sessions (COMPOSER_SESSIONS).
        teachers: teacher file (COMPOSER_TEACHERS).
        max_usd: default ceiling of a replay in USD (COMPOSER_MAX_USD).
        yes: do not prompt.
    """
    from composer_pipeline.teachers.teachers import TeacherSet

    settings = Settings.from_env()
    interactive = sys.stdin.isatty() and not yes and not as_json
    answers = {
        "COMPOSER_LAKE": _answer("lake", lake, settings.lake, interactive),
        "COMPOSER_SESSIONS": _answer("sessions", sessions, settings.sessions, interactive),
        "COMPOSER_TEACHERS": _answer("teachers", teachers, settings.teachers, interactive),
        "COMPOSER_MAX_USD": _answer("ceiling in USD", max_usd, settings.max_usd, interactive),
    }
    usd(answers["COMPOSER_MAX_USD"], "--max-usd")
    TeacherSet.load(answers["COMPOSER_TEACHERS"])
    if sessions and not Path(sessions).expanduser().is_dir():
        raise InputError(f"--sessions {sessions} is not a folder")
    store = open_lake(answers["COMPOSER_LAKE"], new=True)
    store.check_writable()
    if not store.is_there():
        store.put_bytes(Lake.MARKER, json.dumps({"schema_version": SCHEMA_VERSION}).encode())
    file = env_file()
    before = file.read_text(encoding="utf-8") if file.is_file() else ""
    if answers["COMPOSER_TEACHERS"] == Settings().teachers:
        del answers["COMPOSER_TEACHERS"]  # the packaged file may move
    replace(file, with_values(before, answers), str(file))
    report = {"lake": store.url, "settings": str(file.absolute()), **answers}
    report["next"] = f"composer-pipeline ingest {answers['COMPOSER_SESSIONS']}"
    show(report, as_json, "init")


def _answer(name: str, given: str, default: str, interactive: bool) -> str:
    if given or not interactive:
        return given or default
    return Console().input(f"{name} [{default}]: ", markup=False).strip() or default


@app.command
def status(
    *, lake: LakeOption = "", ledger: LedgerOption = "", as_json: JsonOption = False
) -> None:
    """Show the lake: size by table, days, cost, and the next step."""
    from composer_pipeline.maintenance.status import status as run

    store = open_lake(lake)
    show(run(store, ledger=named_ledger(store, ledger)).to_dict(), as_json, "status")
