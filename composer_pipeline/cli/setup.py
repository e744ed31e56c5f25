"""Commands: init, status."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from composer_pipeline.cli.common import (
    JsonOption,
    LakeOption,
    LedgerOption,
    Table,
    app,
    coloured,
    named_ledger,
    open_lake,
    readable,
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
        sessions: folder of sessions (COMPOSER_SESSIONS); those of every agent here by default.
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
    report["next"] = f"composer-pipeline ingest {answers['COMPOSER_SESSIONS']}".rstrip()
    show(report, as_json, "init")


def _answer(name: str, given: str, default: str, interactive: bool) -> str:
    if given or not interactive:
        return given or default
    return Console().input(f"{name} [{default}]: ", markup=False).strip() or default


@app.command
def status(
    *,
    sizes: Annotated[bool, Parameter(negative="")] = False,
    lake: LakeOption = "",
    ledger: LedgerOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show the lake's days, what it cost, each stage up to publication, and what is next.

    Args:
        sizes: also list the bytes of each table.
    """
    from composer_pipeline.maintenance.status import status as run

    settings, store = Settings.from_env(), open_lake(lake)
    found = run(
        store,
        ledger=named_ledger(store, ledger),
        run_root=settings.model_copy(update={"lake": store.url}).run_root,
        # A default folder need not be where this lake's sessions are from.
        sessions=[settings.sessions] if "sessions" in settings.model_fields_set else (),
    )
    if as_json:
        show(found.to_dict(), True, "status")
        return
    table = Table(title=f"status of {found.lake}", title_justify="left", show_header=False)
    days = "{count}, {first} to {last}".format(**found.days)
    rows = (f"{n:,} {name.replace('_', ' ')}" for name, n in found.rows.items() if n)
    table.add_row("days", days.removesuffix(",  to "))
    table.add_row("rows", ", ".join(rows) or "none")
    table.add_row("money", _money(found.usd, settings.max_usd), end_section=True)
    for stage, why in found.stages.items():
        word = {"current": "current", "none": "not yet"}.get(why, "stale")
        rest = why if word == "stale" else ", ".join(found.made.get(stage, ()))
        table.add_row(stage, coloured(word, f"  {rest}"), end_section=stage == "publish")
    table.add_row("next", found.next)
    table.add_row("look", "composer-pipeline view", end_section=True)
    if sizes:
        table.add_row("bytes", readable(found.bytes))
    Console().print(table)


def _money(usd: Mapping[str, str], replay: str) -> str:
    """Return what was spent, against which ceiling, in a sentence."""
    amounts = {name: f"${float(amount):,.4f}" for name, amount in usd.items()}
    if not amounts:
        return "no ledger"
    ceiling = amounts.get("ceiling")
    return (
        f"{amounts['spent']}{f' of {ceiling}' if ceiling else ''} spent,"
        f" {amounts.get('reserved', '$0')} reserved"
        + (f", {amounts['unknown']} of unknown outcome" if float(usd.get("unknown", 0)) else "")
        + ("" if ceiling else f"; no overall ceiling, a replay may spend ${replay}")
    )
