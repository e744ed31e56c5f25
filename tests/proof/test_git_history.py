"""The planted history of the small world, through the product's stage to the dataset."""

import pytest

from composer_pipeline.exporting.columns import export
from examples.proof.toolworld.git_history import labels, look, make_dataset, plant
from examples.proof.toolworld.pipeline import Plan


@pytest.mark.parametrize("unseen", [1.0, 0.5])
def test_the_labels_are_the_planted_ones(tmp_path, unseen):
    planted = plant(Plan(seed=1, count=24), tmp_path, unseen=unseen)
    look(planted)
    make_dataset(planted.lake)
    found = labels(planted)
    assert len(found) == len(planted.kept) == 24  # every applied edit has a label
    assert all(row.label == row.planted for row in found)  # agreement 100 %
    assert {(row.planted, row.right) for row in found} >= {(True, True), (False, False)}
    assert export(planted.lake, "kto_git", tmp_path / "out").rows == 24


def test_git_takes_wrong_edits_from_the_successes(tmp_path):
    planted = plant(Plan(seed=2, count=40), tmp_path)

    def wrong_successes() -> set[str]:
        make_dataset(planted.lake)
        columns = ["state_id", "message_id"]
        of = {r["state_id"]: r["message_id"] for r in planted.lake.rows("states", columns=columns)}
        rows = planted.lake.iter_rows("dataset_successes", columns=["state_id"])
        found = {of[row["state_id"]] for row in rows}
        return {message for message, right in planted.right.items() if not right} & found

    assert any(not planted.kept[message] for message in wrong_successes())
    assert not labels(planted)  # before git is asked
    look(planted)
    assert all(planted.kept[message] for message in wrong_successes())
