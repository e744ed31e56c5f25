"""Every number and sentence of the card, against the data that it is about."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec import structs

from composer_pipeline.dataset.consent import Consent
from composer_pipeline.dataset.files import CONFIGS
from composer_pipeline.lake.schema import TABLES
from composer_pipeline.lake.store import Lake
from composer_pipeline.markdown import code, dollars, fenced, table
from composer_pipeline.preferences.quality import ALL
from composer_pipeline.preferences.vote_rows import CONFIRMED
from composer_pipeline.publishing.card import (
    card_files,
    facts_of,
    funnel,
    placeholders,
    size_category,
    votes_by_tool,
    with_history,
)
from composer_pipeline.versions import REDACTION_VERSION
from tests.publishing.made import dataset, made_card, pair


def line_of(text: str, start: str) -> list[str]:
    """Return the cells of the one line of a table that begins so."""
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {start} |")]
    return [cell.strip() for cell in line.strip("|").split(" | ")]


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


def test_the_front_matter_counts_pairs_and_names_every_file(tmp_path: Path) -> None:
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {
        ("pairs", "train"): [pair(pair_id=str(n)) for n in range(1_001)],
        ("pairs", "validation"): [pair()],
        ("replies", "train"): [{"teacher": "t", "model": "m"}] * 20_000,
    }
    front = yaml.safe_load(made_card(tmp_path, rows).split("---\n")[1])
    assert front["size_categories"] == ["1K<n<10K"]
    assert (front["license"], front["license_name"]) == ("other", "not-stated")
    assert front["configs"] == [
        {
            "config_name": "pairs",
            "default": True,
            "data_files": [
                {"split": "train", "path": "data/pairs/train.parquet"},
                {"split": "validation", "path": "data/pairs/validation.parquet"},
            ],
        },
        {
            "config_name": "replies",
            "data_files": [{"split": "train", "path": "data/replies/train.parquet"}],
        },
    ]
    counts = {
        (info["config_name"], split["name"]): split["num_examples"]
        for info in front["dataset_info"]
        for split in info["splits"]
    }
    assert counts == {key: len(mine) for key, mine in rows.items()}


def test_features_are_those_that_datasets_reads(tmp_path: Path) -> None:
    from datasets import Features

    row = pair(teacher="t", model="m")
    rows = {
        (config, "train"): [{k: v for k, v in row.items() if k in TABLES[name].schema.names}]
        for config, name in CONFIGS.items()
    }
    front = yaml.safe_load(made_card(tmp_path, rows).split("---\n")[1])
    for info in front["dataset_info"]:
        spec = TABLES[CONFIGS[info["config_name"]]]
        told = Features._from_yaml_list(info["features"])
        assert told == Features.from_arrow_schema(spec.schema.remove_metadata())
        assert list(told) == spec.schema.names


def test_rows_are_told_by_configuration_and_split(tmp_path: Path) -> None:
    rows = {("pairs", "train"): [pair()] * 3, ("pairs", "validation"): [pair()],
            ("hints", "train"): [{"model": "m"}] * 2}  # fmt: skip
    text = made_card(tmp_path, rows)
    assert line_of(text, "`pairs`")[-2:] == ["3", "1"]
    assert line_of(text, "`hints`")[-2:] == ["2", "0"]
    assert "`successes`" not in text.split("## Models")[0]
    assert text.count("4 preference pairs") == 1


def test_simulated_rows_are_counted_in_every_configuration(tmp_path: Path) -> None:
    rows = {
        ("pairs", "train"): [pair(simulated=True), pair(simulated=False)],
        ("groups", "train"): [{"state_id": "s", "simulated": False}],
        ("hints", "train"): [{"model": "m"}],
    }
    text = made_card(tmp_path, rows)
    assert "1 of 3 rows come from simulated teachers" in text
    assert "simulated" in yaml.safe_load(text.split("---\n")[1])["tags"]
    rows["pairs", "train"] = [pair(simulated=False)]
    text = made_card(tmp_path, rows)
    assert "Simulated" not in text
    assert "simulated" not in yaml.safe_load(text.split("---\n")[1])["tags"]


def test_days_sessions_and_repositories_are_counted_once(tmp_path: Path) -> None:
    rows = {
        ("pairs", "train"): [
            pair(day="2026-11-18", session_id="s", repository="r", agent="pi"),
            pair(day="2026-11-16", session_id="t", repository="r", agent="codex"),
        ],
        ("hints", "train"): [
            {"day": "2026-11-17", "session_id": "s", "repository": "q", "agent": "pi"}
        ],
    }
    text = made_card(tmp_path, rows)
    assert "Sessions of 2026-11-16 to 2026-11-18, from 2 repositories." in text
    sessions = "from 2 recorded sessions (1 of `codex`, 1 of `pi`)"
    assert f"2 preference pairs for coding agents, {sessions}" in text
    assert "year = {2026}" in text


def test_tiers_and_outcomes_are_counted_and_explained(tmp_path: Path) -> None:
    rows = {("pairs", "train"): [pair(outcome="student_bad"), pair(tier="silver"), pair()]}
    text = made_card(tmp_path, rows)
    assert line_of(text, "`gold`")[1:3] == ["2", "67%"]
    assert line_of(text, "`silver`")[1:3] == ["1", "33%"]
    assert line_of(text, "`student_bad`")[1] == "1"
    assert line_of(text, "`unknown`")[1] == "2"


def test_each_model_stands_with_its_licence_terms_and_counts(tmp_path: Path) -> None:
    reply = {"teacher": "qwen", "model": "qwen/q", "license": "apache-2.0", "terms": "enforced"}
    won = {"chosen_models": ["qwen/q", "qwen/q"], "chosen_licenses": ["apache-2.0"] * 2,
           "chosen_terms": ["enforced"] * 2, "rejected_model": "claude"}  # fmt: skip
    rows = {
        ("pairs", "train"): [pair(**won), pair(rejected_model="other")],
        ("groups", "train"): [{"sources": ["agent", "qwen"], "models": ["claude", "qwen/q"]}],
        ("hints", "train"): [{"model": "claude"}],
        ("successes", "validation"): [{"model": None}],
        ("replies", "train"): [
            {**reply, "cost_usd": 0.001, "completion_tokens": 10, "latency_ms": 2000.0},
            {**reply, "cost_usd": 0.002, "completion_tokens": 30, "latency_ms": 4000.0},
        ],
    }
    text = made_card(tmp_path, rows)
    assert line_of(text, "qwen | `qwen/q`")[2:] == ["apache-2.0", "`enforced`", "2", "1"]
    assert line_of(text, "qwen | 2")[2:] == ["20", "3", "$0.003", "$1.50"]
    assert "billed $0.003 in all" in text
    assert line_of(text, "`claude`")[1:] == ["1", "1", "1", "0", "0"]
    assert line_of(text, "`other`")[1:] == ["1", "0", "0", "0", "0"]
    assert line_of(text, "`not recorded`")[1:] == ["0", "0", "0", "1", "0"]


def test_models_of_pairs_are_told_where_no_reply_is_published(tmp_path: Path) -> None:
    won = pair(chosen_models=["m/x"], chosen_licenses=[""], chosen_terms=[None])
    text = made_card(tmp_path, {("pairs", "train"): [won]})
    assert line_of(text, "`m/x`")[1:] == ["not recorded", "`unknown`", "1"]


def test_lengths_are_sorted_into_classes_by_their_upper_ends(tmp_path: Path) -> None:
    tokens = [1, 1_024, 1_025, 8_192, 65_536, 65_537]
    rows = {("pairs", "train"): [pair(prompt_tokens=n) for n in tokens]}
    build, files = dataset(tmp_path, rows)
    found = card_files(Lake(tmp_path / "lake"), "a/b", build, files)
    text = found["README.md"].decode()
    assert line_of(text, "to 1,024")[1:] == ["2", "33%"]
    assert line_of(text, "to 2,048")[1:] == ["1", "50%"]
    assert line_of(text, "to 8,192")[1:] == ["1", "67%"]
    assert line_of(text, "to 65,536")[1:] == ["1", "83%"]
    assert line_of(text, "above 65,536")[1:] == ["1", "100%"]
    assert "assets/lengths.svg" in found
    assert "assets/lengths.svg" in text
    bare = card_files(
        Lake(tmp_path / "lake"), "a/b", *dataset(tmp_path, {("pairs", "train"): [pair()]})
    )
    assert "assets/lengths.svg" not in {*bare, bare["README.md"].decode()}
    assert "Lengths" not in bare["README.md"].decode()


def test_the_example_is_one_that_tells_something(tmp_path: Path) -> None:
    told = pair(
        pair_id="b", task="Fix ```it```", chosen_text="Read\n  a", rejected_text="x" * 900,
        tool_chosen="Read", tool_rejected="Bash", chosen_models=["m/x", "m/x", "m/y"],
        rejected_model="claude", turn=3, n_agree=2, n_families=4, outcome="student_bad",
    )  # fmt: skip
    same = {**told, "pair_id": "a", "tool_rejected": "Read", "task": "no"}
    silver = {**told, "pair_id": "c", "tier": "silver", "task": "neither"}
    held = {**told, "pair_id": "0", "task": "of validation", "rejected_text": "short"}
    rows = {("pairs", "train"): [same, told, silver], ("pairs", "validation"): [held]}
    text = made_card(tmp_path, rows)
    shown = text.split("## One pair")[1].split("## What")[0]
    assert "````text\nFix ```it```\n````" in shown
    assert "What `m/x`, `m/y` did" in shown
    assert f"{'x' * 700} …" in shown
    assert "2 of 4 families agree" in shown
    assert "turn 3" in shown


def filled(lake: Lake) -> None:
    """Write statistics, votes and messages for the parts that are read from the lake."""
    rows = [("rows", "states", 40.0), ("rows", "voted", 10.0), ("rows", "consensus", 8.0)]
    statistics = [
        {"statistic": name, "a": a, "b": "", "tool": "", "value": value, "n": 40, "note": ""}
        for name, a, value in rows
    ]
    statistics += [
        {"statistic": "separability_auc", "a": "", "b": "", "tool": "", "value": None, "n": 8,
         "note": "not measured: 8 pairs,\nfewer than 50"},
        {"statistic": "krippendorff_alpha", "a": "", "b": "", "tool": "", "value": 0.5,
         "n": 10, "note": ""},
        {"statistic": "resample_disagreement", "a": "", "b": "", "tool": "", "value": None,
         "n": 0, "note": "no control replies"},
    ]  # fmt: skip
    lake.write("preference_statistics", statistics, scope=ALL)
    ballots = [("Bash", 2, "pair"), ("Bash", 2, sorted(CONFIRMED)[0]), ("Bash", 1, "pair"),
               ("Edit", 3, "no_consensus"), ("Bash", 3, sorted(CONFIRMED)[-1])]  # fmt: skip
    votes = [
        {"state_id": str(n), "tool": tool, "n_families": families, "reason": reason}
        for n, (tool, families, reason) in enumerate(ballots)
    ]
    lake.write("votes", votes, day="2026-11-16")
    texts = ["[EMAIL_12ab] [SECRET_AWS_KEY_0000]", "[EMAIL_12ab] and [EMAIL_zz]", "[EMAIL_9999]"]
    messages = [
        {"hash": str(n), "json": text, "redactions": int(n < 2), "n": n}
        for n, text in enumerate(texts)
    ]
    lake.write("messages", messages, day="2026-11-16")
    lake.write("messages", messages, day="2026-11-17")


def test_what_the_lake_says_is_told_with_its_pictures(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    filled(lake)
    build, files = dataset(tmp_path, {("pairs", "train"): [pair(day="2026-11-16")] * 2})
    found = card_files(lake, "a/b", build, files)
    text = found["README.md"].decode()
    assert line_of(text, "states of the sessions")[1:] == ["40", "100%"]
    assert line_of(text, "with a consensus")[1:] == ["8", "20%"]
    assert line_of(text, "in this dataset")[1:] == ["2", "5%"]
    assert line_of(text, "`Bash`")[1:] == ["3", "67%", "33%", "0%"]
    assert line_of(text, "`Edit`")[1:] == ["1", "0%", "0%", "100%"]
    assert line_of(text, "Krippendorff's alpha of the teachers' votes")[1:3] == ["0.500", "10"]
    apart = line_of(text, "Separability")
    assert apart[1:3] == ["not measured: 8 pairs, fewer than 50", "-"]
    assert "above 0.7 a model may learn the style" in apart[3]
    assert line_of(text, "Noise floor")[1] == "not measured: no control replies"
    assert line_of(text, "Excess disagreement")[1] == "not measured: no data"
    assert f"Redaction rules (version {REDACTION_VERSION})" in text
    assert line_of(text, "`EMAIL`")[1] == "2"
    assert line_of(text, "`AWS_KEY`")[1] == "1"
    assert {"assets/funnel.svg", "assets/agreement.svg"} < found.keys()
    for path in re.findall(r"!\[[^]]*\]\((.*?)\)", text):
        assert found[path].startswith(b"<svg")


def test_votes_are_those_of_two_families_and_more(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    assert votes_by_tool(lake) == []
    assert placeholders(lake, ["2026-11-16"]) == {}
    filled(lake)
    found = {tool: rest for tool, *rest in votes_by_tool(lake)}
    assert found["Edit"] == [1, 0, 0]
    assert found["Bash"] == [3, 2, 1]
    assert placeholders(lake, []) == {}


def test_the_funnel_ends_with_what_is_published(tmp_path: Path) -> None:
    _, files = dataset(tmp_path, {("pairs", "train"): [pair()], ("pairs", "validation"): [pair()]})
    assert funnel(facts_of(files), {}) == {"in this dataset": 2}


def test_the_same_data_give_the_same_bytes(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    filled(lake)
    build, files = dataset(tmp_path, {("pairs", "train"): [pair(day="2026-11-16")]})
    first = card_files(lake, "a/b", build, files)
    assert card_files(lake, "a/b", build, files) == first
    assert str(tmp_path) not in first["README.md"].decode()


def test_markdown_keeps_its_form() -> None:
    assert table(["a"], [["x|y\nz"]]) == "| a |\n| --- |\n| x\\|y z |"
    assert fenced("a\n````\nb").startswith("`````text\n")
    assert code("a`b") == "``a`b``"
    assert [dollars(n) for n in (0, 0.000123, 0.1, 1234.5)] == [
        "$0.00", "$0.00012", "$0.10", "$1,234.50",
    ]  # fmt: skip


def test_without_consent_the_card_names_no_licence(tmp_path: Path) -> None:
    text = made_card(tmp_path, {("pairs", "train"): [pair()]})
    assert "No consent file came with this release" in text


def test_consent_is_told_with_licence_contact_and_models(tmp_path: Path) -> None:
    rows = {("pairs", "train"): [pair(rejected_model=m) for m in ("claude", "other", None)]}
    said = {
        "repositories": ["shop"], "license": "cc-by-4.0", "contact": "https://x.org/withdraw",
        "attested_by": "Mira Example", "agent_models": ["claude"],
    }  # fmt: skip
    text = made_card(tmp_path, rows, Consent.model_validate(said))
    assert yaml.safe_load(text.split("---\n")[1])["license"] == "cc-by-4.0"
    assert "Mira Example attests" in text
    assert "under `CC-BY-4.0`" in text
    assert "ask: https://x.org/withdraw" in text
    assert "words of `claude` was acknowledged" in text
    assert "Not acknowledged: `other`." in text
    own = {**said, "license": "other", "license_name": "Ours", "license_link": "https://x.org/l"}
    text = made_card(tmp_path, rows, Consent.model_validate(own))
    front = yaml.safe_load(text.split("---\n")[1])
    assert (front["license"], front["license_name"]) == ("other", "Ours")
    assert front["license_link"] == "https://x.org/l"
    assert "under [Ours](https://x.org/l)" in text


def test_versions_go_on_from_the_card_before(tmp_path: Path) -> None:
    rows = {("pairs", "train"): [pair(day="2026-11-16")]}
    first = made_card(tmp_path, rows)
    assert with_history(first, "") == first
    assert with_history(first, first) == first
    assert with_history(first, "a card of another hand") == first
    later = first.replace("b" * 16, "c" * 16).replace("2026.11.16", "2026.11.20")
    both = with_history(later, first)
    listed = [line for line in both.splitlines() if line.startswith("* **")]
    assert [line[4:14] for line in listed] == ["2026.11.20", "2026.11.16"]
    assert listed[1].endswith("build `bbbbbbbbbbbbbbbb`: 1 pairs")
    assert with_history(later, both) == both
    assert with_history("no list", first) == "no list"


def test_pairs_whose_terms_forbid_training_are_counted(tmp_path: Path) -> None:
    terms = ["enforced", "declared", "not enforced", None, "not enforced"]
    rows = {("pairs", "train"): [pair(training_terms=t) for t in terms]}
    text = made_card(tmp_path, rows)
    assert "3 of 5 pairs have a voter" in text
    assert "2 `not enforced`, 1 `unknown` (`training_terms`)" in text
    rows["pairs", "train"] = rows["pairs", "train"][:2]
    assert "**Training terms.**" not in made_card(tmp_path, rows)


@pytest.mark.parametrize("by", ["repository", "session"])
def test_the_split_is_told_with_its_overlap(tmp_path: Path, by: str) -> None:
    split = {"by": by, "repositories": 4, "groups": 17, "validation_rows": 8,
             "repository_in_train": 0.125, "verbatim_in_train": 0.5}  # fmt: skip
    figures = {"validation_share": 0.25, "split": split}
    build, files = dataset(tmp_path, {("pairs", "train"): [pair()]}, figures)
    text = card_files(Lake(tmp_path / "lake"), "a/b", build, files)["README.md"].decode()
    assert f"split by {by}, a group at a time: 17 groups from 4 repositories; 25%" in text
    assert ("one can be on both sides" in text) == (by == "session")
    assert line_of(text, "have a repository that is in train too")[1] == "12.5%"
    (verbatim,) = [line for line in text.splitlines() if "word for word in train" in line]
    assert verbatim.endswith("| 50.0% |")


def test_a_split_of_several_files_is_one_split(tmp_path: Path) -> None:
    rows = {("pairs", "train"): [pair(), pair()], ("hints", "train"): [{"model": "m"}]}
    build, files = dataset(tmp_path, rows)
    parts = [f"data/pairs/train-0000{n}-of-00002.parquet" for n in range(2)]
    (pairs, hints), (stored, others) = build.files, files
    build = structs.replace(
        build, files=[*(structs.replace(pairs, path=path) for path in parts), hints]
    )
    found = card_files(Lake(tmp_path / "lake"), "a/b", build, [stored, stored, others])
    front = yaml.safe_load(found["README.md"].decode().split("---\n")[1])
    (one,) = front["configs"][0]["data_files"]
    assert one == {"split": "train", "path": "data/pairs/train-*.parquet"}
    assert facts_of([stored, stored, others]).of("pairs") == 4
    (split,) = front["dataset_info"][0]["splits"]
    assert split["num_examples"] == 4
