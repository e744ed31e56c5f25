"""Whether the cheapest teachers alone would have been enough, beside worlds with a known truth.

The tests' own computation knows actions by labels: 0 is what the agent did, equal labels are the
same action, others are different ones. It uses nothing of the module but the report.
"""

import random
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import yaml
from scipy.stats import binomtest

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences.sufficiency import (
    KindFigures,
    Proportion,
    SufficiencyReport,
    sufficiency,
    teacher_file,
    wilson,
)
from composer_pipeline.preferences.vote import VoteDecision
from composer_pipeline.settings import recipes_dir
from composer_pipeline.states.load import load_states
from composer_pipeline.teachers.selection import ask_order, next_voters
from composer_pipeline.teachers.teachers import TeacherSet
from tests.fixtures.lake_states import DAY, write_session

NOW = datetime(2026, 11, 20, tzinfo=UTC)
OTHER_DAY = "2026-11-17"
KINDS = ("Read", "Bash", "Edit")
#: States of each kind; the last two are too few to stand alone.
SIZES = {"Read": 84, "Bash": 81, "Edit": 90, "text": 12, "Grep": 19}
#: Teachers by cost, the cheapest first. Neither names nor families are in that order.
ROLES = {"zed": "f-mid", "kay": "f-zulu", "bob": "f-one", "amy": "f-low", "xan": "f-alt"}
#: A second, dearer teacher of the cheapest family.
SECOND = "abe"
FAMILY = {**ROLES, SECOND: "f-mid"}


def of_agent(kind: str, number: int) -> Action:
    given: dict[str, dict[str, Any]] = {
        "Read": {"file_path": f"/home/user/shop/own{number}.py"},
        "Bash": {"command": f"python own{number}.py"},
        "Edit": {"file_path": f"own{number}.py", "old_string": "a", "new_string": "b"},
        "Grep": {"pattern": f"own{number}"},
    }
    if kind == "text":
        return Action("The work is done.")
    return Action("", (ToolCall(kind, given[kind]),))


