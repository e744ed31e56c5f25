"""Keys of the endpoint: one made for each run, and what a key has spent.

Belongs here: the HTTP side of making, reading and ending keys. Does not belong here: when a
key's usage is trusted, and the ledger's sweep (``replay.engine.run_key``).

A key is a fence and a witness: the provider refuses calls beyond its limit, and its usage is
the true bill of whoever held it. Amounts are read as ``Decimal`` from the raw JSON.
"""

from decimal import Decimal
from typing import Any
from urllib.parse import quote

import msgspec

from composer_pipeline.errors import ComposerError
from composer_pipeline.json_values import mapping_at
from composer_pipeline.money import NOTHING, PICO, Pico, pico_or_none
from composer_pipeline.replay.endpoints import Endpoint
from composer_pipeline.replay.provider.http import ask_json, bearer, new_session

_ENCODER = msgspec.json.Encoder(decimal_format="number")


class KeyUnread(ComposerError):
    """The usage of a key cannot be read now; nothing is known of it."""


class MintedKey(msgspec.Struct, frozen=True):
    """A key made for a run. ``secret`` lives in memory only, and is not shown by ``repr``."""

    key_hash: str
    secret: str
    usage: Pico

    def __repr__(self) -> str:
        return f"MintedKey({self.key_hash!r})"


class KeyService:
    """Makes, reads and ends keys. Each call opens a connection of its own: they are few.

    Args:
        endpoint: where.
        provisioning_key: the key that may make keys; kept out of every message and log.
    """

    def __init__(self, endpoint: Endpoint, provisioning_key: str) -> None:
        self._endpoint = endpoint.name
        self._variable = endpoint.provisioning_key_env
        self._url = f"{endpoint.url()}/keys"
        self._key = provisioning_key

    async def mint(self, name: str, limit: Pico) -> MintedKey:
        """Make a key that may spend ``limit``.

        Raises:
            ComposerError: the endpoint makes no key.
        """
        wanted = {"name": name, "limit": Decimal(limit) / PICO}
        status, reply = await _ask("POST", self._url, self._key, _ENCODER.encode(wanted))
        data = mapping_at(reply, "data")
        key_hash, secret = data.get("hash"), reply.get("key") if isinstance(reply, dict) else None
        usage = pico_or_none(data.get("usage"))
        usable = isinstance(key_hash, str) and isinstance(secret, str) and key_hash and secret
        if status not in (200, 201) or not usable:
            raise ComposerError(
                f"endpoint {self._endpoint} makes no key for this run"
                f" ({f'HTTP {status}' if status else 'no answer'});"
                f" check the key in {self._variable}, or leave provisioning_key_env out"
            )
        return MintedKey(str(key_hash), str(secret), usage or NOTHING)

    async def usage(self, key_hash: str) -> Pico | None:
        """Return what a key has spent; ``None`` where the key is gone.

        Raises:
            KeyUnread: the endpoint does not tell.
        """
        status, reply = await _ask("GET", self._of(key_hash), self._key)
        if status == 404:
            return None
        usage = pico_or_none(mapping_at(reply, "data").get("usage")) if status == 200 else None
        if usage is None:
            raise KeyUnread(f"endpoint {self._endpoint} does not tell the usage of a run's key")
        return usage

    async def disable(self, key_hash: str) -> bool:
        """Let a key spend nothing more, and keep it to be read."""
        status, _ = await _ask("PATCH", self._of(key_hash), self._key, b'{"disabled":true}')
        return status == 200

    async def delete(self, key_hash: str) -> bool:
        """End a key for good; its usage cannot be read afterwards."""
        status, _ = await _ask("DELETE", self._of(key_hash), self._key)
        return status in (200, 204, 404)

    def _of(self, key_hash: str) -> str:
        return f"{self._url}/{quote(key_hash, safe='')}"


async def own_usage(endpoint: Endpoint, api_key: str) -> Pico:
    """Return what the given key itself has spent.

    Raises:
        KeyUnread: the endpoint does not tell.
    """
    status, reply = await _ask("GET", f"{endpoint.url()}/key", api_key)
    usage = pico_or_none(mapping_at(reply, "data").get("usage")) if status == 200 else None
    if usage is None:
        raise KeyUnread(f"endpoint {endpoint.name} does not tell the usage of the key")
    return usage


async def _ask(method: str, url: str, key: str, body: bytes | None = None) -> tuple[int, Any]:
    """Ask once; ``(0, None)`` where nobody answers."""
    headers = {"Content-Type": "application/json"} | bearer(key)
    async with new_session() as session:
        return await ask_json(session, method, url, data=body, headers=headers)
