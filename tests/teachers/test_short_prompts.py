"""What a plan may not promise: caches that a prompt is too short for, replies that cannot be."""

import json
from collections.abc import Callable
from decimal import Decimal

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.lake.store import Lake
from composer_pipeline.teachers.catalogue import parse
from composer_pipeline.teachers.plan import ReplayPlan, plan
from composer_pipeline.teachers.plan_model import PrefixReuse
from composer_pipeline.teachers.run import replay
from composer_pipeline.teachers.teachers import TeacherSet
from composer_pipeline.testing.openrouter.faults import Fault
from composer_pipeline.testing.openrouter.server import LoopbackOpenRouter
from tests.fixtures.lake_states import write_session
from tests.teachers.prompts import Prompt, reuse


def at_the_router(teacher_set: TeacherSet, **teacher: object) -> TeacherSet:
    """The demo's first teacher behind a real endpoint; planning sends nothing there."""
    data = teacher_set.model_dump()
    data["endpoint"] |= {"simulated": False, "base_url": "https://router.example/api/v1"}
    data["teachers"] = [data["teachers"][0] | teacher]
    return TeacherSet.model_validate(data)


def planned(lake: Lake, teachers: TeacherSet) -> ReplayPlan:
    """Plan with a catalogue in which cached prompts cost a tenth."""
    model = teachers.teachers[0].model
    prices = {
        "prompt": "0.0000001", "completion": "0.0000004", "input_cache_read": "0.00000001",
    }  # fmt: skip
    row = {"id": model, "canonical_slug": model, "pricing": prices}
    return plan(lake, teachers, catalogue=parse(json.dumps({"data": [row]}).encode()))


def session(lake: Lake, name: str, words: int) -> None:
    step = (Action("", (ToolCall("Read", {"file_path": "/home/user/x"}),)), "word " * words)
    write_session(lake, name, [step] * 4)


def test_a_beginning_is_cached_from_the_minimum_on() -> None:
    short = reuse([prompt_of("a", 400), prompt_of("b", 400, 400)], minimum_bytes=1024)
    assert sizes_of(short) == (1200, 0)
    grown = reuse(
        [prompt_of("a", 400, 400, 400), prompt_of("b", 400, 400, 400, 400)], minimum_bytes=1024
    )
    assert sizes_of(grown) == (2800, 1200)  # its beginning is long, its messages are not
    # Behind a long beginning a short message counts by itself: all that is before it is cached.
    third = [prompt_of(name, *[400] * n) for name, n in (("a", 3), ("b", 4), ("c", 5))]
    assert sizes_of(reuse(third, minimum_bytes=1024)) == (4800, 1200 + 1600)


def sizes_of(found: PrefixReuse) -> tuple[int, int]:
    """Return the bytes of all prompts, and those of them that an earlier prompt had."""
    held = sum(sum(bytes_) for band in found.bands for bytes_ in band.shared.values())
    return sum(sum(band.bytes) for band in found.bands), held


def prompt_of(name: str, *sizes: int) -> Prompt:
    """A prompt of one session; its pieces are those of every other one, as far as they go."""
    return Prompt(name, "s", range(len(sizes)), sizes)


def test_a_real_endpoint_caches_from_a_thousand_tokens(lake: Lake, teacher_set: TeacherSet) -> None:
    """The lake's own prompts have a few hundred tokens; those of the long session have more."""
    teachers = at_the_router(teacher_set)
    short = planned(lake, teachers)
    assert short.by_teacher["careful"].caches_prompts
    assert short.strategies["chain"].usd == short.strategies["naive"].usd > 0
    session(lake, "long", 2000)
    long = planned(lake, teachers)
    assert long.strategies["chain"].usd < long.strategies["naive"].usd


def test_no_reply_is_expected_to_be_longer_than_it_may(lake: Lake, teacher_set: TeacherSet) -> None:
    long = planned(lake, at_the_router(teacher_set)).by_teacher["careful"]
    short = planned(lake, at_the_router(teacher_set, max_tokens=100)).by_teacher["careful"]
    assert (long.completion_tokens, short.completion_tokens) == (400, 100)
    assert Decimal(short.expected_picodollars) < long.expected_picodollars


def test_a_question_that_two_states_share_is_planned_once(
    lake: Lake, teacher_set: TeacherSet
) -> None:
    before = planned(lake, at_the_router(teacher_set))
    action = Action("", (ToolCall("Read", {"file_path": "/home/user/x"}),))
    write_session(lake, "same", [(action, "")], day="2026-11-17")
    (row,) = lake.rows("states", days=["2026-11-17"])
    del row["day"]  # the same prompt was answered twice, so two states have one body
    lake.write("states", [row, row | {"state_id": "f" * 32}], day="2026-11-17")
    after = planned(lake, at_the_router(teacher_set))
    assert after.states == before.states + 2
    assert after.calls == before.calls + 1


def test_a_reply_that_tells_no_tokens_is_not_measured(
    lake: Lake, teacher_set: TeacherSet, serve: Callable[..., LoopbackOpenRouter]
) -> None:
    """What was fetched again from the provider's cache names none."""
    data = teacher_set.model_dump()
    data["limits"]["recover_after_s"] = 0
    hasty = TeacherSet.model_validate(data)
    serve(faults=lambda asked: Fault("reset") if asked.nth == 1 else None)
    report = replay(lake, hasty, max_usd=Decimal(1), teachers=["careful"], max_states=2)
    assert report.recovered == 2
    assert plan(lake, hasty).by_teacher["careful"].measured_replies == 0
