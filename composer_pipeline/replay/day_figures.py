"""What one teacher's replies of a day cost and how long they took, from the table itself.

Belongs here: figures of a partition, which are the same however often a run finds its replies in
the cache, and the books' sum of a teacher. Does not belong here: what a run did
(``replay.engine``).
"""

import os

from composer_pipeline.lake import Lake
from composer_pipeline.money import Pico
from composer_pipeline.replay.ledger import existing_ledger, ledger_target

_COLUMNS = ("status", "cost_picodollars", "latency_ms", "prompt_tokens", "cached_tokens")


def day_figures(lake: Lake, teacher: str, day: str) -> dict[str, int | float]:
    """Return the figures of a partition; what was not measured is not among them.

    Returns:
        ``cost_picodollars``, ``latency_p50_ms`` and ``latency_p95_ms`` (nearest rank),
        ``cache_read_share`` (of prompt tokens), ``usable_share`` (of replies), and the number of
        replies of each status.
    """
    table = lake.read("replies", days=[day], columns=list(_COLUMNS), teacher=teacher)
    status, cost, latency, prompt, cached = (table[name].to_pylist() for name in _COLUMNS)
    found: dict[str, int | float] = {name: status.count(name) for name in sorted(set(status))}
    if status:
        found["usable_share"] = found.get("ok", 0) / len(status)
    if amounts := [amount for amount in cost if amount is not None]:
        found["cost_picodollars"] = sum(amounts)
    if times := sorted(ms for ms in latency if ms is not None):
        for name, share in (("latency_p50_ms", 0.5), ("latency_p95_ms", 0.95)):
            found[name] = round(times[min(len(times) - 1, int(share * len(times)))], 3)
    tokens = [(a, b) for a, b in zip(prompt, cached, strict=True) if a and b is not None]
    if tokens:
        found["cache_read_share"] = sum(b for _, b in tokens) / sum(a for a, _ in tokens)
    return found


def billed_teachers(lake: Lake, ledger: str | os.PathLike[str] | None = None) -> dict[str, Pico]:
    """Return what each teacher was billed in the ledger's whole life; nothing without a ledger.

    Args:
        lake: holds the ledger, unless it is named.
        ledger: path or URL of the books.

    Raises:
        InputError: the lake is a bucket and no ledger is named.
    """
    books = existing_ledger(ledger_target(lake, ledger))
    if books is None:
        return {}
    with books:
        scopes = books.status()
    kind = "teacher:"
    return {n.removeprefix(kind): s.spent for n, s in scopes.items() if n.startswith(kind)}
