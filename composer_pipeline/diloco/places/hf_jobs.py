"""Replicas as jobs of Hugging Face, which know the run's log and nothing else.

Belongs here: starting, watching, finding and cancelling them through ``huggingface_hub``'s own
client. Does not belong here: what is in the image (``docs/deploy.md``).

Held against ``huggingface_hub`` 2.4 on loopback (``tests.diloco.loopback_hf_jobs``); not run
against the paid service. Each job has the labels ``composer-run`` (a hash of log and run id),
``composer-slot`` and ``composer-attempt``, by which another supervisor finds it again. Secrets
are named in the recipe, read from the environment and sent as the job's secrets; keys are never
part of a command or a label.
"""

import logging
import os
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from huggingface_hub import HfApi, JobInfo

logger = logging.getLogger(__name__)

#: Stages in which a job has not ended.
RUNNING = ("SCHEDULING", "RUNNING", "UPDATING")
_REASONS = {
    401: "there is no valid token (hf auth login, or HF_TOKEN)",
    402: "the namespace has no credit",
    403: "the token may not start jobs there",
    404: "there is no such namespace, or jobs are not open to it",
    429: "too many requests; try again later",
}
#: How the service says a job's exit code. Not verified on the service.
_EXIT_CODE = re.compile(r"exit code:? *(\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class HfJobs:
    """Starts the replicas of a run as jobs.

    Attributes:
        url: of the run's log, a bucket.
        run_id: the run in it.
        namespace: user or organisation that pays.
        image: has a checkout of this project installed.
        flavor: hardware, by the service's name.
        timeout: of a job, as the service takes it (``6h``).
        model: folder of the base model in the image, where the run's model is a folder.
        secrets: variables of this environment that a job needs, such as the bucket's keys.
        look_s: seconds between two looks at a job.
    """

    url: str
    run_id: str
    namespace: str
    image: str
    flavor: str
    timeout: str
    model: str = ""
    secrets: tuple[str, ...] = ()
    look_s: float = LOOK_S
    _clients: list[Any] = field(default_factory=list, repr=False, compare=False)

    def launch(self, slot: int, attempt: int, env: Mapping[str, str]) -> "HfJob":
        """Start a job that joins the run as this attempt of the slot.

        Raises:
            InputError: a secret is not set, or the service refuses the job.
        """
        missing = [name for name in self.secrets if not os.environ.get(name)]
        if missing:
            raise InputError(
                f"diloco.place.secrets names {missing[0]}, which is not set in the environment"
            )
        command = replica_command(self.url, self.run_id, slot, attempt, self.model)
        labels = {**self._labels(slot), "composer-attempt": str(attempt)}
        with _refusals(f"start replica {slot} as a job of {self.namespace}"):
            info = self._api().run_job(
                image=self.image, command=command, flavor=self.flavor, timeout=self.timeout,
                secrets={name: os.environ[name] for name in self.secrets}, labels=labels,
                namespace=self.namespace,
            )  # fmt: skip
        logger.info("replica %d is job %s", slot, info.id)
        return HfJob(self._api(), info.id, self.namespace, self.look_s)

    def find(self, slot: int) -> "HfJob | None":
        """Return the newest running job of a slot, by its labels.

        Raises:
            InputError: the service refuses to list jobs.
        """
        with _refusals(f"list the jobs of {self.namespace}"):
            jobs = list(self._api().list_jobs(labels=self._labels(slot), namespace=self.namespace))
        running = [job for job in jobs if _stage(job) in RUNNING]
        if not running:
            return None
        newest = max(running, key=lambda job: int((job.labels or {})["composer-attempt"]))
        return HfJob(self._api(), newest.id, self.namespace, self.look_s)

    def _labels(self, slot: int) -> dict[str, str]:
        return {"composer-run": run_label(self.url, self.run_id), "composer-slot": str(slot)}

    def _api(self) -> "HfApi":
        """Return the client, made once: importing it takes a while."""
        if not self._clients:
            from huggingface_hub import HfApi

            self._clients.append(HfApi())
        client: HfApi = self._clients[0]
        return client


class HfJob(JobElsewhere):
    """A job of Hugging Face."""

    def __init__(self, api: "HfApi", job_id: str, namespace: str, look_s: float) -> None:
        super().__init__(look_s, _failures())
        self._api, self._id, self._namespace = api, job_id, namespace

    @property
    def id(self) -> str:
        """The service's name of it."""
        return self._id

    def said(self) -> str:
        """Return the last sentence of the job's output, as far as the service has it."""
        try:
            return sentence(
                self._api.fetch_job_logs(job_id=self.id, namespace=self._namespace, tail=TAIL_LINES)
            )
        except _failures() as error:
            return self.unread(error)

    def cancel(self) -> None:
        """Ask the service to cancel the job."""
        if self._code is None:
            try:
                self._api.cancel_job(job_id=self.id, namespace=self._namespace)
            except _failures() as error:
                self.goes_on(error)

    def _look(self) -> int | None:
        job = self._api.inspect_job(job_id=self.id, namespace=self._namespace)
        stage = _stage(job)
        if stage in RUNNING:
            return None
        if stage == "COMPLETED":
            return 0
        told = _EXIT_CODE.search(job.status.message or "")
        return int(told[1]) if stage == "ERROR" and told else LOST


def _stage(job: "JobInfo") -> str:
    """Return a job's stage, which a client that does not know it gives as text."""
    return str(getattr(job.status.stage, "value", job.status.stage))


def _failures() -> tuple[type[Exception], ...]:
    """Return what the client raises where the service refuses or cannot be reached."""
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

    return HTTPError, OSError


def _refusals(what: str) -> AbstractContextManager[None]:
    def why(error: Exception) -> str:
        status = getattr(getattr(error, "response", None), "status_code", None)
        return _REASONS.get(status, f"it answered {status}") if status else ""

    return refusals("Hugging Face Jobs", what, _failures(), why)
