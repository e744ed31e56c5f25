"""Replicas as sandboxes of Modal, through Modal's own client.

Tested against ``modal`` 1.6.4 on loopback; not run against the paid service, whose protocol is
private. Keys never pass this process: a sandbox takes its variables from a Secret there.
"""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from composer_pipeline.diloco.places.job import LOST, JobElsewhere, PlaceElsewhere, refusals
from composer_pipeline.errors import InputError

#: The app of the sandboxes in the dashboard.
APP = "composer-pipeline"
#: The client's exit code of a terminated sandbox.
_TERMINATED = 137
_REASONS = {
    "AuthError": "there is no valid token (modal token new, or MODAL_TOKEN_ID and"
    " MODAL_TOKEN_SECRET)",
    "NotFoundError": "the workspace has no such Secret",
    "ConnectionError": "it cannot be reached",
}


@dataclass(frozen=True)
class ModalSandboxes(PlaceElsewhere):
    """Starts the replicas of a run as sandboxes; the fields are those of ``ModalPlace``.

    A sandbox without ``gpu`` would use another protocol.
    """

    gpu: str
    timeout_s: int
    secret: str = ""

    def launch(self, slot: int, attempt: int, env: Mapping[str, str]) -> "ModalSandbox":
        """Start a sandbox; returns before Modal has a machine, which may take many minutes."""
        with _refusals(f"start replica {slot}"):
            app, modal = self._app(), _client()
            secrets = [modal.Secret.from_name(self.secret)] if self.secret else []
            for secret in secrets:
                secret.hydrate()

        def create() -> Any:
            return modal.Sandbox.create(
                *self.command(slot, attempt), app=app,
                image=modal.Image.from_registry(self.image), gpu=self.gpu, timeout=self.timeout_s,
                secrets=secrets, tags=self.labels(slot, attempt),
            )  # fmt: skip

        pool = ThreadPoolExecutor(1, thread_name_prefix=f"modal-slot-{slot}")
        made = pool.submit(create)
        pool.shutdown(wait=False)
        return ModalSandbox(made, self.look_s)

    def find(self, slot: int) -> "ModalSandbox | None":
        """Return the newest running sandbox of a slot, by its tags."""
        with _refusals("list its sandboxes"):
            tags = self.labels(slot)
            found = list(_client().Sandbox.list(app_id=self._app().app_id, tags=tags))
            running = [one for one in found if one.poll() is None]
            attempts = {id(one): int(one.get_tags()["composer-attempt"]) for one in running}
        if not running:
            return None
        made: Future[Any] = Future()
        made.set_result(max(running, key=lambda one: attempts[id(one)]))
        return ModalSandbox(made, self.look_s)

    def _app(self) -> Any:
        if not self._clients:
            self._clients.append(_client().App.lookup(APP, create_if_missing=True))
        return self._clients[0]


class ModalSandbox(JobElsewhere):
    """A sandbox that is being made, runs or has ended."""

    def __init__(self, made: "Future[Any]", look_s: float) -> None:
        super().__init__(look_s, _failures())
        self._made = made
        made.add_done_callback(self._name)

    def cancel(self) -> None:
        """Ask the service to terminate it, now or once it is made; returns at once."""
        if self._code is None:
            self._made.add_done_callback(self._terminate)

    def _name(self, made: "Future[Any]") -> None:
        if made.exception() is None:
            self.id = str(made.result().object_id)

    def _terminate(self, made: "Future[Any]") -> None:
        if made.exception() is None:
            with self.ending():
                made.result().terminate()

    def _output(self) -> str:
        error = self._made.exception() if self._made.done() else None
        if error or not self._made.done():
            why = f"{type(error).__name__}: {error}" if error else "it is still being made"
            return f"Modal made no sandbox: {why}"
        sandbox = self._made.result()
        return f"{sandbox.stdout.read()}\n{sandbox.stderr.read()}"

    def _look(self) -> int | None:
        if not self._made.done():
            return None
        error = self._made.exception()
        if error is not None:
            # A lack of machines may pass; an invalid request stays invalid.
            return 2 if isinstance(error, _client().exception.InvalidError) else LOST
        code: int | None = self._made.result().poll()
        return LOST if code == _TERMINATED else code


def _client() -> Any:
    try:
        import modal
        import modal.exception
    except ModuleNotFoundError:
        raise InputError(
            "diloco.place modal needs the package modal: pip install 'composer-pipeline[modal]'"
        ) from None
    return modal


def _failures() -> tuple[type[Exception], ...]:
    return _client().exception.Error, OSError


def _refusals(what: str) -> AbstractContextManager[None]:
    return refusals("Modal", what, _failures(), lambda e: _REASONS.get(type(e).__name__, ""))
