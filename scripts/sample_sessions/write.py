"""Write the bundled sample sessions, or check that the committed files are up to date.

    python -m scripts.sample_sessions.write [--write]

Without the option the command prints what differs and exits 1 if anything does.
"""

import argparse
import json
import sys
from functools import cache
from pathlib import Path

import msgspec

from composer_pipeline.actions import Action
from composer_pipeline.testing import samples
from scripts.sample_sessions import billfold, birdlog, ladle, tidepage
from scripts.sample_sessions.authoring import Session

_MODULES = (billfold, tidepage, ladle, birdlog)


@cache
def sample_sessions() -> tuple[Session, ...]:
    """Return the sessions as their scripts build them."""
    out: list[Session] = []
    for module in _MODULES:
        for script in module.SCENARIOS:
            made = script()
            out.extend(made if isinstance(made, tuple) else (made,))
    return tuple(out)


def recorded() -> dict[str, Action]:
    """Return message id to the action that the agent took, for every state."""
    return {key: action for s in sample_sessions() for key, action in s.recorded.items()}


def render() -> dict[str, bytes]:
    """Return path below ``testing/sample_sessions`` to the bytes of the file."""
    files: dict[str, bytes] = {}
    answers: dict[str, Action] = {}
    for session in sample_sessions():
        files |= {f"sessions/projects/{name}": data for name, data in session.render().items()}
        answers |= session.answers
    plain = {key: msgspec.to_builtins(answers[key]) for key in sorted(answers)}
    files["answers.json"] = (json.dumps(plain, indent=1, ensure_ascii=False) + "\n").encode()
    return files


def stale_files(folder: Path = samples.FOLDER) -> list[str]:
    """Return the paths whose bytes differ from what the scripts write, sorted."""
    wanted = render()
    have = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_file()}
    changed = [n for n, data in wanted.items() if n not in have or have[n].read_bytes() != data]
    return sorted([*changed, *(have.keys() - wanted.keys())])


def write(folder: Path = samples.FOLDER) -> int:
    """Write every file and remove others below ``folder``; return the number of files."""
    wanted = render()
    for name in stale_files(folder):
        if name not in wanted:
            (folder / name).unlink()
    for name, data in wanted.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return len(wanted)


def main() -> int:
    """Run the command; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m scripts.sample_sessions.write")
    parser.add_argument("--write", action="store_true", help="write the committed files")
    if parser.parse_args().write:
        print(f"wrote {write()} files below {samples.FOLDER}")
        return 0
    stale = stale_files()
    print("\n".join(stale) or "up to date")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
