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
from composer_pipeline.files import flag, integer, mapping, mapping_at
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
#: Price keys, as the catalogue calls them.
_KEYS = (
    "prompt", "completion", "request", "internal_reasoning",
    "input_cache_read", "input_cache_write", "input_cache_write_1h",
)  # fmt: skip


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
    """Prices for prompts of strictly more tokens, or at hours of the week (``windowed``).

    A windowed price counts for the worst case only.
    """

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
                new = {k: p for k in _KEYS if (p := getattr(override.prices, k)) is not None}
                found = msgspec.structs.replace(found, **new)
        return found

    def worst(self, context_length: int) -> Prices:
        """Return the highest price of each key for any prompt below ``context_length``."""
        reachable = [o.prices for o in self.overrides if o.min_prompt_tokens < context_length]
        every = [self.base, *reachable]
        listed = {key: [getattr(prices, key) for prices in every] for key in _KEYS}
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


class EndpointRecord(msgspec.Struct, frozen=True):
    """One provider's endpoint of a model."""

    provider: str
    pricing: Pricing
    context_length: int | None = None
    max_completion_tokens: int | None = None
    supports_implicit_caching: bool | None = None


class ModelRecord(msgspec.Struct, frozen=True):
    """One model of the catalogue.

    ``canonical_slug`` is the dated name that provenance records. ``alias_target`` is what an
    alias stands for today. ``is_distillable``: the author allows training on the outputs,
    ``None`` if that was not asked. ``endpoints`` is empty if they were not listed.
    """

    id: str
    canonical_slug: str
    pricing: Pricing
    alias_target: str | None = None
    context_length: int | None = None
    max_completion_tokens: int | None = None
    supported_parameters: tuple[str, ...] = ()
    expiration_date: date | None = None
    reasoning: dict[str, Any] | None = None
    is_distillable: bool | None = None
    supports_implicit_caching: bool | None = None
    endpoints: tuple[EndpointRecord, ...] = ()

    @property
    def caches_implicitly(self) -> bool | None:
        """Whether some endpoint caches prompts by itself; ``None`` if none says so or not."""
        every = [self.supports_implicit_caching]
        every += [endpoint.supports_implicit_caching for endpoint in self.endpoints]
        known = [one for one in every if one is not None]
        return any(known) if known else None

    def offered(self, caps: tuple[Decimal, Decimal]) -> Pricing:
        """Return the prices of the cheapest endpoint within the caps, else the model's own.

        A router that balances by price would most likely charge them. ``caps`` are USD per token
        for (prompt, completion).
        """
        within = [
            endpoint.pricing
            for endpoint in self.endpoints
            if endpoint.pricing.base.of("prompt") <= caps[0]
            and endpoint.pricing.base.of("completion") <= caps[1]
        ]
        return min(within, key=lambda p: p.base.of("prompt"), default=self.pricing)


def read_model(row: Any) -> ModelRecord | None:
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


