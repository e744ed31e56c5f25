"""Ids of states and chains: stable hashes of what names them.

Belongs here: how an id is made. Does not belong here: what is named.
"""

import hashlib


def blake(*parts: str) -> str:
    """Return BLAKE2b-128, hexadecimal, of the parts joined by NULs."""
    return hashlib.blake2b("\0".join(parts).encode("utf-8", "replace"), digest_size=16).hexdigest()


def state_id_of(session_id: str, message_id: str) -> str:
    """Return the id of a state; stable across harvests, machines and parsers."""
    return blake(session_id, message_id)
