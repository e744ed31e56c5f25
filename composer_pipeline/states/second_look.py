"""What the second scanner finds in each day's redacted messages: counts by kind, never values."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Collection
from importlib.util import find_spec

from composer_pipeline.lake.provenance import FileStamps
from composer_pipeline.lake.store import Lake
from composer_pipeline.redaction.redact import strings
from composer_pipeline.redaction.user_rules import scan_externally
from composer_pipeline.reports import Progress
from composer_pipeline.settings import Settings

_NOT_MADE = "not made: extra redaction-extra is not installed, or COMPOSER_SECOND_SCANNER is off"


def _installed() -> bool:
    try:
        return find_spec("betterleaks") is not None
    except ModuleNotFoundError:  # an import hook hides it
        return False


def second_look(
    lake: Lake, days: Collection[str] | None = None, progress: Progress | None = None
) -> dict[str, int] | str:
    """Return how many distinct values it finds in days (all when ``None``), by kind.

    The same messages are looked at once. Returns why, where nobody looks.
    """
    if Settings.from_env().second_scanner == "off" or not _installed():
        return _NOT_MADE
    stamps, total = FileStamps(lake), Counter[str]()
    with lake.locked("second-look"):
        wanted = [day for day in lake.days("messages") if days is None or day in days]
        for done, day in enumerate(wanted, start=1):
            name = f"second_look/{stamps.hash_of(('messages', {'day': day}))}.json"
            if not lake.exists(name):
                lake.put_bytes(name, json.dumps(_found(lake, day)).encode())
            total.update(json.loads(lake.get_bytes(name)))
            if progress is not None:
                progress("second look", done, len(wanted))
    return dict(sorted(total.items()))


def _found(lake: Lake, day: str) -> dict[str, int]:
    values = set()
    for source in lake.read("messages", days=[day], columns=["json"])["json"].to_pylist():
        text = "\n".join(strings(json.loads(source)))
        values |= {(p.kind, text[p.start : p.end]) for p in scan_externally(text)}
    return Counter(kind for kind, _ in values)


def look_in_background(lake: Lake) -> None:
    """Look at what is new in another process of low priority, which outlives this one."""
    if Settings.from_env().second_scanner == "on":
        command, quiet = [sys.executable, "-m", __name__, lake.url], subprocess.DEVNULL
        subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)


if __name__ == "__main__":
    os.nice(19)
    second_look(Lake(sys.argv[1]))
