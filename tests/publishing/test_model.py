"""Publishing a model through the unmodified huggingface_hub client, and reading it back."""

import json
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.publishing.gates import PublishRefused
from composer_pipeline.publishing.publish import PublishReport, publish_model
from composer_pipeline.testing.hub.repository import Repo
from composer_pipeline.testing.hub.server import LoopbackHub

REPO = "someone/agent-lora"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder with a checkpoint and merged weights, as the trainer leaves them."""
    run = tmp_path / "runs" / "demo-abc"
    common = {
        "README.md": b"---\nlibrary_name: peft\n---\n# demo\n",
        "composer.json": b'{"simulated": {"dataset_pairs": 0}}',
        "tokenizer.json": b'{"model": {"vocab": {"AKIAIOSFODNN7EXAMPLE": 1}}}',
        ".scratch": b"mine",
    }
    for folder, files in {
        "checkpoint": {"adapter_config.json": b"{}", "adapter_model.safetensors": b"adapter"},
        "merged": {"config.json": b"{}", "model.safetensors": b"whole"},
    }.items():
        (run / folder).mkdir(parents=True)
        for name, data in {**common, **files}.items():
            (run / folder / name).write_bytes(data)
    return run


def send(run: Path, hub: LoopbackHub, **options: Any) -> PublishReport:
    return publish_model(run, REPO, endpoint=hub.endpoint, **options)


def test_one_private_commit_and_then_none(run: Path, hub: LoopbackHub) -> None:
    report = send(run, hub)
    repo = hub.models[REPO]
    assert repo.private
    assert hub.repos == {}
    assert len(repo.commits) == 2, "the Hub's initial commit and ours"
    assert report.commit == repo.head.oid
    stored = {name: data for name, data in repo.head.files.items() if name != ".gitattributes"}
    assert report.files == sorted(stored)
    assert stored == {
        path.name: path.read_bytes()
        for path in (run / "checkpoint").iterdir()
        if path.name != ".scratch"
    }
    again = send(run, hub)
    assert (again.changed, again.commit, len(repo.commits)) == (0, report.commit, 2)


def test_merged_weights_take_the_adapters_place(run: Path, hub: LoopbackHub) -> None:
    send(run, hub)
    repo = hub.models[REPO]
    repo.add("by hand", {**repo.head.files, "NOTES.md": b"mine"})
    report = send(run / "merged", hub)
    assert report.changes == {
        "adapter_config.json": "delete",
        "adapter_model.safetensors": "delete",
        "config.json": "add",
        "model.safetensors": "add",
    }
    assert repo.head.files["NOTES.md"] == b"mine"
    assert repo.head.files["model.safetensors"] == b"whole"


def test_a_run_folder_stands_for_its_checkpoint(run: Path, hub: LoopbackHub) -> None:
    for name in ("README.md", "composer.json", "model.safetensors"):
        (run / name).write_bytes((run / "merged" / name).read_bytes())
    assert "adapter_model.safetensors" in send(run, hub).files


def test_it_reads_back_through_the_client(run: Path, hub: LoopbackHub, tmp_path: Path) -> None:
    from huggingface_hub import snapshot_download

    send(run, hub)
    folder = snapshot_download(
        REPO, endpoint=hub.endpoint, token=hub.token, cache_dir=tmp_path / "cache"
    )
    assert (Path(folder) / "adapter_model.safetensors").read_bytes() == b"adapter"


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("README.md", "# demo\nby alice@somewhere-else.com\n"),
        ("composer.json", json.dumps({"recipe": {"model": "/home/alice/models/tiny"}})),
        ("adapter_config.json", r'{"base": "\/home\/alice\/models\/tiny"}'),
        ("adapter_config.json", json.dumps({"token": "hf_" + "a1B2c3D4e5F6g7H8i9J0" * 2})),
    ],
)
def test_a_private_word_in_a_text_file_stops_it(
    run: Path, hub: LoopbackHub, file: str, text: str
) -> None:
    (run / "checkpoint" / file).write_text(text)
    with pytest.raises(PublishRefused, match=f"^{file} holds"):
        send(run, hub)
    assert hub.models == {}


def test_a_model_that_is_worse_than_its_base_is_not_published(run: Path, hub: LoopbackHub) -> None:
    found = {"worse": ["recovery states: -0.100 canonical matches"], "unknown": []}
    (run / "evaluation.json").write_text(json.dumps(found))
    for folder in (run, run / "checkpoint", run / "merged"):
        with pytest.raises(InputError, match=r"worse than its base on recovery .*--allow-worse"):
            send(folder, hub)
    assert hub.models == {}
    assert send(run, hub, allow_worse_than_base=True).commit
    (run / "evaluation.json").write_text(json.dumps({"worse": [], "unknown": ["easy states"]}))
    assert send(run / "merged", hub).commit


def test_what_it_asks_for(run: Path, hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> None:
    (run / "merged" / "composer.json").write_text('{"simulated": {"dataset_pairs": 3}}')
    with pytest.raises(InputError, match=r"3 rows .* simulated teachers; allow_simulated"):
        send(run / "merged", hub)
    assert send(run / "merged", hub, dry_run=True, allow_simulated=True).dry_run
    assert hub.models == {}
    (run / "merged" / "README.md").unlink()
    with pytest.raises(PublishRefused, match="not published without its card"):
        send(run / "merged", hub, allow_simulated=True)
    with pytest.raises(InputError, match="holds no finished training run"):
        send(run.parent, hub)
    with pytest.raises(InputError, match="is not OWNER/NAME"):
        publish_model(run, "demo")
    hub.models[REPO] = Repo(private=False)
    hub.models[REPO].add("initial commit", {})
    with pytest.raises(InputError, match=r"model someone/agent-lora is public"):
        send(run, hub)
    hub.faults = [("commit", 403)]
    with pytest.raises(ComposerError, match="model someone/agent-lora: the token may not write"):
        send(run, hub, private=False)
    assert len(hub.models[REPO].commits) == 1
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(InputError, match="HF_TOKEN holds no token"):
        send(run, hub)


def test_a_lost_upload_leaves_nothing_half(run: Path, hub: LoopbackHub) -> None:
    hub.faults = [("put", 500)] * 9
    with pytest.raises(ComposerError, match="model someone/agent-lora"):
        send(run, hub)
    assert len(hub.models[REPO].commits) == 1
    hub.faults = []
    send(run, hub)
    assert hub.models[REPO].head.files["adapter_model.safetensors"] == b"adapter"
