"""What is current: every change that matters makes a day stale, and nothing else does."""

import shutil
import sys
from collections.abc import Callable
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
import yaml

from composer_pipeline import TeacherSet, build_hints, build_pairs, normalize, replay
from composer_pipeline.lake.provenance import Staleness
from composer_pipeline.lake.store import Lake
from composer_pipeline.maintenance.status import (
    harvest_days,
    pairs_days,
    replay_days,
    stale_hints,
    stale_normalized,
    stale_pairs,
    stale_replies,
    stale_states,
)
from composer_pipeline.preferences.rules import PreferenceRules
from composer_pipeline.settings import recipes_dir
from composer_pipeline.teachers.teachers import Selection, Teacher
from composer_pipeline.testing.samples import sample_sessions_dir
from examples.demo.profile import loopback
from tests.fixtures.whole_lake import DAY

RULES = PreferenceRules()
TEACHERS = recipes_dir() / "teachers" / "demo.yaml"
TODAY = date.fromisoformat(DAY)


@pytest.fixture(scope="module")
def made(whole_lake: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole lake, normalised for real: each of its days is current."""
    folder = tmp_path_factory.mktemp("current") / "lake"
    shutil.copytree(whole_lake, folder)
    normalize(Lake(folder), "none")
    return folder


@pytest.fixture
def lake(made: Path, tmp_path: Path) -> Lake:
    # A copy has other times: what is current is told by bytes.
    shutil.copytree(made, tmp_path / "lake", copy_function=shutil.copy)
    return Lake(tmp_path / "lake")


def teachers(**changes: object) -> TeacherSet:
    """The demo's teachers; the changes are those of ``careful``."""
    raw = yaml.safe_load(TEACHERS.read_text())
    raw["teachers"][0] |= changes
    return TeacherSet.model_validate(raw)


def stale(
    lake: Lake,
    rules: PreferenceRules = RULES,
    recipe: str = "none",
    asked: TeacherSet | None = None,
) -> dict[str, dict[str, str]]:
    """Return stage -> its stale days with the reason; of replies only the day that was replayed."""
    asked = asked or teachers()
    found: dict[str, dict[str, Staleness]] = {
        "states": stale_states(lake),
        "hints": stale_hints(lake),
        "pairs": stale_pairs(lake, rules),
        "normalized": stale_normalized(lake, recipe),
    }
    for teacher in asked.teachers:
        days = stale_replies(lake, asked, teacher)
        found[teacher.name] = {day: why for day, why in days.items() if day == DAY}
    return {
        stage: {day: why.reason for day, why in days.items()}
        for stage, days in found.items()
        if days
    }


def test_what_was_made_is_current_and_a_copy_of_it_too(lake: Lake) -> None:
    assert stale(lake) == {}
    days = set(lake.days("states"))
    assert len(days) > 1
    for teacher in teachers().teachers:
        not_asked = stale_replies(lake, teachers(), teacher)
        assert not_asked == dict.fromkeys(sorted(days - {DAY}), Staleness("not asked", "absent"))


def test_input_that_was_written_again_with_the_same_bytes_changes_nothing(lake: Lake) -> None:
    for table in ("states", "messages", "pairs"):
        path = Path(lake.path(table, day=DAY))
        path.write_bytes(path.read_bytes())
    build_hints(lake)
    assert stale(lake) == {}


def _parser(lake: Lake, patch: pytest.MonkeyPatch) -> None:
    patch.setattr("composer_pipeline.traces.parse.PARSER_VERSION", "other")


def _redaction(lake: Lake, patch: pytest.MonkeyPatch) -> None:
    rules = Path(lake.root).parent / "rules.yaml"
    rules.write_text("allow: [abc]\n")
    patch.setenv("COMPOSER_REDACTION", str(rules))


def _hints(lake: Lake, patch: pytest.MonkeyPatch) -> None:
    patch.setattr("composer_pipeline.preferences.hints.HINTS_VERSION", "other")


def _converter(lake: Lake, patch: pytest.MonkeyPatch) -> None:
    patch.setattr("composer_pipeline.preferences.pairs.CONVERTER_VERSION", "other")
    patch.setattr(sys.modules["composer_pipeline.teachers.replies"], "CONVERTER_VERSION", "other")


def _votes(lake: Lake, patch: pytest.MonkeyPatch) -> None:
    patch.setattr("composer_pipeline.preferences.pairs.PAIRS_VERSION", "other")


def _operators(lake: Lake, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        sys.modules["composer_pipeline.normalization.stage"], "NORMALIZE_VERSION", "other"
    )


def _remade(table: str) -> Callable[[Lake, pytest.MonkeyPatch], None]:
    def change(lake: Lake, patch: pytest.MonkeyPatch) -> None:
        rows = lake.read(table, days=[DAY]).drop_columns(["day"])
        lake.write(table, rows.slice(0, len(rows) - 1), day=DAY)

    return change


def _reply(lake: Lake, patch: pytest.MonkeyPatch) -> None:
    rows = lake.read("replies", days=[DAY], teacher="careful").drop_columns(["day", "teacher"])
    lake.write("replies", rows.slice(1), day=DAY, teacher="careful")


ASKED = {"careful", "steady", "contrarian", "flaky"}


@pytest.mark.parametrize(
    ("change", "stages", "said"),
    [
        (_parser, {"states"}, "by another parser"),
        (_redaction, {"states"}, "other rules"),
        (_hints, {"hints"}, "hints 2 -> other"),
        (_converter, {"pairs", *ASKED}, "converter"),
        (_votes, {"pairs"}, "-> other"),
        (_operators, {"normalized"}, "normalize 1 -> other"),
        (_remade("states"), {"hints", "pairs", *ASKED}, "was made again"),
        (_remade("pairs"), {"normalized"}, "was made again"),
        (_reply, {"pairs"}, "replies/teacher=careful"),
    ],
)
def test_each_change_makes_what_depends_on_it_stale(
    lake: Lake,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Lake, pytest.MonkeyPatch], None],
    stages: set[str],
    said: str,
) -> None:
    change(lake, monkeypatch)
    found = stale(lake)
    assert found.keys() == stages
    for days in found.values():
        assert DAY in days
        assert said in days[DAY]