def does(own: Action, label: int) -> Action:
    """The action of a label; 0 is the agent's own."""
    if label == 0:
        return own
    return Action("", (ToolCall("Read", {"file_path": f"/home/user/shop/{label}.py"}),))


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake with states of every kind, and no replies."""
    lake = Lake(tmp_path_factory.mktemp("states") / "lake")
    kinds = [kind for kind, size in SIZES.items() for _ in range(size)]
    random.Random(5).shuffle(kinds)
    turns = [(of_agent(kind, number), "ok") for number, kind in enumerate(kinds)]
    for at in range(0, len(turns), 60):
        day = DAY if at < 180 else OTHER_DAY
        write_session(lake, f"s{at // 60}", turns[at : at + 60], day=day, prompt=f"Task {at}.")
    return Path(lake.root)


class World:
    """A copy of the states whose replies are made up; everything that was bought is in ``told``."""

    def __init__(self, states: Path, folder: Path) -> None:
        shutil.copytree(states, folder)
        self.lake = Lake(folder)
        self.states = {state.state_id: state for state in load_states(self.lake)}
        self.rows: defaultdict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
        #: State -> teacher -> (label, cost), of usable replies.
        self.told: defaultdict[str, dict[str, tuple[int, int | None]]] = defaultdict(dict)
        self.resampled: dict[str, int] = {}  #: state -> label of the control

    def kind(self, state_id: str) -> str:
        calls = self.states[state_id].action.tool_calls
        return calls[0].name if calls else "text"

    def of(self, *kinds: str) -> list[str]:
        return [state_id for state_id in self.states if not kinds or self.kind(state_id) in kinds]

    def say(
        self, state_id: str, teacher: str, label: int, cost: int | None = 100, **more: Any
    ) -> None:
        state = self.states[state_id]
        row = {
            "state_id": state_id,
            "session_id": state.session_id,
            "family": FAMILY.get(teacher, "claude"),
            "request_hash": f"{len(self.rows[state.day, teacher]):05}",
            "model": f"m/{teacher}",
            "status": "ok",
            "action": does(state.action, label).to_json(),
            "completion_tokens": 10,
            "cost_picodollars": cost,
            "simulated": True,
            "created_at": NOW,
            **more,
        }
        self.rows[state.day, teacher].append(row)
        if row["status"] != "ok" or row["created_at"] != NOW:
            return
        if row.get("control") or row["family"] == "claude":
            self.resampled[state_id] = label
        else:
            self.told[state_id][teacher] = (label, cost)

    def measure(self, **options: Any) -> SufficiencyReport:
        for (day, teacher), rows in self.rows.items():
            self.lake.write("replies", rows, day=day, teacher=teacher)
        return sufficiency(self.lake, **options)


@pytest.fixture
def world(states: Path, tmp_path: Path) -> World:
    return World(states, tmp_path / "lake")


# -- the truth, by the tests' own few lines ------------------------------------------


def outcome(labels: list[int]) -> Any:
    """Return the label that two or more families share, and no others as many; else None."""
    (label, most), (_, second) = [*Counter(labels).most_common(2), (0, 0)][:2]
    return label if most >= 2 and most > second else None


def interval(hits: int, of: int) -> tuple[float, float]:
    found = binomtest(hits, of).proportion_ci(method="wilson")
    return float(found.low), float(found.high)


def expected(world: World, ids: list[str]) -> tuple[dict[str, int], str, int]:
    """Return (hits by set, the verdict, what is overpaid) of states asked in full."""
    hits = {"one": 0, "two": 0}
    outside: dict[str, int] = {"one": 0, "two": 0, "all": 0}
    for state_id in ids:
        told = world.told[state_id]
        labels = {FAMILY[teacher]: label for teacher, (label, _) in told.items()}
        cheapest = ["zed" if "zed" in told else SECOND, "kay"]
        mine = [labels[FAMILY[teacher]] for teacher in cheapest]
        truth = outcome(list(labels.values()))
        hits["one"] += mine[0] == truth
        hits["two"] += outcome(mine) == truth
        for name, size in (("one", 1), ("two", 2)):
            outside[name] += sum(
                cost or 0 for teacher, (_, cost) in told.items() if teacher not in cheapest[:size]
            )
    asked = [world.resampled[state_id] for state_id in ids if state_id in world.resampled]
    floor = sum(label != 0 for label in asked) / len(asked) if asked else 0
    bound = 1 - max(0.05, floor)
    enough = [name for name, count in hits.items() if interval(count, len(ids))[0] >= bound]
    verdict = enough[0] if enough else "all"
    return hits, verdict, outside[verdict]


def fill(world: World, verdict_of: Mapping[str, str], seed: int) -> list[str]:
    """Buy replies under which each kind has its verdict; return the states asked in full."""
    rng = random.Random(seed)
    full = []
    for number, state_id in enumerate(world.of()):
        right, unique = rng.choice([0, 1]), iter(rng.sample(range(10, 99), 5))
        labels = dict.fromkeys(ROLES, right)
        verdict, luck = verdict_of.get(world.kind(state_id), "one"), rng.random()
        if verdict == "one":  # one of the dear three may be wrong
            labels[rng.choice(["bob", "amy", "xan"])] = next(unique)
        elif verdict == "two" and luck < 0.4:  # nobody agrees: only two of them show that
            labels = {teacher: next(unique) for teacher in ROLES}
        elif verdict == "all" and luck < 0.4:  # both cheap ones are wrong in the same way
            labels["zed"] = labels["kay"] = next(unique)
        curtailed = number % 9 == 4
        for rank, (teacher, label) in enumerate(labels.items()):
            # Single replies of the dear are cheaper than single ones of the cheap.
            cost = rng.randrange(1, 10**7 * (rank + 2) ** 2)
            if curtailed and rank >= 2:
                continue
            if teacher == "zed" and number % 16 == 3:
                world.say(state_id, teacher, label, cost, status="unusable", action=None)
                world.say(state_id, SECOND, label, 10**9)
                continue
            world.say(state_id, teacher, label, cost)
            if teacher == "xan" and number % 7 == 0:  # an older one, which does not count
                earlier = NOW.replace(year=2025)
                world.say(state_id, teacher, 98, 10**8, created_at=earlier)
        if number % 5 == 0 and SECOND not in world.told[state_id]:
            world.say(state_id, SECOND, labels["zed"], 10**9)
        if number % 11 == 0:
            world.say(state_id, "resample", 0, 1)  # cheaper than all, and no voter
            world.say(state_id, "xan-control", 77, 1, control=True, family="f-zzz")
            world.resampled[state_id] = 0  # the first by family
        if not curtailed:
            full.append(state_id)
    return full


@pytest.mark.parametrize("seed", range(10))
def test_ten_worlds(world: World, seed: int) -> None:
    verdicts = ["one", "two", "all"]
    random.Random(seed).shuffle(verdicts)
    verdict_of = dict(zip(KINDS, verdicts, strict=True))
    full = fill(world, verdict_of, seed)
    found = world.measure()
    known = {
        teacher: [told[teacher][1] or 0 for told in world.told.values() if teacher in told]
        for teacher in FAMILY
    }
    means = {t: Fraction(sum(costs), len(costs)) for t, costs in known.items()}
    assert found.mean_picodollars == {t: round(mean) for t, mean in means.items()}
    assert list(found.mean_picodollars) == [*ROLES, SECOND]
    assert found.cheapest == ["zed", "kay"]
    assert found.families == list(ROLES.values())
    assert found.states == len(full)
    assert found.left_out == len(world.states) - len(full) > 0
    groups = {kind: [i for i in full if world.kind(i) == kind] for kind in KINDS}
    groups["other"] = [i for i in full if world.kind(i) in ("text", "Grep")]
    assert set(found.by_kind) == set(groups)
    assert list(found.by_kind)[-1] == "other"
    assert {kind: found.by_kind[kind].sufficient for kind in KINDS} == verdict_of
    overpaid = 0
    for kind, ids in groups.items():
        hits, verdict, too_much = expected(world, ids)
        check(found.by_kind[kind], ids, hits, verdict)
        assert found.by_kind[kind].overpaid_picodollars == too_much
        assert (too_much > 0) == (verdict != "all")
        overpaid += too_much
    hits, verdict, _ = expected(world, full)
    check(found.total, full, hits, verdict)
    assert found.total.overpaid_picodollars == overpaid > 0
    assert found.total.without_cost == 0


def check(found: KindFigures, ids: list[str], hits: dict[str, int], verdict: str) -> None:
    assert found.states == len(ids)
    for name in ("one", "two"):
        share: Proportion = getattr(found, name)
        assert (share.hits, share.of) == (hits[name], len(ids))
        assert share.share == hits[name] / len(ids)
        assert (share.low, share.high) == pytest.approx(interval(hits[name], len(ids)), abs=1e-9)
    assert found.sufficient == verdict


@pytest.mark.parametrize(("hits", "of"), [(0, 1), (1, 1), (20, 20), (7, 30), (150, 151), (0, 9)])
def test_the_interval_is_scipys(hits: int, of: int) -> None:
    found = wilson(hits, of)
    assert (found.low, found.high) == pytest.approx(interval(hits, of), abs=1e-12)
    assert 0 <= found.low <= found.share <= found.high <= 1


# -- the rule ------------------------------------------------------------------------


def ask(world: World, ids: list[str], wrong: int, *, teachers: tuple[str, ...] = ()) -> None:
    """Let three families answer: the cheapest is wrong at the first ``wrong`` states."""
    for number, state_id in enumerate(ids):
        for cost, teacher in enumerate(teachers or ("zed", "kay", "bob"), start=1):
            label = 50 if cost == 1 and number < wrong else 1
            world.say(state_id, teacher, label, cost)


def test_kinds_from_twenty_states_on_stand_alone(world: World) -> None:
    ask(world, world.of("Read")[:20] + world.of("Bash")[:19] + world.of("text")[:3], 0)
    found = world.measure()
    assert {kind: figures.states for kind, figures in found.by_kind.items()} == {
        "Read": 20, "other": 22,
    }  # fmt: skip
    assert list(found.by_kind) == ["Read", "other"]


@pytest.mark.parametrize(("number", "verdict"), [(72, "all"), (73, "one")])
def test_the_lower_bound_decides(world: World, number: int, verdict: str) -> None:
    # The least number of states without one miss whose lower bound reaches 95 %.
    assert (interval(number, number)[0] >= 0.95) == (verdict == "one")
    ask(world, world.of("Read")[:number], 0)
    found = world.measure().by_kind["Read"]
    assert (found.one.share, found.sufficient) == (1.0, verdict)
    assert found.overpaid_picodollars == {"one": (2 + 3) * number, "all": 0}[verdict]


@pytest.mark.parametrize(("noisy", "verdict"), [(11, "all"), (12, "one")])
def test_the_noise_floor_is_borne(world: World, noisy: int, verdict: str) -> None:
    """A control that differs from the agent as often as the cheapest differs from all."""
    ids = world.of("Read")[:80]
    ask(world, ids, 8)  # 90 %, the lower bound is 81.5 %
    for number, state_id in enumerate(ids[:60]):
        world.say(state_id, "resample", 30 if number < noisy else 0)
    assert interval(72, 80)[0] == pytest.approx(0.8149, abs=1e-4)
    ask(world, world.of("Bash")[:80], 8)  # without a control
    found = world.measure()
    floor = found.by_kind["Read"].noise_floor
    assert floor is not None
    assert (floor.hits, floor.of, floor.share) == (noisy, 60, noisy / 60)
    assert (floor.low, floor.high) == pytest.approx(interval(noisy, 60), abs=1e-9)
    assert 1 - floor.high < 0.8149 < 1 - floor.low  # neither end of its interval decides
    assert (interval(72, 80)[0] >= 1 - noisy / 60) == (verdict == "one")
    assert found.by_kind["Read"].sufficient == verdict
    assert found.by_kind["Bash"].noise_floor is None
    assert found.by_kind["Bash"].sufficient == "all"
    assert found.total.noise_floor == floor


# -- who votes, and what is the same outcome -----------------------------------------


def test_a_control_is_no_voter_by_its_entry_or_its_family(world: World) -> None:
    """A control is of any family; of the agent's family every teacher is one."""
    ids = world.of("Read")[:30]
    ask(world, ids, 0)
    for number, state_id in enumerate(ids):
        world.say(state_id, "audit", 40, 0, control=True, family="f-one" if number % 2 else "f-new")
    for state_id in ids[:10]:
        world.say(state_id, "opus", 0, 0, family="Claude")
    found = world.measure()
    assert found.families == ["f-mid", "f-zulu", "f-one"]
    assert list(found.mean_picodollars) == ["zed", "kay", "bob"]
    assert found.total.two.hits == 30
    floor = found.total.noise_floor
    assert floor is not None
    # At a state with two, the first by family: claude before f-new and f-one.
    assert (floor.hits, floor.of) == (20, 30)


