"""The command that checks an environment: doctor."""

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from composer_pipeline.cli.common import (
    JsonOption,
    LakeOption,
    app,
    open_lake,
    show,
    usd,
)
from composer_pipeline.cli.views.table import Table
from composer_pipeline.errors import ComposerError
from composer_pipeline.files import writing
from composer_pipeline.modes import close_to_others
from composer_pipeline.settings import Settings


@app.command
def doctor(
    *,
    live: Annotated[bool, Parameter(negative="")] = False,
    fix: Annotated[bool, Parameter(negative="")] = False,
    max_usd: str = "0.05",
    teachers: str = "",
    lake: LakeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Check the environment, the keys (present or not), the recipes and the lake.

    Args:
        live: also ask the provider what its documentation leaves open; costs cents.
        fix: give an older lake's files and folders the modes of new ones: only their owner.
        max_usd: ceiling of --live in USD.
        teachers: teacher file of --live (COMPOSER_TEACHERS); the cheapest teacher is asked.
    """
    from composer_pipeline.doctor import run_checks, run_live

    settings = Settings.from_env()
    probes: list[dict[str, str]] = []
    found: dict[str, Any] = {}
    if live:
        # First, so that a missing key is the one thing that is said.
        ceiling = usd(max_usd, "--max-usd")
        file = teachers or settings.teachers
        probes, found["live"] = run_live(open_lake(lake, new=True), settings, file, ceiling)
    store = open_lake(lake, new=True)
    if fix and store.local:
        with writing(f"lake {store.url}"):
            found["closed"] = close_to_others(Path(store.root))
    checks = [*run_checks(store, settings), *probes]
    if as_json:
        show({"checks": checks, **found}, True, "doctor")
    else:
        table = Table("check", "status", "detail")
        for check in checks:
            table.add_row(check["name"], check["status"], check["detail"])
        Console().print(table)
        if fix:
            Console().print(f"closed to others: {found.get('closed', 0)} files and folders")
    if any(check["status"] == "fail" for check in checks):
        raise ComposerError("doctor found a failing check")
