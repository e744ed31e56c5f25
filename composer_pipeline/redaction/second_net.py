"""A second scanner, written by others, over what the built-in rules passed.

Belongs here: betterleaks as a finder. Does not belong here: when it is asked: for every text
where the user's file names it (``redaction.engine``), for every public release
(``publishing.gates``).
"""

import re
from typing import Any

from composer_pipeline.errors import InputError
from composer_pipeline.redaction.edits import Found


def load(asked_by: str) -> Any:
    """Return the module ``betterleaks``.

    Args:
        asked_by: what needs it, for the message.

    Raises:
        InputError: it is not installed.
    """
    try:
        import betterleaks
    except ImportError as error:
        raise InputError(
            f"{asked_by}: betterleaks is not installed; pip install"
            " 'composer-pipeline[redaction-extra]'"
        ) from error
    return betterleaks


def second_opinion(text: str, asked_by: str = "redaction field second_net") -> list[Found]:
    """Return what the second scanner takes for a secret, in order; the longest first.

    Raises:
        InputError: it is not installed.
    """
    scanner = load(asked_by)
    if len(text) < 16:
        return []
    places = []
    # The scanner is written in Go and bound through C, where a NUL ends a string.
    found = {f.secret: f.rule_id for f in scanner.scan_string(text.replace("\0", " "))}
    for secret in sorted(found, key=len, reverse=True):
        if len(secret) < 6 or "[SECRET_" in secret:
            continue
        if re.search(rf"\[[A-Z_]*{re.escape(secret)}[A-Za-z0-9_]*\]", text):
            continue  # a part of a placeholder
        kind = re.sub(r"[^A-Z0-9]+", "_", found[secret].upper())
        for match in re.finditer(re.escape(secret), text):
            places.append(Found(*match.span(), kind))
    return sorted(places, key=lambda place: (place.start, -place.end))