def test_the_noise_floor_is_null_where_no_control_was_asked(world: World) -> None:
    ask(world, world.of("Read")[:25] + world.of("Bash")[:25], 0)
    world.say(world.of("Bash")[0], "resample", 3)
    found = world.measure().to_dict()
    assert found["by_kind"]["Read"]["noise_floor"] is None
    assert found["by_kind"]["Bash"]["noise_floor"]["share"] == 1.0
    assert found["total"]["noise_floor"]["of"] == 1


@pytest.mark.parametrize(
    ("labels", "same"),
    [
        ((0, 0, 0), (1, 1)),  # all confirm the agent
        ((1, 1, 1), (1, 1)),  # a pair, and the same
        ((1, 1, 0), (1, 1)),
        ((0, 0, 1), (1, 1)),
        ((0, 1, 0), (1, 0)),  # confirmed, and two do not know
        ((1, 0, 1), (1, 0)),
        ((1, 0, 0), (0, 0)),
        ((2, 1, 1), (0, 0)),  # a pair for another action
        ((0, 1, 1), (0, 0)),
        ((0, 1, 2), (0, 1)),  # nobody agrees, which two show and one does not
        ((2, 1, 0), (0, 1)),
        ((1, 1, 2, 2), (0, 0)),  # a tie is no decision
        ((2, 2, 1, 1, 1), (0, 0)),  # two pairs for different actions
        ((0, 0, 1, 1, 1), (0, 0)),
        ((1, 1, 2, 2, 1), (1, 1)),
    ],
)
def test_the_same_outcome(world: World, labels: tuple[int, ...], same: tuple[int, int]) -> None:
    state_id = world.of("Bash")[0]
    for cost, (teacher, label) in enumerate(zip(ROLES, labels, strict=False), start=1):
        world.say(state_id, teacher, label, cost)
    found = world.measure().total
    assert (found.one.hits, found.two.hits) == same


