"""Failures as the UI shows them: one sentence, with the stack trace below it."""

import errno
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

import dagster as dg

from composer_pipeline.errors import BudgetExhausted, ComposerError, InputError, StorageError
from composer_pipeline.lake.place import bucket_errors

_Function = TypeVar("_Function", bound=Callable[..., Any])
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def one_sentence(function: _Function) -> _Function:
    """Make an asset fail with the library's error message instead of the name of its step."""
    if inspect.isgeneratorfunction(function):

        @wraps(function)
        def generator(*args: Any, **kwargs: Any) -> Iterator[Any]:
            with _sentence():
                yield from function(*args, **kwargs)

        return cast(_Function, generator)

    @wraps(function)
    def plain(*args: Any, **kwargs: Any) -> Any:
        with _sentence():
            return function(*args, **kwargs)

    return cast(_Function, plain)


@contextmanager
def _sentence() -> Iterator[None]:
    try:
        yield
    except ComposerError as error:
        if _refused(error.__cause__):
            raise _no_access(error.__cause__) from error
        final = isinstance(error, (InputError, BudgetExhausted, StorageError))
        away = isinstance(error.__cause__, bucket_errors())
        raise dg.Failure(str(error), allow_retries=away or not final) from error
    except bucket_errors() as error:
        if _refused(error):
            raise _no_access(error) from error
        line = str(error).partition("\n")[0][:200]
        raise dg.Failure(f"the lake's bucket failed: {line}") from error
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            raise
        place = error.filename or "the lake"
        raise dg.Failure(
            f"{place} cannot be written: {error.strerror}", allow_retries=False
        ) from error


def _refused(error: BaseException | None) -> bool:
    """Return True if a bucket refused the credentials."""
    found = sys.modules.get("obstore.exceptions")
    kinds = (found.PermissionDeniedError, found.UnauthenticatedError) if found else ()
    return isinstance(error, kinds)


def _no_access(error: BaseException | None) -> dg.Failure:
    found = re.search(r"https?://[^/?\s]+/[^/?\s]+", str(error))
    place = f" {found[0]}" if found else ""
    return dg.Failure(
        f"the lake's bucket{place} refuses these credentials: check the key and its permissions",
        allow_retries=False,
    )


def sentence_of(instance: dg.DagsterInstance, run_id: str) -> str:
    """Return why a run failed: the first failed step's message, else the run's own."""
    for record in instance.get_records_for_run(
        run_id, of_type=dg.DagsterEventType.STEP_FAILURE, limit=1
    ).records:
        event = record.event_log_entry.dagster_event
        data = event.step_failure_data if event else None
        if data and data.user_failure_data and data.user_failure_data.description:
            return str(data.user_failure_data.description)
        if data and data.error:
            found = data.error.cause or data.error
            return found.message.strip().partition("\n")[0]
    for record in instance.get_records_for_run(
        run_id, of_type=dg.DagsterEventType.RUN_FAILURE, limit=1
    ).records:
        return record.event_log_entry.user_message or record.event_log_entry.message
    return "no reason is recorded"
