"""The provider's catalogue: what a model costs, holds and is called today.

It is fetched once per run and kept in the lake; each teacher is checked against it.
"""

import asyncio
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from typing import Any
from urllib.parse import quote

import msgspec

from composer_pipeline.errors import ComposerError
from composer_pipeline.files import flag, integer, mapping, mapping_at, mappings
from composer_pipeline.lake.store import Lake
from composer_pipeline.teachers.client import MOST_BYTES, ask, new_session
from composer_pipeline.teachers.outcome import is_page, read_json
from composer_pipeline.teachers.request import CACHE_WRITE
from composer_pipeline.teachers.teachers import Endpoint, Teacher, TeacherSet

MILLION = 1_000_000
#: Folder of the lake with the raw catalogues, by day and content.
FOLDER = "catalogue"
#: Limits of one request for the catalogue, in seconds: of silence, and in all.
SILENCE_S, TOTAL_S = 10.0, 30.0
_DATED = re.compile(r"(?:19|20)\d\d-?(?:0[1-9]|1[0-2])-?(?:0[1-9]|[12]\d|3[01])(?!\d)|-\d{4}(?!\d)")


class Prices(msgspec.Struct, frozen=True):
    """Prices in USD per token (``request``: per request); ``None`` if none is given.

    Without ``input_cache_read``, a cached token costs what ``prompt`` costs; without
    ``input_cache_write``, writing costs nothing on top of ``prompt``.
    """

    prompt: Decimal | None = None
    completion: Decimal | None = None
    request: Decimal | None = None
    internal_reasoning: Decimal | None = None
    input_cache_read: Decimal | None = None
    input_cache_write: Decimal | None = None
    input_cache_write_1h: Decimal | None = None

    def of(self, key: str) -> Decimal:
        """Return a price or the one that stands for it; KeyError without prompt or completion."""
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
    """Prices for prompts of strictly more tokens, or (for the worst case only) at some hours."""

    prices: Prices
    min_prompt_tokens: int = 0
    windowed: bool = False


class Pricing(msgspec.Struct, frozen=True):
    """An endpoint's plain prices and its overrides; a later one has precedence, key by key."""

    base: Prices
    overrides: tuple[Override, ...] = ()

    def at(self, prompt_tokens: int) -> Prices:
        """Return the prices for a prompt of so many tokens, windows of time left out."""
        found = self.base
        for override in self.overrides:
            if not override.windowed and prompt_tokens > override.min_prompt_tokens:
                given = msgspec.structs.asdict(override.prices)
                found = msgspec.structs.replace(
                    found, **{key: price for key, price in given.items() if price is not None}
                )
        return found

    def worst(self, context_length: int) -> Prices:
        """Return the highest price of each key for any prompt below ``context_length``."""
        reachable = [o.prices for o in self.overrides if o.min_prompt_tokens < context_length]
        every = [self.base, *reachable]
        listed = {key: [getattr(p, key) for p in every] for key in Prices.__struct_fields__}
        return Prices(
            **{k: max((p for p in v if p is not None), default=None) for k, v in listed.items()}
        )

    def worst_prompt(self, context_length: int, *, hour: bool = False) -> Decimal:
        """Return the most that a prompt token can cost; ``hour`` for a cache of an hour."""
        worst = self.worst(context_length)
        keys = ["prompt", "input_cache_write", *(["input_cache_write_1h"] if hour else [])]
        return max(worst.of(key) for key in keys)

    def worst_completion(self, context_length: int) -> Decimal:
        """Return the most that one completion token can cost, reasoning included."""
        worst = self.worst(context_length)
        return max(worst.of("completion"), worst.of("internal_reasoning"))


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """A model as it is offered: by one provider's endpoint, or in the catalogue as a whole."""

    provider: str = ""
    pricing: Pricing
    context_length: int | None = None
    max_completion_tokens: int | None = None
    supports_implicit_caching: bool | None = None


