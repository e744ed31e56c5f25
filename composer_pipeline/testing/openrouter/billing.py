"""The loopback provider's account: tokens, prompt caches, keys and every bill, exactly.

Tokens are counted without a tokenizer, so that a bill can be checked with ``wc -c``:

* a prompt has ``ceil(bytes of the request's body / 4)`` tokens;
* a completion has ``ceil(bytes of the message as JSON / 4)``;
* the cacheable prefix is ``tools``, then each message, in order; if the longest cached prefix has n
  bytes of JSON, ``n // 4`` tokens are read from the cache. The rest costs ``input_cache_write`` if
  the model has that price and caches this request, otherwise ``prompt``.

Cost = request + read·p_read + (prompt − read)·(p_write or p_prompt) + completion·p_completion
in USD, rounded up to the picodollar.
"""

import hashlib
import secrets
import time
import uuid
from collections import Counter, deque
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import msgspec
import orjson

from composer_pipeline.money import to_pico
from composer_pipeline.testing.openrouter.models import SimulatedModel

BYTES_PER_TOKEN = 4
ROOT = "root"
ANONYMOUS = "anonymous"


class Bill(msgspec.Struct, frozen=True):
    """One billed generation; ``cost`` in picodollars, ``key`` the hash of the paying key."""

    generation_id: str
    model: str
    digest: str
    cost: int
    key: str = ANONYMOUS
    prompt_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    completion_tokens: int = 0
    at: float = 0.0


class ApiKey(msgspec.Struct):
    """A key; ``limit`` in picodollars. Only its creator knows the secret."""

    hash: str
    secret: str
    name: str = ""
    limit: int | None = None
    disabled: bool = False


