"""What ``make dev`` says of itself: a line each for lake, teachers, ledger, ceiling and Hub.

A mistake in what they are about is said in its line and stops nothing: the UI is where it is
corrected.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from composer_pipeline.errors import ComposerError
from composer_pipeline.lake.store import Lake
from composer_pipeline.settings import Settings
from composer_pipeline.teachers.ledger.ledger import budget_report, ledger_target
from composer_pipeline.teachers.teachers import TeacherSet


def start_lines(env: Mapping[str, str]) -> list[str]:
    """Return one line each for the lake, the teachers, the ledger, the ceiling and the Hub."""
    settings = Settings.from_env(env)
    parts: dict[str, Callable[[Settings], str]] = {
        "lake": _lake,
        "teachers": _teachers,
        "ledger": _ledger,
        "ceiling": _ceiling,
        "Hub": partial(_hub, env.get("HF_ENDPOINT") or "https://huggingface.co"),
    }
    return [f"{name:<9} {_said(part, settings)}" for name, part in parts.items()]


def _said(part: Callable[[Settings], str], settings: Settings) -> str:
    try:
        return part(settings)
    except ComposerError as error:
        return str(error)


def _lake(settings: Settings) -> str:
    days = Lake(settings.lake).days("states")
    span = f"{len(days)} days, {days[0]} to {days[-1]}" if days else "empty"
    return f"{settings.lake} ({span}); sessions from {settings.sessions}"


def _teachers(settings: Settings) -> str:
    teachers = TeacherSet.load(settings.teachers)
    money = (
        "simulated, no money is spent" if teachers.endpoint.simulated else "real, they cost money"
    )
    return f"{', '.join(each.name for each in teachers.teachers)} ({money}); {settings.teachers}"


def _books(settings: Settings) -> dict[str, Any]:
    return budget_report(ledger_target(Lake(settings.lake), settings.ledger or None))


def _ledger(settings: Settings) -> str:
    books = _books(settings)
    spent = [row["spent_usd"] for row in books["scopes"] if row["scope"] == "global"]
    return f"{books['ledger']} (${spent[0] if spent else 0} spent)"


def _ceiling(settings: Settings) -> str:
    standing = [
        f"${row['ceiling_usd']} {row['scope']}"
        for row in _books(settings)["scopes"]
        if row["ceiling_usd"] is not None and row["scope"].startswith(("global", "month:"))
    ]
    return ", ".join([f"${settings.max_usd} a run", *standing])


def _hub(endpoint: str, settings: Settings) -> str:
    if not settings.publish_repo:
        return "nothing is published (COMPOSER_PUBLISH_REPO names no repository)"
    host = urlsplit(endpoint).hostname or endpoint
    where = ", a stand-in on this machine" if host in ("127.0.0.1", "localhost") else ""
    return f"{settings.publish_repo} at {endpoint}{where}"
