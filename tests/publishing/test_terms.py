"""Which answers are in the dataset, by the training terms of who gave them."""

from typing import Any

import pytest

from composer_pipeline.dataset.build import build_dataset
from composer_pipeline.dataset.consent import AGENT
from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences.rules import PreferenceRules
from tests.publishing.test_dataset import DAY, add_session, bash, normalise, plain


def answer(lake: Lake, teacher: str, terms: str | None, command: str = "", **changes: Any) -> None:
    """Give all answers of a teacher other terms, and another command where one is named."""
    rows = plain(lake, "replies", teacher=teacher, day=DAY)
    if command:
        changes["action"] = bash(command).to_json()
    changed = [{**row, "training_terms": terms, **changes} for row in rows]
    lake.write("replies", changed, teacher=teacher, day=DAY)


@pytest.fixture
def lake(tmp_path: Any) -> Lake:
    """Two states; teachers one and two agree, teacher three answers something else."""
    lake = Lake(tmp_path / "lake")
    add_session(lake, "s0", DAY)
    rows = plain(lake, "replies", teacher="one", day=DAY)
    lake.write("replies", [{**row, "family": "f3", "model": "m/three"} for row in rows],
               teacher="three", day=DAY)  # fmt: skip
    answer(lake, "three", "enforced", "make all")
    return lake


def built(lake: Lake, **rules: Any) -> dict[str, int]:
    normalise(lake, DAY)
    return build_dataset(lake, rules=PreferenceRules.model_validate(rules)).drops


def test_each_answer_carries_model_licence_and_terms(lake: Lake) -> None:
    answer(lake, "two", "declared", licence="Apache-2.0")
    states = [{**row, "model": "claude-x"} for row in plain(lake, "states", day=DAY)]
    lake.write("states", states, day=DAY)
    assert built(lake) == {}
    pair = lake.rows("dataset_pairs")[0]
    assert pair["chosen_models"] == ["m/one", "m/two"]
    assert pair["chosen_licenses"] == ["MIT", "Apache-2.0"]
    assert pair["chosen_terms"] == ["enforced", "declared"]
    assert pair["rejected_model"] == "claude-x"
    group = lake.rows("dataset_groups")[0]
    assert group["sources"] == [AGENT, "one", "three", "two"]
    assert group["models"] == ["claude-x", "m/one", "m/three", "m/two"]
    assert group["licenses"] == ["", "MIT", "MIT", "Apache-2.0"]
    assert group["terms"] == [AGENT, "enforced", "enforced", "declared"]
    assert len(group["candidates"]) == 4
    assert {row["model"] for row in lake.rows("dataset_hints")} == {"claude-x"}


@pytest.mark.parametrize("terms", ["not enforced", None])
def test_a_loser_that_may_not_be_trained_on_leaves_the_group(lake: Lake, terms: str | None) -> None:
    answer(lake, "three", terms, licence="proprietary")
    assert built(lake) == {"terms": 4}, "two in groups, two in replies"
    groups = lake.rows("dataset_groups")
    assert [row["sources"] for row in groups] == [[AGENT, "one", "two"]] * 2
    assert all(len(row["candidates"]) == len(row["terms"]) == 3 for row in groups)
    assert "make all" not in str(groups)
    assert len(lake.rows("dataset_pairs")) == 2, "the answers that stand in a pair are others"
    drops = sorted(lake.rows("drops", stage="dataset"), key=lambda row: row["step"])
    assert [row["step"] for row in drops[2:]] == ["3:terms:dataset_replies:three"] * 2
    assert "m/three" not in {row["model"] for row in lake.rows("dataset_replies")}
    drop = drops[0]
    assert (drop["op"], drop["step"]) == ("terms", "3:terms:dataset_groups:three")
    assert (drop["stat"], drop["value"]) == ("m/three", terms or "unknown")
    assert drop["bound"] == "enforced, declared"


def test_a_winner_that_may_not_be_trained_on_takes_the_state_with_it(lake: Lake) -> None:
    answer(lake, "two", "not enforced")
    assert built(lake) == {"terms": 6}
    assert lake.rows("dataset_pairs") == lake.rows("dataset_groups") == []
    assert "m/two" not in {row["model"] for row in lake.rows("dataset_replies")}
    assert len(lake.rows("dataset_hints")) == 1, "what the agent did has no teacher"
    said = {(row["step"], row["field"]) for row in lake.rows("drops", stage="dataset")}
    assert said == {
        ("3:terms:dataset_pairs", "chosen"),
        ("3:terms:dataset_groups", "consensus"),
        ("3:terms:dataset_replies:two", "answer"),
    }


def test_terms_that_the_recipe_accepts(lake: Lake) -> None:
    answer(lake, "two", "not enforced")
    assert built(lake, terms={"accepted": ["enforced", "not enforced"]}) == {}
    assert lake.rows("dataset_pairs")[0]["chosen_terms"] == ["enforced", "not enforced"]


def test_a_pair_whose_replies_are_gone_is_left_out(lake: Lake) -> None:
    normalise(lake, DAY)
    lake.write("replies", [], teacher="two", day=DAY)
    assert build_dataset(lake).drops == {"terms": 2}
    assert lake.rows("dataset_pairs") == []


def test_a_model_with_two_teachers_has_the_looser_terms(lake: Lake) -> None:
    answer(lake, "two", "declared", model="m/one", licence="other")
    assert built(lake) == {}
    pair = lake.rows("dataset_pairs")[0]
    assert (pair["chosen_models"], pair["chosen_terms"]) == (["m/one"], ["declared"])
    assert pair["chosen_licenses"] == ["other"]


def test_words_of_the_recipe_are_checked() -> None:
    with pytest.raises(ValueError, match="accepted"):
        PreferenceRules.model_validate({"terms": {"accepted": []}})
    with pytest.raises(ValueError, match="accepted"):
        PreferenceRules.model_validate({"terms": {"accepted": ["anything"]}})
