"""Peers: what a benchmark measures beside ours, each set in an environment of its own."""

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

BUILD = Path(__file__).resolve().parent.parent / "build" / "peers"


def environment(versions: Mapping[str, str], base: str = sys.executable) -> Path:
    """Return the interpreter of an environment that holds packages at these versions.

    It is made where it is missing. One that was not made to its end is made again.

    Args:
        versions: Version of each package, by its name.
        base: The Python that the environment is made of.
    """
    folder = BUILD / "-".join(f"{name}-{version}" for name, version in sorted(versions.items()))
    python, whole = folder / "bin" / "python", folder / ".whole"
    if not whole.exists():
        shutil.rmtree(folder, ignore_errors=True)
        wanted = [f"{name}=={version}" for name, version in sorted(versions.items())]
        print(f"installing {', '.join(wanted)} below build/", file=sys.stderr)
        quiet = ["--quiet", "--disable-pip-version-check"]
        for command in (
            [base, "-m", "venv", str(folder)],
            [str(python), "-m", "pip", "install", *quiet, *wanted],
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
                said = [line for line in lines if not line.startswith("WARNING")][-1:]
                raise SystemExit(f"cannot install {', '.join(wanted)}: {' '.join(said)}")
        whole.touch()
    return python


def importable(versions: Mapping[str, str]) -> None:
    """Make pure-Python peers importable in this process, behind everything that is installed."""
    folder = environment(versions).parent.parent
    sys.path.extend(str(path) for path in folder.glob("lib/python*/site-packages"))
