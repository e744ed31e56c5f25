"""The evaluation as the command line prints it."""

import io

from rich.console import Console

from composer_pipeline.cli.training import show_evaluation


def test_the_table_says_what_follows():
    out = io.StringIO()
    report = {
        "split": "validation", "states": {"easy": 12, "recovery": 3}, "sessions": 11,
        "dropped": {"lost file": 2}, "worse": ["easy states: -0.1"], "unknown": ["recovery states"],
    }  # fmt: skip
    rows = [
        ("easy", "exact", "100.0 %", "90.0 %", "-10.0 points [-15.0, -5.0] *", "12 (11)"),
        ("easy", "canonical", "100.0 %", "91.0 %", "-9.0 points [-15.0, -5.0] *", "12 (11)"),
        ("recovery", "exact", "50.0 %", "50.0 %", "+0.0 points [no interval]", "3 (3)"),
    ]
    show_evaluation(Console(file=out, width=140), rows, report, "runs/x/evaluation")
    text = out.getvalue()
    assert text.count("│ easy") == 1  # a kind is named once
    assert "+0.0 points [no interval]" in text
    for said in (
        "evaluate: validation", "-9.0 points [-15.0, -5.0] *", "12 easy, 3 recovery, of 11",
        "left out: 2 lost file", "worse than its base on easy states: -0.1",
        "not known whether it is worse on recovery states", "report: runs/x/evaluation",
    ):  # fmt: skip
        assert said in text
    show_evaluation(Console(file=(narrow := io.StringIO()), width=60), rows, report, "x")
    assert narrow.getvalue().count("│ easy     │ exact ") == 2, "each part says what its rows are"