class ModelRecord(Offer, frozen=True, kw_only=True):
    """One model of the catalogue.

    ``canonical_slug`` is the dated name that provenance records. ``alias_target`` is what an
    alias stands for today. ``is_distillable``: the author allows training on the outputs,
    ``None`` if that was not asked. ``endpoints`` is empty if they were not listed.
    """

    id: str
    canonical_slug: str
    alias_target: str | None = None
    supported_parameters: tuple[str, ...] = ()
    expiration_date: date | None = None
    reasoning: dict[str, Any] | None = None
    is_distillable: bool | None = None
    endpoints: tuple[Offer, ...] = ()

    def known(self, field: str) -> list[Any]:
        """Return what the catalogue and the endpoints say of a field of :class:`Offer`."""
        values = [getattr(offer, field) for offer in (self, *self.endpoints)]
        return [value for value in values if value is not None]

    @property
    def caches_implicitly(self) -> bool | None:
        """Whether some endpoint caches prompts by itself; ``None`` if it is unknown."""
        known = self.known("supports_implicit_caching")
        return any(known) if known else None

    def offered(self, caps: tuple[Decimal, Decimal]) -> Pricing:
        """Return the prices of the cheapest endpoint within the caps, else the model's own."""
        # A router that balances by price would most likely charge them.
        within = [
            offer.pricing
            for offer in self.endpoints
            if offer.pricing.base.of("prompt") <= caps[0]
            and offer.pricing.base.of("completion") <= caps[1]
        ]
        return min(within, key=lambda p: p.base.of("prompt"), default=self.pricing)


class CatalogueError(ComposerError):
    """A teacher that the catalogue rules out; names the teacher and the field."""

    def __init__(self, teacher: Teacher, field: str, sentence: str) -> None:
        super().__init__(f"teacher {teacher.name}: {field}: {sentence}")


class CatalogueCheck(msgspec.Struct, frozen=True):
    """What the catalogue says about one teacher.

    ``stop`` is one sentence that names the teacher and why it cannot be asked, or empty;
    ``warnings`` do not stop it. ``canonical_slug`` and ``distillable`` are provenance:
    ``enforced`` (the router admits only such models), ``declared`` or ``not enforced``.
    """

    record: ModelRecord | None = None
    canonical_slug: str = ""
    distillable: str = "enforced"
    stop: str = ""
    warnings: tuple[str, ...] = ()