def test_equal_is_what_the_vote_calls_equal(world: World) -> None:
    """The cheapest does the agent's action in other words; they are no pair."""
    state_id = world.of("Bash")[0]
    command = world.states[state_id].action.tool_calls[0].arguments["command"]
    told = Action("", (ToolCall("Bash", {"description": "Run it", "command": command}),))
    for cost, teacher in enumerate(("zed", "kay", "bob"), start=1):
        more = {"action": told.to_json()} if teacher == "zed" else {}
        world.say(state_id, teacher, 0, cost, **more)
    found = world.measure().total
    assert (found.one.hits, found.two.hits) == (1, 1)


def test_teachers_that_agree_only_loosely_make_no_pair(world: World) -> None:
    """Two read other parts of one file than the agent's: the vote has a winner, and no pair."""
    state_id = world.of("Read")[0]
    parts = ({"limit": 50}, {"offset": 60, "limit": 5})
    for cost, (teacher, part) in enumerate(zip(("zed", "kay"), parts, strict=True), start=1):
        call = ToolCall("Read", {"file_path": "/home/user/shop/1.py", **part})
        world.say(state_id, teacher, 1, cost, action=Action("", (call,)).to_json())
    world.say(state_id, "bob", 9, 3)
    found = world.measure().total
    assert (found.one.hits, found.two.hits) == (0, 1)


