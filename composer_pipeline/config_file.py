"""Reading a YAML file that a user wrote: one sentence for each way it can be wrong.

Belongs here: the steps from a path to a mapping. Does not belong here: the fields, which
the pydantic model of each kind of file checks.
"""

from pathlib import Path
from typing import Any

import yaml

from composer_pipeline.errors import InputError


def read_mapping(path: Path, what: str, *, empty: bool = False) -> dict[str, Any]:
    """Read a YAML file whose top level is a mapping.

    Args:
        path: the file.
        what: what the file is called in errors, for example ``teacher file``.
        empty: whether an empty file is an empty mapping.

    Raises:
        InputError: the file cannot be read, is not UTF-8 or not YAML, or is no mapping.
    """
    try:
        data: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{what} {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{what} {path} is not YAML: {' '.join(str(error).split())}") from error
    if data is None and empty:
        return {}
    if not isinstance(data, dict):
        raise InputError(f"{what} {path}: must be a mapping of fields")
    return data
