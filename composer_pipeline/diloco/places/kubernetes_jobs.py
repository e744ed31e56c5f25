"""Replicas as Jobs of a Kubernetes cluster, which know the run's log and nothing else.

Belongs here: starting, watching, finding and deleting them through the ``kubernetes`` client that
``dagster-k8s`` brings. Does not belong here: what is in the image, and Dagster's own runs in a
cluster (``docs/deploy.md``).

Held against ``kubernetes`` 36 on loopback (``tests.diloco.loopback_kubernetes_jobs``); not run
on a cluster. Each Job has the labels ``composer-run`` (a hash of log and run id),
``composer-slot`` and ``composer-attempt``, by which another supervisor finds it again. Keys never
pass this process: a Job takes its variables from a Secret of the cluster.
"""

import logging
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from composer_pipeline.diloco.places.job import (
    LOOK_S,
    LOST,
    TAIL_LINES,
    JobElsewhere,
    refusals,
    replica_command,
    run_label,
    sentence,
)
from composer_pipeline.errors import InputError

logger = logging.getLogger(__name__)

#: Seconds that the cluster keeps a Job that has ended, for whoever wants to read its output.
KEPT_S = 3600
_REASONS = {
    401: "the cluster does not know these credentials",
    403: "these credentials may not do that in the namespace",
    404: "there is no such namespace",
    422: "the cluster does not take the Job",
}


@dataclass(frozen=True)
class KubernetesJobs:
    """Starts the replicas of a run as Jobs.

    Attributes:
        url: of the run's log, a bucket.
        run_id: the run in it.
        namespace: of the Jobs.
        image: has a checkout of this project installed.
        limits: resources of a replica, such as ``{"nvidia.com/gpu": "1"}``.
        secret: a Secret of the namespace whose entries become variables; empty: none.
        context: of the kubeconfig; empty: its current one, or inside a cluster that cluster.
        timeout_s: seconds after which the cluster ends a Job; ``None``: never.
        model: folder of the base model in the image, where the run's model is a folder.
        look_s: seconds between two looks at a Job.
    """

    url: str
    run_id: str
    namespace: str
    image: str
    limits: Mapping[str, str] = field(default_factory=dict)
    secret: str = ""
    context: str = ""
    timeout_s: int | None = None
    model: str = ""
    look_s: float = LOOK_S
    _clients: list[Any] = field(default_factory=list, repr=False, compare=False)

    def launch(self, slot: int, attempt: int, env: Mapping[str, str]) -> "KubernetesJob":
        """Start a Job that joins the run as this attempt of the slot.

        Raises:
            InputError: there is no cluster to talk to, or it refuses the Job.
        """
        container: dict[str, Any] = {
            "name": "replica",
            "image": self.image,
            "command": replica_command(self.url, self.run_id, slot, attempt, self.model),
            "resources": {"limits": dict(self.limits)},
        }
        if self.secret:
            container["envFrom"] = [{"secretRef": {"name": self.secret}}]
        labels = {**self._labels(slot), "composer-attempt": str(attempt)}
        job = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"generateName": "composer-replica-", "labels": labels},
            "spec": {
                # Starting again is the supervisor's, which counts it.
                "backoffLimit": 0,
                "ttlSecondsAfterFinished": KEPT_S,
                "activeDeadlineSeconds": self.timeout_s,
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {"restartPolicy": "Never", "containers": [container]},
                },
            },
        }
        with _refusals(f"start replica {slot} as a Job in namespace {self.namespace}"):
            made = self._batch().create_namespaced_job(self.namespace, job)
        logger.info("replica %d is Job %s", slot, made.metadata.name)
        return self._job(made)

    def find(self, slot: int) -> "KubernetesJob | None":
        """Return the newest running Job of a slot, by its labels.

        Raises:
            InputError: there is no cluster to talk to, or it refuses to list Jobs.
        """
        selector = ",".join(f"{name}={value}" for name, value in self._labels(slot).items())
        with _refusals(f"list the Jobs in namespace {self.namespace}"):
            jobs = self._batch().list_namespaced_job(self.namespace, label_selector=selector).items
        running = [job for job in jobs if not _ended(job) and not job.metadata.deletion_timestamp]
        if not running:
            return None
        return self._job(max(running, key=lambda j: int(j.metadata.labels["composer-attempt"])))

    def _labels(self, slot: int) -> dict[str, str]:
        return {"composer-run": run_label(self.url, self.run_id), "composer-slot": str(slot)}

    def _job(self, job: Any) -> "KubernetesJob":
        return KubernetesJob(self._batch(), job.metadata.name, self.namespace, self.look_s)

    def _batch(self) -> Any:
        """Return the client of Jobs, made once: importing it takes a while.

        Raises:
            InputError: neither a kubeconfig nor a cluster around this process.
        """
        if not self._clients:
            try:
                from kubernetes import client, config
            except ModuleNotFoundError:
                raise InputError(
                    "diloco.place kubernetes needs the package kubernetes:"
                    " pip install 'composer-pipeline[deploy]'"
                ) from None
            try:
                if not self.context and _inside_a_cluster():
                    own = client.Configuration()
                    config.load_incluster_config(client_configuration=own)
                    api = client.ApiClient(own)
                else:
                    # The client itself looks at KUBECONFIG only when it is imported.
                    file = os.environ.get("KUBECONFIG") or None
                    api = config.new_client_from_config(file, self.context or None)
            except config.ConfigException as error:
                raise InputError(f"diloco.place kubernetes: no cluster is known: {error}") from None
            self._clients.append(client.BatchV1Api(api))
        return self._clients[0]