def test_a_family_speaks_by_its_cheapest_teacher_that_answered(world: World) -> None:
    """Two teachers of a family that differ: by name the dear one votes, but one is the cheap."""
    first, second, third = world.of("Read")[:3]
    for state_id in (first, second, third):
        for cost, teacher in enumerate(("kay", "bob"), start=50):
            world.say(state_id, teacher, 1, cost)
        world.say(state_id, SECOND, 1, 40)  # and is the second cheapest, of the same family
    world.say(first, "zed", 60, 7)  # the family's vote is that of the other
    world.say(second, "zed", 1, 7)
    found = world.measure()
    assert (found.cheapest, found.states) == (["zed", "kay"], 3)
    assert (found.total.one.hits, found.total.two.hits) == (2, 2)


def test_families_are_the_same_in_any_case(world: World) -> None:
    for number, state_id in enumerate(world.of("Read")[:2]):
        world.say(state_id, "zed", 1, 1, family="F-MID" if number else "f-mid")
        world.say(state_id, "kay", 1, 2, family="F-Zulu")
    found = world.measure()
    assert (found.families, found.states) == (["f-mid", "f-zulu"], 2)


def test_a_teacher_whose_family_was_renamed_counts_from_then_on(world: World) -> None:
    days = {world.states[state_id].day: state_id for state_id in world.of("Read")}
    ask(world, list(days.values()), 0)
    for row in world.rows[DAY, "zed"]:
        row["family"] = "f-former"
    steps: list[int] = []
    found = world.measure(progress=lambda _, done, __: steps.append(done))
    assert (found.families[0], found.states, found.left_out) == ("f-mid", 1, 1)
    assert steps == [1]
    # Now the new family answers there too, and its reply does not vote.
    world.say(days[DAY], SECOND, 1, 9, action=Action().to_json())
    found = world.measure()
    assert (found.states, found.left_out) == (1, 1)


def test_the_cheapest_is_by_the_mean_of_known_costs(world: World) -> None:
    """Neither by the sum, nor the least or the first, nor by replies that were not usable."""
    ids = world.of("Read")[:6]
    for number, state_id in enumerate(ids):
        world.say(state_id, "xan", 1, (40, 40, 40, 40, 40, 40)[number])
        world.say(state_id, "kay", 1, (1, 60, 60, 60, 60, 60)[number])
        if number < 2:
            world.say(state_id, "zed", 1, 90)
        if number < 3:
            world.say(state_id, "bob", 1, 41 if number else None)
            world.say(state_id, "amy", 1, None)
    for number in range(4):
        more = {"status": "refused", "action": None}
        world.say(ids[number + 2], "zed", 1, 0, **more)
    found = world.measure()
    assert found.mean_picodollars == {"xan": 40, "bob": 41, "kay": 50, "zed": 90, "amy": None}
    assert list(found.mean_picodollars) == ["xan", "bob", "kay", "zed", "amy"]
    assert found.cheapest == ["xan", "bob"]
    assert (found.states, found.left_out) == (2, 4)


