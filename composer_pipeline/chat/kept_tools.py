"""Tool schemas of installations as the lake keeps them.

Belongs here: writing and reading them, and choosing the set for a session. Does not belong
here: reading an installation (``chat.installed_tools``) and which tools are offered
(``chat.tools``).
"""

import msgspec

from composer_pipeline.chat.installed_tools import InstalledTools, version_number
from composer_pipeline.errors import InputError
from composer_pipeline.lake import Lake

_INDEX = "tool_schemas/index.json"


def keep(lake: Lake, tools: InstalledTools) -> None:
    """Store a set in the lake; one of the same version is replaced.

    Raises:
        StorageError: the lake is not writable.
    """
    known = {kept.version: kept for kept in kept_sets(lake)} | {tools.version: tools}
    ordered = [known[version] for version in sorted(known, key=version_number)]
    lake.put_bytes(_INDEX, msgspec.json.encode(ordered))


def kept_sets(lake: Lake) -> list[InstalledTools]:
    """Return the sets of a lake, oldest version first.

    Raises:
        InputError: the file that keeps them is damaged.
    """
    if not lake.exists(_INDEX):
        return []
    try:
        return msgspec.json.decode(lake.get_bytes(_INDEX), type=list[InstalledTools])
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InputError(f"{_INDEX} of lake {lake.url} is damaged: {error}") from error


def nearest(sets: list[InstalledTools], version: str | None) -> InstalledTools | None:
    """Return the set for a session's version: the latest not above it, else the earliest."""
    if not sets:
        return None
    ordered = sorted(sets, key=lambda kept: version_number(kept.version))
    if not version:
        return ordered[-1]
    below = [kept for kept in ordered if version_number(kept.version) <= version_number(version)]
    return below[-1] if below else ordered[0]
