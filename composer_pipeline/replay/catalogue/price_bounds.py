"""Whether a model's prices keep a teacher's reservations a bound.

Belongs here: the comparison of a model's record with a teacher's caps, and warnings. Does not
belong here: the catalogue as a whole (``replay.catalogue.fetch``).

Catalogue prices are USD per **token**; a teacher file's caps are USD per **million** tokens.
The router compares ``max_price`` with an endpoint's plain prices. A bill can be higher than
those: writing to a prompt cache, and prompts beyond a length, have prices of their own. So the
worst prompt price of every endpoint that the caps let in must be within what the reservation
takes a token to cost, or the reservation would not be a bound, and the teacher is stopped.
"""

import re
from collections.abc import Mapping
from decimal import Decimal

from composer_pipeline.errors import ComposerError
from composer_pipeline.replay.catalogue.model_records import ModelRecord, Pricing
from composer_pipeline.replay.provider import CACHE_WRITE
from composer_pipeline.replay.teachers import Teacher

MILLION = 1_000_000
_DATED = re.compile(r"(?:19|20)\d\d-?(?:0[1-9]|1[0-2])-?(?:0[1-9]|[12]\d|3[01])(?!\d)|-\d{4}(?!\d)")


class CatalogueError(ComposerError):
    """A teacher that the catalogue rules out; names the teacher and the field."""

    def __init__(self, teacher: str, field: str, sentence: str) -> None:
        super().__init__(f"teacher {teacher}: {field}: {sentence}")
        self.teacher = teacher
        self.field = field


def is_dated(slug: str) -> bool:
    """Say whether a slug names one release: it carries a date (``-20261101``, ``-0905``)."""
    return bool(_DATED.search(slug))


def per_million(price: Decimal) -> str:
    """Return a price per token as USD per million tokens, for people."""
    text = f"{price * MILLION:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def check_prices(teacher: Teacher, record: ModelRecord) -> None:
    """Refuse what the reservation would not bound; see the module.

    Raises:
        CatalogueError: a missing price, or one above its cap.
    """
    cap = {
        "prompt": teacher.max_price.prompt / MILLION,
        "completion": teacher.max_price.completion / MILLION,
    }
    # What the reservation takes a prompt token to cost at most.
    bound = {**cap, "prompt": cap["prompt"] * CACHE_WRITE[teacher.cache_control]}
    offers = [(e.provider, e.pricing) for e in record.endpoints] or [("", record.pricing)]
    for pricing in (record.pricing, *(e.pricing for e in record.endpoints)):
        for key in ("prompt", "completion"):
            if getattr(pricing.base, key) is None:
                raise CatalogueError(
                    teacher.name, f"pricing.{key}",
                    f"the catalogue names no such price for {record.id}",
                )  # fmt: skip
    admitted = [
        (provider, pricing)
        for provider, pricing in offers
        if all(pricing.base.of(key) <= limit for key, limit in cap.items())
    ]
    if not admitted:
        for key, limit in cap.items():
            lowest = min(pricing.base.of(key) for _, pricing in offers)
            if lowest > limit:
                _above(teacher, key, f"the {key} price of {record.id}", lowest, limit)
        raise CatalogueError(
            teacher.name, "max_price", f"no endpoint of {record.id} is within both caps"
        )
    for provider, pricing in admitted:
        where = f"{record.id}" + (f" at {provider}" if provider else "")
        _check_worst(teacher, where, pricing, bound)


def _check_worst(
    teacher: Teacher, where: str, pricing: Pricing, bound: Mapping[str, Decimal]
) -> None:
    """Refuse an endpoint whose worst price is above what the reservation takes it to be."""
    worst = {
        "prompt": pricing.worst_prompt(teacher.context_length, hour=teacher.cache_control == "1h"),
        "completion": pricing.worst_completion(teacher.context_length),
    }
    for key, price in worst.items():
        if price > bound[key]:
            kind = "cache write and long context" if key == "prompt" else "reasoning"
            what = f"the worst {key} price of {where} ({kind})"
            _above(teacher, key, what, price, bound[key])
    if pricing.worst(teacher.context_length).of("request"):
        raise CatalogueError(
            teacher.name, "pricing.request",
            f"{where} charges {pricing.base.of('request')} USD a request, which the"
            " reservation does not hold",
        )  # fmt: skip


def _above(teacher: Teacher, key: str, what: str, price: Decimal, cap: Decimal) -> None:
    raise CatalogueError(
        teacher.name, f"max_price.{key}",
        f"{what} is {per_million(price)} USD per million tokens, above the cap of"
        f" {per_million(cap)}",
    )  # fmt: skip


def warnings_of(teacher: Teacher, record: ModelRecord) -> list[str]:
    """Return what is worth a look and stops nobody."""
    found = []
    offered = [record.context_length, *(e.context_length for e in record.endpoints)]
    longest = max((n for n in offered if n is not None), default=None)
    if longest is not None and longest < teacher.context_length:
        found.append(
            f"teacher {teacher.name}: context_length {teacher.context_length} is more than the"
            f" {longest} of {record.id}"
        )
    tops = [record.max_completion_tokens, *(e.max_completion_tokens for e in record.endpoints)]
    top = max((n for n in tops if n is not None), default=None)
    if top is not None and top < teacher.max_tokens:
        found.append(
            f"teacher {teacher.name}: max_tokens {teacher.max_tokens} is more than the {top} of"
            f" {record.id}"
        )
    if record.supported_parameters and "tools" not in record.supported_parameters:
        found.append(f"teacher {teacher.name}: {record.id} takes no tools")
    if not is_dated(record.canonical_slug):
        found.append(f"teacher {teacher.name}: {record.id} has no dated name")
    return found
