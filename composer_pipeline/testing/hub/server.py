"""When the stand-in begins and ends.

Does not belong here: what it knows (``state``), and what it answers (``endpoints``).
"""

import shutil
import tempfile
import threading
from http.server import ThreadingHTTPServer
from pathlib import Path

from composer_pipeline.testing.hub.endpoints import ROUTES
from composer_pipeline.testing.hub.handler import Handler
from composer_pipeline.testing.hub.state import HubState
from composer_pipeline.testing.hub.xet import XetFolder


class LoopbackHub(HubState):
    """The server; a context manager. What can be set on it is described in ``HubState``.

    Args:
        token: a token that may do everything.
        port: 0 takes a free one.
        xet: folder into which ``hf_xet`` writes; a temporary one by default.
    """

    def __init__(
        self,
        token: str = "hf_loopback",  # noqa: S107
        *,
        port: int = 0,
        xet: Path | None = None,
    ) -> None:
        self._own = None if xet else Path(tempfile.mkdtemp(prefix="hub-xet-"))
        super().__init__(token, XetFolder(xet or self._own or Path()))
        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.hub = self  # type: ignore[attr-defined]
        self._server.routes = ROUTES  # type: ignore[attr-defined]
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> "LoopbackHub":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        if self._own:
            shutil.rmtree(self._own, ignore_errors=True)
