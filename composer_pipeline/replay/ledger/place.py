"""Where a lake's ledger is, and what its scopes are called.

Belongs here: paths, URLs and names. Does not belong here: opening anything
(``replay.ledger.ledger``).
"""

import os
import re
from pathlib import Path

from composer_pipeline.errors import InputError
from composer_pipeline.lake import Lake

LEDGER_VARIABLE = "COMPOSER_LEDGER"

_DAY = r"\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])"
#: Which calls a scope counts: all, of a run, sent on a UTC day or in a month, to a teacher,
#: about states of a day.
_SCOPES = re.compile(
    rf"global|(?:run|backfill|root):\S+|day:{_DAY}|month:\d{{4}}-(?:0[1-9]|1[0-2])|teacher:\S+|partition:{_DAY}"
)


def is_url(target: str | os.PathLike[str]) -> bool:
    """Say whether a target is a PostgreSQL URL and not a path."""
    return str(target).startswith(("postgresql://", "postgres://"))


def ledger_target(lake: Lake, value: str | os.PathLike[str] | None = None) -> str | Path:
    """Return where the ledger of a lake is: ``value``, $COMPOSER_LEDGER, or in the lake.

    Returns:
        A PostgreSQL URL as it was given, or a path.

    Raises:
        InputError: the lake is a bucket, which cannot hold an SQLite file, or the value is
            a URL of something else.
    """
    chosen = os.fspath(value) if value else os.environ.get(LEDGER_VARIABLE)
    if chosen and is_url(chosen):
        return chosen
    if chosen and "://" in chosen:
        scheme = chosen.partition("://")[0]
        raise InputError(f"the ledger is a file or a postgresql:// URL, not a {scheme}:// one")
    if chosen:
        return Path(chosen).expanduser()
    if not lake.local:
        raise InputError(
            f"lake {lake.url} is a bucket and cannot hold the ledger; name a local file or a"
            f" postgresql:// URL with --ledger or {LEDGER_VARIABLE}"
        )
    return Path(lake.root) / "ledger.db"


def check_scope(name: str) -> str:
    """Return the name of a scope that a replay charges.

    Raises:
        InputError: no call would ever be charged to it.
    """
    if not _SCOPES.fullmatch(name):
        raise InputError(
            f"scope {name!r} is none of global, run:NAME, backfill:ID, root:RUN, day:YYYY-MM-DD,"
            " month:YYYY-MM, teacher:NAME, partition:YYYY-MM-DD"
        )
    return name


def check_shared(name: str) -> str:
    """Return the name of a scope that runs share because they belong together.

    Raises:
        InputError: it is not of such a kind: every run is charged to the others anyway.
    """
    if not check_scope(name).startswith(("backfill:", "root:")):
        raise InputError(f"budget {name!r} is neither backfill:ID nor root:RUN")
    return name
