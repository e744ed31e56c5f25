"""How a check says what it found.

Belongs here: the one shape of a check's result.
"""

from collections.abc import Sequence

import dagster as dg


def result(bad: Sequence[str], what: str, name: str | None = None) -> dg.AssetCheckResult:
    """Return the result of a check that found the rows ``bad``, which are ``what``."""
    return dg.AssetCheckResult(
        check_name=name,
        passed=not bad,
        metadata={"violations": len(bad), "examples": ", ".join(bad[:5]) or "none"},
        description=f"{len(bad)} {what}" if bad else f"No {what}.",
    )
