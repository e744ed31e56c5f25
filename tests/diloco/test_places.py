"""Replicas as jobs of a service: the unmodified client against a loopback that runs the command."""

from typing import Any

import pytest

from composer_pipeline.diloco.log import OuterLog
from composer_pipeline.diloco.places import job as elsewhere
from composer_pipeline.diloco.places.hf_jobs import HfJobs
from composer_pipeline.diloco.places.job import LOST
from composer_pipeline.diloco.places.local import LocalCommand, ReplicaCommand
from composer_pipeline.diloco.slots import claims
from composer_pipeline.diloco.supervisor import ReplicasFailed
from composer_pipeline.errors import InputError
from tests.diloco.loopback_hf_jobs import LoopbackHfJobs
from tests.diloco.remote import Scripted, ended, image, supervisor
from tests.fixtures.waiting import wait_until

TOKEN, KEY = "hf_of-the-supervisor", "key-of-the-bucket"


class Service(Scripted, LoopbackHfJobs):
    """The service with a test's image."""


@pytest.fixture
def service(tmp_path, monkeypatch):
    monkeypatch.setenv("BUCKET_KEY", KEY)
    with Service(token=TOKEN, cwd=image(tmp_path), folder=tmp_path) as jobs:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", jobs.endpoint)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield jobs


def place(tmp_path, **changes) -> HfJobs:
    options: dict[str, Any] = {
        "namespace": "us", "image": "our/image", "flavor": "a100-large", "timeout": "2h",
        "secrets": ("BUCKET_KEY",), "look_s": 0.0, "url": str(tmp_path / "outer"), "run_id": "run",
    }  # fmt: skip
    return HfJobs(**(options | changes))


def test_a_job_joins_the_log_as_its_slot_and_attempt_with_the_secrets_alone(service, tmp_path):
    service.script(
        "import os, sys\nprint(*sys.argv[1:])\nprint('the key', os.environ['BUCKET_KEY'])\n"
        "print('others', 'HF_TOKEN' in os.environ, 'COMPOSER_DILOCO_URL' in os.environ)"
    )
    job = place(tmp_path, model="/models/m").launch(3, 2, {"COMPOSER_DILOCO_URL": "x"})
    assert ended(job) == 0
    said = service.log(job.id).read_text().splitlines()
    assert said[0] == f"--log {tmp_path}/outer --run-id run --slot 3 --attempt 2 --model /models/m"
    assert said[1:] == [f"the key {KEY}", "others False False"]
    spec = service.specs[job.id]
    assert (spec["namespace"], spec["dockerImage"], spec["flavor"]) == (
        "us", "our/image", "a100-large"
    )  # fmt: skip
    assert spec["timeoutSeconds"] == 7200
    assert spec["labels"].keys() == {"composer-run", "composer-slot", "composer-attempt"} | (
        spec["labels"].keys() & {"name"}
    )
    shown = str([spec["command"], spec["labels"], spec["environment"]])
    assert KEY not in shown
    assert TOKEN not in shown


def test_a_replica_that_was_given_bad_input_ends_the_run_with_its_sentence(service, tmp_path):
    service.script("print('error: channel sdpo is dead'); raise SystemExit(2)")
    with pytest.raises(InputError) as failure:
        supervisor(tmp_path, place(tmp_path), max_restarts=5).run()
    assert str(failure.value) == "channel sdpo is dead (replica 0)"
    assert len(service.specs) == 1


def test_a_job_that_crashed_is_started_again_within_the_budget(service, tmp_path):
    service.script("print('error: no memory'); raise SystemExit(1)")
    with pytest.raises(ReplicasFailed, match="slot 0 ended with 1: no memory"):
        supervisor(tmp_path, place(tmp_path), max_restarts=1).run()
    attempts = [spec["labels"]["composer-attempt"] for spec in service.specs.values()]
    assert attempts == ["1", "2"]
    known = claims(OuterLog.open(str(tmp_path / "outer"), "run"))
    assert [(one.attempt, one.again) for one in known] == [(1, False), (2, True)]


