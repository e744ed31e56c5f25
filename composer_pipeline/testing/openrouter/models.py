"""The loopback provider's catalogue: models, prices in USD per token, and prompt caching."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Literal

import msgspec

from composer_pipeline.testing.personas import PersonaName

#: A cached prompt token costs this share of the prompt price, unless a model sets its own price.
CACHE_READ = Decimal("0.1")


class Prices(msgspec.Struct, frozen=True):
    """The prices of one call, USD per token; ``write`` is ``None`` if cache writes are free."""

    prompt: Decimal
    completion: Decimal
    read: Decimal
    write: Decimal | None
    request: Decimal


class PriceOverride(msgspec.Struct, frozen=True):
    """Prices of prompts with more than ``min_prompt_tokens``; ``None`` keeps the base price."""

    min_prompt_tokens: int
    prompt: Decimal | None = None
    completion: Decimal | None = None
    input_cache_read: Decimal | None = None
    input_cache_write: Decimal | None = None


class SimulatedModel(msgspec.Struct, frozen=True):
    """A model on the server."""

    slug: str
    persona: PersonaName
    prompt: Decimal
    completion: Decimal
    context_length: int = 131_072
    max_completion_tokens: int | None = None
    input_cache_read: Decimal | None = None
    input_cache_write: Decimal | None = None
    request: Decimal = Decimal(0)
    overrides: tuple[PriceOverride, ...] = ()
    cache: Literal["automatic", "explicit", "none"] = "automatic"
    cache_minimum: int = 0
    cache_ttl: float = 300.0
    canonical_slug: str = ""
    input_modalities: tuple[str, ...] = ("text",)
    supported_parameters: tuple[str, ...] = (
        "tools", "tool_choice", "max_tokens", "max_completion_tokens", "temperature",
    )  # fmt: skip
    expiration_date: str | None = None
    zdr: bool = True
    distillable: bool = True
    private: bool = False

    def prices(self, prompt_tokens: int) -> Prices:
        """Return the prices of a prompt of this length; a later override wins."""
        known: dict[str, Decimal | None] = {
            "prompt": self.prompt,
            "completion": self.completion,
            "input_cache_read": self.cache_read,
            "input_cache_write": self.input_cache_write,
        }
        for override in self.overrides:
            if prompt_tokens > override.min_prompt_tokens:
                own = {name: getattr(override, name) for name in known}
                known |= {name: price for name, price in own.items() if price is not None}
        return Prices(
            prompt=known["prompt"] or Decimal(0),
            completion=known["completion"] or Decimal(0),
            read=known["input_cache_read"] or Decimal(0),
            write=known["input_cache_write"],
            request=self.request,
        )

    @property
    def cache_read(self) -> Decimal:
        """The price of a cached prompt token."""
        if self.input_cache_read is None:
            return self.prompt * (CACHE_READ if self.cache != "none" else 1)
        return self.input_cache_read

    def pricing(self) -> dict[str, Any]:
        """Return the ``pricing`` object of the catalogue, with decimal text as on OpenRouter."""
        prices: dict[str, Any] = {
            "prompt": _text(self.prompt),
            "completion": _text(self.completion),
            "request": _text(self.request),
            "image": "0",
        }
        if self.cache != "none":
            prices["input_cache_read"] = _text(self.cache_read)
        if self.input_cache_write is not None:
            prices["input_cache_write"] = _text(self.input_cache_write)
        if self.overrides:
            prices["overrides"] = [
                {
                    name: _text(value) if isinstance(value, Decimal) else value
                    for name, value in msgspec.structs.asdict(override).items()
                    if value is not None
                }
                for override in self.overrides
            ]
        return prices

    def entry(self, name: str = "", alias_target: str = "") -> dict[str, Any]:
        """Return the catalogue's entry; ``name`` and ``alias_target`` make it an alias."""
        limit = self.max_completion_tokens or self.context_length
        entry = {
            "id": name or self.slug,
            "canonical_slug": self.canonical_slug or self.slug,
            "name": name or self.slug,
            "context_length": self.context_length,
            "architecture": {
                "input_modalities": list(self.input_modalities),
                "output_modalities": ["text"],
                "tokenizer": "Other",
            },
            "top_provider": {
                "context_length": self.context_length,
                "max_completion_tokens": limit,
                "is_moderated": False,
            },
            "max_completion_tokens": limit,
            "pricing": self.pricing(),
            "supported_parameters": list(self.supported_parameters),
            "supports_implicit_caching": self.cache == "automatic",
            "expiration_date": self.expiration_date,
        }
        return entry | {"alias_target": alias_target} if alias_target else entry

    def endpoint(self) -> dict[str, Any]:
        """Return the model's only endpoint, as ``/models/…/endpoints`` lists it."""
        return {
            "name": f"Loopback | {self.slug}",
            "model_id": self.slug,
            "provider_name": "Loopback",
            "tag": "loopback",
            "quantization": "unknown",
            "status": 0,
            "context_length": self.context_length,
            "max_completion_tokens": self.max_completion_tokens or self.context_length,
            "max_prompt_tokens": None,
            "pricing": self.pricing(),
            "supported_parameters": list(self.supported_parameters),
            "supports_implicit_caching": self.cache == "automatic",
        }


def _model(persona: PersonaName, prompt: str, completion: str) -> SimulatedModel:
    slug = f"loopback/{persona}-20261101"
    return SimulatedModel(slug, persona, Decimal(prompt), Decimal(completion))


MODELS = (
    _model("careful", "0.00000027", "0.0000011"),
    _model("steady", "0.00000045", "0.0000018"),
    _model("contrarian", "0.00000015", "0.0000006"),
    _model("flaky", "0.00000008", "0.0000003"),
)


def aliases(models: Sequence[SimulatedModel]) -> dict[str, str]:
    """Return alias -> slug: a "~…-latest" alias for each dated slug."""
    known = {}
    for model in models:
        stem, _, date = model.slug.rpartition("-")
        if stem and date.isdigit():
            known[f"~{stem}-latest"] = model.slug
    return known


def _text(price: Decimal) -> str:
    return f"{price:f}"
