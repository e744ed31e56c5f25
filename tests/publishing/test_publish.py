"""Publishing through the unmodified huggingface_hub client against a Hub on the loopback."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from composer_pipeline.dataset.manifest import inputs_of, read_build, write_manifest
from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.lake.schema import TABLES
from composer_pipeline.lake.store import Lake
from composer_pipeline.publishing.card import BEGIN
from composer_pipeline.publishing.gates import PublishRefused
from composer_pipeline.publishing.publish import publish
from composer_pipeline.testing.hub.repository import Repo
from composer_pipeline.testing.hub.server import LoopbackHub
from tests.places import ROOT
from tests.publishing.conftest import REPO, TOKEN, fill, row, send


def of_build(lake: Lake) -> dict[str, Any]:
    """Return the statistic that says which build the others are of."""
    return {"statistic": "build", "a": read_build(lake).id, "b": "", "tool": ""}


def consented(lake: Lake, *projects: str, models: str = "[agent]") -> Path:
    """Write a consent file beside the lake that allows these working directories."""
    sessions = [
        {"session_id": f"session-{split}", "agent_id": "", "project": f"/srv/{split}"}
        for split in ("train", "validation")
    ]
    lake.write("sessions", sessions, day="2026-11-16")
    file = Path(lake.root).parent / "consent.yaml"
    file.write_text(
        f"repositories: [{', '.join(projects)}]\nlicense: CC-BY-4.0\nattested_by: Mira Example\n"
        f"contact: https://example.org/withdraw\nagent_models: {models}\n"
    )
    write_manifest(lake, inputs_of(lake))
    return file


def test_one_private_commit_and_then_none(lake: Lake, hub: LoopbackHub) -> None:
    report = send(lake, hub)
    repo = hub.repos[REPO]
    assert repo.private
    assert len(repo.commits) == 2, "the Hub's initial commit and ours"
    assert report.commit == repo.head.oid
    assert report.changed == 7
    assert report.files == sorted(set(repo.head.files) - {".gitattributes"})
    for config, table in (("pairs", "dataset_pairs"), ("groups", "dataset_groups")):
        stored = repo.head.files[f"data/{config}/train.parquet"]
        assert stored == Path(lake.path(table, split="train")).read_bytes()

    again = send(lake, hub)
    assert (again.changed, again.commit, len(repo.commits)) == (0, report.commit, 2)
    manifest = json.loads(repo.head.files["manifest.json"])
    assert manifest["files"]["data/pairs/train.parquet"]["rows"] == 5


def test_a_card_that_holds_something_private_is_refused(lake: Lake, hub: LoopbackHub) -> None:
    note = "not measured: the judge's key was sk-" + "ant-api03-" + "aB3" * 12
    statistic = {"statistic": "separability_auc", "a": "", "b": "", "tool": "", "note": note}
    lake.write("preference_statistics", [statistic, of_build(lake)], scope="all")
    with pytest.raises(PublishRefused, match=r"README\.md holds ANTHROPIC_KEY"):
        send(lake, hub)
    assert REPO not in hub.repos


def test_only_what_changed_is_committed_and_stale_files_go(lake: Lake, hub: LoopbackHub) -> None:
    send(lake, hub)
    repo = hub.repos[REPO]
    repo.add("by hand", {**repo.head.files, "data/old/train.parquet": b"x", "NOTES.md": b"mine"})
    fill(lake, [row(i, "train") for i in range(4)], [row(9, "validation")])
    report = send(lake, hub)
    assert report.changes == {
        "README.md": "replace",
        "assets/funnel.svg": "replace",
        "data/groups/train.parquet": "replace",
        "data/old/train.parquet": "delete",
        "data/pairs/train.parquet": "replace",
        "manifest.json": "replace",
    }
    assert repo.head.files["NOTES.md"] == b"mine"
    assert "data/old/train.parquet" not in repo.head.files


def test_a_faster_publisher_is_412_and_the_plan_is_made_again(lake: Lake, hub: LoopbackHub) -> None:
    def faster(repo: Repo) -> None:
        hub.before_commit = None
        repo.add("faster", {**repo.head.files, "data/pairs/extra.parquet": b"theirs"})

    send(lake, hub)
    hub.before_commit = faster
    fill(lake, [row(i, "train") for i in range(4)], [row(9, "validation")])
    report = send(lake, hub)
    repo = hub.repos[REPO]
    assert [commit.message for commit in repo.commits][2:] == ["faster", "Publish 5 files"]
    assert report.changes["data/pairs/extra.parquet"] == "delete"
    assert hub.kinds.count("commit") == 3


def test_409_is_retried_and_given_up_after_two_minutes(lake: Lake, hub: LoopbackHub) -> None:
    hub.faults = [("commit", 409), ("commit", 409)]
    assert send(lake, hub).commit == hub.repos[REPO].head.oid
    fill(lake, [row(1, "train")], [])
    hub.faults = [("commit", 409)] * 9
    with pytest.raises(ComposerError, match="others kept committing, for 120 s; nothing is half"):
        send(lake, hub)
    assert len(hub.faults) == 1, "1, 2, 4, 8, 16, 30 and 30 seconds between eight attempts"
    assert len(hub.repos[REPO].commits) == 2


@pytest.mark.parametrize("kind", ["put", "batch", "commit"])
def test_a_failure_on_the_way_leaves_the_repository_as_it_was(
    lake: Lake, hub: LoopbackHub, kind: str
) -> None:
    hub.faults = [(kind, 403)]
    with pytest.raises(ComposerError, match="the token may not write there"):
        send(lake, hub)
    assert len(hub.repos[REPO].commits) == 1
    assert send(lake, hub).changed == 7


def test_dry_run_changes_nothing(
    lake: Lake, hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert send(lake, hub, dry_run=True).changed == 7
    assert hub.repos == {}
    send(lake, hub)
    assert send(lake, hub, dry_run=True).changed == 0
    assert not [r for r in hub.requests[-2:] if r[0] != "GET"]
    monkeypatch.delenv("HF_TOKEN")
    before = len(hub.requests)
    assert send(lake, hub, dry_run=True).changed == 7
    assert len(hub.requests) == before


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("prompt", [{"role": "user", "content": "key: AKIA1234567890ABCDEF"}]),
        (
            "tools",
            [{"function": {"parameters": {"deep": ["see /home/alice/notes.txt"]}}}],
        ),
        ("rejected_model", "mail alice.jones@company.io"),
    ],
)
def test_a_planted_secret_stops_everything(
    lake: Lake, hub: LoopbackHub, column: str, value: Any
) -> None:
    rows = [row(i, "train") for i in range(5)]
    rows[3][column] = value
    fill(lake, rows, [])
    where = rf"(pairs|groups)/train: row 3, session session-train, column {column} holds"
    with pytest.raises(PublishRefused, match=where) as caught:
        send(lake, hub)
    for secret in ("AKIA1234567890ABCDEF", "alice"):
        assert secret not in str(caught.value)
    assert hub.requests == []


def test_leaks_between_splits_and_equal_sides_are_refused(lake: Lake, hub: LoopbackHub) -> None:
    train = [row(1, "train")]
    for changes, words in (
        ({"group_id": "group-train"}, r"1 group\(s\) are in both splits"),
        ({"session_id": "session-train"}, r"1 session\(s\)"),
        ({"prompt": train[0]["prompt"]}, r"1 prompt\(s\)"),
        ({"rejected": row(9, "validation")["chosen"]}, "chosen equal to rejected"),
    ):
        fill(lake, train, [row(9, "validation", **changes)])
        with pytest.raises(PublishRefused, match=words):
            send(lake, hub)
    fill(lake, [row(1, "train"), row(1, "train")], [])
    with pytest.raises(PublishRefused, match="a pair_id occurs twice"):
        send(lake, hub)
    assert hub.requests == []


def test_simulated_rows_need_a_word_and_the_card_says_so(lake: Lake, hub: LoopbackHub) -> None:
    fill(lake, [row(1, "train", simulated=True)], [])
    with pytest.raises(InputError, match="2 of 2 rows come from simulated teachers"):
        send(lake, hub)
    send(lake, hub, allow_simulated=True)
    text = hub.repos[REPO].head.files["README.md"].decode()
    assert "> **Simulated.** 2 of 2 rows come from simulated teachers" in text


def test_the_card(lake: Lake, hub: LoopbackHub) -> None:
    send(lake, hub)
    text = hub.repos[REPO].head.files["README.md"].decode()
    front = yaml.safe_load(text.split("---\n")[1])
    assert [c["config_name"] for c in front["configs"]] == ["pairs", "groups"], "none without rows"
    assert front["configs"][0]["default"] is True
    assert front["size_categories"] == ["n<1K"]
    assert "imulated." not in text
    for name in TABLES["dataset_pairs"].schema.names:
        assert f"| `{name}` |" in text
    assert "| 5 | 1 |" in text, "rows of the splits"
    assert "| `x/one` | not recorded | `unknown` | 6 |" in text


def test_the_manifest_has_the_size_and_digest_of_each_file(lake: Lake, hub: LoopbackHub) -> None:
    send(lake, hub)
    files = hub.repos[REPO].head.files
    listed = json.loads(files["manifest.json"])["files"]
    ours = (".parquet", ".svg")
    assert set(listed) == {name for name in files if name.endswith(ours)}
    for name, entry in listed.items():
        assert entry["bytes"] == len(files[name])
        assert entry["sha256"] == hashlib.sha256(files[name]).hexdigest()


def test_groups_without_a_pair_are_no_dataset(lake: Lake, hub: LoopbackHub) -> None:
    for split in ("train", "validation"):
        lake.write("dataset_pairs", [], split=split)
    write_manifest(lake, inputs_of(lake))
    with pytest.raises(InputError, match="the dataset has no pair"):
        send(lake, hub)


@pytest.mark.parametrize("side", ["chosen", "rejected"])
def test_a_pair_with_an_empty_side_is_refused(lake: Lake, hub: LoopbackHub, side: str) -> None:
    fill(lake, [row(0, "train", **{side: []})], [])
    with pytest.raises(PublishRefused, match="pair p0 has an empty side"):
        send(lake, hub)


def test_a_dataset_that_is_not_one_build_is_refused(lake: Lake, hub: LoopbackHub) -> None:
    lake.write("dataset_pairs", [row(3, "train")], split="train")
    with pytest.raises(InputError, match="is not of the dataset's build"):
        send(lake, hub)
    lake.remove(Lake.BUILD)
    with pytest.raises(InputError, match="half built"):
        send(lake, hub)
    fill(lake, [row(3, "train")], [row(9, "validation")])
    stale = {"statistic": "build", "a": "another", "b": "", "tool": ""}
    lake.write("preference_statistics", [stale], scope="all")
    with pytest.raises(InputError, match="statistics are of another build"):
        send(lake, hub)
    assert hub.requests == []


@pytest.mark.parametrize("repo", ["name", "a/b/c", "/x", "a b/c", ""])
def test_a_bad_repository_name(lake: Lake, repo: str) -> None:
    with pytest.raises(InputError, match="is not OWNER/NAME"):
        publish(lake, repo)


def test_no_dataset_no_token_wrong_token(
    lake: Lake, hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="has no dataset; run composer-pipeline dataset"):
        send(Lake(tmp_path / "empty"), hub)
    with pytest.raises(InputError, match="the dataset has no pair"):
        send(fill(Lake(tmp_path / "none"), [], []), hub)
    monkeypatch.setenv("HF_TOKEN", "hf_wrong_and_secret")
    with pytest.raises(ComposerError, match="the token is not accepted") as caught:
        send(lake, hub)
    assert "hf_wrong" not in str(caught.value)
    with monkeypatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        with pytest.raises(InputError, match="HF_HUB_OFFLINE"):
            send(lake, hub)
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no token"))
    with pytest.raises(InputError, match="HF_TOKEN holds no token"):
        send(lake, hub)


def test_a_public_repository_is_refused_unless_asked_for(lake: Lake, hub: LoopbackHub) -> None:
    consented(lake, "train", "validation")
    send(lake, hub, private=False)
    assert hub.repos[REPO].private is False
    with pytest.raises(InputError, match="is public; private=False"):
        send(lake, hub)


def test_public_does_not_change_a_private_repository(lake: Lake, hub: LoopbackHub) -> None:
    consented(lake, "train", "validation")
    send(lake, hub)
    with pytest.raises(InputError, match=r"is private, and --public .* does not change that"):
        send(lake, hub, private=False)
    assert hub.repos[REPO].private
    assert "settings" not in hub.kinds


def test_somebody_elses_dataset_is_not_touched(lake: Lake, hub: LoopbackHub) -> None:
    for name, files in {
        "data": {"data/train.parquet": b"theirs"},
        "manifest": {"manifest.json": b'{"name": "an extension"}', "x.js": b"1"},
        "another": {"manifest.json": b'{"schema_version": 3, "files": ["x.js"]}', "x.js": b"1"},
        "list": {"manifest.json": b'["schema_version"]'},
        "damaged": {"manifest.json": b"{"},
    }.items():
        hub.repos[f"someone/{name}"] = repo = Repo(private=True)
        repo.add("theirs", files)
        for dry_run in (True, False):
            with pytest.raises(InputError, match="something that composer-pipeline did not publ"):
                publish(lake, f"someone/{name}", endpoint=hub.endpoint, dry_run=dry_run)
        assert len(repo.commits) == 1
    hub.repos[REPO] = repo = Repo(private=True)
    repo.add("made in the browser", {".gitattributes": b"", "README.md": b"---\nlicense: mit\n---"})
    assert send(lake, hub).changed == 7


def test_what_people_wrote_into_the_card_stays(lake: Lake, hub: LoopbackHub) -> None:
    send(lake, hub)
    repo = hub.repos[REPO]
    card = repo.head.files["README.md"].decode()
    theirs = card.replace(BEGIN, f"{BEGIN}\n## Notes\nAsk Ada, the maintainer.\n")
    repo.add("notes", {**repo.head.files, "README.md": theirs.encode()})
    assert send(lake, hub).changed == 0
    fill(lake, [row(i, "train") for i in range(4)], [row(9, "validation")])
    send(lake, hub)
    kept = repo.head.files["README.md"].decode()
    assert "Ask Ada, the maintainer." in kept
    assert "| 4 | 1 |" in kept, "the rest is generated again"
    planted = kept.replace("Ask Ada", "AKIA1234567890ABCDEF")
    repo.add("a key", {**repo.head.files, "README.md": planted.encode()})
    with pytest.raises(PublishRefused, match=r"README\.md"):
        send(lake, hub)


def test_the_tree_is_that_of_the_head(lake: Lake, hub: LoopbackHub) -> None:
    """Somebody commits the very files between the two questions: their commit is the answer."""
    send(lake, hub)
    repo = hub.repos[REPO]
    before = repo.commits[:]
    fill(lake, [row(i, "train") for i in range(4)], [row(9, "validation")])
    send(lake, hub)
    files = repo.head.files
    repo.commits[:] = before

    def faster(kind: str, when: str) -> None:
        if (kind, when) == ("tree", "before"):
            hub.watch = None
            repo.add("faster", files)

    hub.watch = faster
    report = send(lake, hub)
    assert (report.commit, repo.head.message) == (repo.head.oid, "faster")


def test_a_tag_has_the_day_of_the_latest_session(lake: Lake, hub: LoopbackHub) -> None:
    days = ["2026-11-16", "2026-11-20", "2026-11-18"]
    rows = [row(i, "train", day=day) for i, day in enumerate(days)]
    fill(lake, rows, [row(9, "validation")])
    assert send(lake, hub).tag.startswith("v2026.11.20-")


def test_rows_are_counted_on_both_sides_and_the_commit_is_named(
    lake: Lake, hub: LoopbackHub
) -> None:
    first = send(lake, hub)
    assert first.rows == {
        "pairs/train": 5, "pairs/validation": 1, "groups/train": 5, "groups/validation": 1,
    }  # fmt: skip
    assert first.added == first.rows
    assert first.tag.startswith("v2026.11.16-")
    assert hub.repos[REPO].tags == {first.tag: first.commit}
    assert first.url == f"{hub.endpoint}/datasets/{REPO}/tree/{first.commit}"
    kept = [row(i, "train") for i in range(2, 8)]
    fill(lake, [*kept, row(2, "train", pair_id="other")], [row(9, "validation")])
    plan = send(lake, hub, dry_run=True)
    assert (plan.added["pairs/train"], plan.removed["pairs/train"]) == (4, 2)
    assert plan.added["pairs/validation"] == plan.removed["pairs/validation"] == 0
    assert (plan.tag, hub.repos[REPO].head.oid) == ("", first.commit)
    second = send(lake, hub)
    assert (second.added, second.removed) == (plan.added, plan.removed)
    again = send(lake, hub)
    assert set(again.added.values()) == {0}
    assert (again.tag, again.rows) == (second.tag, second.rows)
    assert len(hub.repos[REPO].tags) == 2


@pytest.mark.parametrize(
    ("token", "words"),
    [
        ('"hf_x"', "environment variable HF_TOKEN holds a token with a character"),
        ("hf x", "environment variable HF_TOKEN holds a token with a character"),
        ("hf_\u200bx", "environment variable HF_TOKEN holds a token with a character"),
    ],
)
def test_a_token_with_stray_characters(
    lake: Lake, hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch, token: str, words: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(InputError, match=words) as caught:
        send(lake, hub)
    assert token not in str(caught.value)
    assert hub.requests == []


def test_a_line_end_behind_a_token_and_a_stored_login(
    lake: Lake, hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_TOKEN", f"{TOKEN}\n")
    assert send(lake, hub).changed == 7
    monkeypatch.delenv("HF_TOKEN")
    stored = tmp_path / "token"
    stored.write_text(TOKEN)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(stored))
    assert send(lake, hub).changed == 0


@pytest.mark.parametrize(
    ("role", "words"),
    [("read", "the token may not write"), ("pull-requests", "the token may only open pull requ")],
)
def test_a_token_that_may_not_write(
    lake: Lake, hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch, role: str, words: str
) -> None:
    send(lake, hub)
    fill(lake, [row(1, "train")], [row(9, "validation")])
    hub.tokens["hf_less"] = role
    monkeypatch.setenv("HF_TOKEN", "hf_less")
    with pytest.raises(ComposerError, match=words):
        send(lake, hub)
    assert len(hub.repos[REPO].commits) == 2
    with pytest.raises(ComposerError, match=words):
        publish(lake, "someone/new", endpoint=hub.endpoint)


def test_a_gated_a_renamed_and_a_taken_repository(lake: Lake, hub: LoopbackHub) -> None:
    send(lake, hub)
    repo = hub.repos[REPO]
    repo.gated = True
    with pytest.raises(ComposerError, match="it is gated, and the token's account has no access"):
        send(lake, hub)
    hub.moved = {"someone/former": REPO}
    with pytest.raises(InputError, match=f"someone/former is now called {REPO};"):
        publish(lake, "someone/former", endpoint=hub.endpoint)
    hub.hidden = {"other/taken"}
    with pytest.raises(ComposerError, match="its name is taken, and the token may not see it"):
        publish(lake, "other/taken", endpoint=hub.endpoint)
    assert hub.clock() < 20


LOAD = """
import json, os, sys
from datasets import load_dataset
out = {}
for config in ("pairs", "groups"):
    data = load_dataset(sys.argv[1], config, token=os.environ["TOKEN"])
    out[config] = {split: rows.num_rows for split, rows in data.items()}
    if config == "pairs":
        out["row"] = data["train"][0]
        stream = load_dataset(sys.argv[1], split="validation", streaming=True,
                              token=os.environ["TOKEN"])
        out["streamed"] = [r["pair_id"] for r in stream]
