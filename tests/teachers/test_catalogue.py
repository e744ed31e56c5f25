"""The catalogue: exact prices, overrides, caps, aliases, terms; and that it is kept."""

import hashlib
import json
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from composer_pipeline.lake.store import Lake
from composer_pipeline.teachers.catalogue import Catalogue, CatalogueError, fetch, parse
from composer_pipeline.teachers.run import replay
from composer_pipeline.teachers.teachers import Teacher, TeacherSet
from composer_pipeline.testing.openrouter.models import MODELS
from composer_pipeline.testing.openrouter.server import LoopbackOpenRouter

PRICING = {"prompt": "0.0000003", "completion": "0.0000012", "request": "0"}
ROW: dict[str, Any] = {
    "id": "x/y",
    "canonical_slug": "x/y-20261101",
    "context_length": 200_000,
    "pricing": PRICING,
    "supported_parameters": ["tools"],
    "top_provider": {"max_completion_tokens": 8192},
    "expiration_date": None,
}


def teacher(**more: Any) -> Teacher:
    data: dict[str, Any] = {
        "name": "t", "family": "f", "model": "x/y", "licence": "MIT",
        "max_price": {"prompt": "0.60", "completion": "2.40"},
    }  # fmt: skip
    return Teacher.model_validate(data | more)


def catalogue(*rows: dict[str, Any], **more: Any) -> Catalogue:
    found = parse(json.dumps({"data": list(rows)}).encode(), **more)
    assert found is not None
    return found


def row(**more: Any) -> dict[str, Any]:
    return {**ROW, **more}


def priced(**more: Any) -> dict[str, Any]:
    return row(pricing={**PRICING, **more})


def test_prices_are_exact_and_records_complete() -> None:
    record = catalogue(row(expiration_date="2027-01-31", reasoning={"mandatory": True})).find("x/y")
    assert record is not None
    assert record.pricing.base.prompt == Decimal("0.0000003")
    assert record.canonical_slug == "x/y-20261101"
    assert record.max_completion_tokens == 8192
    assert record.expiration_date == date(2027, 1, 31)
    assert record.reasoning == {"mandatory": True}


def test_overrides_are_strictly_above_and_the_later_wins_per_key() -> None:
    overrides = [
        {"min_prompt_tokens": 1000, "prompt": "2", "completion": "5"},
        {"min_prompt_tokens": 1000, "prompt": "3"},
        {"utc_start": "08:00", "utc_end": "10:00", "prompt": "9"},
    ]
    record = catalogue(priced(overrides=overrides)).find("x/y")
    assert record is not None
    pricing = record.pricing
    assert pricing.at(1000).prompt == Decimal("0.0000003")
    assert (pricing.at(1001).prompt, pricing.at(1001).completion) == (Decimal(3), Decimal(5))
    assert pricing.worst_prompt(2000) == 9
    assert pricing.worst_completion(2000) == 5
    assert pricing.worst_completion(1000) == Decimal("0.0000012")


@pytest.mark.parametrize(
    ("pricing", "field", "numbers"),
    [
        ({"prompt": "0.000001"}, "max_price.prompt", ["1 USD", "0.6"]),
        ({"completion": "0.000003"}, "max_price.completion", ["3 USD", "2.4"]),
        ({"input_cache_write": "0.00000075"}, "max_price.prompt", ["0.75 USD", "0.6"]),
        ({"internal_reasoning": "0.000005"}, "max_price.completion", ["5 USD", "2.4"]),
        (
            {"overrides": [{"min_prompt_tokens": 100_000, "prompt": "0.0000007"}]},
            "max_price.prompt",
            ["0.7 USD", "0.6"],
        ),
        ({"request": "0.01"}, "pricing.request", ["0.01"]),
        ({"prompt": None}, "pricing.prompt", ["no such price"]),
        ({"completion": "-1"}, "pricing.completion", ["no such price"]),
        ({"prompt": "NaN"}, "pricing.prompt", ["no such price"]),
    ],
)
def test_what_the_reservation_would_not_bound_stops_the_teacher(
    pricing: dict[str, Any], field: str, numbers: list[str]
) -> None:
    with pytest.raises(CatalogueError) as caught:
        catalogue(priced(**pricing)).check(teacher())
    assert str(caught.value).startswith(f"teacher t: {field}: ")
    for number in numbers:
        assert number in str(caught.value)


