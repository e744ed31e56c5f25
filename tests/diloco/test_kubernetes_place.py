"""Replicas as Jobs of a cluster: the unmodified client against a loopback that runs them."""

import signal
from typing import Any

import pytest

from composer_pipeline.diloco.places import job as elsewhere
from composer_pipeline.diloco.places.job import LOST
from composer_pipeline.diloco.places.kubernetes_jobs import KubernetesJobs
from composer_pipeline.diloco.supervisor import ReplicasFailed
from composer_pipeline.errors import InputError
from tests.diloco.loopback_kubernetes_jobs import LoopbackKubernetes
from tests.diloco.remote import Scripted, ended, image, supervisor
from tests.fixtures.waiting import wait_until

TOKEN, KEY = "token-of-the-supervisor", "key-of-the-bucket"


class Cluster(Scripted, LoopbackKubernetes):
    """The service with a test's image."""


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    secrets = {"bucket": {"BUCKET_KEY": KEY}}
    with Cluster(token=TOKEN, cwd=image(tmp_path), folder=tmp_path, secrets=secrets) as found:
        monkeypatch.setenv("KUBECONFIG", str(found.kubeconfig()))
        yield found


def place(tmp_path, **changes) -> KubernetesJobs:
    options: dict[str, Any] = {
        "namespace": "us", "image": "our/image", "secret": "bucket", "look_s": 0.0,
        "url": str(tmp_path / "outer"), "run_id": "run", "limits": {"nvidia.com/gpu": "1"},
    }  # fmt: skip
    return KubernetesJobs(**(options | changes))


def test_a_job_joins_the_log_as_its_slot_and_attempt_with_the_secret_alone(cluster, tmp_path):
    cluster.script(
        "import os, sys\nprint(*sys.argv[1:])\nprint('the key', os.environ['BUCKET_KEY'])\n"
        "print('others', 'KUBECONFIG' in os.environ, 'COMPOSER_DILOCO_URL' in os.environ)"
    )
    job = place(tmp_path, model="/models/m", timeout_s=7200).launch(
        3, 2, {"COMPOSER_DILOCO_URL": "x"}
    )
    assert ended(job) == 0
    said = cluster.log(job.id).read_text().splitlines()
    assert said[0] == f"--log {tmp_path}/outer --run-id run --slot 3 --attempt 2 --model /models/m"
    assert said[1:] == [f"the key {KEY}", "others False False"]
    manifest = cluster.jobs[job.id].manifest
    pod = manifest["spec"]["template"]["spec"]
    assert manifest["metadata"]["namespace"] == "us"
    assert manifest["spec"]["activeDeadlineSeconds"] == 7200
    # The supervisor counts restarts; a cluster that restarts too would spend them behind its back.
    assert (manifest["spec"]["backoffLimit"], pod["restartPolicy"]) == (0, "Never")
    (container,) = pod["containers"]
    assert container["image"] == "our/image"
    assert container["resources"] == {"limits": {"nvidia.com/gpu": "1"}}
    assert container["envFrom"] == [{"secretRef": {"name": "bucket"}}]
    assert KEY not in str(manifest)
    assert TOKEN not in str(manifest)


def test_a_replica_that_was_given_bad_input_ends_the_run_with_its_sentence(cluster, tmp_path):
    cluster.script("print('error: channel sdpo is dead'); raise SystemExit(2)")
    with pytest.raises(InputError) as failure:
        supervisor(tmp_path, place(tmp_path), max_restarts=5).run()
    assert str(failure.value) == "channel sdpo is dead (replica 0)"
    assert len(cluster.jobs) == 1


def test_a_job_that_crashed_is_started_again_within_the_budget(cluster, tmp_path):
    cluster.script("print('error: no memory'); raise SystemExit(1)")
    with pytest.raises(ReplicasFailed, match="slot 0 ended with 1: no memory"):
        supervisor(tmp_path, place(tmp_path), max_restarts=1).run()
    labels = [job.manifest["metadata"]["labels"] for job in cluster.jobs.values()]
    assert [one["composer-attempt"] for one in labels] == ["1", "2"]


def test_a_pod_that_was_killed_and_a_job_that_was_deleted_are_losses(cluster, tmp_path):
    cluster.script("import time; time.sleep(600)")
    killed, deleted = place(tmp_path).launch(0, 1, {}), place(tmp_path).launch(1, 2, {})
    assert (killed.poll(), deleted.poll()) == (None, None)
    cluster.end(killed.id)
    cluster.delete(deleted.id)
    assert ended(killed) == -signal.SIGKILL
    assert ended(deleted) == LOST
    assert place(tmp_path).find(0) is None
    assert place(tmp_path).find(1) is None
    assert deleted.last_sentence() == f"job {deleted.id}, whose pod is gone"


def test_another_supervisor_finds_the_running_job_and_starts_none(cluster, tmp_path):
    cluster.script("import time; time.sleep(600)")
    place(tmp_path).launch(0, 9, {})
    newest = place(tmp_path).launch(0, 10, {})
    place(tmp_path).launch(1, 11, {})
    place(tmp_path, run_id="another").launch(0, 12, {})
    found = place(tmp_path).find(0)
    assert found is not None
    assert found.id == newest.id
    with pytest.raises(ReplicasFailed, match="time is up"):
        supervisor(tmp_path, place(tmp_path), timeout_s=0.5).run()
    assert len(cluster.jobs) == 4, "nothing was started beside it"
    assert cluster.jobs[newest.id].deleted, "the end of the run ends what it watched"
    process = cluster.jobs[newest.id].process
    assert process is not None
    wait_until(lambda: process.poll() is not None, "the pod is gone")


def test_a_pod_that_will_not_go_is_ended_without_grace(cluster, tmp_path):
    cluster.script(
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('deaf', flush=True)\ntime.sleep(600)"
    )
    job = place(tmp_path).launch(0, 1, {})
    wait_until(lambda: cluster.log(job.id).read_text() == "deaf\n", "it no longer listens")
    process = cluster.jobs[job.id].process
    assert process is not None
    job.kill()
    wait_until(lambda: process.poll() is not None, "the pod is gone")
    assert process.poll() == -signal.SIGKILL
    assert ended(job) == LOST


def test_refusals_are_one_sentence_without_the_token(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig("wrong-token")))
    said = "the cluster did not start replica 0 as a Job in namespace us: the cluster does not know"
    with pytest.raises(InputError, match=said) as refused:
        place(tmp_path).launch(0, 1, {})
    assert "wrong-token" not in str(refused.value)
    with pytest.raises(InputError, match="did not list the Jobs in namespace us"):
        place(tmp_path).find(0)
    with pytest.raises(InputError, match=r"no cluster is known: .*elsewhere"):
        place(tmp_path, context="elsewhere").launch(0, 1, {})
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nothing"))
    with pytest.raises(InputError, match=r"diloco\.place kubernetes: no cluster is known"):
        place(tmp_path).launch(0, 1, {})


def test_a_cluster_that_is_away_for_a_while_loses_no_job(cluster, tmp_path, monkeypatch):
    cluster.script("import time; time.sleep(600)")
    job = place(tmp_path).launch(0, 1, {})
    assert job.poll() is None
    cluster.token = "another"  # every request is refused
    assert job.poll() is None
    cluster.token = TOKEN
    assert job.poll() is None
    cluster.token = "another"
    monkeypatch.setattr(elsewhere, "PATIENCE_S", 0.0)
    assert job.poll() == LOST
    assert "whose output cannot be read" in job.last_sentence()