def test_equal_costs_are_in_the_order_of_names(world: World) -> None:
    for state_id in world.of("Read")[:3]:
        for teacher in ("zed", "kay", "bob"):
            world.say(state_id, teacher, 1, 5)
    assert world.measure().cheapest == ["bob", "kay"]


# -- what counts ---------------------------------------------------------------------


def test_states_that_were_not_asked_in_full_are_left_out_and_counted(world: World) -> None:
    ids = world.of("Read")
    ask(world, ids[:30], 0)
    ask(world, ids[30:40], 10, teachers=("zed", "kay"))  # curtailed
    for state_id in ids[40:45]:  # asked, but one gave nothing usable
        world.say(state_id, "zed", 50, 1)
        world.say(state_id, "kay", 1, 2)
        world.say(state_id, "bob", 1, 3, status="unusable", action=None)
    # It says nothing, which is usable but does not vote.
    world.say(ids[45], "zed", 1, 1, action=Action().to_json())
    world.say(ids[45], "kay", 1, 2)
    world.say(ids[45], "bob", 1, 3)
    world.say(ids[46], "resample", 1, 2)  # nobody but the control
    found = world.measure()
    assert (found.states, found.left_out) == (30, 17)
    assert found.total.one.hits == found.total.one.of == 30


def test_only_the_newest_reply_of_a_teacher_counts(world: World) -> None:
    (state_id, *_) = world.of("Read")
    ask(world, [state_id], 0)
    old = NOW.replace(year=2025)
    for teacher in ("zed", "kay"):
        world.say(state_id, teacher, 70, 1000, created_at=old)
    found = world.measure()
    assert found.mean_picodollars == {"zed": 1, "kay": 2, "bob": 3}
    assert found.total.one.hits == 1


def test_unknown_costs_count_nothing_and_are_counted(world: World) -> None:
    ids = world.of("Read")[:80]
    for number, state_id in enumerate(ids):
        world.say(state_id, "zed", 1, 5 if number % 3 else None)
        world.say(state_id, "kay", 1, 7 if number % 4 else None)
        world.say(state_id, "bob", 1, 9 if number % 5 else None)
    found = world.measure()
    assert found.cheapest == ["zed", "kay"]
    assert found.total.sufficient == "one"
    assert found.total.overpaid_picodollars == 60 * 7 + 64 * 9
    assert found.total.without_cost == 20 + 16  # zed's are not overpaid
    assert found.by_kind["Read"].without_cost == 36


def test_nothing_is_a_known_price(world: World) -> None:
    """A server of one's own."""
    for state_id in world.of("Read")[:80]:
        for cost, teacher in ((1, "zed"), (0, "kay"), (None, "bob")):
            world.say(state_id, teacher, 1, cost)
    found = world.measure()
    assert found.mean_picodollars == {"kay": 0, "zed": 1, "bob": None}
    assert (found.cheapest, found.total.without_cost) == (["kay", "zed"], 80)
    assert found.total.overpaid_picodollars == 80


def test_each_kind_pays_by_its_own_verdict(world: World) -> None:
    """Few misses of many are sufficient over all; the kind that has them needs everybody."""
    ask(world, world.of("Bash")[:80], 0)
    ask(world, world.of("Edit")[:90], 0)
    ask(world, world.of("Read")[:20], 2)
    found = world.measure()
    verdicts = {kind: figures.sufficient for kind, figures in found.by_kind.items()}
    assert verdicts == {"Edit": "one", "Bash": "one", "Read": "all"}
    assert found.total.sufficient == "one"
    assert found.total.overpaid_picodollars == 170 * (2 + 3)


def test_days_and_sessions_choose(world: World) -> None:
    ids = world.of("Read")
    ask(world, ids, 0)
    by_day = Counter(world.states[state_id].day for state_id in ids)
    found = world.measure(days=[OTHER_DAY])
    assert found.states == by_day[OTHER_DAY] > 0
    extra = next(state_id for state_id in ids if world.states[state_id].day == DAY)
    world.say(extra, "amy", 1, 4)  # a further family, on one day only
    assert world.measure(days=[OTHER_DAY]).states == by_day[OTHER_DAY]
    assert world.measure().states == 1
    session = world.states[extra].session_id
    assert world.measure(sessions={session}).states == 1
    of_session = sum(world.states[state_id].session_id == session for state_id in ids)
    assert world.measure(sessions={session}).left_out == of_session - 1


