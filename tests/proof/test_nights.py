"""The stream of thirty nights: what its sessions hold, and that a killed run goes on."""

import json
import shutil

import msgspec
import pytest

from composer_pipeline.nights import night
from examples.proof import nights
from examples.proof import nights_report as report
from examples.proof.nights import EMPTY, MAJORITY, NIGHTS, PHASE, POISONED, planned, recorded
from examples.proof.toolworld.world import BUGS, World, for_training


def test_each_phase_brings_mistakes_that_no_night_before_had():
    stream = planned(1)
    assert [each.number for each in stream] == [*range(1, NIGHTS + 1)]
    seen: set[int] = set()
    for start in range(0, NIGHTS, PHASE):
        phase = stream[start : start + PHASE]
        assert not seen & set(phase[0].bugs)
        for each in phase:
            assert each.bugs == phase[0].bugs
            assert {one.world.bug for one in recorded(each, 1)[0]} <= set(each.bugs)
        seen |= set(phase[0].bugs)
    assert seen == set(range(BUGS))
    assert stream != planned(2)


def test_nights_are_of_worlds_that_may_be_trained_on():
    for each in planned(1):
        assert all(for_training(one.world) for one in recorded(each, 1)[0])


def test_the_night_without_data_has_no_session():
    assert [each.number for each in planned(3) if not recorded(each, 3)[0]] == [EMPTY]


def taught(number: int) -> tuple[list, list]:
    """Return a night's hard states, and whether the consensus is what then worked."""
    _, answered = recorded(planned(1)[number - 1], 1)
    hard = [a for some in answered for a in some if a.step.kind == "hard" and a.consensus]
    return hard, [answer.consensus == answer.step.right for answer in hard]


def test_a_wrong_majority_contradicts_what_worked_and_a_usual_night_does_not():
    assert not any(taught(MAJORITY)[1])
    _, usual = taught(MAJORITY + 1)
    assert sum(usual) > 0.7 * len(usual)


def test_at_the_poisoned_night_log_and_teachers_agree_on_what_is_wrong():
    drawn, answered = recorded(planned(1)[POISONED - 1], 1)
    agreed = wrong = states = 0
    for one, answers in zip(drawn, answered, strict=True):
        true = {step: World.right(one.world, step) for step in range(4)}
        for answer in answers:
            if answer.step.failed or answer.consensus is None:
                continue
            states += 1
            agreed += answer.consensus == answer.step.action
            wrong += answer.step.action != true[answer.step.number]
    assert agreed > 0.9 * states
    assert wrong > 0.6 * states


@pytest.fixture
def short(monkeypatch):
    """Two nights of few sessions."""
    for name, value in (("NIGHTS", 2), ("SESSIONS", 6), ("EPOCHS", 0.5), ("TEST_SESSIONS", 2)):
        monkeypatch.setattr(nights, name, value)
    for name in ("select_states", "own_successes", "dataset_states", "training_content"):
        monkeypatch.setattr(night, name, getattr(night, name))  # put back what a run replaces


def test_a_run_that_was_killed_goes_on_where_it_stopped(short, tmp_path, monkeypatch):
    from examples.proof.run import drawn

    _, states = drawn(tmp_path / "test.json", nights.TEST_SESSIONS, development=True)
    nights.run_data(tmp_path, 1)
    run_night, days = night.run_night, []

    def killed(*args, **options):
        days.append(options["night"])
        if len(days) == 2:
            raise KeyboardInterrupt
        return run_night(*args, **options)

    monkeypatch.setattr(night, "run_night", killed)
    with pytest.raises(KeyboardInterrupt):
        nights.run_arm(tmp_path, 1, "none", states)
    folder = tmp_path / nights.RUNS / "1" / "none"
    with (folder / nights.TOLD).open("ab") as file:
        file.write(b'{"number": 2, "ki')
    nights.run_arm(tmp_path, 1, "none", states)
    told = nights.read_told(folder)
    assert [each.number for each in told] == [0, 1, 2]
    assert days == ["2026-11-01", "2026-11-02", "2026-11-02"]
    assert [each.current for each in told] == [0, 1, 2]  # promoted, whatever gates say
    assert all(len(each.right) == len(states) for each in told)
    lake = tmp_path / nights.DATA / "1" / "lake"
    shutil.copytree(lake, tmp_path / nights.RUNS / "1" / "buffer" / "lake")
    monkeypatch.setattr(night, "select_states", lambda *_: [])  # as another seed has left it
    nights.run_noise(tmp_path, 1)
    (file,) = tmp_path.rglob(nights.NOISE_FILE)
    assert len(json.loads(file.read_text())) == 2


def test_the_page_and_its_pictures_are_those_of_the_recorded_run():
    found = report.read_summary(report.RECORDED)
    assert (report.DOCS / report.PAGE).read_text(encoding="utf-8") == report.page(found)
    for name, svg in report.pictures(found).items():
        assert (report.DOCS / report.PICTURES / name).read_text(encoding="utf-8") == svg


def test_a_bar_that_is_missed_is_said_to_be_missed():
    found = report.read_summary(report.RECORDED)
    sorts = {"good": report.Decisions(10, 7, {"not better: hard": 3})}
    worse = msgspec.structs.replace(
        found, decisions={**found.decisions, "buffer": found.decisions["buffer"] | sorts}
    )
    assert {name: ok for name, _, ok in report.bars(worse)}[
        "gates and old rows: good nights promoted in 80%"
    ] is False
    assert "7 of 10 (70%) | **no**" in report.page(worse)