def test_prices_out_of_reach_do_not_stop() -> None:
    far = priced(
        overrides=[{"min_prompt_tokens": 131_072, "prompt": "1"}], input_cache_write_1h="1"
    )
    assert catalogue(far).check(teacher()).id == "x/y"
    with pytest.raises(CatalogueError, match=r"max_price\.prompt"):
        catalogue(far).check(teacher(context_length=131_073))


def test_asking_for_the_cache_raises_what_is_reserved() -> None:
    write = catalogue(priced(input_cache_write="0.00000075", input_cache_write_1h="0.0000012"))
    assert write.check(teacher(cache_control="5m")).id == "x/y"  # 0.75 = 1.25 times the cap
    assert write.check(teacher(cache_control="1h")).id == "x/y"  # 1.2 = twice the cap
    dearer = catalogue(priced(input_cache_write="0.00000075", input_cache_write_1h="0.0000013"))
    assert dearer.check(teacher(cache_control="5m")).id == "x/y"
    with pytest.raises(CatalogueError, match=r"1\.3 USD .* above the cap of 1\.2"):
        dearer.check(teacher(cache_control="1h"))


def test_endpoints_are_judged_one_by_one() -> None:
    def listed(*pricings: dict[str, str]) -> Catalogue:
        offers = [
            {"provider_name": f"P{n}", "pricing": {**PRICING, **extra}}
            for n, extra in enumerate(pricings)
        ]
        answer = json.dumps({"data": {"endpoints": offers}}).encode()
        return catalogue(row(), endpoints={"x/y": answer})

    dear = {"prompt": "0.0000009", "input_cache_write": "0.000002"}
    # The router keeps the dear endpoint out; its cache price cannot be charged.
    assert listed(dear, {}).check(teacher()).id == "x/y"
    with pytest.raises(CatalogueError, match=r"P1.*cache write.*2 USD"):
        listed({}, {"input_cache_write": "0.000002"}).check(teacher())
    with pytest.raises(CatalogueError, match=r"0\.9 USD per million tokens, above the cap of 0\.6"):
        listed(dear).check(teacher())


def test_aliases_resolve_to_dated_names_or_are_refused() -> None:
    alias = row(id="x/new", alias_target="x/y", canonical_slug="x/new")
    assert catalogue(row(), alias).check(teacher(model="x/new")).canonical_slug == "x/y-20261101"
    assert catalogue(row()).check(teacher(model="x/y-20261101")).id == "x/y"
    with pytest.raises(CatalogueError, match="not in the catalogue"):
        catalogue(alias).check(teacher(model="x/new"))
    with pytest.raises(CatalogueError, match="names no dated model"):
        catalogue(row(canonical_slug="x/y"), alias).check(teacher(model="x/new"))
    loop = row(id="x/y", alias_target="x/y")
    with pytest.raises(CatalogueError, match="not in the catalogue"):
        catalogue(loop).check(teacher())


def test_expired_models_stop() -> None:
    soon = catalogue(row(expiration_date="2026-12-01"))
    assert soon.check(teacher(), today=date(2026, 11, 30)).id == "x/y"
    with pytest.raises(CatalogueError, match="expired on 2026-12-01"):
        soon.check(teacher(), today=date(2026, 12, 1))


