"""What an agent had before it at a state: its folder, its home, the files it knows.

Does not belong here: what two actions mean in it (``preferences.actions.levels``).
"""

from composer_pipeline.preferences.actions import KnownFiles, Place, Situation
from composer_pipeline.trace_states import TraceState


def situation_of(state: TraceState) -> Situation:
    """Return the place and the known files of a state.

    The home folder is taken from the working directory, which redaction keeps in shape.
    Files are rebuilt from the prefix when they are first asked for.
    """
    cwd = state.cwd or ""
    return Situation(Place(cwd, home_of(cwd)), KnownFiles(state.messages))


def home_of(cwd: str) -> str:
    """Return ``/home/NAME``, ``/Users/NAME`` or ``/root`` of a path, or an empty string."""
    parts = cwd.split("/")
    if len(parts) > 2 and parts[1] in ("home", "Users"):
        return "/".join(parts[:3])
    return "/root" if parts[:2] == ["", "root"] else ""
