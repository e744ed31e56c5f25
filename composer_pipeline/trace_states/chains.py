"""Whether a chain still fits the messages of its day.

Belongs here: the digest of a chain. Does not belong here: its messages
(``trace_states.load``).
"""

import hashlib
from collections.abc import Iterable

from composer_pipeline.errors import InputError
from composer_pipeline.lake import Lake


def chain_digest(hashes: Iterable[str | None]) -> str:
    """Return what ``chains.digest`` is for messages with these hashes."""
    data = b"".join(bytes.fromhex(digest or "") for digest in hashes)
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def check_chain(lake: Lake, day: str, digest: str | None, hashes: list[str | None]) -> None:
    """Refuse a chain that was written for other messages than are there now.

    Raises:
        InputError: the day was only partly written.
    """
    if digest != chain_digest(hashes):
        raise InputError(f"lake {lake.url}: day {day} is only partly written; parse it again")