def test_terms_against_training_stop_unless_the_file_says_so() -> None:
    other = json.dumps({"data": [{"id": "a/b"}]}).encode()
    forbidden = catalogue(row(), distillable=other)
    with pytest.raises(CatalogueError, match=r"t: provider\.enforce_distillable_text: .*training"):
        forbidden.check(teacher())
    asked = teacher(provider={"enforce_distillable_text": False})
    assert forbidden.check_teachers([asked])["t"].distillable == "not enforced"
    allowed = catalogue(row(), distillable=json.dumps({"data": [{"id": "x/y"}]}).encode())
    assert allowed.check_teachers([asked])["t"].distillable == "declared"
    assert allowed.check_teachers([teacher()])["t"].distillable == "enforced"


def test_one_bad_teacher_leaves_the_others() -> None:
    found = catalogue(row(), {**ROW, "id": "x/z", "pricing": {}}).check_teachers(
        [teacher(), teacher(name="u", model="x/z"), teacher(name="v", model="x/none")]
    )
    assert found["t"].stop == ""
    assert found["u"].stop.startswith("teacher u: pricing.prompt")
    assert "not in the catalogue" in found["v"].stop
    small = catalogue(row(context_length=1000, supported_parameters=["seed"]))
    words = " ".join(small.check_teachers([teacher(max_tokens=9000)])["t"].warnings)
    for word in ("1000", "8192", "no tools"):
        assert word in words


def kept(lake: Lake, name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(lake.get_bytes(name))
    return document


def test_kept_once(
    lake: Lake, teacher_set: TeacherSet, serve: Callable[..., LoopbackOpenRouter]
) -> None:
    serve()
    first, second = fetch(teacher_set), fetch(teacher_set)
    assert first is not None
    assert second is not None
    assert first.sha256 == second.sha256
    name = first.record(lake)
    assert second.record(lake) == name
    assert first.sha256[:16] in name
    document = kept(lake, name)
    assert hashlib.sha256(document["raw"].encode()).hexdigest() == document["sha256"]
    assert document["fetched_at"] == first.fetched_at.isoformat()
    assert all(not v.stop for v in first.check_teachers(teacher_set.teachers).values())


def test_no_catalogue_is_none(teacher_set: TeacherSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPOSER_OPENROUTER_URL", "http://127.0.0.1:9/api/v1")
    assert fetch(teacher_set) is None
    assert parse(b"<html>") is None
    assert parse(b'{"data": 3}') is None


@pytest.mark.parametrize("broken", ["/models", "/models/"])
def test_an_http_error_is_no_catalogue(
    teacher_set: TeacherSet,
    serve: Callable[..., LoopbackOpenRouter],
    monkeypatch: pytest.MonkeyPatch,
    broken: str,
) -> None:
    monkeypatch.setenv("COMPOSER_OPENROUTER_URL", f"{serve().url}{broken}")
    assert fetch(teacher_set) is None


def test_a_run_keeps_its_catalogue_and_stops_one_teacher(
    lake: Lake, teacher_set: TeacherSet, serve: Callable[..., LoopbackOpenRouter]
) -> None:
    models = [
        msgspec.structs.replace(model, distillable="contrarian" not in model.slug)
        for model in MODELS
    ]
    server = serve(models=models)
    data = teacher_set.model_dump()
    data["teachers"][1]["provider"]["enforce_distillable_text"] = False
    report = replay(
        lake,
        TeacherSet.model_validate(data),
        max_usd=Decimal(1),
        teachers=["careful", "steady", "contrarian"],
    )
    stopped = report.by_teacher["contrarian"].stopped
    assert "provider.enforce_distillable_text" in stopped
    assert server.requests == len(server.bills) == 24
    assert {item["teacher"] for item in report.not_bought} == {"contrarian"}
    (file,) = (Path(lake.root) / "catalogue").iterdir()
    assert kept(lake, f"catalogue/{file.name}")["source"] == server.url
    terms = {(r["teacher"], r["training_terms"], r["canonical_slug"]) for r in lake.rows("replies")}
    assert terms == {
        ("careful", "enforced", "loopback/careful-20261101"),
        ("steady", "declared", "loopback/steady-20261101"),
    }