def test_a_job_that_was_cancelled_by_hand_is_started_again(service, tmp_path):
    service.script("import time; time.sleep(600)")
    job = place(tmp_path).launch(0, 1, {})
    service.cancel(job.id)
    assert ended(job) == LOST
    assert place(tmp_path).find(0) is None


def test_another_supervisor_finds_the_running_job_and_starts_none(service, tmp_path):
    service.script("import time; time.sleep(600)")
    place(tmp_path).launch(0, 1, {})
    newest = place(tmp_path).launch(0, 2, {})
    place(tmp_path).launch(1, 3, {})
    place(tmp_path, run_id="another").launch(0, 9, {})
    found = place(tmp_path).find(0)
    assert found is not None
    assert found.id == newest.id
    with pytest.raises(ReplicasFailed, match="time is up"):
        supervisor(tmp_path, place(tmp_path), timeout_s=0.5).run()
    assert len(service.specs) == 4, "nothing was started beside it"
    # The end of the run ends the job that it watched.
    wait_until(lambda: service.processes[newest.id].poll() is not None, "the job is gone")
    assert newest.id in service.cancelled


def test_refusals_are_one_sentence_without_the_token(service, tmp_path, monkeypatch):
    monkeypatch.delenv("BUCKET_KEY")
    with pytest.raises(InputError, match=r"diloco.place.secrets names BUCKET_KEY, which is not"):
        place(tmp_path).launch(0, 1, {})
    monkeypatch.setenv("HF_TOKEN", "hf_wrong-token")
    said = "did not start replica 0 as a job of us: there is no valid token"
    with pytest.raises(InputError, match=said) as refused:
        place(tmp_path, secrets=()).launch(0, 1, {})
    assert "hf_wrong-token" not in str(refused.value)
    with pytest.raises(InputError, match="did not list the jobs of us"):
        place(tmp_path).find(0)


def test_a_service_that_is_away_for_a_while_loses_no_job(service, tmp_path, monkeypatch):
    service.script("import time; time.sleep(600)")
    job = place(tmp_path).launch(0, 1, {})
    assert job.poll() is None
    service.token = "another"  # every request is refused
    assert job.poll() is None
    service.token = TOKEN
    assert job.poll() is None
    service.token = "another"
    monkeypatch.setattr(elsewhere, "PATIENCE_S", 0.0)
    assert job.poll() == LOST
    assert "whose output cannot be read" in job.last_sentence()


def test_patience_begins_with_the_last_answer(monkeypatch):
    now, answers = [0.0], iter([None, OSError(), 3])

    class Job(elsewhere.JobElsewhere):
        id = "j"

        def _look(self):
            answer = next(answers)
            if isinstance(answer, OSError):
                raise answer
            return answer

        def _output(self):
            return ""

    monkeypatch.setattr("time.monotonic", lambda: now[0])
    job = Job(5.0, (OSError,))
    for at, code in ((299.0, None), (301.0, None), (598.0, None), (603.0, 3), (700.0, 3)):
        now[0] = at
        assert job.poll() == code
    lost = Job(5.0, (StopIteration,))
    now[0] += elsewhere.PATIENCE_S
    assert lost.poll() == LOST


def test_a_child_has_the_environment_of_its_command_and_what_it_is_told(tmp_path):
    command = ReplicaCommand(["sh", "-c", 'echo "$OWN $TOLD"; printf torn'], {"OWN": "device 1"})
    here = LocalCommand(command, tmp_path / "slot-0.log")
    job = here.launch(0, 1, {"TOLD": "slot 0"})
    assert ended(job) == 0
    assert job.lines() == ["device 1 slot 0"]
    job.close()
    again = here.launch(0, 2, {"TOLD": "again"})
    assert ended(again) == 0
    # Neither the first attempt's lines nor a line glued to what its end has torn.
    assert again.lines() == ["device 1 again"]
    again.close()
