"""Models on the Hub, through the real client against a Hub on the loopback."""

import json
import os
import subprocess
import sys

import pytest

from composer_pipeline.testing.hub.repository import Repo
from composer_pipeline.testing.hub.server import LoopbackHub
from tests.places import ROOT

SCRIPT = """
import json, sys
from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.training.models import resolve_adapter, resolve_model
from composer_pipeline.training.run import adapter_content, model_content
calls = {"model": model_content, "adapter": adapter_content, "fetch": resolve_model,
         "fetch adapter": resolve_adapter}
for what, name in json.loads(sys.argv[1]):
    try:
        found = calls[what](name)
        print(json.dumps(getattr(found, "digest", None) or str(found)))
    except ComposerError as error:
        print(json.dumps([isinstance(error, InputError), str(error)]))
"""


@pytest.fixture
def hub():
    with LoopbackHub() as hub:
        files = {"config.json": b"{}", "model.safetensors": b"w", "sub/big.safetensors": b"no"}
        for name, gated in {"org/open": False, "org/gated": True}.items():
            hub.models[name] = Repo(private=False, gated=gated)
            hub.models[name].add("first", files)
        hub.models["org/secret"] = Repo(private=True)
        hub.models["org/secret"].add("first", files)
        hub.models["org/lora"] = Repo(private=False)
        hub.models["org/lora"].add("first", {"adapter_config.json": b"{}"})
        yield hub


def ask(hub, tmp_path, *calls, **env):
    """Return what each call says, in a process that sees only the loopback Hub."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(calls)],
        env={k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING"))}
        | {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "hf"), "PYTHONPATH": str(ROOT)}
        | {"HF_HUB_DISABLE_XET": "1", "COMPOSER_CACHE": str(tmp_path / "cache")}
        | env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_hub_id_is_its_commit_and_a_new_commit_is_another(hub, tmp_path):
    repo = hub.models["org/open"]
    first = repo.head.oid
    said = ask(hub, tmp_path, ["model", "org/open"], ["fetch", "org/open"])
    assert said[0] == f"commit:{first}"
    folder = tmp_path / "hf" / "hub" / "models--org--open" / "snapshots" / first
    assert said[1] == str(folder)
    assert sorted(p.name for p in folder.iterdir()) == ["config.json", "model.safetensors"]
    second = repo.add("second", {**repo.head.files, "model.safetensors": b"other"}).oid
    assert ask(hub, tmp_path, ["model", "org/open"]) == [f"commit:{second}"]
    # Without a network the cache answers, with what it holds.
    offline = {"HF_HUB_OFFLINE": "1"}
    said = ask(hub, tmp_path, ["model", "org/open"], ["fetch", "org/open"], **offline)
    assert said == [f"commit:{first}", str(folder)]


def test_what_the_hub_refuses_is_one_sentence_with_the_remedy(hub, tmp_path):
    calls = [
        ["model", "org/none"],
        ["model", "org/secret"],
        ["model", "org/gated"],
        ["fetch", "org/gated"],
        ["fetch", "org/lora"],
        ["adapter", "org/none"],
        ["fetch adapter", "org/open"],
        ["model", "no such name"],
    ]
    said = ask(hub, tmp_path, *calls)
    assert all(bad and "\n" not in sentence for bad, sentence in said)
    sentences = [sentence for _, sentence in said]
    assert sentences[0].startswith("model 'org/none' is not on the Hub")
    assert "./org/none" in sentences[0]
    assert "HF_TOKEN" in sentences[1]
    assert "gated: accept its terms" in sentences[2]
    assert "gated: accept its terms" in sentences[3]
    assert "is an adapter" in sentences[4]
    assert sentences[5].startswith("start_from 'org/none' is not on the Hub")
    assert "holds no adapter" in sentences[6]
    assert "neither a folder nor a Hub id" in sentences[7]
    token = {"HF_TOKEN": hub.token}
    assert ask(hub, tmp_path, ["model", "org/secret"], **token)[0].startswith("commit:")


def test_a_hub_out_of_reach_and_an_empty_cache_are_said(hub, tmp_path):
    nobody = {"HF_ENDPOINT": "http://127.0.0.1:9"}
    [[bad, sentence]] = ask(hub, tmp_path, ["model", "org/open"], **nobody)
    assert bad
    assert "not in the Hugging Face cache, and the Hub cannot be reached" in sentence