class Catalogue(msgspec.Struct, frozen=True):
    """The models that an endpoint offered at one moment.

    ``raw`` are the bytes as received, as one JSON object ``{models, distillable, endpoints}``,
    with their ``sha256``; ``source`` is the base URL that they came from.
    """

    models: dict[str, ModelRecord]
    raw: bytes
    sha256: str
    fetched_at: datetime
    source: str

    def find(self, model: str) -> ModelRecord | None:
        """Return the record of a slug, aliases resolved; ``None`` if unknown."""
        seen: set[str] = set()
        name: str | None = model
        while name and name not in seen:
            seen.add(name)
            record = self.models.get(name) or next(
                (r for r in self.models.values() if r.canonical_slug == name), None
            )
            if record is None or not record.alias_target:
                return record
            name = record.alias_target
        return None

    def check(self, teacher: Teacher, *, today: date | None = None) -> ModelRecord:
        """Check a teacher of api openrouter; return the model's record, by its dated name."""
        record = self.find(teacher.model)
        if record is None:
            raise CatalogueError(teacher, "model", f"{teacher.model} is not in the catalogue")
        named = self.models.get(teacher.model)
        if named and named.alias_target is not None and not _DATED.search(record.canonical_slug):
            raise CatalogueError(
                teacher, "model", f"{teacher.model} is an alias that names no dated model"
            )
        expires = record.expiration_date
        if expires is not None and expires <= (today or datetime.now(UTC).date()):
            raise CatalogueError(teacher, "model", f"{record.canonical_slug} expired on {expires}")
        if teacher.provider.enforce_distillable_text and record.is_distillable is False:
            raise CatalogueError(
                teacher, "provider.enforce_distillable_text",
                f"the author of {record.canonical_slug} does not allow training on its outputs;"
                " set it to false to ask all the same, which is recorded",
            )  # fmt: skip
        _check_prices(teacher, record)
        return record

    def check_teachers(self, teachers: Iterable[Teacher]) -> dict[str, CatalogueCheck]:
        """Return what :meth:`check` says of each teacher without an endpoint of its own."""
        found: dict[str, CatalogueCheck] = {}
        for teacher in teachers:
            if teacher.endpoint is not None:
                continue
            record, stop = self.find(teacher.model), ""
            try:
                self.check(teacher)
            except CatalogueError as error:
                stop = str(error)
            found[teacher.name] = CatalogueCheck(
                record,
                record.canonical_slug if record else "",
                _training_terms(teacher, record),
                stop,
                tuple(_warnings(teacher, record)) if record and not stop else (),
            )
        return found

    def record(self, lake: Lake) -> str:
        """Keep the raw catalogue in the lake, once for each content and day; return its path."""
        name = f"{FOLDER}/{self.fetched_at:%Y-%m-%d}-{self.sha256[:16]}.json"
        if not lake.exists(name):
            document = {
                "source": self.source,
                "fetched_at": self.fetched_at.isoformat(),
                "sha256": self.sha256,
                "raw": self.raw.decode("utf-8", "replace"),
            }
            lake.put_bytes(name, json.dumps(document, ensure_ascii=False).encode())
        return name


def _check_prices(teacher: Teacher, record: ModelRecord) -> None:
    """Refuse what the reservation would not bound: a missing price, or one above its cap."""
    cap = {
        "prompt": teacher.max_price.prompt / MILLION,
        "completion": teacher.max_price.completion / MILLION,
    }
    for offer in (record, *record.endpoints):
        for key in cap:
            if getattr(offer.pricing.base, key) is None:
                sentence = f"the catalogue has no such price for {record.id}"
                raise CatalogueError(teacher, f"pricing.{key}", sentence)
    offers = record.endpoints or (record,)
    admitted = [
        offer
        for offer in offers
        if all(offer.pricing.base.of(key) <= limit for key, limit in cap.items())
    ]
    if not admitted:
        for key, limit in cap.items():
            lowest = min(offer.pricing.base.of(key) for offer in offers)
            _within(teacher, key, f"the {key} price of {record.id}", lowest, limit)
        raise CatalogueError(
            teacher, "max_price", f"no endpoint of {record.id} is within both caps"
        )
    # What the reservation takes a prompt token to cost at most.
    bound = cap["prompt"] * CACHE_WRITE[teacher.cache_control]
    length, hour = teacher.context_length, teacher.cache_control == "1h"
    for offer in admitted:
        pricing = offer.pricing
        where = f"{record.id} at {offer.provider}" if offer.provider else record.id
        what = f"the worst prompt price of {where} (cache write and long context)"
        _within(teacher, "prompt", what, pricing.worst_prompt(length, hour=hour), bound)
        what = f"the worst completion price of {where} (reasoning)"
        worst = pricing.worst_completion(length)
        _within(teacher, "completion", what, worst, cap["completion"])
        if pricing.worst(length).of("request"):
            raise CatalogueError(
                teacher, "pricing.request",
                f"{where} charges {pricing.base.of('request')} USD a request, which the"
                " reservation does not hold",
            )  # fmt: skip


def _within(teacher: Teacher, key: str, what: str, price: Decimal, cap: Decimal) -> None:
    if price > cap:
        raise CatalogueError(
            teacher, f"max_price.{key}",
            f"{what} is {per_million(price)} USD per million tokens, above the cap of"
            f" {per_million(cap)}",
        )  # fmt: skip