def test_it_says_how_far_it_is_and_writes_nothing(world: World) -> None:
    ask(world, world.of("Read")[:4], 0)
    ask(world, world.of("Read")[4:9], 0, teachers=("zed", "kay"))  # not even loaded
    world.measure()
    before = {path: path.stat().st_mtime_ns for path in Path(world.lake.root).rglob("*")}
    steps: list[int] = []
    sufficiency(world.lake, progress=lambda _, done, __: steps.append(done))
    assert sum(step == 1 for step in steps) >= 1
    assert len(steps) == 4
    after = {path: path.stat().st_mtime_ns for path in Path(world.lake.root).rglob("*")}
    assert after == before


# -- the teacher file ----------------------------------------------------------------

FILE = """
purpose: training
endpoint: {name: loopback, base_url: "http://127.0.0.1:1/v1", api_key_env: KEY, simulated: true}
projects: {allow: ["*shop*"]}
defaults: {max_tokens: 900, provider: {zdr: false}}
selection: {audit_share: 0.1, skip: [todo], curtail: off}
teachers:
  - &one
    {name: bob, family: f-one, model: a/b, licence: MIT, max_price: {prompt: "0.5", completion: 3}}
  - {<<: *one, name: kay, family: f-zulu, max_price: {prompt: "0.10", completion: "0.2"}}
  - {<<: *one, name: zed, family: f-mid, max_price: {prompt: "0.05", completion: "0.1"}}
  - {<<: *one, name: resample, family: claude, control: true}
"""


@pytest.fixture
def teachers(tmp_path: Path) -> TeacherSet:
    file = tmp_path / "teachers.yaml"
    file.write_text(FILE)
    return TeacherSet.load(file)


def written(world: World, teachers: TeacherSet, folder: Path) -> TeacherSet:
    file = folder / "new.yaml"
    file.write_text(teacher_file(world.measure(), teachers, "teachers.yaml"))
    return TeacherSet.load(file)


def asks(world: World, new: TeacherSet, *known: tuple[str, int]) -> list[str]:
    """Return whom the file asks next, after some did what a label says."""
    state = world.states[world.of("Bash")[0]]
    by_name = {teacher.name: teacher for teacher in new.teachers}
    ordered = [by_name[name] for name in ask_order(new.teachers)]
    told = {name: does(state.action, label) for name, label in known}
    found = next_voters(state, ordered, told, VoteDecision(), new.selection.curtail)
    return [teacher.name for teacher in found]


def test_a_file_for_one(world: World, teachers: TeacherSet, tmp_path: Path) -> None:
    ask(world, world.of("Read")[:80], 0)
    new = written(world, teachers, tmp_path)
    assert [teacher.name for teacher in new.teachers] == ["kay", "zed", "resample"]
    assert asks(world, new) == ["zed"]
    assert asks(world, new, ("zed", 0)) == []  # the agent is confirmed by one
    assert asks(world, new, ("zed", 1)) == ["kay"]
    expected = teachers.model_dump()
    expected["selection"]["curtail"] = "student"
    expected["teachers"] = [t for t in expected["teachers"] if t["name"] != "bob"]
    assert new.model_dump() == expected


def test_a_file_for_two(world: World, teachers: TeacherSet, tmp_path: Path) -> None:
    for number, state_id in enumerate(world.of("Read")[:80]):
        for cost, teacher in enumerate(("zed", "kay", "bob"), start=1):
            world.say(state_id, teacher, 20 + cost if number < 20 else 1, cost)
    new = written(world, teachers, tmp_path)
    assert [teacher.name for teacher in new.teachers] == ["kay", "zed", "resample"]
    # Where the cheapest confirms the agent, no second reply could make a pair.
    assert asks(world, new) == ["zed"]
    assert asks(world, new, ("zed", 0)) == []
    assert asks(world, new, ("zed", 1)) == ["kay"]
    assert new.selection.model_dump() == {**teachers.selection.model_dump(), "curtail": "exact"}


