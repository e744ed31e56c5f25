"""The proof's report: what a reader is told follows from the figures, and from nothing else."""

import json

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest

from composer_pipeline.errors import InputError
from composer_pipeline.evaluation.results import BASE, StateResult, write_results
from examples.proof.report import (
    LATER,
    MAIN,
    PRIMARY,
    SECONDARY,
    claimed,
    collect,
    committed_page,
    main,
    page,
    read_summary,
    report,
    write_report,
)
from examples.proof.statistics import Estimate
from tests.places import ROOT
from tests.proof.test_statistics import result

#: Share of right answers at mistakes; what is not named here is right at easy and recovery states.
RIGHT = {BASE: 0.05, "sft-recorded": 0.05, "sft": 0.4, "shipped": 0.8}
SESSIONS = 60


def answered(session, kind, right):
    return msgspec.structs.replace(result(f"{session} {kind}", session, right), kind=kind)


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """A finished run: each session has a mistake of each kind, an easy and a recovery state."""
    out, rng = tmp_path_factory.mktemp("proof"), np.random.default_rng(1)
    kinds = ("hard_covered", "hard_uncovered", "easy", "recovery")
    families = {
        f"{session} {kind}": LATER if kind == "hard_uncovered" and session % 3 == 0 else ""
        for session in range(SESSIONS) for kind in kinds
    }  # fmt: skip
    (out / "test.json").write_text(
        json.dumps({"seed": 4711, "development": False, "families": families})
    )
    always: dict[str, list[StateResult]] = {}
    for seed in (1, 2, 3):
        for arm, share in RIGHT.items():
            made = always.get(arm) or [
                answered(session, kind, kind in kinds[2:] or rng.random() < share)
                for session in range(SESSIONS) for kind in kinds
            ]  # fmt: skip
            if arm == BASE:
                always[arm] = made
                continue
            folder = out / "runs" / f"{MAIN}-seed{seed}" / arm
            folder.mkdir(parents=True)
            write_results(folder / "results.parquet", {BASE: always[BASE], arm: made})
            (folder / "numbers.json").write_text('{"cpu_seconds": 1.0, "rows sft": 30}')
    return out


@pytest.fixture(scope="module")
def found(out):
    write_report(out, collect(out / "runs"), "Student: a small one.")
    return read_summary(out / "summary.json")


def changed(found, question, mean, low, high, p=1e-6, seeds=3):
    """Return the summary with another estimate of a question."""
    e = Estimate(mean, low, high, p, SESSIONS, seeds)
    name = "primary" if question == PRIMARY else "secondary"
    return msgspec.structs.replace(found, **{name: {**getattr(found, name), question.name: e}})


def section(text, head):
    return text.split(f"## {head}\n")[1].split("\n## ")[0]


def answer(summary):
    return next(line for line in page(summary).splitlines() if line.startswith("**Answer.**"))


def test_a_run_is_summed_up_and_its_pages_can_be_written_again(out, found):
    rows = pq.read_table(out / "results.parquet").to_pylist()
    shares = {
        arm: np.mean([
            r["exact"] for r in rows if r["arm"] == arm and r["kind"] == "hard_uncovered"
        ])
        for arm in RIGHT
    }  # fmt: skip
    e = found.primary[PRIMARY.name]
    assert e.mean == pytest.approx(shares["shipped"] - shares["sft"], abs=1e-4)
    assert (e.units, e.seeds, found.seed, found.sessions) == (SESSIONS, 3, 4711, SESSIONS)
    assert {r["state_id"] for r in rows if r["family"] == LATER} == {
        f"{session} hard_uncovered" for session in range(0, SESSIONS, 3)
    }
    assert found.states[LATER] == 20
    before = {name: (out / name).read_bytes() for name in ("summary.json", "report.md")}
    assert b"Student: a small one." in before["report.md"]
    for name in before:
        (out / name).touch()
    assert main([str(out)]) == 0
    assert {name: (out / name).read_bytes() for name in before} == before


def test_the_answer_is_that_of_the_primary_contrast(found):
    one, other = (100 * found.grid[MAIN][arm].right["hard_uncovered"].mean for arm in PRIMARY[:2])
    assert answer(found).startswith(
        f"**Answer.** Yes, on this world: {one:.1f} % against {other:.1f} %, +"
    )
    said = "+3.0 (-1.0 to +7.0)."
    assert answer(changed(found, PRIMARY, 0.03, -0.01, 0.07, p=0.2)).endswith(said)
    for summary in (
        changed(found, PRIMARY, 0.03, -0.01, 0.07, p=0.2),
        changed(found, PRIMARY, 0.3, None, None, p=None),
        changed(found, PRIMARY, 0.3, 0.2, 0.4, seeds=2),
        msgspec.structs.replace(found, development=True),
    ):
        assert "Not shown: " in answer(summary)
    assert "No, it teaches less: " in answer(changed(found, PRIMARY, -0.3, -0.4, -0.2))
    assert "Not measured." in answer(msgspec.structs.replace(found, primary={}))


