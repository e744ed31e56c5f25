"""The statistics of a scope, as rows in the lake."""

import pytest

from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences.quality import (
    ALL,
    agreement_figure,
    measure,
    read_statistics,
    verdicts,
    write_statistics,
)
from composer_pipeline.preferences.rules import PreferenceRules


def test_an_empty_lake_is_measured_as_nothing(tmp_path):
    lake = Lake(tmp_path)
    quality = write_statistics(lake).by_scope[ALL]
    rows = lake.rows("preference_statistics")
    assert rows
    assert {r["scope"] for r in rows} == {"all"}
    judged = {r["a"]: (r["b"], r["note"]) for r in rows if r["statistic"] == "verdict"}
    told = verdicts(quality, PreferenceRules())
    assert judged == {v.figure: (v.word, v.sentence) for v in told}, "the report shows these"
    rows = read_statistics(lake)
    unmeasured = {r["statistic"]: r["note"] for r in rows if r["value"] is None}
    assert set(unmeasured) >= {"separability_auc", "excess_disagreement", "pairs_per_session_mean"}
    assert all(note.startswith(("not measured", "not defined")) for note in unmeasured.values())
    assert "no state" in agreement_figure(quality)
    assert measure(lake, "2026-11-16").funnel["states"] == 0


DAY = "2026-11-16"


def pair(number, **more):
    side = [{"role": "assistant", "content": f"answer {number}"}]
    return {
        "pair_id": f"p{number:03}", "state_id": f"x{number}", "session_id": f"s{number % 4}",
        "prompt": [{"role": "user", "content": f"question {number}"}], "chosen": side,
        "rejected": side, "tier": "gold", "outcome": "unknown", "length_ratio": float(number),
        "contamination": [], **more,
    }  # fmt: skip


def test_deciles_of_the_length_ratio(tmp_path):
    lake = Lake(tmp_path)
    lake.write("pairs", [pair(n) for n in range(1, 12)], day=DAY)
    found = {name: m.value for name, m in measure(lake, DAY).length_ratio.items()}
    assert found == pytest.approx({"p10": 2, "p50": 6, "p90": 10, "chosen_longer": 10 / 11})


def test_pairs_of_sessions(tmp_path):
    lake = Lake(tmp_path)
    lake.write("pairs", [pair(n) for n in range(5)], day=DAY)
    sessions = [{"session_id": f"s{n}", "agent": "pi" if n else "codex"} for n in range(4)]
    lake.write("sessions", sessions, day=DAY)
    found = measure(lake, DAY)
    mean, most = found.per_session
    assert (mean.value, most.value) == (5 / 4, 2)
    assert found.agents == {"codex": 2, "pi": 3}


def test_a_day_whose_pairs_are_gone_keeps_no_results(tmp_path):
    lake = Lake(tmp_path)
    lake.write(
        "pairs",
        [pair(1), pair(2) | {"prompt": pair(1)["prompt"], "chosen": pair(1)["chosen"]}],
        day=DAY,
    )
    assert write_statistics(lake, days=[DAY]).by_scope[DAY].pairs == 2
    assert [row["pair_id"] for row in lake.rows("near_duplicates")] == ["p002"]
    lake.write("pairs", [], day=DAY)
    assert write_statistics(lake, days=[DAY]).by_scope[DAY].pairs == 0
    assert lake.rows("near_duplicates") == []
    rows = {row["statistic"]: row["value"] for row in lake.rows("preference_statistics")}
    assert rows["pairs_per_session_mean"] is None
