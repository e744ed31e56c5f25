"""The bundled sample sessions: where they lie, and what careful teachers would do.

Belongs here: the folder of committed files, the command that writes it again, and the
better actions. Does not belong here: the texts (``billfold``, ``birdlog``, ``ladle``, ``tidepage``)
and the shape of records (``testing.sample_sessions.authoring``).

    python -m composer_pipeline.testing.sample_sessions.bundled --write

writes the files; without the option the command says whether they are up to date.
Actions are given as a model would write them, with the fictional home folders of the
sessions; the lake holds them redacted.
"""

import argparse
import sys
from functools import cache
from pathlib import Path

from composer_pipeline.actions import Action
from composer_pipeline.testing.sample_sessions import billfold, birdlog, ladle, tidepage
from composer_pipeline.testing.sample_sessions.authoring import Session

_MODULES = (billfold, tidepage, ladle, birdlog)


def sample_sessions_dir() -> Path:
    """Return the ``projects`` folder of the bundled sessions, as in ``~/.claude``."""
    return Path(__file__).parent / "sessions" / "projects"


@cache
def sample_sessions() -> tuple[Session, ...]:
    """Return the sessions as their scripts build them."""
    out: list[Session] = []
    for module in _MODULES:
        for script in module.SCENARIOS:
            made = script()
            out.extend(made if isinstance(made, tuple) else (made,))
    return tuple(out)


def answers() -> dict[str, Action]:
    """Return message id to the better action, for the states whose action was poor."""
    return {key: action for s in sample_sessions() for key, action in s.answers.items()}


def recorded() -> dict[str, Action]:
    """Return message id to the action that the agent took, for every state."""
    return {key: action for s in sample_sessions() for key, action in s.recorded.items()}


def render() -> dict[str, bytes]:
    """Return path below :func:`sample_sessions_dir` to the bytes of the file."""
    files: dict[str, bytes] = {}
    for session in sample_sessions():
        files.update(session.render())
    return files


def stale_files(folder: Path | None = None) -> list[str]:
    """Return the paths whose bytes differ from what the scripts write, sorted."""
    folder = folder or sample_sessions_dir()
    wanted = render()
    have = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    changed = [
        name
        for name, data in wanted.items()
        if name not in have or (folder / name).read_bytes() != data
    ]
    return sorted([*changed, *(have - set(wanted))])


def write(folder: Path | None = None) -> int:
    """Write every file and remove others below ``folder``; return the number of files."""
    folder = folder or sample_sessions_dir()
    wanted = render()
    for name in stale_files(folder):
        if name not in wanted:
            (folder / name).unlink()
    for name, data in wanted.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return len(wanted)


def main() -> int:
    """Run the command; exit 1 when the committed files are out of date."""
    parser = argparse.ArgumentParser(
        prog="python -m composer_pipeline.testing.sample_sessions.bundled"
    )
    parser.add_argument("--write", action="store_true", help="write the committed files")
    if parser.parse_args().write:
        print(f"wrote {write()} files below {sample_sessions_dir()}")
        return 0
    stale = stale_files()
    print("\n".join(stale) or "up to date")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