class KubernetesJob(JobElsewhere):
    """A Job and its pod."""

    def __init__(self, batch: Any, name: str, namespace: str, look_s: float) -> None:
        from kubernetes import client

        super().__init__(look_s, _failures())
        self._batch, self._name, self._namespace = batch, name, namespace
        self._core = client.CoreV1Api(batch.api_client)

    @property
    def id(self) -> str:
        """The Job's name."""
        return self._name

    def said(self) -> str:
        """Return the last sentence of the pod's output, as far as the cluster has it."""
        try:
            pods = self._pods()
            if not pods:
                return f"job {self.id}, whose pod is gone"
            # Unread: what the client makes of a text by itself is the repr of its bytes.
            response = self._core.read_namespaced_pod_log(
                pods[-1].metadata.name, self._namespace, tail_lines=TAIL_LINES,
                _preload_content=False,
            )  # fmt: skip
            text = response.data.decode(errors="replace")
        except _failures() as error:
            return self.unread(error)
        return sentence(text.splitlines())

    def cancel(self) -> None:
        """Ask the cluster to delete the Job; its pod gets SIGTERM and the usual grace."""
        self._delete(None)

    def kill(self) -> None:
        """Delete the Job and its pod without grace."""
        self._delete(0)

    def _delete(self, grace_s: int | None) -> None:
        try:
            if grace_s is not None:
                for pod in self._pods():
                    self._core.delete_namespaced_pod(
                        pod.metadata.name, self._namespace, grace_period_seconds=grace_s
                    )
            if self._code is None:
                self._batch.delete_namespaced_job(
                    self.id, self._namespace, propagation_policy="Background"
                )
        except _failures() as error:
            if getattr(error, "status", None) != 404:
                self.goes_on(error)

    def _look(self) -> int | None:
        try:
            job = self._batch.read_namespaced_job_status(self.id, self._namespace)
        except _failures() as error:
            if getattr(error, "status", None) == 404:  # deleted by hand, or long over
                return LOST
            raise
        ended = _ended(job)
        if ended is None:
            return None
        return 0 if ended == "Complete" else _exit_code(self._pods())

    def _pods(self) -> list[Any]:
        found: list[Any] = self._core.list_namespaced_pod(
            self._namespace, label_selector=f"job-name={self.id}"
        ).items
        return found


def _inside_a_cluster() -> bool:
    """Return whether this process is a pod that no kubeconfig sends elsewhere."""
    return "KUBERNETES_SERVICE_HOST" in os.environ and "KUBECONFIG" not in os.environ


def _ended(job: Any) -> str | None:
    """Return ``Complete`` or ``Failed``, or ``None`` while a Job goes on."""
    said = [c.type for c in job.status.conditions or [] if c.status == "True"]
    return next((kind for kind in said if kind in ("Complete", "Failed")), None)


def _exit_code(pods: list[Any]) -> int:
    """Return how the newest pod's container ended; a signal, or no container at all, is a loss."""
    for pod in reversed(pods):
        for container in pod.status.container_statuses or []:
            if container.state.terminated is not None:
                code = int(container.state.terminated.exit_code)
                return code if code < 128 else 128 - code
    return LOST


def _failures() -> tuple[type[Exception], ...]:
    """Return what the client raises where the cluster refuses or cannot be reached."""
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    return ApiException, HTTPError, OSError


def _refusals(what: str) -> AbstractContextManager[None]:
    def why(error: Exception) -> str:
        status = getattr(error, "status", None)
        return _REASONS.get(status, f"it answered {status}") if status else ""

    return refusals("the cluster", what, _failures(), why)
