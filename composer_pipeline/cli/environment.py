"""The command environment: recorded sessions, served for on-policy training."""

import importlib.util
import socket

from composer_pipeline.cli.common import LakeOption, app, at_least, err, open_lake
from composer_pipeline.errors import InputError

_LAST_PORT = 65535


@app.command
def environment(
    *,
    split: str = "",
    max_steps: int | None = None,
    student: str = "",
    host: str = "127.0.0.1",
    port: int = 8000,
    lake: LakeOption = "",
) -> None:
    """Serve recorded sessions as an OpenEnv environment, until interrupted.

    An episode goes on for as long as each tool call is the recorded one.

    Args:
        split: only sessions of this split; without it, all but those of validation.
        max_steps: responses of an episode at most.
        student: model that is trained, as sessions name it: what it recorded is no target.
        host: address to listen at; another than 127.0.0.1 shows the lake to a network.
        port: to listen at; 0 is any free one.
    """
    store = open_lake(lake)
    if max_steps is not None:
        at_least(1, max_steps, "--max-steps")
    if at_least(0, port, "--port") > _LAST_PORT:
        raise InputError(f"--port must be at most {_LAST_PORT}, got {port}")
    if importlib.util.find_spec("openenv") is None:
        raise InputError("openenv is not installed: pip install 'composer-pipeline[environment]'")
    from composer_pipeline.environment import Traces

    traces = Traces(store, split=split, max_turns=max_steps, student=student)
    traces.drawn(0)  # a lake of which nothing can be replayed says so now
    with _listener(host, port) as listener:
        from composer_pipeline.environment.server import serve

        at = f"http://{host}:{listener.getsockname()[1]}"
        serve(
            traces,
            listener,
            lambda: err.print(f"{len(traces)} states at {at}", markup=False, highlight=False),
        )


def _listener(host: str, port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise InputError(
            f"cannot listen at {host}:{port} ({error.strerror}); choose another with --port"
        ) from error
    listener.listen(128)
    return listener
