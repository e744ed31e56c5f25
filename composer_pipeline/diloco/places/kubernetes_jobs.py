"""Replicas as Jobs of a Kubernetes cluster, through the ``kubernetes`` client of ``dagster-k8s``.

Tested against ``kubernetes`` 36 on loopback; not run on a cluster. Keys never pass this process:
a Job takes its variables from a Secret of the cluster.
"""

import logging
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from composer_pipeline.diloco.places.job import (
    LOST,
    TAIL_LINES,
    JobElsewhere,
    PlaceElsewhere,
    by_status,
    refusals,
)
from composer_pipeline.errors import InputError

logger = logging.getLogger(__name__)

#: Seconds that the cluster keeps a finished Job, whose output may be read.
KEPT_S = 3600
_REASONS = {
    401: "the cluster does not know these credentials",
    403: "these credentials may not do that in the namespace",
    404: "there is no such namespace",
    422: "the cluster does not take the Job",
}


@dataclass(frozen=True)
class KubernetesJobs(PlaceElsewhere):
    """Starts the replicas of a run as Jobs; the fields are those of ``KubernetesPlace``."""

    namespace: str
    limits: Mapping[str, str] = field(default_factory=dict)
    secret: str = ""
    context: str = ""
    timeout_s: int | None = None

    def launch(self, slot: int, attempt: int, env: Mapping[str, str]) -> "KubernetesJob":
        """Start a Job that joins the run as this attempt of the slot."""
        container: dict[str, Any] = {
            "name": "replica",
            "image": self.image,
            "command": self.command(slot, attempt),
            "resources": {"limits": dict(self.limits)},
        }
        if self.secret:
            container["envFrom"] = [{"secretRef": {"name": self.secret}}]
        labels = self.labels(slot, attempt)
        job = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"generateName": "composer-replica-", "labels": labels},
            "spec": {
                # The supervisor restarts, and counts restarts.
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
        """Return the newest running Job of a slot, by its labels."""
        selector = ",".join(f"{name}={value}" for name, value in self.labels(slot).items())
        with _refusals(f"list the Jobs in namespace {self.namespace}"):
            jobs = self._batch().list_namespaced_job(self.namespace, label_selector=selector).items
        running = [job for job in jobs if not _ended(job) and not job.metadata.deletion_timestamp]
        if not running:
            return None
        return self._job(max(running, key=lambda j: int(j.metadata.labels["composer-attempt"])))

    def _job(self, job: Any) -> "KubernetesJob":
        return KubernetesJob(self._batch(), job.metadata.name, self.namespace, self.look_s)

    def _batch(self) -> Any:
        if not self._clients:
            try:
                from kubernetes import client, config
            except ModuleNotFoundError:
                raise InputError(
                    "diloco.place kubernetes needs the package kubernetes:"
                    " pip install 'composer-pipeline[deploy]'"
                ) from None
            inside = "KUBERNETES_SERVICE_HOST" in os.environ and "KUBECONFIG" not in os.environ
            try:
                if not self.context and inside:
                    own = client.Configuration()
                    config.load_incluster_config(client_configuration=own)
                    api = client.ApiClient(own)
                else:
                    # The client itself reads KUBECONFIG only when it is imported.
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
        self.id = name
        self._batch, self._namespace = batch, namespace
        self._core = client.CoreV1Api(batch.api_client)

    def cancel(self) -> None:
        """Ask the cluster to delete the Job; its pod gets SIGTERM and the usual grace."""
        self._delete(None)

    def kill(self) -> None:
        """Delete the Job and its pod without grace."""
        self._delete(0)

    def _output(self) -> str:
        pods = self._pods()
        if not pods:
            return f"job {self.id}, whose pod is gone"
        # Unread, because the client itself returns the repr of the text's bytes.
        response = self._core.read_namespaced_pod_log(
            pods[-1].metadata.name, self._namespace, tail_lines=TAIL_LINES, _preload_content=False
        )
        text: str = response.data.decode(errors="replace")
        return text

    def _delete(self, grace_s: int | None) -> None:
        with self.ending():
            try:
                for pod in self._pods() if grace_s is not None else ():
                    self._core.delete_namespaced_pod(
                        pod.metadata.name, self._namespace, grace_period_seconds=grace_s
                    )
                if self._code is None:
                    self._batch.delete_namespaced_job(
                        self.id, self._namespace, propagation_policy="Background"
                    )
            except _failures() as error:
                if getattr(error, "status", None) != 404:
                    raise

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


def _ended(job: Any) -> str | None:
    """Return ``Complete`` or ``Failed``, or ``None`` while a Job runs."""
    met = [c.type for c in job.status.conditions or [] if c.status == "True"]
    return next((kind for kind in met if kind in ("Complete", "Failed")), None)


def _exit_code(pods: list[Any]) -> int:
    """Return the exit code of the newest pod's container, negative for a signal."""
    for pod in reversed(pods):
        for container in pod.status.container_statuses or []:
            if container.state.terminated is not None:
                code = int(container.state.terminated.exit_code)
                return code if code < 128 else 128 - code
    return LOST


def _failures() -> tuple[type[Exception], ...]:
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    return ApiException, HTTPError, OSError


def _refusals(what: str) -> AbstractContextManager[None]:
    return refusals("the cluster", what, _failures(), lambda e: by_status(e, _REASONS))
