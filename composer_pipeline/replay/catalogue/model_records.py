"""What a catalogue says of a model, in types: exact prices, limits, names and terms.

Belongs here: the records, and reading them leniently from decoded JSON. Does not belong
here: fetching, and judging a teacher by them (``replay.catalogue.fetch``).

Prices are USD per **token** (``request``: per request), parsed from the catalogue's text.
"""

from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import msgspec

from composer_pipeline.json_values import flag, integer

#: Price keys, as the catalogue calls them.
_KEYS = (
    "prompt", "completion", "request", "internal_reasoning",
    "input_cache_read", "input_cache_write", "input_cache_write_1h",
)  # fmt: skip


class Prices(msgspec.Struct, frozen=True):
    """Prices in USD per token (``request``: per request); ``None`` where none is named.

    A missing ``input_cache_read`` means that a cached token costs what ``prompt`` costs; a
    missing ``input_cache_write`` that writing costs nothing on top of ``prompt``.
    """

    prompt: Decimal | None = None
    completion: Decimal | None = None
    request: Decimal | None = None
    internal_reasoning: Decimal | None = None
    input_cache_read: Decimal | None = None
    input_cache_write: Decimal | None = None
    input_cache_write_1h: Decimal | None = None

    def of(self, key: str) -> Decimal:
        """Return a price that must be there, with the meaning of missing ones filled in.

        Raises:
            KeyError: ``prompt`` or ``completion`` is missing.
        """
        value: Decimal | None = getattr(self, key)
        if value is not None:
            return value
        if key in ("input_cache_read", "input_cache_write", "input_cache_write_1h"):
            return self.of("prompt")
        if key == "internal_reasoning":
            return self.of("completion")
        if key == "request":
            return Decimal(0)
        raise KeyError(key)


class Override(msgspec.Struct, frozen=True):
    """Prices under a condition: prompts of strictly more tokens, or hours of the week.

    ``windowed``: the condition is a time of day or of the week; such a price counts for the
    worst case only.
    """

    prices: Prices
    min_prompt_tokens: int = 0
    windowed: bool = False


class Pricing(msgspec.Struct, frozen=True):
    """An endpoint's plain prices and its overrides, later ones before earlier ones."""

    base: Prices
    overrides: tuple[Override, ...] = ()

    def at(self, prompt_tokens: int) -> Prices:
        """Return the prices for a prompt of so many tokens.

        An override holds for *strictly more* than ``min_prompt_tokens``; of several that
        hold, a later one wins key by key. Windows of time are left out.
        """
        found = self.base
        for override in self.overrides:
            if not override.windowed and prompt_tokens > override.min_prompt_tokens:
                found = _over(found, override.prices)
        return found

    def worst(self, context_length: int) -> Prices:
        """Return the dearest price of each key for any prompt below ``context_length``."""
        reachable = [o.prices for o in self.overrides if o.min_prompt_tokens < context_length]
        every = [self.base, *reachable]
        return Prices(
            **{
                key: max((p for prices in every if (p := getattr(prices, key)) is not None),
                         default=None)
                for key in _KEYS
            }
        )  # fmt: skip

    def worst_prompt(self, context_length: int, *, hour: bool = False) -> Decimal:
        """Return the most that one prompt token can cost: plain, written or overridden.

        Args:
            context_length: longest prompt in tokens.
            hour: whether requests ask for the cache that lasts an hour.

        Raises:
            KeyError: there is no prompt price.
        """
        worst = self.worst(context_length)
        keys = ["prompt", "input_cache_write", *(["input_cache_write_1h"] if hour else [])]
        return max(worst.of(key) for key in keys)

    def worst_completion(self, context_length: int) -> Decimal:
        """Return the most that one completion token can cost, reasoning included.

        Raises:
            KeyError: there is no completion price.
        """
        worst = self.worst(context_length)
        return max(worst.of("completion"), worst.of("internal_reasoning"))


class EndpointRecord(msgspec.Struct, frozen=True):
    """One provider's endpoint of a model."""

    provider: str
    pricing: Pricing
    context_length: int | None = None
    max_completion_tokens: int | None = None
    quantization: str | None = None
    supported_parameters: tuple[str, ...] = ()
    supports_implicit_caching: bool | None = None