def count_tokens(data: bytes) -> int:
    """Return the tokens of some bytes: a quarter of them, rounded up."""
    return -(-len(data) // BYTES_PER_TOKEN)


class PromptCache:
    """The cached prefixes of each model and session."""

    def __init__(self) -> None:
        #: (model, session, hash of the prefix) -> (usable from, usable until).
        self._held: dict[tuple[str, str, bytes], tuple[float, float]] = {}

    def look_up(
        self, model: SimulatedModel, body: Mapping[str, Any], now: float, ready: float
    ) -> tuple[int, bool]:
        """Return (tokens read from the cache, whether the rest is written); cache the prefix."""
        if model.cache == "none":
            return 0, False
        pieces = [orjson.dumps(body.get("tools") or [])]
        messages = body.get("messages") or []
        pieces += [orjson.dumps(message) for message in messages]
        ends = set(range(len(pieces)))
        if model.cache == "explicit":
            # A top-level cache_control sets its breakpoint at the end of the prompt.
            ends = {n for n, message in enumerate(messages, 1) if _has_breakpoint(message)}
            if body.get("cache_control"):
                ends.add(len(pieces) - 1)
            if not ends:
                return 0, False
        session = sticky_key(body)
        hasher = hashlib.blake2b(digest_size=16)
        size = cached = 0
        known = []
        for number, piece in enumerate(pieces):
            hasher.update(len(piece).to_bytes(8, "big") + piece)
            size += len(piece)
            if size // BYTES_PER_TOKEN < model.cache_minimum:
                continue
            key = (model.slug, session, hasher.digest())
            start, end = self._held.get(key, (0.0, -1.0))
            if start <= now <= end:
                cached = size // BYTES_PER_TOKEN
                self._held[key] = (start, ready + model.cache_ttl)
            elif number in ends:
                known.append(key)
        for key in known:
            start, end = self._held.get(key, (ready, -1.0))
            start = min(start, ready) if end >= now else ready
            self._held[key] = (start, ready + model.cache_ttl)
        return cached, True


def sticky_key(body: Mapping[str, Any]) -> str:
    """Return the key that routes a request to the same provider as before."""
    for name in ("session_id", "prompt_cache_key"):
        if body.get(name):
            return f"{name}:{body[name]}"
    messages = [m for m in body.get("messages") or [] if isinstance(m, dict)]
    system = next((m for m in messages if m.get("role") == "system"), None)
    other = next((m for m in messages if m.get("role") != "system"), None)
    return hashlib.blake2b(orjson.dumps([system, other]), digest_size=16).hexdigest()


class Account:
    """Keys, bills, and the usage that the account's endpoints report."""

    def __init__(
        self,
        *,
        api_key: str | None = None,
        management_key: str | None = None,
        credit: int | None = None,
        usage_lag: float = 0.0,
    ) -> None:
        self.management_key = management_key
        self.credit = credit
        self.usage_lag = usage_lag
        self.bills: list[Bill] = []
        self.by_generation: dict[str, Bill] = {}
        self.open = api_key is None
        root = ApiKey(ROOT, api_key or "", "root") if api_key else ApiKey(ANONYMOUS, "", "anyone")
        self.root = root
        self.keys: dict[str, ApiKey] = {root.hash: root}
        #: The secrets of keys that were deleted.
        self.deleted: set[str] = set()
        self._shown: Counter[str] = Counter()
        self._unshown: deque[Bill] = deque()

    # -- keys --------------------------------------------------------------------

    def authenticate(self, authorization: str | None) -> ApiKey | None:
        """Return the key of an ``Authorization`` header; ``None`` is a 401."""
        secret = (authorization or "").removeprefix("Bearer ").strip()
        for key in self.keys.values():
            if secret and secrets.compare_digest(key.secret.encode(), secret.encode()):
                return None if key.disabled else key
        if self.open and secret not in self.deleted and secret != self.management_key:
            return self.root
        return None

    def may_manage(self, authorization: str | None) -> bool:
        """Return True if the header's key may create and delete keys."""
        if self.management_key is None:
            return self.authenticate(authorization) is self.root
        return authorization == f"Bearer {self.management_key}"

    def mint(self, name: str, limit: int | None) -> ApiKey:
        """Create a child key that may spend ``limit`` picodollars."""
        secret = f"sk-or-v1-{secrets.token_hex(32)}"
        key = ApiKey(hashlib.sha256(secret.encode()).hexdigest(), secret, name, limit)
        self.keys[key.hash] = key
        return key

    def delete(self, key_hash: str) -> bool:
        """Delete a child key: further calls with it get 401. Its bills stay."""
        key = self.keys.get(key_hash)
        if key is None or key is self.root:
            return False
        self.deleted.add(key.secret)
        del self.keys[key_hash]
        return True

    # -- money -------------------------------------------------------------------

    def add(self, bill: Bill) -> None:
        """Add a bill."""
        self.bills.append(bill)
        self.by_generation[bill.generation_id] = bill
        self._unshown.append(bill)

    def billed(self, key_hash: str | None = None) -> int:
        """Return the sum of all bills in picodollars, or of those of one key."""
        return sum(b.cost for b in list(self.bills) if key_hash in (None, b.key))

    def usage(self, key_hash: str | None = None) -> int:
        """Return the usage that the endpoints report: bills older than the lag."""
        until = time.monotonic() - self.usage_lag
        while self._unshown and self._unshown[0].at <= until:
            bill = self._unshown.popleft()
            self._shown[bill.key] += bill.cost
        return self._shown.total() if key_hash is None else self._shown[key_hash]

    def refuses(self, key: ApiKey) -> int:
        """Return 402 or 403 if the account or the key has nothing left, else 0."""
        if self.credit is not None and self.usage() >= self.credit:
            return 402
        if key.limit is not None and self.usage(key.hash) >= key.limit:
            return 403
        return 0


def cost_of(model: SimulatedModel, prompt: int, cached: int, writes: bool, completion: int) -> int:
    """Return a generation's cost in picodollars, by the module's formula."""
    prices = model.prices(prompt)
    rest = prices.write if writes and prices.write is not None else prices.prompt
    dollars = prices.request + prices.read * cached + rest * (prompt - cached)
    return to_pico(dollars + prices.completion * completion)


def usd(pico: int) -> Decimal:
    """Return picodollars as exact USD."""
    return Decimal(pico).scaleb(-12)


def generation_id() -> str:
    """Return a new generation's id."""
    return f"gen-{uuid.uuid4().hex}"


def _has_breakpoint(message: Any) -> bool:
    content = message.get("content") if isinstance(message, dict) else None
    parts = content if isinstance(content, list) else []
    return any(isinstance(part, dict) and part.get("cache_control") for part in parts)