from composer_pipeline.publishing.commit import first_rows
out["first"] = first_rows(sys.argv[1], sys.argv[2])
print("RESULT" + json.dumps(out))
"""


def test_datasets_loads_what_was_published(lake: Lake, hub: LoopbackHub, tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    report = send(lake, hub)
    env = {
        **os.environ,
        "HF_ENDPOINT": hub.endpoint,
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_OFFLINE": "0",
        "HF_HOME": str(tmp_path / "hf"),
        "TOKEN": TOKEN,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", LOAD, REPO, report.commit],
        capture_output=True,
        text=True,
        timeout=600,
        env=env,
    )
    assert "RESULT" in done.stdout, done.stderr[-3000:]
    found = json.loads(done.stdout.split("RESULT")[1])
    assert found["pairs"] == {"train": 5, "validation": 1}
    assert found["groups"] == {"train": 5, "validation": 1}
    assert found["streamed"] == ["p9"]
    assert set(found["first"]) == set(report.rows)
    assert "chosen" in found["first"]["pairs/train"]
    assert found["row"] == {
        **dict.fromkeys(TABLES["dataset_pairs"].schema.names),
        **row(0, "train"),
    }


def test_the_card_counts_pairs_whose_terms_forbid_training(lake: Lake, hub: LoopbackHub) -> None:
    terms = ["enforced", "declared", "not enforced", None, "not enforced"]
    fill(lake, [row(i, "train", training_terms=t) for i, t in enumerate(terms)], [])
    send(lake, hub)
    text = hub.repos[REPO].head.files["README.md"].decode()
    (line,) = [line for line in text.splitlines() if "**Training terms.**" in line]
    assert "3 of 5 pairs have a voter" in line
    assert "2 `not enforced`, 1 `unknown`" in line
    fill(lake, [row(i, "train", training_terms=t) for i, t in enumerate(terms[:2])], [])
    send(lake, hub)
    assert "**Training terms.**" not in hub.repos[REPO].head.files["README.md"].decode()


def test_a_public_release_needs_the_second_scanner(
    lake: Lake, hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    consented(lake, "train", "validation")
    monkeypatch.setitem(sys.modules, "betterleaks", None)
    with pytest.raises(InputError, match="public release needs a second scanner"):
        send(lake, hub, private=False)
    assert hub.repos == {}
    assert send(lake, hub, private=True).commit


def test_what_the_second_scanner_finds_is_not_published(
    lake: Lake, hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    consented(lake, "train", "validation")

    def found(text: str) -> list[SimpleNamespace]:
        return [SimpleNamespace(secret=text[:12], rule_id="odd-key")]

    monkeypatch.setitem(sys.modules, "betterleaks", SimpleNamespace(scan_string=found))
    with pytest.raises(PublishRefused, match="ODD_KEY"):
        send(lake, hub, private=False)
    assert hub.repos == {}


def test_a_public_release_needs_consent_that_names_the_agents_models(
    lake: Lake, hub: LoopbackHub
) -> None:
    with pytest.raises(InputError, match=r"a public release needs consent\.yaml"):
        send(lake, hub, private=False)
    consented(lake, "train", "validation", models="[other]")
    with pytest.raises(InputError, match="agent_models: agent wrote part of the dataset"):
        send(lake, hub, private=False)
    file = consented(lake, "train", "validation")
    assert send(lake, hub, private=False).private is False
    file.unlink()
    with pytest.raises(InputError, match=r"nowhere\.yaml"):
        send(lake, hub, consent="nowhere.yaml")


def test_rows_that_nobody_consented_to_do_not_leave_a_private_release_either(
    lake: Lake, hub: LoopbackHub
) -> None:
    consented(lake, "validation", "train")
    send(lake, hub)
    consented(lake, "validation")
    with pytest.raises(PublishRefused, match="not among the repositories of the consent file"):
        send(lake, hub)


def test_what_is_left_for_review_is_counted_and_limited(lake: Lake, hub: LoopbackHub) -> None:
    """A token of an unknown vendor leaves in numbers only if somebody has raised the limit."""
    tokens = [f"vK3xQz8LpT2mWn6RbY{number}d" for number in range(10, 13)]
    train = [row(i, "train") for i in range(5)]
    for number, token in enumerate(tokens):
        train[number]["prompt"] = [{"role": "user", "content": f"x = '{token}'"}]
    fill(lake, train, [row(9, "validation")])
    with pytest.raises(PublishRefused, match=r"3 values are just below .*--max-review 2"):
        send(lake, hub, max_review=2)
    assert hub.repos == {}
    report = send(lake, hub)
    assert report.review == {"quoted": 3}
    card = hub.repos[REPO].head.files["README.md"].decode()
    assert "3 distinct values (`quoted` 3)" in card
    assert not any(token in card for token in tokens)
