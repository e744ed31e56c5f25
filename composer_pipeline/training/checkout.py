"""Where the code lies that trains.

Belongs here: the folder that processes of their own are started in. Does not belong here:
what they run.
"""

from pathlib import Path


def repo_root() -> Path:
    """Return the folder that ``composer_pipeline`` lies in."""
    return Path(__file__).resolve().parents[2]
