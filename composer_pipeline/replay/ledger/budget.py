"""Ceilings and quarantines as a person sees and sets them.

Belongs here: the report of a ledger's scopes. Does not belong here: printing it
(``composer_pipeline.cli``), and admission (``replay.ledger.rules``).
"""

import os
from typing import Any

from composer_pipeline.money import to_usd
from composer_pipeline.replay.ledger.ledger import existing_ledger


def budget_report(target: str | os.PathLike[str]) -> dict[str, Any]:
    """Return every scope of a ledger with exact amounts in USD, as decimal text.

    Args:
        target: path or URL; a ledger that does not exist has no scopes and is not created.

    Returns:
        ``ledger`` (its name), ``scopes`` ({scope, ceiling_usd, spent_usd, reserved_usd,
        unknown_usd}; a ceiling of ``None`` is none) and ``quarantined`` (teacher -> why).
    """
    ledger = existing_ledger(target)
    if ledger is None:
        return {"ledger": str(target), "scopes": [], "quarantined": {}}
    with ledger:
        scopes = [
            {
                "scope": name,
                "ceiling_usd": None if held.ceiling is None else to_usd(held.ceiling),
                "spent_usd": to_usd(held.spent),
                "reserved_usd": to_usd(held.reserved),
                "unknown_usd": to_usd(held.unknown),
            }
            for name, held in ledger.status().items()
        ]
        return {"ledger": ledger.name, "scopes": scopes, "quarantined": ledger.quarantined()}
