"""The URL of a PostgreSQL ledger, fit for messages.

Belongs here: what of a URL may be shown. Does not belong here: connecting
(``stores.postgres``).
"""

import re
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from composer_pipeline.errors import InputError

#: One host of a URL: a name, an address, or a folder of a socket; with a port.
_PLACE = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\[\]:@]*)(:\d*)?")
#: Options of a URL that say which database it is; no other one is shown.
_SHOWN = ("host", "hostaddr", "port", "dbname", "user")


def without_password(url: str) -> tuple[str, list[str]]:
    """Return a URL fit for messages, and the strings that must not be in any.

    Raises:
        InputError: it is no URL; nothing of it is told, since any part may be the password.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = None
    user, _, places = parts.netloc.rpartition("@") if parts else ("", "", "")
    readable = all(_PLACE.fullmatch(place) for place in places.split(","))
    stray = not parts or "@" in user + parts.path + parts.query or parts.fragment
    if not parts or stray or not readable:
        raise InputError(
            "the postgresql:// URL of the ledger cannot be read; special characters in a user"
            " name or password must be percent-encoded (@ is %40, / is %2F, : is %3A)"
        )
    user, _, password = user.partition(":")
    options = parse_qsl(parts.query, keep_blank_values=True)
    hidden = [value for name, value in options if "password" in name.lower()]
    kept = [(name, value) for name, value in options if name in _SHOWN]
    netloc = f"{user}@{places}" if user else places
    shown = urlunsplit((parts.scheme, netloc, parts.path, urlencode(kept, safe="/"), ""))
    secrets = {password, unquote(password), *hidden} - {""}
    return shown, sorted(secrets, key=len, reverse=True)
