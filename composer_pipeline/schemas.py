"""Checking arguments by a recorded JSON schema.

Belongs here: from a schema to a validator, safely: schemas are others' data. Does not belong here:
what is said of an argument that does not fit (``chat.arguments``, ``training.rewards``).
"""

from collections.abc import Mapping
from typing import Any

import jsonschema
import referencing


def validator_of(schema: Any) -> Any:
    """Return a ``jsonschema`` validator, or ``None`` for what is no schema and checks nothing.

    It raises ``referencing.exceptions.Unresolvable`` where the schema points elsewhere: a reference
    is never fetched from anywhere.
    """
    if not isinstance(schema, Mapping):
        return None
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError:
        return None
    return kind(schema, registry=referencing.Registry())
