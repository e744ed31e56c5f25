"""Replicas as jobs of Hugging Face, through ``huggingface_hub``'s own client.

Tested against ``huggingface_hub`` 2.4 on loopback; not run against the paid service. Secrets are
named in the recipe, read from the environment and sent as the job's secrets; keys are never part
of a command or a label.
"""

import logging
import os
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from composer_pipeline.diloco.places.job import (
    LOST,
    TAIL_LINES,
    JobElsewhere,
    PlaceElsewhere,
    by_status,
    refusals,
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
#: How the service reports a job's exit code. Not verified on the service.
_EXIT_CODE = re.compile(r"exit code:? *(\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class HfJobs(PlaceElsewhere):
    """Starts the replicas of a run as jobs; the fields are those of ``HfJobsPlace`` in a recipe."""

    namespace: str
    flavor: str
    timeout: str
    secrets: tuple[str, ...] = ()

    def launch(self, slot: int, attempt: int, env: Mapping[str, str]) -> "HfJob":
        """Start a job that joins the run as this attempt of the slot."""
        missing = [name for name in self.secrets if not os.environ.get(name)]
        if missing:
            raise InputError(
                f"diloco.place.secrets names {missing[0]}, which is not set in the environment"
            )
        with _refusals(f"start replica {slot} as a job of {self.namespace}"):
            info = self._api().run_job(
                image=self.image, command=self.command(slot, attempt), flavor=self.flavor,
                timeout=self.timeout, secrets={name: os.environ[name] for name in self.secrets},
                labels=self.labels(slot, attempt), namespace=self.namespace,
            )  # fmt: skip
        logger.info("replica %d is job %s", slot, info.id)
        return HfJob(self._api(), info.id, self.namespace, self.look_s)

    def find(self, slot: int) -> "HfJob | None":
        """Return the newest running job of a slot, by its labels."""
        with _refusals(f"list the jobs of {self.namespace}"):
            jobs = list(self._api().list_jobs(labels=self.labels(slot), namespace=self.namespace))
        running = [job for job in jobs if _stage(job) in RUNNING]
        if not running:
            return None
        newest = max(running, key=lambda job: int((job.labels or {})["composer-attempt"]))
        return HfJob(self._api(), newest.id, self.namespace, self.look_s)

    def _api(self) -> "HfApi":
        if not self._clients:
            from huggingface_hub import HfApi

            self._clients.append(HfApi())
        client: HfApi = self._clients[0]
        return client


class HfJob(JobElsewhere):
    """A job of Hugging Face."""

    def __init__(self, api: "HfApi", job_id: str, namespace: str, look_s: float) -> None:
        super().__init__(look_s, _failures())
        self.id = job_id
        self._api, self._namespace = api, namespace

    def cancel(self) -> None:
        """Ask the service to cancel the job."""
        if self._code is None:
            with self.ending():
                self._api.cancel_job(job_id=self.id, namespace=self._namespace)

    def _output(self) -> str:
        lines = self._api.fetch_job_logs(job_id=self.id, namespace=self._namespace, tail=TAIL_LINES)
        return "\n".join(lines)

    def _look(self) -> int | None:
        job = self._api.inspect_job(job_id=self.id, namespace=self._namespace)
        stage = _stage(job)
        if stage in RUNNING:
            return None
        if stage == "COMPLETED":
            return 0
        code = _EXIT_CODE.search(job.status.message or "")
        return int(code[1]) if stage == "ERROR" and code else LOST


def _stage(job: "JobInfo") -> str:
    # The client gives a stage that it does not know as text.
    return str(getattr(job.status.stage, "value", job.status.stage))


def _failures() -> tuple[type[Exception], ...]:
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

    return HTTPError, OSError


def _refusals(what: str) -> AbstractContextManager[None]:
    return refusals("Hugging Face Jobs", what, _failures(), lambda e: by_status(e, _REASONS))