def test_a_file_for_all(world: World, teachers: TeacherSet, tmp_path: Path) -> None:
    ask(world, world.of("Read")[:80], 20)
    new = written(world, teachers, tmp_path)
    expected = teachers.model_dump()
    expected["selection"]["curtail"] = "exact"
    assert new.model_dump() == expected
    assert asks(world, new, ("zed", 1), ("kay", 0)) == ["bob"]


def test_the_head_says_where_it_is_from(world: World, teachers: TeacherSet) -> None:
    ask(world, world.of("Read")[:80], 0)
    report = world.measure()
    text = teacher_file(report, teachers, "teachers.yaml")
    head = [line for line in text.splitlines() if line.startswith("#")]
    assert max(map(len, head)) <= 100
    said = " ".join(line.removeprefix("# ") for line in head)
    assert "composer-pipeline sufficiency from 80 states asked in full" in said
    assert said.endswith(report.rule)
    assert yaml.safe_load(text)["selection"]["audit_share"] == 0.1


@pytest.mark.parametrize("name", ["default", "demo"])
def test_shipped_files_stay_what_they_are(world: World, name: str) -> None:
    ask(world, world.of("Read")[:80], 20)
    shipped = TeacherSet.load(recipes_dir() / "teachers" / f"{name}.yaml")
    text = teacher_file(world.measure(), shipped, name)
    found = TeacherSet.model_validate(yaml.safe_load(text)).model_dump()
    assert found["selection"].pop("curtail") == "exact"
    before = shipped.model_dump()
    del before["selection"]["curtail"]
    assert found == before


def test_own_endpoints_are_kept(world: World) -> None:
    ask(world, world.of("Read")[:80], 0)
    own = {"model": "m", "licence": "MIT", "price": {"prompt": 0, "completion": 0}}
    data = {
        "teachers": [
            {**own, "name": name, "family": FAMILY[name],
             "endpoint": {"name": f"at-{name}", "base_url": "http://127.0.0.1:2/v1"}}
            for name in ("bob", "zed", "kay")
        ]
    }  # fmt: skip
    given = TeacherSet.model_validate(data)
    new = TeacherSet.model_validate(yaml.safe_load(teacher_file(world.measure(), given, "x")))
    expected = given.model_dump()
    assert new.model_dump()["teachers"] == expected["teachers"][1:]
    assert new.endpoint == given.endpoint


@pytest.mark.parametrize("control", [False, True])
def test_a_file_without_a_cheapest_teacher(
    world: World, teachers: TeacherSet, control: bool
) -> None:
    """Or with it as a control, whose replies do not vote."""
    ask(world, world.of("Read")[:80], 0)
    bob, kay, zed, resample = teachers.teachers
    changed = [zed.model_copy(update={"control": True})] if control else []
    given = teachers.model_copy(update={"teachers": [bob, kay, *changed, resample]})
    with pytest.raises(InputError, match=r"^mine\.yaml: has no voting teacher zed"):
        teacher_file(world.measure(), given, "mine.yaml")


# -- bad input -----------------------------------------------------------------------


def alone(world: World) -> None:
    for state_id in world.of("Read")[:3]:
        world.say(state_id, "zed", 1)
        world.say(state_id, SECOND, 1)  # of the same family
        world.say(state_id, "resample", 1)


def controls(world: World) -> None:
    for state_id in world.of("Read")[:3]:
        world.say(state_id, "resample", 1)


def curtailed(world: World) -> None:
    for teacher, state_id in zip(("zed", "kay", "bob"), world.of("Read"), strict=False):
        world.say(state_id, teacher, 1)


@pytest.mark.parametrize(
    ("fill_in", "said"),
    [
        (lambda _: None, "has no replies to these states; run replay first"),
        (alone, "two voting families must have replied, not f-mid"),
        (controls, "two voting families must have replied, not none"),
        (curtailed, "has no state that all of f-one, f-zulu, f-mid answered"),
    ],
)
def test_what_cannot_be_compared(world: World, fill_in: Callable[[World], None], said: str) -> None:
    fill_in(world)
    with pytest.raises(InputError, match=said) as found:
        world.measure()
    assert str(found.value).startswith(f"lake {world.lake.url}")
    assert "\n" not in str(found.value)
