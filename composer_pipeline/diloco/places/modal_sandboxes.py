"""Replicas as sandboxes of Modal, which know the run's log and nothing else.

Belongs here: starting, watching, finding and terminating them through Modal's own client. Does not
belong here: what is in the image (``docs/deploy.md``).

Held against ``modal`` 1.6.4 on loopback (``tests.diloco.loopback_modal_sandboxes``); not run
against the paid service, whose protocol is private. Each sandbox has the tags ``composer-run`` (a
hash of log and run id), ``composer-slot`` and ``composer-attempt``, by which another supervisor
finds it again. Keys never pass this process: a sandbox takes its variables from a Secret there.
"""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from composer_pipeline.diloco.places.job import (
    LOOK_S,
    LOST,
    JobElsewhere,
    refusals,
    replica_command,
    run_label,
    sentence,
)
from composer_pipeline.errors import InputError

#: The app under which sandboxes stand in the dashboard.
APP = "composer-pipeline"
#: What the client says of a sandbox that was terminated.
_TERMINATED = 137


@dataclass(frozen=True)
class ModalSandboxes:
    """Starts the replicas of a run as sandboxes.

    Attributes:
        url: of the run's log, a bucket.
        run_id: the run in it.
        image: of a registry; has a checkout of this project installed.
        gpu: by Modal's name; a sandbox without one speaks another protocol.
        timeout_s: seconds after which Modal ends a sandbox, at most a day.
        secret: a Secret of the workspace whose entries become variables; empty: none.
        model: folder of the base model in the image, where the run's model is a folder.
        look_s: seconds between two looks at a sandbox.
    """

    url: str
    run_id: str
    image: str
    gpu: str
    timeout_s: int
    secret: str = ""
    model: str = ""
    look_s: float = LOOK_S
    _apps: list[Any] = field(default_factory=list, repr=False, compare=False)

    def launch(self, slot: int, attempt: int, env: Mapping[str, str]) -> "ModalSandbox":
        """Start a sandbox that joins the run as this attempt of the slot.

        Returns before Modal has a machine for it, which may take many minutes.

        Raises:
            InputError: the service refuses the credentials, the app or the Secret.
        """
        with _refusals(f"start replica {slot}"):
            app, modal = self._app(), _client()
            secrets = [modal.Secret.from_name(self.secret)] if self.secret else []
            for secret in secrets:
                secret.hydrate()
        command = replica_command(self.url, self.run_id, slot, attempt, self.model)
        tags = {**self._tags(slot), "composer-attempt": str(attempt)}

        def create() -> Any:
            return modal.Sandbox.create(
                *command, app=app, image=modal.Image.from_registry(self.image),
                gpu=self.gpu, timeout=self.timeout_s, secrets=secrets, tags=tags,
            )  # fmt: skip

        pool = ThreadPoolExecutor(1, thread_name_prefix=f"modal-slot-{slot}")
        made = pool.submit(create)
        pool.shutdown(wait=False)
        return ModalSandbox(made, self.look_s)

    def find(self, slot: int) -> "ModalSandbox | None":
        """Return the newest running sandbox of a slot, by its tags.

        Raises:
            InputError: the service refuses to list sandboxes.
        """
        with _refusals("list its sandboxes"):
            found = list(_client().Sandbox.list(app_id=self._app().app_id, tags=self._tags(slot)))
            running = [one for one in found if one.poll() is None]
            attempts = {id(one): int(one.get_tags()["composer-attempt"]) for one in running}
        if not running:
            return None
        made: Future[Any] = Future()
        made.set_result(max(running, key=lambda one: attempts[id(one)]))
        return ModalSandbox(made, self.look_s)

    def _tags(self, slot: int) -> dict[str, str]:
        return {"composer-run": run_label(self.url, self.run_id), "composer-slot": str(slot)}

    def _app(self) -> Any:
        """Return the app, asked for once."""
        if not self._apps:
            self._apps.append(_client().App.lookup(APP, create_if_missing=True))
        return self._apps[0]


class ModalSandbox(JobElsewhere):
    """A sandbox that is being made, runs or has ended."""

    def __init__(self, made: "Future[Any]", look_s: float) -> None:
        super().__init__(look_s, _failures())
        self._made = made

    @property
    def id(self) -> str:
        """The service's name of it; empty while it is being made."""
        return str(self._made.result().object_id) if self._is_made() else ""

    def said(self) -> str:
        """Return the last sentence of its output, or why there is no sandbox."""
        if not self._is_made():
            return f"Modal made no sandbox: {self._why()}"
        try:
            sandbox = self._made.result()
            text = f"{sandbox.stdout.read()}\n{sandbox.stderr.read()}"
        except _failures() as error:
            return self.unread(error)
        return sentence(text.splitlines())

    def cancel(self) -> None:
        """Ask the service to terminate it, also if it is made only later; returns at once."""
        if self._code is None:
            self._made.add_done_callback(self._terminate)

    def _is_made(self) -> bool:
        return self._made.done() and self._made.exception() is None

    def _why(self) -> str:
        error = self._made.exception() if self._made.done() else None
        return f"{type(error).__name__}: {error}" if error else "it is still being made"

    def _look(self) -> int | None:
        if not self._made.done():
            return None
        error = self._made.exception()
        if error is not None:
            # Without room somebody may have some later; what is wrong now stays wrong.
            return 2 if isinstance(error, _client().exception.InvalidError) else LOST
        code: int | None = self._made.result().poll()
        return LOST if code == _TERMINATED else code

    def _terminate(self, made: "Future[Any]") -> None:
        if made.exception() is None:
            try:
                made.result().terminate()
            except _failures() as error:
                self.goes_on(error)


def _client() -> Any:
    """Return Modal's client.

    Raises:
        InputError: it is not installed.
    """
    try:
        import modal
        import modal.exception
    except ModuleNotFoundError:
        raise InputError(
            "diloco.place modal needs the package modal: pip install 'composer-pipeline[modal]'"
        ) from None
    return modal


def _failures() -> tuple[type[Exception], ...]:
    """Return what the client raises where the service refuses or cannot be reached."""
    return _client().exception.Error, OSError


def _refusals(what: str) -> AbstractContextManager[None]:
    reasons = {
        "AuthError": "there is no valid token (modal token new, or MODAL_TOKEN_ID and"
        " MODAL_TOKEN_SECRET)",
        "NotFoundError": "the workspace has no such Secret",
        "ConnectionError": "it cannot be reached",
    }
    return refusals("Modal", what, _failures(), lambda error: reasons.get(type(error).__name__, ""))