def test_a_rule_is_told_from_the_file_it_stands_in(lake: Lake, tmp_path: Path) -> None:
    changed = stale(lake, PreferenceRules(max_pairs_per_session=7))
    assert changed.keys() == {"pairs"}
    assert changed["pairs"].keys() == set(lake.days("votes"))
    file = tmp_path / "rules.yaml"
    file.write_text("# the same rules, elsewhere\nmax_pairs_per_session: 50\n")
    assert stale(lake, PreferenceRules.load(file)) == {}


def test_another_recipe_makes_only_the_normalised_pairs_stale(lake: Lake) -> None:
    recipe = str(recipes_dir() / "normalize" / "demo.yaml")
    assert stale(lake, recipe=recipe).keys() == {"normalized"}
    assert DAY in pairs_days(lake, RULES, recipe)


@pytest.mark.parametrize(
    ("changes", "stages"),
    [
        ({"max_tokens": 999}, {"careful"}),
        ({"temperature": 0.5}, {"careful"}),
        ({"model": "loopback/other-20261101"}, {"careful"}),
        ({"ask_share": 0.5}, {"careful"}),
        ({"max_price": {"prompt": "9", "completion": "9"}}, set()),
        ({"concurrency": 2, "licence": "other"}, set()),
    ],
)
def test_only_parameters_that_are_part_of_the_question_count(
    lake: Lake, changes: dict[str, object], stages: set[str]
) -> None:
    assert stale(lake, asked=teachers(**changes)).keys() == stages


def test_a_few_states_say_nothing_of_the_day(made: Path, lake: Lake) -> None:
    shutil.rmtree(Path(lake.root) / "made" / "replies")
    with loopback():
        replay(lake, teachers(), max_usd=Decimal(1), days=[DAY], max_states=2)
    assert stale_replies(lake, teachers(), teachers().teachers[0])[DAY].reason.startswith(
        "replies: what it was made from is not recorded"
    )


# -- nights ---------------------------------------------------------------------


def test_a_killed_parse_is_made_good_though_the_source_did_not_change(lake: Lake) -> None:
    assert harvest_days(lake, [sample_sessions_dir()]) == []
    Path(lake.path("sessions", day=DAY)).unlink()
    assert harvest_days(lake, [sample_sessions_dir()]) == [DAY]


def test_a_missing_hint_partition_is_work_for_a_harvest(lake: Lake) -> None:
    Path(lake.path("hints", day=DAY)).unlink()
    shutil.rmtree(Path(lake.root) / "made" / "hints")
    assert harvest_days(lake, [sample_sessions_dir()]) == lake.days("states")


def _bought(lake: Lake, asked: TeacherSet, usd: str = "1") -> None:
    with loopback():
        replay(lake, asked, max_usd=Decimal(usd), days=[DAY])


