"""The provider's catalogue: what a model costs, holds and is called today.

Belongs here: fetching ``/models`` and ``/models/{slug}/endpoints`` once a run, prices as
exact decimals, dated names, and the check of a teacher file against them. Does not belong
here: spending (``replay.ledger``), estimates (``replay.plan``).

Catalogue prices are strings in USD per **token**; a teacher file's caps are USD per
**million** tokens. The router compares ``max_price`` with an endpoint's plain prices. A bill
can be higher than those: writing to a prompt cache, and prompts beyond a length, have prices
of their own. So the worst prompt price of every endpoint that the caps let in must be within
the cap too, or the reservation would not be a bound, and the teacher is stopped.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from urllib.parse import quote

import httpx
import msgspec

from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.replay.catalogue_records import (
    ModelRecord,
    dig,
    read_endpoint,
    read_model,
)
from composer_pipeline.replay.teachers import Teacher, TeacherSet
from composer_pipeline.replay.wire import read_json

MILLION = 1_000_000
#: Folder of the lake with the raw catalogues, by day and content.
FOLDER = "catalogue"
_DATED = re.compile(r"(?:19|20)\d\d-?(?:0[1-9]|1[0-2])-?(?:0[1-9]|[12]\d|3[01])(?!\d)|-\d{4}(?!\d)")


class Verdict(msgspec.Struct, frozen=True):
    """What the catalogue says about one teacher.

    ``stop`` is one sentence that names the teacher and why it cannot be asked, or empty.
    ``warnings`` do not stop it. ``canonical_slug`` and ``distillable`` are provenance:
    ``enforced`` (the router admits only such models), ``declared`` or ``not enforced``.
    """

    teacher: str
    record: ModelRecord | None = None
    canonical_slug: str = ""
    distillable: str = "enforced"
    stop: str = ""
    warnings: tuple[str, ...] = ()


class CatalogueError(ComposerError):
    """A teacher that the catalogue rules out; names the teacher and the field."""

    def __init__(self, teacher: str, field: str, sentence: str) -> None:
        super().__init__(f"teacher {teacher}: {field}: {sentence}")
        self.teacher = teacher
        self.field = field


class Catalogue(msgspec.Struct, frozen=True):
    """The models that an endpoint offered at one moment.

    ``raw`` are the bytes as received, as one JSON object ``{models, distillable, endpoints}``;
    ``sha256`` names them; ``source`` is where they came from.
    """

    models: dict[str, ModelRecord]
    raw: bytes
    sha256: str
    fetched_at: datetime
    source: str

    def find(self, model: str) -> ModelRecord | None:
        """Return the record of a slug, followed through aliases; ``None`` if unknown."""
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
        """Check one teacher against the catalogue.

        Args:
            teacher: of an endpoint of api openrouter.
            today: the date that expiry is judged by.

        Returns:
            The model's record, by its dated name.

        Raises:
            CatalogueError: the model is unknown, an alias of nothing dated, expired, has no
                price, costs more than a cap, or is not to be trained on.
        """
        name = teacher.name
        record = self.find(teacher.model)
        if record is None:
            raise CatalogueError(name, "model", f"{teacher.model} is not in the catalogue")
        if not is_dated(record.canonical_slug) and _is_alias(self.models.get(teacher.model)):
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
        _check_prices(teacher, record)
        return record

    def verdicts(
        self, teachers: Iterable[Teacher], *, today: date | None = None
    ) -> dict[str, Verdict]:
        """Return what :meth:`check` says of each teacher; one bad teacher stops only itself."""
        found: dict[str, Verdict] = {}
        for teacher in teachers:
            enforced = teacher.provider.enforce_distillable_text
            try:
                record = self.check(teacher, today=today)
            except CatalogueError as error:
                known = self.find(teacher.model)
                slug = known.canonical_slug if known else ""
                found[teacher.name] = Verdict(teacher.name, known, slug, stop=str(error))
                continue
            terms = "enforced" if enforced else "not enforced"
            if not enforced and record.is_distillable:
                terms = "declared"
            found[teacher.name] = Verdict(
                teacher.name, record, record.canonical_slug, terms,
                warnings=tuple(_warnings(teacher, record)),
            )  # fmt: skip
        return found

    def record(self, lake: Lake) -> str:
        """Keep the raw catalogue in the lake, once for each content and day; return its name.

        Raises:
            InputError: the lake cannot be written.
        """
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


def fetch(
    teacher_set: TeacherSet,
    teachers: Sequence[Teacher] | None = None,
    *,
    endpoints: bool = True,
    timeout_s: float = 10.0,
) -> Catalogue | None:
    """Fetch the catalogue once; ``None`` where the endpoint has none or cannot be reached.

    No key is sent: the catalogue is public. Which models may be trained on is asked with the
    catalogue's own filter, ``/models?distillable=true``.

    Args:
        teacher_set: names the endpoint; one of api ``openai`` has no catalogue.
        teachers: whose endpoints to list too; all of the file when ``None``.
        endpoints: also fetch ``/models/{slug}/endpoints`` of each teacher's model.
        timeout_s: patience for each request.
    """
    if teacher_set.endpoint.api != "openrouter":
        return None
    url = teacher_set.endpoint.url()
    asked = teacher_set.teachers if teachers is None else teachers
    lists: dict[str, bytes] = {}
    try:
        with httpx.Client(timeout=timeout_s) as client:
            response = client.get(f"{url}/models")
            if response.status_code != 200:
                return None
            models = response.content
            response = client.get(f"{url}/models", params={"distillable": "true"})
            distillable = response.content if response.status_code == 200 else None
            for model in sorted({teacher.model for teacher in asked}) if endpoints else []:
                answer = client.get(f"{url}/models/{quote(model)}/endpoints")
                if answer.status_code == 200:
                    lists[model] = answer.content
    except httpx.HTTPError:
        return None
    return parse(models, lists, distillable=distillable, source=url)


def parse(
    models: bytes,
    endpoints: Mapping[str, bytes] | None = None,
    *,
    distillable: bytes | None = None,
    source: str = "",
    fetched_at: datetime | None = None,
) -> Catalogue | None:
    """Read a catalogue from the bytes of ``/models`` and of ``/models/{slug}/endpoints``.

    A model or price in an unknown shape is left out, never guessed.

    Args:
        models: the answer of ``/models``.
        endpoints: model -> the answer of its ``/endpoints``.
        distillable: the answer of ``/models?distillable=true``, where it was asked.
        source: base URL that they came from.
        fetched_at: when; now if ``None``.

    Returns:
        The catalogue, or ``None`` where the bytes are no catalogue.
    """
    rows = dig(read_json(models), "data")
    if not isinstance(rows, list):
        return None
    records = {record.id: record for row in rows if (record := read_model(row)) is not None}
    allowed = dig(read_json(distillable or b""), "data")
    if isinstance(allowed, list):
        names = {dig(row, "id") for row in allowed}
        for model, known in records.items():
            free = model in names or known.canonical_slug in names
            records[model] = msgspec.structs.replace(known, is_distillable=free)
    for model, answer in sorted((endpoints or {}).items()):
        listed = dig(read_json(answer), "data", "endpoints")
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
    return Catalogue(records, raw, digest, fetched_at or datetime.now(UTC), source)


def load(lake: Lake, name: str) -> Catalogue:
    """Read a catalogue that :meth:`Catalogue.record` kept.

    Raises:
        InputError: there is none of that name, or it is damaged.
    """
    try:
        document = json.loads(lake.get_bytes(name))
        raw = str(document["raw"]).encode()
        parts = msgspec.json.decode(raw, type=_Raw)
        when = datetime.fromisoformat(document["fetched_at"])
    except (FileNotFoundError, KeyError, ValueError, msgspec.DecodeError) as error:
        raise InputError(f"lake {lake.url}: {name} is no recorded catalogue") from error
    found = parse(
        bytes(parts.models),
        {model: bytes(answer) for model, answer in parts.endpoints.items()},
        distillable=bytes(parts.distillable) or None,
        source=str(document.get("source", "")),
        fetched_at=when,
    )
    if found is None or found.sha256 != document.get("sha256"):
        raise InputError(f"lake {lake.url}: {name} is damaged: its SHA-256 differs")
    return found


class _Raw(msgspec.Struct):
    models: msgspec.Raw
    endpoints: dict[str, msgspec.Raw]
    distillable: msgspec.Raw = msgspec.Raw(b"")


def is_dated(slug: str) -> bool:
    """Say whether a slug names one release: it carries a date (``-20261101``, ``-0905``)."""
    return bool(_DATED.search(slug))


def per_million(price: Decimal) -> str:
    """Return a price per token as USD per million tokens, for people."""
    text = f"{price * MILLION:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _check_prices(teacher: Teacher, record: ModelRecord) -> None:
    """Refuse what the reservation would not bound; see the module's docstring.

    Raises:
        CatalogueError: a missing price, or one above its cap.
    """
    cap = {
        "prompt": teacher.max_price.prompt / MILLION,
        "completion": teacher.max_price.completion / MILLION,
    }
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
        worst = {
            "prompt": pricing.worst_prompt(teacher.context_length),
            "completion": pricing.worst_completion(teacher.context_length),
        }
        for key, price in worst.items():
            if price > cap[key]:
                kind = "cache write and long context" if key == "prompt" else "reasoning"
                _above(teacher, key, f"the worst {key} price of {where} ({kind})", price, cap[key])
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


def _warnings(teacher: Teacher, record: ModelRecord) -> list[str]:
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


def _is_alias(record: ModelRecord | None) -> bool:
    return record is not None and record.alias_target is not None
