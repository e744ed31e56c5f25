"""A model repository whose main follows the promoted versions, with tags for all of them."""

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.errors import InputError
from composer_pipeline.publishing.gates import PublishRefused
from composer_pipeline.publishing.publish import PublishReport, publish_model
from composer_pipeline.testing.hub.repository import Repo
from composer_pipeline.testing.hub.server import LoopbackHub
from tests.publishing.test_hub import Publisher

REPO = "someone/agent-nights"
WEIGHTS = "adapter_model.safetensors"


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    """Run folders of versions 0 to 3; the number is in the weights."""
    made = []
    for number in range(4):
        folder = tmp_path / f"run-{number}" / "checkpoint"
        folder.mkdir(parents=True)
        (folder / "README.md").write_text("---\nlibrary_name: peft\n---\n# demo\n")
        (folder / "composer.json").write_text(json.dumps({"simulated": {}, "steps": number}))
        (folder / WEIGHTS).write_bytes(b"%d" % number)
        made.append(folder.parent)
    return made


def send(hub: LoopbackHub, run: Path, *, promoted: bool, **options: Any) -> PublishReport:
    """Publish a version whose number is that of its run."""
    number = int(run.name[-1])
    return publish_model(
        run, REPO, version=number, promoted=promoted, endpoint=hub.endpoint, **options
    )


def held(repo: Repo) -> dict[str, int]:
    """Return the version that each branch and tag holds; 0 is none."""
    names = ["main", *repo.branches, *repo.tags]
    trees = {name: commit.files for name in names if (commit := repo.find(name))}
    return {name: int(files.get(WEIGHTS, b"0")) for name, files in trees.items()}


def test_main_follows_promotions_only(runs: list[Path], hub: LoopbackHub) -> None:
    report = send(hub, runs[1], promoted=False)
    repo = hub.models[REPO]
    assert held(repo) == {"main": 0, "refused": 1, "v1": 1}
    assert repo.private
    assert (report.tag, report.commit) == ("v1", repo.tags["v1"])
    report = send(hub, runs[2], promoted=True)
    assert held(repo) == {"main": 2, "refused": 1, "v1": 1, "v2": 2}
    assert report.commit == repo.head.oid == repo.tags["v2"]
    send(hub, runs[3], promoted=False)
    assert held(repo) == {"main": 2, "refused": 3, "v1": 1, "v2": 2, "v3": 3}
    every = deepcopy(repo)
    for run, promoted in ((runs[1], False), (runs[2], True), (runs[3], False)):
        report = send(hub, run, promoted=promoted)
        assert (report.changed, report.commit) == (0, repo.tags[report.tag])
    assert repo == every, "the same again"
    assert [commit.parent for commit in repo.commits[1:]] == [repo.commits[0].oid]


def test_refused_versions_start_at_main_and_follow_one_another(
    runs: list[Path], hub: LoopbackHub
) -> None:
    send(hub, runs[1], promoted=True)
    repo = hub.models[REPO]
    repo.add("by hand", {**repo.head.files, "NOTES.md": b"mine"})
    second, third = (send(hub, run, promoted=False).commit for run in runs[2:])
    assert [commit.oid for commit in repo.others] == [second, third]
    assert [commit.parent for commit in repo.others] == [repo.head.oid, second]
    assert repo.others[-1].files["NOTES.md"] == b"mine"


def test_back_to_an_earlier_version(runs: list[Path], hub: LoopbackHub) -> None:
    for run in runs[1:3]:
        send(hub, run, promoted=True)
    send(hub, runs[3], promoted=False)
    repo = hub.models[REPO]
    tags, before = dict(repo.tags), repo.head.oid
    report = send(hub, runs[1], promoted=True)
    assert held(repo) == {"main": 1, "refused": 3, "v1": 1, "v2": 2, "v3": 3}
    assert (repo.head.parent, repo.tags, report.commit) == (before, tags, repo.head.oid)
    send(hub, runs[3], promoted=True)
    assert (held(repo)["main"], repo.tags, len(repo.commits)) == (3, tags, 5)


