"""What an error of the Hub's client means: one sentence, and whether it may pass.

Belongs here: reading the client's errors. Does not belong here: waiting (``patience``).
"""

import re
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass

#: Statuses of a Hub that is busy, limits us, or is ill for a moment.
PASSING = (408, 429, 500, 502, 503, 504)
_REASONS = {
    401: "the token is not accepted",
    403: "the token may not write there",
    404: "it does not exist, or the token may not see it",
    409: "others kept committing",
    412: "others kept committing",
}


@dataclass(frozen=True)
class Trouble:
    """What happened.

    Attributes:
        said: why, as the end of a sentence.
        passing: it may be gone in a moment.
        wait_s: seconds that the Hub asks to wait, where it does.
        status: its answer; 0 where there was none.
    """

    said: str
    passing: bool = False
    wait_s: float | None = None
    status: int = 0


class AskedToWait(Exception):
    """An answer that the client would sleep on by itself; raised where it is received."""

    def __init__(self, status: int, wait_s: float | None) -> None:
        super().__init__(f"the Hub answered {status}")
        self.status, self.wait_s = status, wait_s


def trouble_of(error: BaseException) -> Trouble | None:
    """Return what an error of the client means, or ``None`` for one that is not the Hub's."""
    chain = list(_chain(error))
    # What the Hub said comes before what the connection did, and that before its wrappings.
    readers = (_answered, _unreachable, _lost)
    found = (read(one) for read in readers for one in chain)
    return next((trouble for trouble in found if trouble), None)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _answered(error: BaseException) -> Trouble | None:
    from huggingface_hub import errors

    if isinstance(error, AskedToWait):
        said = f"the Hub answered {error.status}"
        return Trouble(said, passing=True, wait_s=error.wait_s, status=error.status)
    if not isinstance(error, errors.HfHubHTTPError) or error.response is None:
        return None
    status = int(error.response.status_code)
    said = _REASONS.get(status, f"the Hub answered {status}")
    if isinstance(error, errors.GatedRepoError):
        said = "it is gated, and the token's account has no access"
    elif isinstance(error, errors.DisabledRepoError):
        said = "the Hub has disabled it"
    elif status == 403 and "create_pr" in str(error):
        said = "the token may only open pull requests there"
    return Trouble(said, passing=status in PASSING or status in (409, 412), status=status)


def _unreachable(error: BaseException) -> Trouble | None:
    if isinstance(error, ssl.SSLCertVerificationError):
        return Trouble("the certificate of the Hub is not accepted")
    if isinstance(error, socket.gaierror):
        return Trouble("the Hub's name is not known, or there is no network")
    return None


def client_errors() -> tuple[type[Exception], ...]:
    """Return what the client raises, besides errors of the system and of its own pool."""
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

    return AskedToWait, HTTPError


def _lost(error: BaseException) -> Trouble | None:
    if isinstance(error, client_errors()):
        return Trouble("the connection to the Hub was lost", passing=True)
    return _of_xet(str(error)) if isinstance(error, ConnectionError) else None


def _of_xet(text: str) -> Trouble:
    """``hf_xet`` has tried again by itself for two minutes, and names the status in words."""
    found = re.search(r"\((\d{3}) ", text)
    status = int(found[1]) if found else 0
    said = _REASONS.get(status, f"the Hub answered {status}")
    return Trouble(said if status else "the upload to the Hub was lost", status=status)
