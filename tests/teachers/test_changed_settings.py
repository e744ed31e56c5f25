"""Why a plan finds calls open that were answered before: which setting changed."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from decimal import Decimal
from typing import Any

import pytest

from composer_pipeline.chat.convert import Conversion
from composer_pipeline.cli.teachers import plan_tables
from composer_pipeline.lake.store import Lake
from composer_pipeline.teachers.ledger.ledger import ledger_target
from composer_pipeline.teachers.plan import MESSAGES, UNRECORDED, ReplayPlan, changes, plan
from composer_pipeline.teachers.request import serialise, settings_sent
from composer_pipeline.teachers.run import replay
from composer_pipeline.teachers.teachers import Provider, Teacher, TeacherSet
from composer_pipeline.testing.openrouter.server import LoopbackOpenRouter

Serve = Callable[..., LoopbackOpenRouter]
NAMES = ["careful", "steady"]


def changed(teacher_set: TeacherSet, name: str = "careful", **fields: Any) -> TeacherSet:
    data = teacher_set.model_dump()
    for teacher in data["teachers"]:
        if teacher["name"] == name:
            teacher.update(fields)
    return TeacherSet.model_validate(data)


def notes_of(found: ReplayPlan) -> str:
    return " ".join(str(cell) for column in plan_tables(found)[2].columns for cell in column.cells)


@pytest.fixture
def bought(lake: Lake, teacher_set: TeacherSet, serve: Serve) -> TeacherSet:
    serve()
    replay(lake, teacher_set, max_usd=Decimal(20), teachers=NAMES)
    return teacher_set


def test_a_changed_limit_is_named_for_its_teacher_alone(lake: Lake, bought: TeacherSet) -> None:
    same = plan(lake, bought, teachers=NAMES)
    assert same.calls == 0
    assert all(part.answered_before == 0 for part in same.by_teacher.values())
    assert "new calls" not in notes_of(same)

    old = bought.select(["careful"])[0]
    found = plan(lake, changed(bought, max_tokens=777), teachers=NAMES)
    part = found.by_teacher["careful"]
    assert (part.calls, part.cached, part.answered_before) == (12, 0, 12)
    assert part.changed == {f"max_tokens {old.max_tokens} -> 777": 12}
    assert found.by_teacher["steady"].answered_before == 0
    assert found.to_dict()["by_teacher"]["careful"]["changed"] == part.changed
    assert "careful: 12 of 12 calls were answered" in notes_of(found)
    assert f"max_tokens {old.max_tokens} -> 777" in notes_of(found)


def test_a_changed_price_cap_makes_no_call_new(lake: Lake, bought: TeacherSet) -> None:
    dearer = changed(bought, max_price={"prompt": "3.5", "completion": "7"})
    part = plan(lake, dearer, teachers=NAMES).by_teacher["careful"]
    assert (part.calls, part.cached, part.measured_replies) == (0, 12, 12)
    before = plan(lake, bought, teachers=NAMES).by_teacher["careful"]
    assert part.bytes_per_token == pytest.approx(before.bytes_per_token, rel=0.01)
    # Nor is it a reason where another setting is.
    both = changed(dearer, max_tokens=777)
    old = bought.select(["careful"])[0]
    found = plan(lake, both, teachers=NAMES).by_teacher["careful"]
    assert found.changed == {f"max_tokens {old.max_tokens} -> 777": 12}


def test_each_teacher_has_its_own_reason(lake: Lake, bought: TeacherSet) -> None:
    both = changed(changed(bought, max_tokens=777), "steady", temperature=0.5)
    found = plan(lake, both, teachers=NAMES).by_teacher
    old = bought.select(["careful"])[0].max_tokens
    assert found["careful"].changed == {f"max_tokens {old} -> 777": 12}
    assert found["steady"].changed == {"temperature 0.0 -> 0.5": 12}


def test_of_several_earlier_calls_the_nearest_explains(lake: Lake, bought: TeacherSet) -> None:
    warm = changed(bought, temperature=0.5, max_tokens=777)
    replay(lake, warm, max_usd=Decimal(20), teachers=NAMES, max_states=3)
    part = plan(lake, changed(bought, temperature=0.75, max_tokens=777)).by_teacher["careful"]
    old = bought.select(["careful"])[0].max_tokens
    assert part.answered_before == 12
    assert part.changed == {
        "temperature 0.0 -> 0.75": 9,
        f"max_tokens {old} -> 777": 9,
        "temperature 0.5 -> 0.75": 3,
    }


def test_a_teacher_that_was_never_asked_has_nothing_to_explain(
    lake: Lake, bought: TeacherSet
) -> None:
    part = plan(lake, bought).by_teacher["contrarian"]
    assert (part.calls, part.answered_before, part.changed) == (12, 0, {})


def test_a_ledger_without_settings_says_what_it_cannot_know(lake: Lake, bought: TeacherSet) -> None:
    path = ledger_target(lake, None)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE call SET meta = json_remove(meta, '$.settings')")
    assert plan(lake, bought, teachers=NAMES).calls == 0
    part = plan(lake, changed(bought, max_tokens=777), teachers=NAMES).by_teacher["careful"]
    assert (part.answered_before, part.changed) == (12, {UNRECORDED: 12})
    other = changed(bought, max_tokens=777, model="sim/other")
    part = plan(lake, other, teachers=NAMES).by_teacher["careful"]
    was = bought.select(["careful"])[0].model
    assert part.changed == {f"model {was} -> sim/other": 12}


def test_what_differs() -> None:
    now = {"model": "m", "toolset": "t", "converter_version": "3", "settings": {"max_tokens": 9}}
    assert changes(now, now) == (MESSAGES,)
    assert changes(now | {"toolset": "u", "converter_version": "2"}, now) == (
        "converter_version 2 -> 3", "tools",
    )  # fmt: skip
    # A rebuilt ledger may not know the tools.
    assert changes(now | {"toolset": None}, now) == (MESSAGES,)
    assert changes(now | {"settings": {}}, now) == ("max_tokens unset -> 9",)


OTHER: dict[str, Any] = {
    "max_tokens": 99, "temperature": 0.5, "cache_control": "1h", "licence": "other",
    "max_price": {"prompt": "8", "completion": "9"}, "context_length": 4096, "concurrency": 2,
    "prompt_cache": "none", "ask_share": 0.5, "family": "g", "served_as": ["a/b"],
    "provider": {"only": ["x"]}, "control": True,
}  # fmt: skip
PROVIDER: dict[str, Any] = {
    "data_collection": "allow", "zdr": False, "require_parameters": False, "only": ["x"],
    "enforce_distillable_text": False, "allow_fallbacks": False, "ignore": ["x"],
    "quantizations": ["fp8"],
}  # fmt: skip


@pytest.mark.parametrize("api", ["openrouter", "openai"])
def test_settings_change_exactly_where_the_key_does(api: str) -> None:
    base = {
        "name": "t", "family": "f", "model": "a/m", "licence": "MIT",
        "max_price": {"prompt": "1", "completion": "2"},
    }  # fmt: skip
    conversion = Conversion(
        [{"role": "user", "content": "x"}], [{"type": "function"}], {}, {}, "recorded"
    )
    variants = [{name: value} for name, value in OTHER.items()]
    variants += [{"provider": {name: value}} for name, value in PROVIDER.items()]
    # Every field of the file is here, but for who is asked and where, and the window: that changes
    # the messages themselves, where they are longer.
    apart = {"price", "endpoint", "prompt", "window_tokens"}
    assert OTHER.keys() | base.keys() | apart == set(Teacher.model_fields)
    assert PROVIDER.keys() == set(Provider.model_fields)
    first = Teacher.model_validate(base)
    request = serialise(first, conversion, "s", api=api)
    for variant in variants:
        teacher = Teacher.model_validate(base | variant)
        other = serialise(teacher, conversion, "s", api=api)
        same_key = other.key("e") == request.key("e")
        same = settings_sent(teacher, "e", api=api) == settings_sent(first, "e", api=api)
        assert same == same_key, variant
        only_the_cap = api == "openrouter" and "max_price" in variant
        assert (other.body == request.body) == (same_key and not only_the_cap), variant
    assert settings_sent(first, "e", api=api) != settings_sent(first, "f", api=api)