def test_an_absent_teacher_is_asked_a_few_nights_and_then_no_more(lake: Lake) -> None:
    gone = teachers(model="loopback/withdrawn-20261101")
    for night in (1, 2):
        assert replay_days(lake, gone, TODAY, tries=2)[DAY] == ["careful"]
        _bought(lake, gone)
        why = stale_replies(lake, gone, gone.teachers[0])[DAY].reason
        assert "replies are missing" in why
        assert ("tried 2 times" in why) == (night == 2)
    assert DAY not in replay_days(lake, gone, TODAY, tries=2)
    # The others' answers are enough for pairs of the day; they are not made again for nothing.
    build_pairs(lake, days=[DAY])
    normalize(lake, "none", days=[DAY])
    assert pairs_days(lake, RULES, "none") == []
    # Another parameter, or another state, is another question.
    assert DAY in replay_days(
        lake, teachers(model="loopback/careful-20261101"), TODAY, tries=2
    ) or (stale_replies(lake, teachers(), teachers().teachers[0]).get(DAY))
    _remade("states")(lake, pytest.MonkeyPatch())
    assert "careful" in replay_days(lake, gone, TODAY, tries=2)[DAY]


@pytest.fixture
def only_careful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of everything, one teacher's answers of one day are missing."""

    def found(_: Lake, asked: TeacherSet, teacher: Teacher) -> dict[str, Staleness]:
        return {DAY: Staleness("not asked", "absent")} if teacher.name == "careful" else {}

    monkeypatch.setattr("composer_pipeline.maintenance.status.stale_replies", found)


@pytest.mark.usefixtures("only_careful")
def test_with_a_selection_a_days_teachers_are_asked_together(lake: Lake) -> None:
    assert replay_days(lake, teachers(), TODAY) == {DAY: ["careful"]}
    together = teachers().model_copy(update={"selection": Selection(curtail="exact")})
    everybody = [teacher.name for teacher in together.teachers]
    assert replay_days(lake, together, TODAY) == {DAY: everybody}


@pytest.mark.usefixtures("only_careful")
@pytest.mark.parametrize(("later", "asked"), [(-1, 0), (0, 1), (31, 1), (32, 0)])
def test_a_day_is_asked_about_for_31_nights(lake: Lake, later: int, asked: int) -> None:
    assert len(replay_days(lake, teachers(), TODAY + timedelta(days=later))) == asked


def test_a_ceiling_and_a_dead_endpoint_count_no_try(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = teachers(max_tokens=999)
    _bought(lake, changed, usd="0.0001")
    assert "tried" not in stale_replies(lake, changed, changed.teachers[0])[DAY].reason
    assert replay_days(lake, changed, TODAY, tries=1)[DAY] == ["careful"]
    monkeypatch.setenv("COMPOSER_LOOPBACK_KEY", "none")
    monkeypatch.setenv("COMPOSER_OPENROUTER_URL", "http://127.0.0.1:9/api/v1")
    replay(lake, changed, max_usd=Decimal(1), days=[DAY])
    assert replay_days(lake, changed, TODAY, tries=1)[DAY] == ["careful"]


def test_a_night_asks_about_the_last_month_alone(lake: Lake) -> None:
    days = lake.days("states")
    assert set(replay_days(lake, teachers(), date.fromisoformat(days[-1]))) == set(days) - {DAY}
    assert replay_days(lake, teachers(), date(2028, 1, 1)) == {}


def test_new_replies_are_work_for_pairs(lake: Lake) -> None:
    other = next(day for day in lake.days("states") if day != DAY)
    with loopback():
        replay(lake, teachers(), max_usd=Decimal(1), days=[other])
    assert pairs_days(lake, RULES, "none") == [other]


def test_one_family_makes_no_pairs(lake: Lake) -> None:
    other = next(day for day in lake.days("states") if day != DAY)
    for table in ("votes", "pairs", "normalized_pairs"):
        lake.delete(table, day=other)
    shutil.rmtree(Path(lake.root) / "made" / "votes")
    build_pairs(lake, days=[day for day in lake.days("states") if day != other])
    with loopback():
        replay(lake, teachers(), max_usd=Decimal(1), days=[other], teachers=["careful"])
        assert pairs_days(lake, RULES, "none") == []
        replay(lake, teachers(), max_usd=Decimal(1), days=[other], teachers=["steady"])
    assert pairs_days(lake, RULES, "none") == [other]