def test_on_the_development_world_nothing_is_claimed(found):
    text = page(msgspec.structs.replace(found, development=True))
    assert "**Nothing is claimed here:**" in text
    assert section(text, "What is shown").strip() == "* Of the secondary contrasts, none."
    assert "within 2 points" not in text
    assert "**" not in report(msgspec.structs.replace(found, development=True))


def test_a_secondary_contrast_is_told_where_it_belongs(found):
    question = SECONDARY[2]
    words = "at edits whose failure is seen later: "

    def told(*estimate, **more):
        text = page(changed(found, question, *estimate, **more))
        lines = [line for line in text.splitlines() if words in line and "hints" in line.lower()]
        assert len(lines) == 1
        return lines[0], lines[0] in section(text, "What is shown")

    assert told(0.1, 0.05, 0.15) == (
        "* Hints at the culprit (no teacher) gained over hints at the flagged turn (no teacher),"
        f" {words}+10.0 (+5.0 to +15.0).", True,
    )  # fmt: skip
    line, shown = told(-0.1, -0.15, -0.05)
    assert "lost against hints at the flagged turn" in line
    assert shown
    line, shown = told(0.1, -0.05, 0.25, p=0.2)
    assert line.endswith("+10.0 (-5.0 to +25.0).")
    assert not shown
    # significant by itself, not among them
    line, shown = told(0.1, 0.01, 0.19, p=0.045)
    assert "too little for one of many" in line
    assert not shown


def test_bold_is_what_stands_and_the_grid_claims_nothing(found):
    question = SECONDARY[0]
    for p, stands in ((1e-6, True), (0.045, False)):
        text = report(changed(found, question, 0.1, 0.01, 0.19, p=p))
        row = next(line for line in text.splitlines() if line.startswith(f"| {question.name} "))
        assert ("**+10.0 (+1.0 to +19.0)**" in row) is stands
        assert "**" not in text.split("## The whole grid")[1]


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.0, 0.019, "within 2 points"), (0.0, 0.03, "not shown"), (0.002, 0.03, "loses"),
        (None, None, "not shown"),
    ],
)  # fmt: skip
def test_a_loss_is_told_by_its_bounds(found, low, high, said):
    row = found.grid[MAIN]["shipped"]
    assert 0 < row.lost["easy"].high < 1  # nothing was lost, and nothing is certain
    lost = {kind: Estimate(0.01, low, high, None, SESSIONS, 3) for kind in ("easy", "recovery")}
    arms = found.grid[MAIN] | {"shipped": msgspec.structs.replace(row, lost=lost)}
    text = page(msgspec.structs.replace(found, grid={MAIN: arms}))
    costs = section(text, "What it costs")
    assert f"The shipped recipe: easy states {said}, recovery states {said}." in costs
    assert next(x for x in costs.splitlines() if x.startswith("| the shipped")).count(said) == 2


def test_replicas_are_compared_with_one_gradient_for_all(found):
    row = found.grid[MAIN]["sft"]
    zero = Estimate(0.0, -0.01, 0.01, 1.0, SESSIONS, 3)
    numbers = {"bytes_sent": 1030.0, "bytes_data_parallel": 10_000.0, "contributions": 0.75}
    against = {f"diloco-2 - shipped, {kind}": zero for kind in ("hard", "easy", "recovery")}
    arms = {"diloco-2": msgspec.structs.replace(row, numbers=numbers, against=against)}
    text = report(msgspec.structs.replace(found, grid={MAIN: arms}))
    assert "| 75% | 1,030 | 1,000 | 1.030 | +0.0 (-1.0 to +1.0) |" in text
    assert "contributions" not in report(found)


def test_the_page_is_what_the_committed_figures_say_and_short():
    text = (ROOT / "docs" / "proof.md").read_text(encoding="utf-8")
    assert text == committed_page()
    assert len(text.split()) <= 1500
    assert text.count("![") == 1
    assert text.count("| --- ") == text.count("| --- | --- | --- | --- | --- |") * 5 == 5


def test_the_readme_and_the_tables_say_the_committed_figures():
    results = ROOT / "benchmarks" / "results"
    found = read_summary(results / "proof.json")
    tables = report(found).partition("\n\n")[2]
    assert (results / "proof.md").read_text(encoding="utf-8").endswith(tables)
    arms = found.grid[MAIN]
    one, other = (100 * arms[arm].right[PRIMARY.states].mean for arm in (PRIMARY.arm, "sft"))
    assert claimed(found)[PRIMARY.name].mean > 0
    assert max(lost.high or 100 for lost in arms[PRIMARY.arm].lost.values()) < 0.01
    said = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"the shipped recipe gets {one:.0f} % of the mistakes right that no teacher" in said
    assert f"SFT on the consensus {other:.0f} %, and less than a point of what the base" in said


def test_a_summary_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "summary.json").write_text("{}")
    with pytest.raises(InputError, match=r"summary\.json is no summary of a run"):
        read_summary(tmp_path / "summary.json")
