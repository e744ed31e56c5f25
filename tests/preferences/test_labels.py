"""Labels of a person, and the scores of computed verdicts beside them."""

import json
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.errors import InputError
from composer_pipeline.preferences.labels import Share, read_labels, scores


def row(state_id: str, verdict: str | None, n: int = 0, culprit: str | None = None) -> Any:
    return {"state_id": state_id, "verdict": verdict, "chain_id": "c", "n_messages": n,
            "culprit_state_id": culprit}  # fmt: skip


def test_scores() -> None:
    states = {
        r["state_id"]: r
        for r in (
            row("edit", None, 4), row("old", None, 2),
            row("a", "mistake", 10, "a"), row("b", "revealed", 30, "edit"),
            row("c", "revealed", 30, "old"), row("d", "preexisting", 12), row("e", None, 14),
        )
    }  # fmt: skip
    labels: list[dict[str, Any]] = [
        {"state_id": "a", "verdict": "mistake"},
        {"state_id": "b", "verdict": "revealed", "culprit": "earlier"},
        {"state_id": "c", "verdict": "revealed", "culprit": 4},
        {"state_id": "d", "verdict": "unclear"},
        {"state_id": "e", "verdict": "not_an_error"},
    ]
    found = scores([(label, states[label["state_id"]]) for label in labels], states)
    assert found.accuracy == Share(4, 5)
    assert found.three_classes == Share(5, 5)
    assert (found.precision_mistake, found.precision_revealed) == (Share(1, 1), Share(2, 2))
    assert (found.culprit_right, found.visible_found) == (Share(1, 2), Share(0, 1))
    assert found.hints_stand == Share(2, 3)
    assert str(found.culprit_right) == "0.500 (1 of 2)"


def test_the_last_label_of_a_state_counts(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    rows = [{"state_id": "a", "verdict": v} for v in ("mistake", "revealed")]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_labels(path) == [{"state_id": "a", "verdict": "revealed"}]


def test_a_line_that_is_no_label_is_named(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    path.write_text('{"state_id": "a", "verdict": "maybe"}\n')
    with pytest.raises(InputError, match=r"labels.jsonl:1: a label needs a state_id and a verdict"):
        read_labels(path)
    with pytest.raises(InputError, match="no such file"):
        read_labels(tmp_path / "none")
