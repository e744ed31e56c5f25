"""One message to a chat's webhook: redacted, bounded in time, and never with a key.

Belongs here: what is sent and what its failure is called. Does not belong here: what there is to
say, and when it is tried again (``assets.automation.alerts``).
"""

import os
from collections.abc import Sequence
from urllib.parse import urlsplit

from composer_pipeline.errors import ComposerError, InputError

#: Where messages go. The URL is a key: whoever knows it can write there, so it is in no setting.
VARIABLE = "COMPOSER_ALERT_URL"
TIMEOUT_S = 5.0
MOST = 20
_LONGEST = 500
_SECRET = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD", "_URL")
_SHORTEST_SECRET = 8


def send_alert(problems: Sequence[str], url: str) -> None:
    """Post ``{"text": …}``, which Slack, Mattermost, Google Chat and their likes take.

    Args:
        problems: a sentence each; at most 20 are sent, and how many more there are.
        url: the webhook; only its host is ever told.

    Raises:
        InputError: the URL is none.
        ComposerError: the webhook was not reached within 5 s, or refused.
    """
    import httpx

    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(f"{VARIABLE} is not an http(s) URL")
    try:
        answer = httpx.post(
            url, json={"text": _text(problems)}, timeout=TIMEOUT_S, follow_redirects=False
        )
    except httpx.HTTPError as error:
        raise ComposerError(
            f"the webhook at {parts.hostname} was not reached: {type(error).__name__}"
        ) from None  # its message may name the URL
    if not answer.is_success:
        raise ComposerError(f"the webhook at {parts.hostname} answered {answer.status_code}")


def _text(problems: Sequence[str]) -> str:
    lines = [f"• {_safe(problem)}" for problem in problems[:MOST]]
    more = len(problems) - MOST
    return "\n".join(["composer-pipeline", *lines, *([f"… and {more} more"] if more > 0 else [])])


def _safe(text: str) -> str:
    """Return a text on one line, without anything private and without values of keys."""
    for name, value in os.environ.items():
        if name.endswith(_SECRET) and len(value) >= _SHORTEST_SECRET:
            text = text.replace(value, f"[{name}]")
    from composer_pipeline.redaction import redact_text  # takes 60 MB, at every code location

    text = redact_text(" ".join(text.split()))[0]
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
