"""The provider's catalogue: what a model costs, holds and is called today.

Belongs here: fetching ``/models`` and ``/models/{slug}/endpoints`` once a run, keeping them in
the lake, dated names, and a verdict on each teacher. Does not belong here: reading an entry
(``replay.catalogue.model_records``), judging its prices (``replay.catalogue.price_bounds``),
spending (``replay.ledger.ledger``), estimates (``replay.plan.plan``).
"""

import asyncio
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from functools import partial
from urllib.parse import quote

import msgspec

from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.lake import Lake
from composer_pipeline.replay.catalogue.model_records import (
    ModelRecord,
    dig,
    read_endpoint,
    read_model,
)
from composer_pipeline.replay.catalogue.price_bounds import (
    CatalogueError,
    check_prices,
    is_dated,
    warnings_of,
)
from composer_pipeline.replay.endpoints import Endpoint
from composer_pipeline.replay.provider import MOST_BYTES, ask, is_page, new_session, read_json
from composer_pipeline.replay.teachers import Teacher, TeacherSet

#: Folder of the lake with the raw catalogues, by day and content.
FOLDER = "catalogue"
#: The longest that one request of the catalogue may take in all, in seconds.
TOTAL_S = 30.0


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

    def verdicts(
        self, teachers: Iterable[Teacher], *, today: date | None = None
    ) -> dict[str, Verdict]:
        """Return what :meth:`check` says of each teacher; one bad teacher stops only itself."""
        found: dict[str, Verdict] = {}
        for teacher in teachers:
            try:
                record = self.check(teacher, today=today)
            except CatalogueError as error:
                known = self.find(teacher.model)
                slug = known.canonical_slug if known else ""
                found[teacher.name] = Verdict(
                    teacher.name, known, slug, _terms(teacher, known), stop=str(error)
                )
                continue
            found[teacher.name] = Verdict(
                teacher.name, record, record.canonical_slug, _terms(teacher, record),
                warnings=tuple(warnings_of(teacher, record)),
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


def preflight(
    lake: Lake, teacher_set: TeacherSet, teachers: Sequence[Teacher]
) -> dict[str, Verdict]:
    """Fetch the catalogue for a run, keep it in the lake, and judge the teachers by it.

    Returns:
        A verdict for each teacher; empty where there is no catalogue, and then the caps that
        go with every request are all that bounds the bill.
    """
    found = fetch(teacher_set, teachers)
    if found is None:
        return {}
    found.record(lake)
    return found.verdicts(teacher_set.at_the_router(teachers))


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
        timeout_s: patience with silence, for each request.

    Raises:
        ComposerError: a web page answers, or the endpoint redirects.
    """
    if teacher_set.endpoint.api != "openrouter":
        return None
    every = teacher_set.teachers if teachers is None else teachers
    asked = teacher_set.at_the_router(every)
    if not asked:
        return None
    models = sorted({teacher.model for teacher in asked}) if endpoints else []
    return asyncio.run(_fetch(teacher_set.endpoint, models, timeout_s))


async def _fetch(endpoint: Endpoint, models: Sequence[str], timeout_s: float) -> Catalogue | None:
    url = endpoint.url()
    lists: dict[str, bytes] = {}
    async with new_session(read_s=timeout_s, total_s=TOTAL_S, connections=1) as session:
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


def terms_of(teacher: Teacher, verdict: Verdict | None) -> dict[str, str | None]:
    """Return the provenance columns of a teacher's replies; see the table ``replies``."""
    said = {"licence": teacher.licence}
    if verdict is None:
        return {**said, "canonical_slug": None, "training_terms": _terms(teacher, None)}
    return {
        **said,
        "canonical_slug": verdict.canonical_slug or None,
        "training_terms": verdict.distillable,
    }


def _terms(teacher: Teacher, record: ModelRecord | None) -> str:
    if teacher.endpoint is not None:
        return "not enforced"  # nobody stands between: the teacher file's licence is all there is
    if teacher.provider.enforce_distillable_text:
        return "enforced"
    return "declared" if record and record.is_distillable else "not enforced"
