"""Replicas as sandboxes of Modal: the unmodified client against a loopback that runs them."""

import signal
from typing import Any

import pytest

from composer_pipeline.diloco.places import job
from composer_pipeline.diloco.places.job import LOST
from composer_pipeline.diloco.places.modal_sandboxes import ModalSandboxes
from composer_pipeline.diloco.supervisor import ReplicasFailed
from composer_pipeline.errors import InputError
from tests.diloco.loopback_modal_sandboxes import LoopbackModal
from tests.diloco.remote import Scripted, ended, image, supervisor
from tests.fixtures.waiting import wait_until

TOKEN, KEY = "as-of-the-supervisor", "key-of-the-bucket"
#: The client keeps its connection for the life of a process, and grpclib's server closes none.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


class Service(Scripted, LoopbackModal):
    """The service with a test's image."""


@pytest.fixture
def service(tmp_path, monkeypatch):
    with Service(
        token=TOKEN,
        cwd=image(tmp_path),
        folder=tmp_path,
        secrets={"bucket": {"BUCKET_KEY": KEY}},
    ) as found:
        monkeypatch.setenv("MODAL_SERVER_URL", found.url)
        monkeypatch.setenv("MODAL_TOKEN_ID", "ak-us")
        monkeypatch.setenv("MODAL_TOKEN_SECRET", TOKEN)
        # Each test has a server of its own.
        monkeypatch.setattr("modal.client._Client._client_from_env", None)
        yield found


def place(tmp_path, **changes) -> ModalSandboxes:
    options: dict[str, Any] = {
        "image": "our/image", "secret": "bucket", "look_s": 0.0, "gpu": "A100", "timeout_s": 7200,
        "url": str(tmp_path / "outer"), "run_id": "run",
    }  # fmt: skip
    return ModalSandboxes(**(options | changes))


def made(sandbox):
    wait_until(lambda: sandbox.id, "the sandbox is made")
    return sandbox


def test_a_sandbox_joins_the_log_as_its_slot_and_attempt_with_the_secret_alone(service, tmp_path):
    service.script(
        "import os, sys\nprint(*sys.argv[1:])\nprint('the key', os.environ['BUCKET_KEY'])\n"
        "print('others', 'MODAL_TOKEN_SECRET' in os.environ, 'COMPOSER_DILOCO_URL' in os.environ)"
    )
    one = place(tmp_path, model="/models/m").launch(3, 2, {"COMPOSER_DILOCO_URL": "x"})
    assert ended(one) == 0
    said = service.log(one.id).read_text().splitlines()
    assert said[0] == f"--log {tmp_path}/outer --run-id run --slot 3 --attempt 2 --model /models/m"
    assert said[1:] == [f"the key {KEY}", "others False False"]
    definition = service.sandboxes[one.id].definition
    assert service.images[definition.image_id] == "FROM our/image"
    assert definition.resources.gpu_config.gpu_type == "A100"
    assert definition.timeout_secs == 7200
    assert KEY not in str(definition)
    assert TOKEN not in str(definition)


def test_a_replica_that_was_given_bad_input_ends_the_run_with_its_sentence(service, tmp_path):
    service.script("print('error: channel sdpo is dead'); raise SystemExit(2)")
    with pytest.raises(InputError) as failure:
        supervisor(tmp_path, place(tmp_path), max_restarts=5).run()
    assert str(failure.value) == "channel sdpo is dead (replica 0)"
    assert len(service.sandboxes) == 1


def test_a_sandbox_that_crashed_is_started_again_within_the_budget(service, tmp_path):
    service.script("print('error: no memory'); raise SystemExit(1)")
    with pytest.raises(ReplicasFailed, match="slot 0 ended with 1: no memory"):
        supervisor(tmp_path, place(tmp_path), max_restarts=1).run()
    attempts = [one.tags["composer-attempt"] for one in service.sandboxes.values()]
    assert attempts == ["1", "2"]


def test_a_sandbox_that_was_terminated_by_hand_is_a_loss(service, tmp_path):
    service.script("import time; time.sleep(600)")
    one = made(place(tmp_path).launch(0, 1, {}))
    assert one.poll() is None
    service.sandboxes[one.id].terminated = True
    service.end(service.sandboxes[one.id], signal.SIGKILL)
    assert ended(one) == LOST
    assert place(tmp_path).find(0) is None


def test_another_supervisor_finds_the_running_sandbox_and_starts_none(service, tmp_path):
    service.script("import time; time.sleep(600)")
    newest = made(place(tmp_path).launch(0, 10, {}))
    made(place(tmp_path).launch(0, 9, {}))  # the service made it later
    made(place(tmp_path).launch(1, 11, {}))
    made(place(tmp_path, run_id="another").launch(0, 12, {}))
    found = place(tmp_path).find(0)
    assert found is not None
    assert found.id == newest.id
    with pytest.raises(ReplicasFailed, match="time is up"):
        supervisor(tmp_path, place(tmp_path), timeout_s=0.5).run()
    assert len(service.sandboxes) == 4, "nothing was started beside it"
    # The end of the run ends the sandbox that it watched.
    wait_until(lambda: service.sandboxes[newest.id].terminated, "it was terminated")


def test_a_service_without_room_is_a_loss_and_a_wrong_request_is_not_repeated(service, tmp_path):
    service.full = "RESOURCE_EXHAUSTED"
    one = place(tmp_path).launch(0, 1, {})
    assert ended(one) == LOST
    assert "Modal made no sandbox: ResourceExhaustedError" in one.last_sentence()
    service.full = "INVALID_ARGUMENT"
    wrong = place(tmp_path).launch(0, 2, {})
    assert ended(wrong) == 2
    assert not service.sandboxes


def test_a_sandbox_that_is_made_after_it_was_cancelled_is_terminated(service, tmp_path):
    service.script("import time; time.sleep(600)")
    one = place(tmp_path).launch(0, 1, {})
    one.cancel()
    wait_until(lambda: any(s.terminated for s in service.sandboxes.values()), "it was terminated")


def test_refusals_are_one_sentence_without_the_token(service, tmp_path, monkeypatch):
    with pytest.raises(InputError, match="did not start replica 0: the workspace has no such"):
        place(tmp_path, secret="none").launch(0, 1, {})
    monkeypatch.setattr("modal.client._Client._client_from_env", None)
    monkeypatch.setenv("MODAL_TOKEN_SECRET", "as-wrong-token")
    with pytest.raises(InputError, match="Modal did not start replica 0: there is no valid token"):
        place(tmp_path).launch(0, 1, {})
    with pytest.raises(InputError, match="Modal did not list its sandboxes") as refused:
        place(tmp_path).find(0)
    assert "as-wrong-token" not in str(refused.value)


def test_a_service_that_is_away_for_a_while_loses_no_sandbox(service, tmp_path, monkeypatch):
    service.script("import time; time.sleep(600)")
    one = made(place(tmp_path).launch(0, 1, {}))
    assert one.poll() is None
    service.token = "another"  # every request is refused
    assert one.poll() is None
    service.token = TOKEN
    assert one.poll() is None
    service.token = "another"
    monkeypatch.setattr(job, "PATIENCE_S", 0.0)
    assert one.poll() == LOST
    assert "whose output cannot be read" in one.last_sentence()