def per_million(price: Decimal) -> str:
    """Return a price per token as USD per million tokens, for people."""
    text = f"{price * MILLION:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _warnings(teacher: Teacher, record: ModelRecord) -> list[str]:
    """Return what is worth a look but does not stop a teacher."""
    found = []
    sizes = {"context_length": "context_length", "max_tokens": "max_completion_tokens"}
    for setting, field in sizes.items():
        wanted, known = getattr(teacher, setting), record.known(field)
        if known and max(known) < wanted:
            found.append(f"{setting} {wanted} is more than the {max(known)} of {record.id}")
    if record.supported_parameters and "tools" not in record.supported_parameters:
        found.append(f"{record.id} takes no tools")
    if not _DATED.search(record.canonical_slug):
        found.append(f"{record.id} has no dated name")
    return [f"teacher {teacher.name}: {sentence}" for sentence in found]


def _training_terms(teacher: Teacher, record: ModelRecord | None) -> str:
    if teacher.endpoint is not None:
        return "not enforced"  # no router stands between: only the file's licence counts
    if teacher.provider.enforce_distillable_text:
        return "enforced"
    return "declared" if record and record.is_distillable else "not enforced"


def terms_of(teacher: Teacher, check: CatalogueCheck | None) -> dict[str, str | None]:
    """Return the provenance columns of a teacher's replies; see the table ``replies``."""
    return {
        "licence": teacher.licence,
        "canonical_slug": (check.canonical_slug or None) if check else None,
        "training_terms": check.distillable if check else _training_terms(teacher, None),
    }


def preflight(
    lake: Lake, teacher_set: TeacherSet, teachers: Sequence[Teacher]
) -> dict[str, CatalogueCheck]:
    """Fetch the catalogue for a run, keep it in the lake, and check the teachers against it."""
    # Without a catalogue, the caps that go with every request are all that bounds the bill.
    found = fetch(teacher_set, teachers)
    if found is None:
        return {}
    found.record(lake)
    return found.check_teachers(teachers)


def fetch(teacher_set: TeacherSet, teachers: Sequence[Teacher] | None = None) -> Catalogue | None:
    """Fetch the catalogue and the endpoints of the teachers' models; ``None`` if there is none."""
    # No key is sent: the catalogue is public.
    every = teacher_set.teachers if teachers is None else teachers
    models = sorted({teacher.model for teacher in every if teacher.endpoint is None})
    if teacher_set.endpoint.api != "openrouter" or not models:
        return None
    return asyncio.run(_fetch(teacher_set.endpoint, models))


async def _fetch(endpoint: Endpoint, models: Sequence[str]) -> Catalogue | None:
    url = endpoint.url()
    lists: dict[str, bytes] = {}
    async with new_session(read_s=SILENCE_S, total_s=TOTAL_S, connections=1) as session:
        get = partial(ask, session, "GET", most=MOST_BYTES)
        status, headers, everything = await get(f"{url}/models")
        if status == 200 and is_page(headers, everything):
            raise ComposerError(
                f"endpoint {endpoint.name} answers HTML at {url}/models and is no API;"
                " check base_url"
            )
        if 300 <= status < 400:
            raise ComposerError(
                f"endpoint {endpoint.name} redirects {url}/models; name its final address in"
                " base_url"
            )
        if status != 200:
            return None
        # Which models may be trained on is only known by the catalogue's own filter.
        status, _, free = await get(f"{url}/models", params={"distillable": "true"})
        distillable = free if status == 200 else None
        for model in models:
            status, _, listed = await get(f"{url}/models/{quote(model)}/endpoints")
            if status == 200:
                lists[model] = listed
    return parse(everything, lists, distillable=distillable, source=url)