def read_endpoint(row: Any) -> EndpointRecord | None:
    """Read one entry of ``/models/{slug}/endpoints``; ``None`` if it is no object."""
    if not isinstance(row, dict):
        return None
    return EndpointRecord(
        provider=str(row.get("provider_name") or row.get("name") or "unnamed"),
        pricing=_pricing(row.get("pricing")),
        context_length=integer(row.get("context_length")),
        max_completion_tokens=integer(row.get("max_completion_tokens")),
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
    """Return USD per token; ``None`` for what is no price (-1 means "varies")."""
    if isinstance(value, bool) or not isinstance(value, str | int | Decimal):
        return None
    try:
        price = Decimal(value)
    except ArithmeticError:
        return None
    return price if price.is_finite() and price >= 0 else None


def _date(value: Any) -> date | None:
    if not isinstance(value, str):
        return None
    try:
        return datetime.fromisoformat(value.replace("Z", "+00:00")).date()
    except ValueError:
        return None


class CatalogueError(ComposerError):
    """A teacher that the catalogue rules out; names the teacher and the field."""

    def __init__(self, teacher: str, field: str, sentence: str) -> None:
        super().__init__(f"teacher {teacher}: {field}: {sentence}")


def is_dated(slug: str) -> bool:
    """Return True if a slug names one release, by a date (``-20261101``, ``-0905``)."""
    return bool(_DATED.search(slug))


def per_million(price: Decimal) -> str:
    """Return a price per token as USD per million tokens, for people."""
    text = f"{price * MILLION:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def check_prices(teacher: Teacher, record: ModelRecord) -> None:
    """Refuse what the reservation would not bound: a missing price, or one above its cap.

    Raises:
        CatalogueError: names the field.
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
                    f"the catalogue has no such price for {record.id}",
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
        where = f"{record.id} at {provider}" if provider else record.id
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
    """Return what is worth a look but does not stop a teacher."""
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
        """Check a teacher of api openrouter; return the model's record, by its dated name.

        Raises:
            CatalogueError: the model is unknown, an alias of nothing dated, expired, has no
                price, costs more than a cap, or is not to be trained on.
        """
        name = teacher.name
        record = self.find(teacher.model)
        if record is None:
            raise CatalogueError(name, "model", f"{teacher.model} is not in the catalogue")
        named = self.models.get(teacher.model)
        alias = named is not None and named.alias_target is not None
        if alias and not is_dated(record.canonical_slug):
            raise CatalogueError(
                name, "model", f"{teacher.model} is an alias that names no dated model"
            )
        now = today or datetime.now(UTC).date()
        if record.expiration_date is not None and record.expiration_date <= now:
            raise CatalogueError(
                name, "model", f"{record.canonical_slug} expired on {record.expiration_date}"
            )
        if teacher.provider.enforce_distillable_text and record.is_distillable is False:
            raise CatalogueError(
                name, "provider.enforce_distillable_text",
                f"the author of {record.canonical_slug} does not allow training on its outputs;"
                " set it to false to ask all the same, which is recorded",
            )  # fmt: skip
        check_prices(teacher, record)
        return record

    def check_teachers(self, teachers: Iterable[Teacher]) -> dict[str, CatalogueCheck]:
        """Return what :meth:`check` says of each teacher; one bad teacher stops only itself."""
        found: dict[str, CatalogueCheck] = {}
        for teacher in teachers:
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
                tuple(warnings_of(teacher, record)) if record and not stop else (),
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


def preflight(
    lake: Lake, teacher_set: TeacherSet, teachers: Sequence[Teacher]
) -> dict[str, CatalogueCheck]:
    """Fetch the catalogue for a run, keep it in the lake, and check the teachers against it.

    Empty if there is no catalogue; then the caps that go with every request are all that bounds
    the bill.
    """
    found = fetch(teacher_set, teachers)
    if found is None:
        return {}
    found.record(lake)
    return found.check_teachers(teacher_set.at_the_router(teachers))


def fetch(
    teacher_set: TeacherSet,
    teachers: Sequence[Teacher] | None = None,
) -> Catalogue | None:
    """Fetch the catalogue once; ``None`` if the endpoint has none or cannot be reached.

    No key is sent: the catalogue is public. Which models may be trained on is asked with the
    catalogue's own filter, ``/models?distillable=true``.

    Args:
        teacher_set: has the endpoint; one of api ``openai`` has no catalogue.
        teachers: whose endpoints to list too; all of the file when ``None``.

    Raises:
        ComposerError: a web page answers, or the endpoint redirects.
    """
    if teacher_set.endpoint.api != "openrouter":
        return None
    every = teacher_set.teachers if teachers is None else teachers
    asked = teacher_set.at_the_router(every)
    if not asked:
        return None
    models = sorted({teacher.model for teacher in asked})
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
    """Read a catalogue from ``/models`` and, by model, ``/models/{slug}/endpoints``.

    ``distillable`` is the answer of ``/models?distillable=true``. A model or price in an unknown
    shape is left out, never guessed; ``None`` if the bytes are no catalogue.
    """
    rows = mapping(read_json(models)).get("data")
    if not isinstance(rows, list):
        return None
    records = {record.id: record for row in rows if (record := read_model(row)) is not None}
    allowed = mapping(read_json(distillable or b"")).get("data")
    if isinstance(allowed, list):
        names = {mapping(row).get("id") for row in allowed}
        for model, known in records.items():
            free = model in names or known.canonical_slug in names
            records[model] = msgspec.structs.replace(known, is_distillable=free)
    for model, answer in sorted((endpoints or {}).items()):
        listed = mapping_at(read_json(answer), "data").get("endpoints")
        if model in records and isinstance(listed, list):
            found = tuple(e for row in listed if (e := read_endpoint(row)) is not None)
            records[model] = msgspec.structs.replace(records[model], endpoints=found)
    lists = b",".join(
        json.dumps(model).encode() + b":" + answer
        for model, answer in sorted((endpoints or {}).items())
    )
    terms = b',"distillable":' + distillable if isinstance(allowed, list) and distillable else b""
    raw = b'{"models":' + models + terms + b',"endpoints":{' + lists + b"}}"
    digest = hashlib.sha256(raw).hexdigest()
    return Catalogue(records, raw, digest, datetime.now(UTC), source)


def terms_of(teacher: Teacher, check: CatalogueCheck | None) -> dict[str, str | None]:
    """Return the provenance columns of a teacher's replies; see the table ``replies``."""
    return {
        "licence": teacher.licence,
        "canonical_slug": (check.canonical_slug or None) if check else None,
        "training_terms": check.distillable if check else _training_terms(teacher, None),
    }


def _training_terms(teacher: Teacher, record: ModelRecord | None) -> str:
    if teacher.endpoint is not None:
        return "not enforced"  # no router stands between: only the file's licence counts
    if teacher.provider.enforce_distillable_text:
        return "enforced"
    return "declared" if record and record.is_distillable else "not enforced"