def test_what_may_not_be_published_is_refused_for_both(runs: list[Path], hub: LoopbackHub) -> None:
    worse = json.dumps({"worse": ["easy states: -0.100 canonical matches"]})
    for run in runs:
        (run / "evaluation.json").write_text(worse)
    send(hub, runs[1], promoted=False)
    with pytest.raises(InputError, match="worse than its base"):
        send(hub, runs[2], promoted=True)
    send(hub, runs[2], promoted=True, allow_worse_than_base=True)
    folder = runs[3] / "checkpoint"
    (folder / "composer.json").write_text('{"simulated": {"dataset_pairs": 3}}')
    for promoted in (True, False):
        with pytest.raises(InputError, match="simulated teachers; allow_simulated"):
            send(hub, runs[3], promoted=promoted, allow_worse_than_base=True)
    (folder / "README.md").write_text("# demo\nby alice@somewhere-else.com\n")
    for promoted in (True, False):
        with pytest.raises(PublishRefused, match=r"^README\.md holds"):
            send(hub, runs[3], promoted=promoted, allow_worse_than_base=True)
    assert held(hub.models[REPO]) == {"main": 2, "refused": 1, "v1": 1, "v2": 2}


def test_a_number_stands_for_one_version(runs: list[Path], hub: LoopbackHub) -> None:
    with pytest.raises(InputError, match="version 0 is none"):
        send(hub, runs[0], promoted=False)
    assert hub.models == {}
    send(hub, runs[1], promoted=True)
    before = deepcopy(hub.models)
    (runs[1] / "checkpoint" / WEIGHTS).write_bytes(b"7")
    for promoted in (True, False):
        with pytest.raises(InputError, match=f"v1 of model {REPO} has other files"):
            send(hub, runs[1], promoted=promoted)
    hub.models[REPO].add("by hand", {"mine.txt": b""})
    for promoted in (True, False):
        with pytest.raises(InputError, match="that composer-pipeline did not publish"):
            send(hub, runs[2], promoted=promoted)
    assert hub.models[REPO].tags == before[REPO].tags
    assert hub.models[REPO].branches == {}


def test_a_dry_run_of_a_version_changes_nothing(runs: list[Path], hub: LoopbackHub) -> None:
    send(hub, runs[1], promoted=True)
    before = deepcopy(hub.models)
    report = send(hub, runs[2], promoted=False, dry_run=True)
    assert report.changes == {"composer.json": "replace", WEIGHTS: "replace"}
    assert hub.models == before


@pytest.mark.parametrize("fault", ["reset", "lost"])
def test_a_fault_that_passes_and_a_head_that_lags(
    runs: list[Path], hub: LoopbackHub, fault: Any
) -> None:
    hub.lag_s = 5.0
    hub.faults = [(kind, fault) for kind in ("create", "branch", "commit", "tag")]
    send(hub, runs[1], promoted=False)
    send(hub, runs[2], promoted=False)  # at once: who asks sees the commit before
    repo = hub.models[REPO]
    assert hub.faults == []
    assert held(repo) == {"main": 0, "refused": 2, "v1": 1, "v2": 2}
    assert len(repo.others) == 2


@pytest.fixture(scope="module")
def publisher() -> Iterator[Publisher]:
    publisher = Publisher(xet=False)
    with publisher.process as process:
        yield publisher
        process.communicate()


@pytest.mark.parametrize(
    ("before", "number", "how"),
    [([1], 2, "promoted"), ([1], 2, "refused"), ([1, 2], 1, "promoted")],
    ids=["promoted", "refused", "back"],
)
def test_killed_at_each_request_main_is_old_or_new(
    runs: list[Path], hub: LoopbackHub, publisher: Publisher, before: list[int], number: int,
    how: str,
) -> None:  # fmt: skip
    for earlier in before:
        send(hub, runs[earlier], promoted=True)
    old, new = before[-1], number if how == "promoted" else before[-1]
    saved = deepcopy((hub.models, hub.blobs))
    words = f"version {runs[number]} {REPO} {number} {how}"
    assert publisher.ended(hub, words)
    met = publisher.met[::2]  # each request twice: before it is carried out, and after
    assert len(met) > 10
    for at, kind in enumerate(met):
        hub.models, hub.blobs = deepcopy(saved)
        publisher.ended(hub, words, kind=kind, nth=met[: at + 1].count(kind))
        repo = hub.models[REPO]
        assert held(repo)["main"] in (old, new)
        send(hub, runs[number], promoted=how == "promoted")
        assert held(repo)["main"] == new
        assert held(repo)[f"v{number}"] == number
        assert held(repo).get("refused", number) == number
        assert len(repo.every) == len(saved[0][REPO].every) + 1, "one commit, whatever happened"
