"""What a store's failure means, as one sentence: which object, why, and what helps.

Belongs here: an object's purpose by its key, the kinds of failures and their remedies. Does not
belong here: trying again (``store``). No torch, no network.

============  ====================  ===========================================================
failure       at first contact      later, when trying again has not helped
============  ====================  ===========================================================
full          ``StorageError``      ``StorageError``
others        ``InputError``        ``StoreFailed``: another start may find the store well again
============  ====================  ===========================================================
"""

import errno
import os
import re
from typing import NamedTuple

from composer_pipeline.errors import ComposerError, InputError, StorageError

#: What an object is for, by how its key begins.
_PURPOSES = (
    (r"spec\.json", "the run's spec"),
    (r"probe\.json", "the probe for exclusive creation"),
    (r"inputs\.json", "the list of what replicas need"),
    (r"inputs/", "what replicas need"),
    (r"slots", "the claim of a slot"),
    (r"clock", "the store's clock"),
    (r"members", "the sign of life of a replica"),
    (r"rounds/(\d+)/delta/", "a replica's change in round {}"),
    (r"rounds/(\d+)/contrib", "a contribution to round {}"),
    (r"rounds/(\d+)/commit", "the commit of round {}"),
    (r"state/(\d+)-", "the state after round {}"),
    (r"events", "the events of a replica"),
    (r"channels", "the state of a replica's channels"),
)
#: Kinds of failures: what their text or type says, the reason, and the remedy.
_KINDS = (
    (
        r"quotaexceeded|storagefull|insufficientstorage|\b507\b",
        "the store is full",
        "free some room and start again",
    ),
    (
        r"expiredtoken|tokenexpired|requestexpired|token.{0,20}expired|expired.{0,20}token",
        "the credentials have expired",
        "renew them in the environment and start again",
    ),
    (
        r"nosuchbucket|bucketnotfound|containernotfound",
        "there is no such bucket",
        "make it, or name another as diloco.log",
    ),
    (
        r"unauthenticated|invalidaccesskeyid|signaturedoesnotmatch|\b401\b",
        "the credentials are not accepted",
        "set those of the store in the environment (for S3: AWS_ACCESS_KEY_ID,"
        " AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL)",
    ),
    (
        r"permission|accessdenied|forbidden|\b403\b|\(os error 13\)",
        "it is forbidden",
        "let these credentials list, read and write below it",
    ),
)


class StoreFailed(ComposerError):
    """A store could not be used for longer than a run waits for it."""


class Failure(NamedTuple):
    """What was tried: ``verb`` is ``written``; ``first`` whether nothing has worked yet."""

    url: str
    key: str
    verb: str
    first: bool


def purpose(key: str) -> str:
    """Return what an object is for, and its key."""
    for pattern, text in _PURPOSES:
        if found := re.match(pattern, key):
            return f"{text.format(*found.groups())} ({key})"
    return key or "its objects"


def no_exclusive_creation(url: str) -> InputError:
    """Return the refusal of a store on which two commits of one round could stand."""
    return InputError(
        f"the store {url} has no exclusive creation (If-None-Match), which DiLoCo's outer log"
        " needs; use a store that has it, such as S3, Google Cloud Storage, Azure or a folder"
    )


def failure_of(error: Exception, tried: Failure) -> ComposerError:
    """Return the error to raise for what a library raised."""
    what = f"the outer log {tried.url}: {purpose(tried.key)} cannot be {tried.verb}"
    if full := _disk_is_full(error):
        return StorageError(f"{what}, it is not writable: {full}; free some room and start again")
    said = f"{type(error).__name__} {error}".lower()
    for pattern, reason, remedy in _KINDS:
        if re.search(pattern, said):
            kind = StorageError if reason.endswith("full") else _kind(tried)
            return kind(f"{what}: {reason}; {remedy}")
    if isinstance(error, FileNotFoundError):
        return _kind(tried)(f"{what}: it is not there; look whether the place was emptied")
    reason = str(error).strip().partition("\n")[0][:200] or type(error).__name__
    return _kind(tried)(
        f"{what}: the store cannot be reached ({reason}); look at the network and the endpoint"
    )


def _kind(tried: Failure) -> type[ComposerError]:
    return InputError if tried.first else StoreFailed


def _disk_is_full(error: Exception) -> str:
    """Return the system's words for a full or read-only disk, else nothing."""
    number = error.errno if isinstance(error, OSError) else None
    hidden = re.search(r"\(os error (\d+)\)", str(error))
    number = int(hidden[1]) if number is None and hidden else number
    return os.strerror(number) if number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS) else ""
