"""The object store under the outer log: create-exclusive puts, verified reads, failures in words.

Belongs here: folders and buckets. Does not belong here: what the objects mean (``diloco.log``).
"""

from composer_pipeline.diloco.store.errors import (
    Failure,
    StoreFailed,
    failure_of,
    no_exclusive_creation,
    purpose,
)
from composer_pipeline.diloco.store.objects import Entry, ObjectStore
from composer_pipeline.diloco.store.pieces import Pieces

__all__ = [
    "Entry",
    "Failure",
    "ObjectStore",
    "Pieces",
    "StoreFailed",
    "failure_of",
    "no_exclusive_creation",
    "purpose",
]