class ModelRecord(msgspec.Struct, frozen=True):
    """One model of the catalogue.

    ``canonical_slug`` is the dated name that provenance records. ``alias_target`` is what an
    alias stands for today. ``is_distillable`` says whether the author allows training on the
    outputs, ``None`` where nobody asked. ``endpoints`` is empty where they were not listed.
    """

    id: str
    canonical_slug: str
    pricing: Pricing
    alias_target: str | None = None
    context_length: int | None = None
    max_completion_tokens: int | None = None
    supported_parameters: tuple[str, ...] = ()
    input_modalities: tuple[str, ...] = ()
    expiration_date: date | None = None
    reasoning: dict[str, Any] | None = None
    is_distillable: bool | None = None
    supports_implicit_caching: bool | None = None
    endpoints: tuple[EndpointRecord, ...] = ()

    @property
    def caches_implicitly(self) -> bool | None:
        """Whether some endpoint caches prompts by itself; ``None`` where nobody says."""
        told = [self.supports_implicit_caching]
        told += [endpoint.supports_implicit_caching for endpoint in self.endpoints]
        known = [flag for flag in told if flag is not None]
        return any(known) if known else None

    def offered(self, caps: tuple[Decimal, Decimal]) -> Pricing:
        """Return the prices that a router which balances by price would most likely charge.

        That is the cheapest endpoint within the caps, else the model's own prices.

        Args:
            caps: most USD per token for (prompt, completion).
        """
        within = [
            endpoint.pricing
            for endpoint in self.endpoints
            if endpoint.pricing.base.of("prompt") <= caps[0]
            and endpoint.pricing.base.of("completion") <= caps[1]
        ]
        return min(within, key=lambda p: p.base.of("prompt"), default=self.pricing)


def _over(base: Prices, new: Prices) -> Prices:
    changed = {key: p for key in _KEYS if (p := getattr(new, key)) is not None}
    return msgspec.structs.replace(base, **changed)


def read_model(row: Any) -> ModelRecord | None:
    """Read one entry of ``/models``; ``None`` where it names no model."""
    if not isinstance(row, dict) or not isinstance(row.get("id"), str):
        return None
    top = dig(row, "top_provider")
    reasoning = row.get("reasoning")
    return ModelRecord(
        id=row["id"],
        canonical_slug=str(row.get("canonical_slug") or row["id"]),
        pricing=_pricing(row.get("pricing")),
        alias_target=str(row["alias_target"]) if row.get("alias_target") else None,
        context_length=integer(row.get("context_length")),
        max_completion_tokens=integer(row.get("max_completion_tokens"))
        or integer(dig(top, "max_completion_tokens")),
        supported_parameters=_words(row.get("supported_parameters")),
        input_modalities=_words(dig(row, "architecture", "input_modalities")),
        expiration_date=_date(row.get("expiration_date")),
        reasoning=reasoning if isinstance(reasoning, dict) else None,
        supports_implicit_caching=flag(row.get("supports_implicit_caching")),
    )


def read_endpoint(row: Any) -> EndpointRecord | None:
    """Read one entry of ``/models/{slug}/endpoints``; ``None`` where it is no object."""
    if not isinstance(row, dict):
        return None
    return EndpointRecord(
        provider=str(row.get("provider_name") or row.get("name") or "unnamed"),
        pricing=_pricing(row.get("pricing")),
        context_length=integer(row.get("context_length")),
        max_completion_tokens=integer(row.get("max_completion_tokens")),
        quantization=str(row["quantization"]) if row.get("quantization") else None,
        supported_parameters=_words(row.get("supported_parameters")),
        supports_implicit_caching=flag(row.get("supports_implicit_caching")),
    )


def _pricing(value: Any) -> Pricing:
    if not isinstance(value, dict):
        return Pricing(Prices())
    overrides = []
    listed = value.get("overrides")
    for row in listed if isinstance(listed, list) else []:
        if isinstance(row, dict):
            nested = row.get("pricing")
            prices: dict[str, Any] = nested if isinstance(nested, dict) else row
            windowed = any(row.get(k) for k in ("utc_start", "utc_end", "utc_days"))
            least = integer(row.get("min_prompt_tokens")) or 0
            overrides.append(Override(_prices(prices), least, windowed))
    return Pricing(_prices(value), tuple(overrides))


def _prices(value: Mapping[str, Any]) -> Prices:
    return Prices(**{key: _price(value.get(key)) for key in _KEYS})


def _price(value: Any) -> Decimal | None:
    """A price in USD per token; ``None`` for what is no price (-1 means "varies")."""
    if isinstance(value, bool) or not isinstance(value, str | int | Decimal):
        return None
    try:
        price = Decimal(value)
    except ArithmeticError:
        return None
    return price if price.is_finite() and price >= 0 else None


def dig(value: Any, *keys: str) -> Any:
    """Return a nested value, or ``None`` where a step is missing."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _words(value: Any) -> tuple[str, ...]:
    return tuple(str(v) for v in value) if isinstance(value, list) else ()


def _date(value: Any) -> date | None:
    if not isinstance(value, str):
        return None
    try:
        return datetime.fromisoformat(value.replace("Z", "+00:00")).date()
    except ValueError:
        return None
