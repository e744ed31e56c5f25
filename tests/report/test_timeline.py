"""The picture of a DiLoCo run: from its log alone, after real processes and a real kill."""

import datetime as dt
import re
from pathlib import Path

import pytest

from composer_pipeline.diloco import views
from composer_pipeline.diloco.heartbeat import HeartbeatSender
from composer_pipeline.diloco.log import Commit, Included, OuterLog, Rejected
from composer_pipeline.diloco.spec import DiLoCoSpec
from composer_pipeline.diloco.supervisor import SlotEnd
from composer_pipeline.diloco.views import FIGURES, history, read_timeline, timeline, write_timeline
from composer_pipeline.errors import InputError
from tests.diloco.test_processes import SPEC, supervisor

T0 = dt.datetime(2026, 11, 23, tzinfo=dt.UTC)


def after(seconds: float) -> dt.datetime:
    return T0 + dt.timedelta(seconds=seconds)


def kinds(
    life: list[tuple[float, float]], offered: float | None, began: float = 0, ended: float = 10
) -> list[tuple[str, float, float]]:
    lives = [(after(a), after(b)) for a, b in life]
    given = None if offered is None else after(offered)
    found = views._spans(lives, after(began), after(ended), given)
    return [(k, (a - T0).total_seconds(), (b - T0).total_seconds()) for k, a, b in found]


@pytest.mark.parametrize(
    ("life", "offered", "expected"),
    [
        ([(0, 20)], 4, [("training", 0, 4), ("waiting", 4, 10)]),
        ([(0, 20)], None, [("training", 0, 10)]),
        ([(0, 3), (5, 20)], 8,
         [("training", 0, 3), ("dead", 3, 5), ("training", 5, 8), ("waiting", 8, 10)]),
        ([(0, 6)], 4, [("training", 0, 4), ("waiting", 4, 6), ("dead", 6, 10)]),
        ([(0, 4), (7, 20)], 4, [("training", 0, 4), ("dead", 4, 7), ("waiting", 7, 10)]),
        ([], None, [("dead", 0, 10)]),
        ([(12, 20)], None, [("dead", 0, 10)]),
    ],
    ids=["waits", "late", "killed while training", "killed while waiting",
         "killed once it had contributed", "nobody", "joins later"],
)  # fmt: skip
def test_a_round_of_a_slot_is_told_without_gaps(life, offered, expected) -> None:
    assert kinds(life, offered) == expected


@pytest.mark.slow
def test_a_killed_replica_of_three_is_dead_in_its_row(tmp_path: Path) -> None:
    """Real processes; the picture is drawn once all of them are gone."""
    ends: list[SlotEnd] = []
    spec = SPEC.model_copy(update={"replicas": 3, "min_quorum": 3, "rounds": 3})
    supervisor(tmp_path, spec, kill="1:inner:2", on_end=ends.append).run()
    assert [(end.slot, end.code, end.restart) for end in ends] == [(1, -9, 1)]
    told = history(OuterLog.open(str(tmp_path / "outer"), "run"))
    dead = [span for span in told.spans if span.kind == "dead"]
    killed = [span for span in dead if span.round == 2]
    assert {span.slot for span in dead if span.start > 0 and span.round > 1} == {1}
    assert killed[0].end - killed[0].start > 0.3, "it is started again half a second later"
    assert [len(told.starts[slot]) for slot in range(3)] == [1, 2, 1]
    assert [set(mark.fate.values()) for mark in told.rounds] == [{"merged"}] * 3
    assert all(mark.bytes > 0 for mark in told.rounds)
    for slot in range(3):
        row = [span for span in told.spans if span.slot == slot]
        assert sum(s.end - s.start for s in row) == pytest.approx(told.seconds, abs=1e-6)
        assert any(span.kind == "waiting" for span in row)

    losses = {"dpo": {1: 0.7, 2: 0.6, 3: 0.5}, "dpo, replica 0": {1: 0.8, 2: 0.6, 3: 0.5},
              "sdpo": {1: 0.02}}  # fmt: skip
    write_timeline(tmp_path, told, losses)
    drawn = read_timeline(tmp_path)
    assert drawn == timeline(told, losses)
    assert drawn == (tmp_path / "report/timeline.svg").read_text()
    texts = re.findall(r'y="(\d+)"[^>]*>replica (\d)<', drawn)
    rows = {slot: int(y) for y, slot in texts}
    places = {int(y) + 14 for y in re.findall(r'class="dead" x="[\d.]+" y="(\d+)"', drawn)}
    assert rows["1"] in places
    assert drawn.count('class="start"') == 1
    assert drawn.count('class="bytes"') == 3
    thin, thick = re.findall(r'class="curve"[^>]*stroke-width="([\d.]+)"><title>dpo', drawn)[::-1]
    assert float(thin) < float(thick)
    assert {">dpo<", ">sdpo<", ">0.4<", ">0.8<"} <= set(re.findall(r">[\w.]+<", drawn))


def test_what_was_rejected_is_late_or_missing_says_so(tmp_path: Path) -> None:
    log = OuterLog.open(str(tmp_path), "run")
    spec = DiLoCoSpec(rounds=2, inner_steps=1, replicas=4, heartbeat_timeout_s=50)
    log.agree(spec)
    for slot in (0, 1, 2):
        HeartbeatSender(log, slot, 1, 1.0)._beat()
    part = Included(0, "k", "", 12, 1.0, 7, 1)
    log.try_commit(Commit(0, (), (), "", "s", "k", 1, 0))
    log.try_commit(Commit(1, (part,), (Rejected(1, "not <finite>"),), "s", "t", "k", 1, 0, 7))
    told = history(log)
    (mark,) = told.rounds
    assert mark.fate == {0: "merged", 1: "rejected", 2: "late", 3: "missing"}
    assert (mark.why, mark.bytes, mark.tokens) == ({1: "not <finite>"}, 12, 7)
    drawn = timeline(told)
    assert "rejected: not &lt;finite&gt;" in drawn
    assert "<finite>" not in drawn
    assert len(re.findall(r'class="training"[^>]*fill="#e03131"', drawn)) == 1


def test_a_log_that_has_not_begun_has_no_picture(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no DiLoCo run other that has started"):
        history(OuterLog.open(str(tmp_path), "other"))
    assert read_timeline(tmp_path) is None
    (tmp_path / "report").mkdir()
    (tmp_path / FIGURES).write_text('{"history": 3}')
    with pytest.raises(InputError, match=r"timeline\.json is not a timeline of a run"):
        read_timeline(tmp_path)


def test_an_svg_of_a_run_without_a_round_can_be_drawn(tmp_path: Path) -> None:
    log = OuterLog.open(str(tmp_path), "run")
    log.agree(DiLoCoSpec(rounds=2, inner_steps=1))
    told = history(log)
    assert told.spans == []
    assert timeline(told).count(">replica ") == 2
