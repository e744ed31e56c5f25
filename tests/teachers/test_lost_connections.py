"""Connections that break: before the bytes left nothing is owed, after that perhaps all of it."""

import aiohttp
import pytest

from composer_pipeline.teachers.outcome import no_response


@pytest.mark.parametrize(
    "error",
    [
        aiohttp.ClientOSError(104, "Connection reset by peer"),
        aiohttp.ServerDisconnectedError(),
        aiohttp.ClientPayloadError("ended early"),
        aiohttp.SocketTimeoutError(),
        TimeoutError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_connection_that_is_lost_after_sending_may_have_been_billed(error: Exception) -> None:
    outcome = no_response(error, generation="gen-1", status=200)
    assert (outcome.kind, outcome.retryable, outcome.generation_id) == ("unknown", True, "gen-1")


def test_a_connection_that_never_stood_owes_nothing() -> None:
    outcome = no_response(aiohttp.ConnectionTimeoutError())
    assert (outcome.kind, outcome.retryable, outcome.unreachable) == ("unbilled", True, True)
