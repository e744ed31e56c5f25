"""The auditor of the chaos test: it compares the ledger with the provider's own books.

While calls are in flight two numbers cannot be read at one moment. The truth is read first:
it only grows, so what the ledger charges later must cover it at any moment in between.
"""

import re
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import zstandard

from composer_pipeline.lake.store import Lake
from composer_pipeline.teachers.ledger.ledger import Ledger
from composer_pipeline.teachers.ledger.values import Scope
from composer_pipeline.testing.openrouter.server import LoopbackOpenRouter

#: Scopes of which a call is in one of several: together they are charged everything.
GROUPS = ("run:", "day:", "month:")


_GENERATION = re.compile(rb"gen-[0-9a-f]{32}")


class Truth:
    """The provider's bills, summed by model and in all; reads each bill once."""

    def __init__(self, server: LoopbackOpenRouter, models: Mapping[str, str]) -> None:
        self.server = server
        self.models = models  # teacher -> model
        self.total = 0
        self.by_model: Counter[str] = Counter()
        self._seen = 0

    def read(self) -> None:
        """Take in the bills since the last time."""
        until = len(self.server.bills)
        for bill in self.server.bills[self._seen : until]:
            self.by_model[bill.model] += bill.cost
            self.total += bill.cost
        self._seen = until

    def of(self, scope: str) -> int:
        """Return what was billed within a scope (or a group of scopes)."""
        kind, _, name = scope.partition(":")
        return self.by_model[self.models[name]] if kind == "teacher" else self.total


def worst(truth: Truth, status: Mapping[str, Scope]) -> tuple[int, int]:
    """Return (overspend, money that the ledger does not cover) of the worst scope."""
    overspend = uncovered = 0
    charged: Counter[str] = Counter()
    for name, scope in status.items():
        sums = scope.spent + scope.reserved + scope.unknown
        group = next((prefix for prefix in GROUPS if name.startswith(prefix)), name)
        charged[group] += sums
        if scope.ceiling is not None:
            mine = 0 if group in GROUPS else truth.of(name)
            overspend = max(overspend, sums - scope.ceiling, mine - scope.ceiling)
    for group, sums in charged.items():
        uncovered = max(uncovered, truth.of(group) - sums)
    for prefix in GROUPS:
        ceilings = [s.ceiling for name, s in status.items() if name.startswith(prefix)]
        if ceilings and None not in ceilings:
            total = sum(ceiling for ceiling in ceilings if ceiling is not None)
            overspend = max(overspend, truth.of(prefix) - total)
    return overspend, uncovered


class Watch(threading.Thread):
    """Samples the ledger and the truth until it is stopped."""

    def __init__(self, ledger: Ledger, truth: Truth, *, every_s: float = 0.01) -> None:
        super().__init__(name="watch", daemon=True)
        self.ledger, self.truth, self.every_s = ledger, truth, every_s
        self.samples = self.overspend = self.uncovered = self.most_unknown = 0
        self.failure: Exception | None = None
        self._stop_asked = threading.Event()

    def run(self) -> None:
        """Sample; the first failure ends it and is kept."""
        try:
            while not self._stop_asked.is_set():
                self.sample()
                time.sleep(self.every_s)
        except Exception as error:  # noqa: BLE001  told by stop()
            self.failure = error

    def sample(self) -> None:
        """Compare once."""
        self.truth.read()
        status = self.ledger.status()
        overspend, uncovered = worst(self.truth, status)
        if "global" in status:
            self.most_unknown = max(self.most_unknown, status["global"].unknown)
        self.overspend = max(self.overspend, overspend)
        self.uncovered = max(self.uncovered, uncovered)
        self.samples += 1

    def stop(self) -> None:
        """End; raise what went wrong."""
        self._stop_asked.set()
        self.join(30)
        if self.failure:
            raise self.failure


def difference(truth: Truth, status: Mapping[str, Scope], *, shared_key: bool) -> tuple[int, int]:
    """Return (|ledger - truth|, money not covered) of the worst scope, nothing in flight.

    A sweep knows the sum of what a key was billed, not its parts. A scope that holds only
    some of the key's calls (a teacher's; a run's, where several runs share the key) is held
    to cover the truth; all others are held to equal it.
    """
    truth.read()
    charged: Counter[str] = Counter()
    for name, scope in status.items():
        group = next((prefix for prefix in GROUPS if name.startswith(prefix)), name)
        charged[group] += scope.spent + scope.reserved + scope.unknown
    gaps = {group: sums - truth.of(group) for group, sums in charged.items()}
    parts = ("teacher:", *(["run:"] if shared_key else []))
    exact = [abs(gap) for group, gap in gaps.items() if not group.startswith(parts)]
    return max(exact), max(0, -min(gaps.values()))


def generations_in(lake: Lake) -> set[str]:
    """Return the ids of the generations whose replies are in the lake, in whatever shape."""
    unpack = zstandard.ZstdDecompressor()
    ids = set()
    for row in lake.rows("replies"):
        if row["raw"] and row["status"] not in ("refused", "unknown"):
            ids.add(str(row["generation_id"]))
            raw = unpack.decompress(row["raw"]).replace(b"\0", b"")  # some are UTF-16
            ids.update(found.decode() for found in _GENERATION.findall(raw))
    return ids


def bodies_billed(server: LoopbackOpenRouter) -> dict[str, set[str]]:
    """Return the digest of every billed body -> the generations that were billed for it."""
    bodies: dict[str, set[str]] = {}
    for bill in list(server.bills):
        bodies.setdefault(bill.digest, set()).add(bill.generation_id)
    return bodies


def files_with(secrets: Iterable[str], *folders: Path) -> list[str]:
    """Return the files below folders that hold one of some secrets."""
    needles = [secret.encode() for secret in secrets]
    found = []
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and any(n in path.read_bytes() for n in needles):
                found.append(path.name)
    return found
