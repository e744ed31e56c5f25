"""One run on several machines: separate folders, and nothing shared but a bucket.

Three real processes: the command that begins the run and trains replica 0, and a replica in
another folder, which is killed with SIGKILL and started again.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
from safetensors.torch import load_file

from composer_pipeline.diloco.fragments import read_state
from composer_pipeline.diloco.inputs import read
from composer_pipeline.diloco.log import OuterLog
from composer_pipeline.diloco.slots import claims
from composer_pipeline.diloco.views import overview
from composer_pipeline.errors import InputError
from composer_pipeline.testing.training import tiny_recipe
from composer_pipeline.training.run import prepare, read_steps
from tests.diloco.buckets import bucket_settings
from tests.diloco.loopback_hf_jobs import LoopbackHfJobs
from tests.fixtures.waiting import DEADLINE_S, wait_until
from tests.places import ROOT
from trainers.common.outer_log import begin, take_up
from trainers.replica import join

pytestmark = pytest.mark.slow

SECRET = "a-secret-that-stays-here"
ROUNDS = 3


@pytest.fixture(scope="module")
def bucket():
    with bucket_settings("runs", secret=SECRET) as env, pytest.MonkeyPatch.context() as patch:
        for name, value in env.items():
            patch.setenv(name, value)
        yield "s3://runs/of/us"


@pytest.fixture(scope="module")
def recipe(tiny_model, bucket):
    return tiny_recipe(
        tiny_model, name="apart", optimizer="sgd", learning_rate=0.3,
        channels={"grpo": {"weight": 0}, "sdpo": {"weight": 0}, "dpo": {"pairs_per_step": 2}},
        data={"max_prompt_tokens": 200, "max_completion_tokens": 64, "max_tools_tokens": 0},
        diloco={
            "replicas": 2, "rounds": ROUNDS, "inner_steps": 2, "min_quorum": 2, "log": bucket,
            "run_id": "shared", "local_replicas": 1, "heartbeat_timeout_s": 5,
            "grace_s": DEADLINE_S, "join_timeout_s": DEADLINE_S,
        },
    )  # fmt: skip


def elsewhere(folder: Path, model: str, bucket: str, *options: str) -> subprocess.Popen[str]:
    """Start a replica that knows the bucket alone, in a folder of its own."""
    copy = folder / "my-model"
    if not copy.is_dir():
        shutil.copytree(model, copy)
    command = [sys.executable, "-m", "trainers.replica", "--log", bucket]
    command += ["--run-id", "shared", "--run-dir", str(folder / "work"), "--model", str(copy)]
    return subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True)


def test_two_machines_train_one_recipe_through_a_bucket(
    lake, recipe, tiny_model, bucket, tmp_path, score_here
) -> None:
    run = prepare(lake, recipe, tmp_path / "one")
    score_here(lake, run)
    here = subprocess.Popen(run.command, cwd=run.cwd, env=os.environ | run.env)
    log = OuterLog.open(bucket, "shared")
    there = first = None
    try:
        # It waits for the run to begin, takes the free slot, and dies once it has contributed.
        first = elsewhere(tmp_path / "two", tiny_model, bucket)
        wait_until(lambda: log.commit(1), "round 1 is committed")
        os.kill(first.pid, signal.SIGKILL)
        first.communicate()
        there = elsewhere(tmp_path / "two", tiny_model, bucket, "--slot", "1")
        said, _ = there.communicate(timeout=3 * DEADLINE_S)
        assert there.returncode == 0, said
        assert here.wait(timeout=3 * DEADLINE_S) == 0
    finally:
        for process in (here, first, there):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()

    # Every round is whole, and both machines ended with the same state.
    commits = log.commits()
    assert [[part.slot for part in c.included] for c in commits[1:]] == [[0, 1]] * ROUNDS
    assert [(one.slot, one.attempt) for one in claims(log)] == [(0, 1), (1, 1), (1, 2)]
    ends = [json.loads(line) for line in said.splitlines() if line.startswith('{"event": "commit"')]
    assert ends[-1]["state_sha"] == commits[-1].state_sha
    result = json.loads((run.run_dir / "composer.json").read_text())
    assert [c["state_sha"] for c in result["commits"]] == [c.state_sha for c in commits[1:]]
    theta, _ = read_state(bucket, "shared")
    saved = load_file(run.run_dir / "checkpoint" / "adapter_model.safetensors")
    assert {name.replace(".default", "") for name in theta} == saved.keys()

    # The other machine's steps came through the log, though it shares no disk.
    assert {slot for slot, _ in read_steps(run.run_dir)} == {0, 1}
    assert not list(run.run_dir.glob("replicas/slot-1*/*"))

    # Nothing in the bucket names a path or a credential of a machine.
    for entry in log.store.list(""):
        data = log.store.get(entry.key) or b""
        assert SECRET.encode() not in data, entry.key
        assert str(tmp_path).encode() not in data, entry.key
        assert tiny_model.encode() not in data, entry.key

    seen = overview(bucket, "shared")
    assert (seen.done, seen.rounds, seen.missing) == (ROUNDS, ROUNDS, [])
    assert [slot.attempts for slot in seen.slots] == [1, 2]

    # It is over for who comes late, and taken for who has another recipe, model or other rows.
    asked = {"log": bucket, "run_id": "shared", "slot": None, "wait_s": 0.0}
    assert join(Namespace(**asked, model=tiny_model)) is None
    with pytest.raises(InputError, match=r"trains the model folder 'tiny' .* --model"):
        join(Namespace(**asked, model=""))
    inputs = read(log)
    assert inputs is not None
    digest, model = inputs.identity["dataset"], {"model": {"digest": inputs.identity["model"]}}
    other = recipe.model_copy(update={"learning_rate": 0.1})
    said = (
        r"run shared in s3://runs/of/us was started with another {}; choose another diloco.run_id"
    )
    with pytest.raises(InputError, match=said.format("recipe")):
        begin(other, tmp_path, model, digest)
    with pytest.raises(InputError, match=said.format("dataset")):
        take_up(recipe, tmp_path, model, "other rows")
    with pytest.raises(InputError, match=said.format("model")):
        take_up(recipe, tmp_path, {"model": {"digest": "blake2b:ff"}}, digest)

    # A machine that lost its folder gets rows and scores back, and makes none anew.
    take_up(recipe, tmp_path / "lost", model, digest)
    for file in ("data/data.json", "data/pairs.arrow", "base/dpo.arrow"):
        assert (tmp_path / "lost" / file).read_bytes() == (run.run_dir / file).read_bytes()


def test_train_starts_replicas_as_jobs_and_starts_a_lost_one_again(
    lake, recipe, tiny_model, bucket, tmp_path
) -> None:
    """The same run where a service starts the other replica, through its own client."""
    keys = sorted(name for name in os.environ if name.startswith("AWS_"))
    there = {
        "kind": "hf-jobs", "namespace": "us", "image": "our/image", "model": tiny_model,
        "secrets": [*keys, "COMPOSER_CACHE"],
    }  # fmt: skip
    options = recipe.diloco.model_dump() | {"run_id": "jobs", "place": there}
    run = prepare(
        lake,
        type(recipe).model_validate({**recipe.model_dump(), "diloco": options}),
        tmp_path / "one",
    )
    log = OuterLog.open(bucket, "jobs")
    with LoopbackHfJobs(token="hf_t", cwd=ROOT, folder=tmp_path) as jobs:
        env = {
            **os.environ, **run.env, "HF_ENDPOINT": jobs.endpoint, "HF_TOKEN": "hf_t",
            "HF_HUB_OFFLINE": "0", "COMPOSER_CACHE": str(tmp_path / "cache"),
        }  # fmt: skip
        here = subprocess.Popen(run.command, cwd=run.cwd, env=env)
        try:
            wait_until(lambda: log.commit(1), "round 1 is committed")
            jobs.processes["job-0000"].kill()
            assert here.wait(timeout=3 * DEADLINE_S) == 0
        finally:
            if here.poll() is None:
                here.kill()
                here.wait()
    assert [[part.slot for part in c.included] for c in log.commits()[1:]] == [[0, 1]] * ROUNDS
    assert [(one.slot, one.attempt, one.again) for one in claims(log)] == [
        (0, 1, False), (1, 1, False), (1, 2, True)
    ]  # fmt: skip
    assert {slot for slot, _ in read_steps(run.run_dir)} == {0, 1}
    assert jobs.processes.keys() == {"job-0000", "job-0001"}
    assert jobs.info("job-0001")["status"]["stage"] == "COMPLETED"
