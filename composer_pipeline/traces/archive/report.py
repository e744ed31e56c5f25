"""What a harvest did, in numbers.

Belongs here: counts by file and day. Does not belong here: the harvest itself
(``traces.archive.harvest``).
"""

from collections import Counter
from dataclasses import dataclass, field

from composer_pipeline.traces.archive.blobs import Row
from composer_pipeline.traces.archive.discover import SourceFile


@dataclass(slots=True)
class Harvested:
    """One source file and the manifest row that stands for it now."""

    source: SourceFile
    row: Row
    day: str


@dataclass(slots=True)
class HarvestReport:
    """What a harvest did.

    ``days`` are all days of the given files, ``changed_days`` those with new bytes;
    ``files_by_day`` counts the manifest's rows; ``unreadable`` names the files that
    hold no record; ``forgotten_files`` counts those of sessions that `forget` or
    `withdraw` took out.
    """

    files: list[Harvested] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    days: list[str] = field(default_factory=list)
    changed_days: list[str] = field(default_factory=list)
    files_by_day: dict[str, int] = field(default_factory=dict)
    new_files: int = 0
    grown_files: int = 0
    unchanged_files: int = 0
    forgotten_files: int = 0
    bytes_archived: int = 0
    _by_day: dict[str, Counter[str]] = field(default_factory=dict)

    def day(self, day: str) -> dict[str, int]:
        """Return the numbers of one day: files, bytes, new, grown and unchanged files."""
        names = ("files", "bytes", "new_files", "grown_files", "unchanged_files")
        counts = self._by_day.get(day, Counter())
        return {name: counts[name] for name in names}

    def count(self, day: str, what: str) -> None:
        """Add one to a number, of the day and of all."""
        self._by_day.setdefault(day, Counter())[what] += 1
        setattr(self, what, getattr(self, what) + 1)