def parse(
    models: bytes,
    endpoints: Mapping[str, bytes] | None = None,
    *,
    distillable: bytes | None = None,
    source: str = "",
) -> Catalogue | None:
    """Read the bytes of ``/models`` and, by model, of ``/models/{slug}/endpoints``."""
    # A model or price in an unknown shape is left out, never guessed.
    rows = mapping(read_json(models)).get("data")
    if not isinstance(rows, list):
        return None
    records = {record.id: record for row in rows if (record := _model(row)) is not None}
    allowed = mapping(read_json(distillable or b"")).get("data")
    if isinstance(allowed, list):
        names = {mapping(row).get("id") for row in allowed}
        for model, known in records.items():
            free = model in names or known.canonical_slug in names
            records[model] = msgspec.structs.replace(known, is_distillable=free)
    answers = sorted((endpoints or {}).items())
    for model, answer in answers:
        listed = mapping_at(read_json(answer), "data").get("endpoints")
        if model in records and isinstance(listed, list):
            found = tuple(_endpoint(row) for row in listed if isinstance(row, dict))
            records[model] = msgspec.structs.replace(records[model], endpoints=found)
    lists = b",".join(json.dumps(model).encode() + b":" + answer for model, answer in answers)
    terms = b',"distillable":' + distillable if isinstance(allowed, list) and distillable else b""
    raw = b'{"models":' + models + terms + b',"endpoints":{' + lists + b"}}"
    digest = hashlib.sha256(raw).hexdigest()
    return Catalogue(records, raw, digest, datetime.now(UTC), source)


def _model(row: Any) -> ModelRecord | None:
    """Read one entry of ``/models``; ``None`` if it names no model."""
    if not isinstance(row, dict) or not isinstance(row.get("id"), str):
        return None
    reasoning, parameters = row.get("reasoning"), row.get("supported_parameters")
    return ModelRecord(
        id=row["id"],
        canonical_slug=str(row.get("canonical_slug") or row["id"]),
        pricing=_pricing(row.get("pricing")),
        alias_target=str(row["alias_target"]) if row.get("alias_target") else None,
        context_length=integer(row.get("context_length")),
        max_completion_tokens=integer(row.get("max_completion_tokens"))
        or integer(mapping_at(row, "top_provider").get("max_completion_tokens")),
        supported_parameters=tuple(map(str, parameters if isinstance(parameters, list) else ())),
        expiration_date=_date(row.get("expiration_date")),
        reasoning=reasoning if isinstance(reasoning, dict) else None,
        supports_implicit_caching=flag(row.get("supports_implicit_caching")),
    )


def _endpoint(row: Mapping[str, Any]) -> Offer:
    """Read one entry of ``/models/{slug}/endpoints``."""
    return Offer(
        provider=str(row.get("provider_name") or row.get("name") or "unnamed"),
        pricing=_pricing(row.get("pricing")),
        context_length=integer(row.get("context_length")),
        max_completion_tokens=integer(row.get("max_completion_tokens")),
        supports_implicit_caching=flag(row.get("supports_implicit_caching")),
    )


def _pricing(value: Any) -> Pricing:
    listed = mapping(value).get("overrides")
    overrides = [
        Override(
            _prices(mapping_at(row, "pricing") or row),
            integer(row.get("min_prompt_tokens")) or 0,
            any(row.get(key) for key in ("utc_start", "utc_end", "utc_days")),
        )
        for row in mappings(listed)
    ]
    return Pricing(_prices(mapping(value)), tuple(overrides))


def _prices(value: Mapping[str, Any]) -> Prices:
    return Prices(**{key: _price(value.get(key)) for key in Prices.__struct_fields__})


def _price(value: Any) -> Decimal | None:
    """Return USD per token; ``None`` for what is no price (-1 means "varies")."""
    if isinstance(value, bool) or not isinstance(value, str | int | Decimal):
        return None
    try:
        price = Decimal(value)
    except ArithmeticError:
        return None
    return price if price.is_finite() and price >= 0 else None


def _date(value: Any) -> date | None:
    try:
        text = value if isinstance(value, str) else ""
        return datetime.fromisoformat(text.replace("Z", "+00:00")).date()
    except ValueError:
        return None
