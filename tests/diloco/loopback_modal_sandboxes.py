"""A loopback Modal for sandboxes that the real client talks to and that really runs them.

A command's ``python`` is this interpreter, in a folder that stands for the image's. A sandbox sees
the entries of its Secrets, and of this process's variables only what a machine always has. Not
verified on the service: how it words what it refuses, and that a signal is 128 plus its number.
"""

import asyncio
import base64
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

#: Variables of this process that every sandbox has.
_MACHINE = ("PATH", "HOME", "LANG", "OMP_NUM_THREADS", "HF_HUB_OFFLINE", "PYTHONPATH")


@dataclass
class RunningSandbox:
    """A sandbox: what was asked for, by the service's names, and its process."""

    definition: Any
    tags: dict[str, str]
    process: subprocess.Popen[bytes]
    created: float = field(default_factory=time.time)
    terminated: bool = False


class LoopbackModal:
    """The server; use it as a context, which ends every sandbox.

    Args:
        token: what the client must send as the token's secret.
        cwd: working folder of the sandboxes.
        folder: for their output.
        secrets: entries of each Secret, by its name.
    """

    def __init__(
        self, *, token: str, cwd: Path, folder: Path, secrets: dict[str, dict[str, str]]
    ) -> None:
        self.token, self.cwd, self.folder, self.secrets = token, cwd, folder, secrets
        #: Everything that was ever made, by id.
        self.sandboxes: dict[str, RunningSandbox] = {}
        #: Images by id, as their first line.
        self.images: dict[str, str] = {}
        #: Refuse to make sandboxes, as where there is no room: the name of a gRPC status.
        self.full = ""
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._server.close)
        self._thread.join()
        for one in self.sandboxes.values():
            self.end(one, signal.SIGKILL)
            one.process.wait()

    def start(self, definition: Any, tags: dict[str, str]) -> str:
        """Start a sandbox's process and return its id."""
        name = f"sb-{len(self.sandboxes):022d}"  # the shape of those that have a GPU
        env = {one: os.environ[one] for one in _MACHINE if one in os.environ}
        for secret in definition.secret_ids:
            env |= self.secrets[secret.removeprefix("st-")]
        command = [sys.executable if a == "python" else a for a in definition.entrypoint_args]
        with self.log(name).open("wb") as output:
            process = subprocess.Popen(
                command, cwd=self.cwd, env=env, stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self.sandboxes[name] = RunningSandbox(definition, tags, process)
        return name

    def end(self, sandbox: RunningSandbox, number: int) -> None:
        """Send a sandbox's processes a signal."""
        if sandbox.process.poll() is None:
            os.killpg(sandbox.process.pid, number)

    def log(self, name: str) -> Path:
        """Return the file of a sandbox's output."""
        return self.folder / f"{name}.log"

    def _serve(self) -> None:
        from grpclib.server import Server

        asyncio.set_event_loop(self._loop)
        self._server = Server([_service(self)])
        self._loop.run_until_complete(self._server.start(sock=self._socket))
        self._ready.set()
        self._loop.run_until_complete(self._server.wait_closed())
        self._loop.close()


class _Answers:
    """What the service answers, by the names of its calls in lower case."""

    def __init__(self, modal: LoopbackModal) -> None:
        from modal_proto import api_pb2

        self._modal, self._pb = modal, api_pb2

    def client_hello(self, _: Any) -> Any:
        return self._pb.ClientHelloResponse()

    def auth_token_get(self, _: Any) -> Any:
        # The client reads when it expires, from the middle part.
        until = base64.b64encode(json.dumps({"exp": int(time.time()) + 3600}).encode()).decode()
        return self._pb.AuthTokenGetResponse(token=f"x.{until}.x")

    def app_get_or_create(self, _: Any) -> Any:
        return self._pb.AppGetOrCreateResponse(app_id="ap-1")

    def environment_get_or_create(self, _: Any) -> Any:
        settings = self._pb.EnvironmentSettings(image_builder_version="2025.06")
        meta = self._pb.EnvironmentMetadata(name="main", settings=settings)
        return self._pb.EnvironmentGetOrCreateResponse(environment_id="en-1", metadata=meta)

    def image_get_or_create(self, request: Any) -> Any:
        name = f"im-{len(self._modal.images)}"
        self._modal.images[name] = request.image.dockerfile_commands[0]
        done = self._pb.GenericResult(status=self._pb.GenericResult.GENERIC_STATUS_SUCCESS)
        return self._pb.ImageGetOrCreateResponse(image_id=name, result=done)

    def secret_get_or_create(self, request: Any) -> Any:
        if request.deployment_name not in self._modal.secrets:
            raise _refused("NOT_FOUND", "no such secret")
        return self._pb.SecretGetOrCreateResponse(secret_id=f"st-{request.deployment_name}")

    def sandbox_create(self, request: Any) -> Any:
        if self._modal.full:
            raise _refused(self._modal.full, "not now")
        tags = {tag.tag_name: tag.tag_value for tag in request.tags}
        name = self._modal.start(request.definition, tags)
        return self._pb.SandboxCreateResponse(sandbox_id=name)

    def sandbox_get_task_id(self, request: Any) -> Any:
        self._sandbox(request)
        return self._pb.SandboxGetTaskIdResponse(task_id="ta-1")

    def sandbox_wait(self, request: Any) -> Any:
        one, status = self._sandbox(request), self._pb.GenericResult
        code, result = one.process.poll(), status()
        if code is not None and one.terminated:
            result = status(status=status.GENERIC_STATUS_TERMINATED)
        elif code is not None:
            word = status.GENERIC_STATUS_FAILURE if code else status.GENERIC_STATUS_SUCCESS
            result = status(status=word, exitcode=code if code >= 0 else 128 - code)
        return self._pb.SandboxWaitResponse(result=result)

    def sandbox_list_v2(self, request: Any) -> Any:
        wanted = {tag.tag_name: tag.tag_value for tag in request.tags}
        before = request.before_timestamp or float("inf")
        found = [
            self._pb.SandboxInfo(id=name, created_at=one.created)
            for name, one in self._modal.sandboxes.items()
            if wanted.items() <= one.tags.items() and one.process.poll() is None
            and one.created < before
        ]  # fmt: skip
        newest_first = sorted(found, key=lambda info: -info.created_at)
        return self._pb.SandboxListResponse(sandboxes=newest_first)

    def sandbox_tags_get(self, request: Any) -> Any:
        found = self._sandbox(request).tags.items()
        tags = [self._pb.SandboxTag(tag_name=name, tag_value=value) for name, value in found]
        return self._pb.SandboxTagsGetResponse(tags=tags)

    def sandbox_terminate(self, request: Any) -> Any:
        one = self._sandbox(request)
        one.terminated = True
        self._modal.end(one, signal.SIGTERM)
        return self._pb.SandboxTerminateResponse()

    def sandbox_get_logs(self, request: Any) -> Any:
        text = ""
        if request.file_descriptor == self._pb.FILE_DESCRIPTOR_STDOUT:
            text = self._modal.log(request.sandbox_id).read_text(errors="replace")
        items = [self._pb.TaskLogs(data=text, file_descriptor=request.file_descriptor)]
        return self._pb.TaskLogsBatch(items=items, entry_id="1-0", eof=True)

    def _sandbox(self, request: Any) -> RunningSandbox:
        if request.sandbox_id not in self._modal.sandboxes:
            raise _refused("NOT_FOUND", "no such sandbox")
        return self._modal.sandboxes[request.sandbox_id]


def _refused(status: str, why: str) -> Exception:
    from grpclib import GRPCError, Status

    error: Exception = GRPCError(Status[status], why)
    return error


def _service(modal: LoopbackModal) -> Any:
    """Return the service: the calls of :class:`_Answers`, and a refusal of all others."""
    from modal_proto import api_grpc

    answers = _Answers(modal)

    def method(name: str) -> Any:
        async def call(self: Any, stream: Any) -> None:
            request = await stream.recv_message()
            if stream.metadata.get("x-modal-token-secret") != modal.token:
                raise _refused("UNAUTHENTICATED", "Token validation failed")
            answer = getattr(answers, re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower(), None)
            if answer is None:
                raise _refused("UNIMPLEMENTED", name)
            await stream.send_message(answer(request))

        return call

    base = api_grpc.ModalClientBase
    calls = {name: method(name) for name in base.__abstractmethods__}
    return type("Service", (base,), calls)()
