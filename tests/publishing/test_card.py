"""The card's numbers and its front matter, from tables alone."""

from typing import Any

import pytest
import yaml

from composer_pipeline.lake import TABLES, table_from_rows
from composer_pipeline.publishing.card import card, simulated_rows, size_category


def pairs(*rows: dict[str, Any]) -> dict[tuple[str, str], Any]:
    """The train split of pairs, and nothing else."""
    made = [{"pair_id": str(n), "chosen_models": [], **row} for n, row in enumerate(rows)]
    return {("pairs", "train"): table_from_rows(TABLES["dataset_pairs"], made)}


@pytest.mark.parametrize(
    ("rows", "name"),
    [
        (0, "n<1K"),
        (999, "n<1K"),
        (1_000, "1K<n<10K"),
        (10_000, "10K<n<100K"),
        (999_999, "100K<n<1M"),
        (1_000_000, "1M<n<10M"),
    ],
)
def test_the_size_is_one_that_the_hub_knows(rows: int, name: str) -> None:
    assert size_category(rows) == name


def test_the_commonest_values_are_named_first() -> None:
    tools = [f"Tool{n:02}" for n in range(12)]
    made = [{"tool_chosen": name} for name in [*tools, "Bash", "Bash"]]
    lines = card("a/b", pairs(*made)).splitlines()
    listed = [line for line in lines if line.startswith("| tool of the chosen action")]
    assert len(listed) == 12
    assert listed[0] == "| tool of the chosen action | `Bash` | 2 |"
    assert not any("Tool11" in line for line in listed)


def test_days_are_told_from_the_first_to_the_last() -> None:
    text = card("a/b", pairs({"day": "2026-11-18"}, {"day": "2026-11-16"}))
    assert "Sessions of 2026-11-16 to 2026-11-18." in text


def test_a_split_without_rows_has_no_file() -> None:
    front = yaml.safe_load(card("a/b", pairs({})).split("---\n")[1])
    (config,) = front["configs"]
    assert [file["split"] for file in config["data_files"]] == ["train"]


def test_simulated_rows_are_counted_in_every_table() -> None:
    tables = pairs({"simulated": True}, {"simulated": False})
    group = {"state_id": "s", "simulated": False}
    tables["groups", "train"] = table_from_rows(TABLES["dataset_groups"], [group])
    assert simulated_rows(tables) == (1, 3)


def test_agreement_is_a_share_and_what_is_missing_says_why() -> None:
    def row(statistic: str, value: float | None, a: str = "", note: str = "") -> dict[str, Any]:
        return {"statistic": statistic, "a": a, "b": "", "tool": "", "value": value, "n": 8,
                "note": note}  # fmt: skip

    found = [
        row("rows", 8.0, "voted"),
        row("rows", 2.0, "consensus"),
        row("separability_auc", None, note="not measured: 8 pairs,\nfewer than 50"),
        row("resample_disagreement", None, note="no control replies"),
    ]
    lines = card("a/b", pairs({}), found).splitlines()
    (agreement,) = [line for line in lines if line.startswith("| agreement: states")]
    assert agreement.endswith("| 0.250 | 8 |")
    (apart,) = [line for line in lines if line.startswith("| separability")]
    assert apart.endswith("| not measured: 8 pairs, fewer than 50 | - |")
    (noise,) = [line for line in lines if line.startswith("| noise floor")]
    assert noise.endswith("| not measured: no control replies | - |")
    (alpha,) = [line for line in lines if line.startswith("| Krippendorff")]
    assert alpha.endswith("| not measured: no data | - |")
